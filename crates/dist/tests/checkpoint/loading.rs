//! Loading with any number of servers, and what is refused.

use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::{Error, LoadOptions, Resume, SaveOptions};
use openfleet_table::checkpoint::{Memory, Storage};
use openfleet_table::{Accessor, Error as TableError, Momentum, Optimizer};

use crate::harness::{Tables, cluster, content, dense, servers, sparse, tables, train};

fn saved(server_count: usize) -> (Memory, Tables) {
    let (memory, tables) = (Memory::new(), tables());
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(server_count, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..6);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    (memory, tables)
}

#[test]
fn rows_and_state_are_the_same_to_the_bit_on_any_number_of_servers() {
    let (_, reference) = content(&saved(1).0).unwrap();
    assert!(reference.rows.len() > 100);
    for from in 1..=5 {
        let (memory, tables) = saved(from);
        let (manifest, before) = content(&memory).unwrap();
        assert_eq!(manifest.servers as usize, from);
        assert!(before == reference, "training in sync does not depend on the number of servers");
        for to in 1..=5 {
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            let states = servers(to, &storage);
            states.iter().for_each(|state| drop(state.resume_from("anywhere", Resume::Run).unwrap()));
            let worker = cluster(&states, 0, 1, Mode::Sync);
            worker.communicator(&tables.0, &tables.1).unwrap();
            worker.save("anywhere", &SaveOptions::default()).unwrap();
            let (manifest, after) = content(&memory).unwrap();
            assert_eq!(manifest.servers as usize, to);
            assert!(after == before, "{from} servers to {to}");
        }
    }
}

#[test]
fn a_job_that_resumes_from_a_checkpoint_ends_like_one_that_never_stopped() {
    let (memory, tables) = saved(2);
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(3, &storage);
    states.iter().for_each(|state| drop(state.resume_from("anywhere", Resume::Run).unwrap()));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    assert_eq!(worker.progress().unwrap(), (1, vec![6]));
    train(&worker, &tables, 0..6);
    train(&worker, &tables, 6..12);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    let other = Memory::new();
    let storage: Arc<dyn Storage> = Arc::new(other.clone());
    let states = servers(2, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..6);
    train(&worker, &tables, 6..12);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    assert!(content(&memory).unwrap().1 == content(&other).unwrap().1);
}

/// Yesterday's model is trained on today's data: another run takes the values and reads its data from the start.
#[test]
fn another_run_takes_the_values_and_trains_all_of_its_own_data() {
    let (memory, tables) = saved(2);
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(2, &storage);
    states.iter().for_each(|state| drop(state.resume_from("anywhere", Resume::Values).unwrap()));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    assert_eq!(worker.progress().unwrap(), (0, vec![0]));
    train(&worker, &tables, 0..6);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    let (manifest, content) = content(&memory).unwrap();
    assert_eq!(content.work.positions(), [(0, 6)].into(), "the steps of today");
    assert_eq!(manifest.step, 12, "the tables are those of both days");
}

#[test]
fn a_chain_of_deltas_equals_one_full_save_whichever_servers_wrote_it() {
    let delta = SaveOptions { delta: true, ..SaveOptions::default() };
    let (memory, tables) = saved(2);
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let (mut step, mut script) = (6, std::iter::once(0..6).collect::<Vec<_>>());
    for (number, server_count) in [(1, 3), (2, 1), (3, 2)] {
        let states = servers(server_count, &storage);
        states.iter().for_each(|state| drop(state.resume_from("anywhere", Resume::Run).unwrap()));
        let worker = cluster(&states, 0, 1, Mode::Sync);
        script.iter().for_each(|steps| train(&worker, &tables, steps.clone()));
        train(&worker, &tables, step..step + 2);
        let first = worker.save("anywhere", &delta).unwrap();
        train(&worker, &tables, step + 2..step + 3);
        let second = worker.save("anywhere", &delta).unwrap();
        script.extend([step..step + 2, step + 2..step + 3]);
        step += 3;
        assert_eq!((first.layers.len(), second.layers.len()), (2 * number - 1, 2 * number));
        // Each step touches at most 40 keys of each table.
        let saved = second.sparse.iter().flat_map(|table| &table.parts).map(|part| part.rows);
        assert!((1..=80).contains(&saved.sum::<u64>()));
    }
    let other = Memory::new();
    let elsewhere: Arc<dyn Storage> = Arc::new(other.clone());
    let states = servers(2, &elsewhere);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    script.iter().for_each(|steps| train(&worker, &tables, steps.clone()));
    // If there is no checkpoint, everything is written.
    assert_eq!(worker.save("anywhere", &delta).unwrap().layers.len(), 0);
    assert!(content(&memory).unwrap().1 == content(&other).unwrap().1);
    // Servers that do not know a save cannot write a delta since it.
    let strangers = servers(1, &storage);
    let worker = cluster(&strangers, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..1);
    let before = memory.files();
    let error = worker.save("anywhere", &delta).unwrap_err();
    assert!(openfleet_core::error::report(&error).contains("no change history since save"), "{error:?}");
    assert!(memory.files() == before, "nothing was left");
}

#[test]
fn a_mismatch_is_named_and_with_partial_skipped() {
    let (memory, right) = saved(2);
    let load = |tables: &Tables, partial: bool| {
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        let states = servers(2, &storage);
        let worker = cluster(&states, 0, 1, Mode::Sync);
        worker.load("anywhere", LoadOptions { partial, ..LoadOptions::default() }).unwrap();
        worker.communicator(&tables.0, &tables.1).map(|_| states)
    };
    let change = |change: fn(&mut Tables)| {
        let mut tables = right.clone();
        change(&mut tables);
        tables
    };
    let momentum = |tables: &mut Tables| tables.0[0].1.optimizer = Optimizer::Momentum(Momentum::default());
    type Case = (fn(&mut Tables), TableError);
    let cases: [Case; 6] = [
        (|t| t.0[0].0 = "new".into(), TableError::NotSaved { kind: "sparse table", name: "new".into() }),
        (|t| drop(t.0.pop()), TableError::NotWanted { kind: "sparse table", name: "ctr".into() }),
        (|t| drop(t.1.pop()), TableError::NotWanted { kind: "parameter", name: "fc.b".into() }),
        (
            |t| t.0[0].1 = sparse(4, t.0[0].1.optimizer, Accessor::Plain),
            TableError::SavedShape {
                name: "emb/wide".into(),
                expected: "plain rows of 4 weights".into(),
                got: "plain rows of 3 weights".into(),
            },
        ),
        (
            |t| (t.1[1].1, t.1[1].2) = (dense(&[5], t.1[1].1.optimizer), vec![0.0; 5]),
            TableError::SavedShape { name: "fc.b".into(), expected: "[5]".into(), got: "[4]".into() },
        ),
        (momentum, TableError::SavedOptimizer { name: "emb/wide".into(), expected: "momentum", got: "adam" }),
    ];
    for (mistake, expected) in cases {
        let tables = change(mistake);
        match load(&tables, false).map(drop) {
            Err(Error::Checkpoint { source, .. }) => assert_eq!(source, expected),
            other => panic!("{expected:?}: {other:?}"),
        }
        load(&tables, true).unwrap();
    }
    // With another optimizer, weights are loaded and its state is new.
    let (rows, mut seen) = (content(&memory).unwrap().1.rows, 0);
    for state in load(&change(momentum), true).unwrap() {
        state
            .each_row(0, |key, weights, state| {
                let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
                assert_eq!((rows[&("emb/wide".to_owned(), key)].1.clone(), state), (bits, &[0.0; 3][..]));
                seen += 1;
            })
            .unwrap();
    }
    assert!(seen > 50);
}

#[test]
fn a_checkpoint_is_not_loaded_under_those_who_train() {
    let (memory, tables) = saved(1);
    let storage: Arc<dyn Storage> = Arc::new(memory);
    let states = servers(1, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    let communicator = worker.communicator(&tables.0, &tables.1).unwrap();
    communicator.begin(0).unwrap();
    let load = || worker.load("anywhere", LoadOptions::default());
    assert!(matches!(load(), Err(Error::LoadWhileTraining)));
    communicator.finish(0).unwrap();
    load().unwrap();
    assert_eq!(states[0].status().positions, [(0, 0)], "what has been applied in this job stays as it is");
}

#[test]
fn a_directory_without_a_manifest_is_not_a_checkpoint() {
    let storage: Arc<dyn Storage> = Arc::new(Memory::new());
    let error = servers(1, &storage)[0].resume_from("nowhere", Resume::Values).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { source: TableError::NotACheckpoint { .. }, .. }));
    let real = openfleet_dist::State::new();
    assert!(matches!(real.resume_from("hdfs://there/x", Resume::Values), Err(Error::NoSuchStorage { .. })));
}
