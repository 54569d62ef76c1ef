//! Running programs: batch by batch and over datasets, on one thread and several, and their errors.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use openfleet_core::error::report;
use openfleet_core::{Field, FieldKind, Key, Schema};
use openfleet_engine::dataset::{self, Dataset, QueueDataset};
use openfleet_engine::op::{Activation, BatchNormOptions, EmbeddingOptions};
use openfleet_engine::{
    BatchView, DType, Error, Executor, Feed, Minimize, Net, Observation, ParamAttr, RunOptions, Scope, Var,
};
use openfleet_table::{Adam, Initializer, Optimizer, Sgd};
use tempfile::TempDir;

use crate::{Numbers, bits, dense, file, loaded, multislot, row, started};

/// A click model with everything that a step can have: shared embeddings, dense layers, dropout, AUC, Adam.
struct Clicks {
    net: Net,
    loss: Var,
    probability: Var,
}

fn clicks() -> Clicks {
    let mut net = Net::with_seed(4);
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let dense = net.data("dense", &[-1, 2], DType::F32).unwrap();
    let mut parts = vec![dense];
    for name in ["a", "b"] {
        let slot = net.slot(name).unwrap();
        let options = EmbeddingOptions { table: ParamAttr::named("rows"), ..EmbeddingOptions::default() };
        parts.push(net.embedding(slot, 3, &options).unwrap());
    }
    let x = net.concat(&parts, 1).unwrap();
    let hidden = net.fc(x, 6, Activation::Relu).unwrap();
    let hidden = net.dropout(hidden, 0.3).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let probability = net.sigmoid(logit).unwrap();
    net.auc(probability, label).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 0.05).minimize(&mut net.main, loss).unwrap();
    Clicks { net, loss, probability }
}

fn clicks_schema() -> Schema {
    Schema::new(vec![
        Field::new("label", FieldKind::FixedIds { length: 1 }),
        Field::new("dense", FieldKind::Floats { dim: 2 }),
        Field::new("a", FieldKind::Ids),
        Field::new("b", FieldKind::Ids),
    ])
    .unwrap()
}

struct Click {
    label: i64,
    dense: [f32; 2],
    a: Vec<Key>,
    b: Vec<Key>,
}

fn click_rows(seed: u64, count: usize) -> Vec<Click> {
    let mut numbers = Numbers(seed);
    (0..count)
        .map(|_| {
            let a: Vec<Key> = (0..1 + numbers.below(3)).map(|_| numbers.below(20)).collect();
            let b = (0..numbers.below(3)).map(|_| numbers.below(20)).collect();
            // Multiples of a quarter are exact in text.
            let dense = [0, 1].map(|_| numbers.below(8) as f32 / 4.0);
            Click { label: i64::from(a[0] % 2 == 1), dense, a, b }
        })
        .collect()
}

fn click_text(rows: &[Click]) -> String {
    let mut text = String::new();
    for row in rows {
        write!(text, "1 {} 2 {} {}", row.label, row.dense[0], row.dense[1]).unwrap();
        for ids in [&row.a, &row.b] {
            write!(text, " {}", ids.len()).unwrap();
            ids.iter().for_each(|id| write!(text, " {id}").unwrap());
        }
        text.push('\n');
    }
    text
}

fn click_feed(rows: &[Click]) -> Feed {
    let labels: Vec<i64> = rows.iter().map(|row| row.label).collect();
    let (a, b): (Vec<&[Key]>, Vec<&[Key]>) = rows.iter().map(|row| (&row.a[..], &row.b[..])).unzip();
    let dense = rows.iter().flat_map(|row| row.dense).collect();
    Feed::new()
        .ints("label", 1, &labels)
        .and_then(|feed| feed.floats("dense", 2, dense))
        .and_then(|feed| feed.slot("a", &a))
        .and_then(|feed| feed.slot("b", &b))
        .unwrap()
}

fn click_file(folder: &TempDir, name: &str, rows: &[Click]) -> PathBuf {
    file(folder, name, &click_text(rows))
}

#[test]
fn a_pass_over_a_dataset_is_a_loop_of_single_steps_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let rows = click_rows(1, 100);
    let files = vec![click_file(&folder, "part", &rows)];
    let config = multislot(&clicks_schema(), files).batch_size(16);
    let (queue, in_memory) = (QueueDataset::new(config.clone()).unwrap(), loaded(config));
    let Clicks { net, .. } = clicks();
    let mut by_hand = started(&net);
    for _ in 0..2 {
        for batch in rows.chunks(16) {
            by_hand.run(&net.main, click_feed(batch), &[]).unwrap();
        }
    }
    for dataset in [&queue as &dyn Dataset, &in_memory] {
        let mut executor = started(&net);
        for _ in 0..2 {
            let report = executor.train_from_dataset(&net.main, dataset, &RunOptions::default()).unwrap();
            assert_eq!((report.samples, report.steps, report.stopped), (100, 7, false));
        }
        assert_eq!(bits(&executor), bits(&by_hand));
    }
}

/// Layers that are large enough to be divided, with batch norm, whose sums go over all rows.
#[test]
fn a_batch_on_several_threads_trains_the_same_model_to_the_bit() {
    let (rows, width) = (160, 120);
    let mut net = Net::with_seed(9);
    let x = net.data("x", &[-1, width as i64], DType::F32).unwrap();
    let mut hidden = x;
    for _ in 0..2 {
        hidden = net.fc(hidden, width, Activation::Relu).unwrap();
        hidden = net.batch_norm(hidden, &BatchNormOptions::default()).unwrap();
    }
    let y = net.fc(hidden, 1, Activation::Linear).unwrap();
    let loss = net.mean(y).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 0.01).minimize(&mut net.main, loss).unwrap();
    let mut numbers = Numbers(3);
    let batches: Vec<Vec<f32>> =
        (0..4).map(|_| (0..rows * width).map(|_| numbers.below(64) as f32 / 16.0 - 2.0).collect()).collect();
    let train = |threads: usize| {
        let mut executor = started(&net).with_batch_threads(threads);
        let losses: Vec<_> = batches
            .iter()
            .map(|batch| {
                let feed = Feed::new().floats("x", width, batch.clone()).unwrap();
                executor.run(&net.main, feed, &[loss]).unwrap()[0].scalar().unwrap().to_bits()
            })
            .collect();
        (losses, bits(&executor))
    };
    let alone = train(1);
    for threads in [2, 3, 8] {
        assert_eq!(train(threads), alone, "{threads} threads");
    }
}

#[test]
fn running_startup_again_resets_optimizer_state_and_rows() {
    let Clicks { net, loss, .. } = clicks();
    let rows = click_rows(2, 32);
    let mut executor = started(&net);
    let train = |executor: &mut Executor| {
        let losses: Vec<f64> =
            (0..4).map(|_| executor.run(&net.main, click_feed(&rows), &[loss]).unwrap()[0].scalar().unwrap()).collect();
        (losses, bits(executor))
    };
    let first = train(&mut executor);
    executor.run_startup(&net.startup).unwrap();
    assert!(executor.scope().sparse("rows").is_none_or(|rows| rows.is_empty()), "rows start again too");
    assert_eq!(train(&mut executor), first);
}

#[test]
fn a_run_on_one_thread_is_the_same_every_time() {
    let folder = TempDir::new().unwrap();
    let files = vec![click_file(&folder, "0", &click_rows(1, 70)), click_file(&folder, "1", &click_rows(2, 50))];
    let dataset = QueueDataset::new(multislot(&clicks_schema(), files).batch_size(8)).unwrap();
    let run = || {
        let Clicks { net, .. } = clicks();
        let mut executor = started(&net);
        for _ in 0..3 {
            executor.train_from_dataset(&net.main, &dataset, &RunOptions::default()).unwrap();
        }
        bits(&executor)
    };
    assert_eq!(run(), run());
}

#[test]
fn without_startup_the_missing_parameter_is_named_with_a_hint() {
    let Clicks { net, .. } = clicks();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    let error = executor.run(&net.main, click_feed(&click_rows(1, 2)), &[]).unwrap_err();
    assert_eq!(
        report(&error),
        "`fc_0.w_0` has no value in the scope\n\nhint: run the startup program first, and use the same scope for both \
         programs"
    );
    executor.run_startup(&net.startup).unwrap();
    executor.run(&net.main, click_feed(&click_rows(1, 2)), &[]).unwrap();
}

#[test]
fn a_mismatched_feed_is_refused_and_changes_nothing() {
    let Clicks { net, .. } = clicks();
    let mut executor = started(&net);
    executor.run(&net.main, click_feed(&click_rows(1, 4)), &[]).unwrap();
    let before = bits(&executor);
    let full = |dense: usize| {
        Feed::new()
            .ints("label", 1, &[0, 1])
            .and_then(|feed| feed.floats("dense", dense, vec![0.0; 2 * dense]))
            .and_then(|feed| feed.slot("a", &[&[1], &[2]]))
            .unwrap()
    };
    let missing = executor.run(&net.main, full(2), &[]).unwrap_err();
    assert!(matches!(missing, Error::NotFed { .. }));
    assert!(report(&missing).starts_with("the program reads `b`, but the data has no such field\n\nhint: "));
    let wide = executor.run(&net.main, full(3).slot("b", &[&[], &[]]).unwrap(), &[]).unwrap_err();
    assert_eq!(
        wide.to_string(),
        "field `dense` of the data does not match the program: expected 2 float(s) per row, got 3 float(s) per row"
    );
    let kind = Feed::new().slot("label", &[&[1]]).and_then(|feed| feed.ints("dense", 2, &[1, 2])).unwrap();
    let kind = executor.run(&net.main, kind.slot("a", &[&[]]).unwrap().slot("b", &[&[]]).unwrap(), &[]).unwrap_err();
    assert_eq!(
        kind.to_string(),
        "field `dense` of the data does not match the program: expected 2 float(s) per row, got 2 integer(s) per row"
    );
    let uneven = Feed::new().ints("label", 1, &[0, 1]).unwrap().slot("a", &[&[1], &[2], &[3]]).unwrap_err();
    assert_eq!(
        uneven.to_string(),
        "field `a` of the data does not match the program: expected 2 rows, like `label`, got 3 rows"
    );
    let ragged = Feed::new().floats("dense", 2, vec![0.0; 3]).unwrap_err();
    assert_eq!(
        ragged.to_string(),
        "field `dense` of the data does not match the program: expected a multiple of 2 values, got 3 values"
    );
    let twice = full(2).slot("b", &[&[], &[]]).unwrap().slot("b", &[&[], &[]]).unwrap();
    let twice = executor.run(&net.main, twice, &[]).unwrap_err();
    assert_eq!(twice.to_string(), "field `b` is declared twice");
    assert_eq!(bits(&executor), before);
}

#[test]
fn a_batch_fetched_back_has_the_shape_it_was_declared_with() {
    let Clicks { net, .. } = clicks();
    let mut executor = started(&net);
    let [label, dense, b] = ["label", "dense", "b"].map(|name| net.main.find(name).unwrap());
    let rows = click_rows(1, 3);
    let values = executor.run(&net.main, click_feed(&rows), &[label, dense, b]).unwrap();
    assert_eq!(values[0].dims(), [3, 1]);
    assert_eq!(values[0].i64s().unwrap(), rows.iter().map(|row| row.label).collect::<Vec<_>>());
    assert_eq!(values[1].dims(), [3, 2]);
    let ids: Vec<i64> = rows.iter().flat_map(|row| &row.b).map(|&id| id as i64).collect();
    assert_eq!((values[2].dims(), values[2].i64s().unwrap()), (&[ids.len()][..], &ids[..]));
}

#[test]
fn an_impossible_fetch_is_refused_before_training() {
    let folder = TempDir::new().unwrap();
    let Clicks { mut net, .. } = clicks();
    let early = net.main.clone();
    let table = net.main.find("rows").unwrap();
    let unread = net.data("unread", &[-1, 1], DType::F32).unwrap();
    let rows = click_rows(1, 8);
    let dataset = loaded(multislot(&clicks_schema(), vec![click_file(&folder, "part", &rows)]).batch_size(2));
    let mut executor = started(&net);
    executor.run(&net.main, click_feed(&rows), &[]).unwrap();
    executor.run(&early, click_feed(&rows), &[]).unwrap();
    let before = bits(&executor);
    for (program, var, message) in [
        (&net.main, table, "`rows` cannot be fetched: it is a sparse table"),
        (&net.main, unread, "`unread` cannot be fetched: no op of this program computes or reads it"),
        // The copy was made before the variable, so it does not have it.
        (&early, unread, "cannot be fetched: it is a variable of another program"),
    ] {
        let error = executor.run(program, click_feed(&rows), &[var]).unwrap_err();
        assert!(matches!(error, Error::NotFetchable { .. }) && error.to_string().ends_with(message), "{error}");
        let observer = |_: &Observation| ();
        let (fetch, observer) = ([var], Some(&observer as &(dyn Fn(&Observation) + Sync)));
        let options = RunOptions { fetch: &fetch, print_period: 2, observer, ..RunOptions::default() };
        let error = executor.train_from_dataset(program, &dataset, &options).unwrap_err();
        assert!(matches!(error, Error::NotFetchable { .. }), "{error}");
        assert_eq!(bits(&executor), before);
    }
}

#[test]
fn integers_of_fixed_length_may_be_fed_where_any_number_is_expected() {
    let Clicks { net, loss, .. } = clicks();
    let test = net.main.clone_for_test();
    let feed = |a: Feed| {
        a.ints("label", 1, &[0, 1])
            .and_then(|feed| feed.floats("dense", 2, vec![0.5; 4]))
            .and_then(|feed| feed.slot("b", &[&[3], &[]]))
            .unwrap()
    };
    let mut executor = started(&net);
    let fixed = executor.run(&test, feed(Feed::new().ints("a", 2, &[1, 2, 3, 4]).unwrap()), &[loss]).unwrap();
    let ragged = executor.run(&test, feed(Feed::new().slot("a", &[&[1, 2], &[3, 4]]).unwrap()), &[loss]).unwrap();
    assert_eq!(fixed, ragged);
}

#[test]
fn a_batch_without_rows_is_legal_and_breaks_nothing() {
    let Clicks { net, probability, .. } = clicks();
    let mut executor = started(&net);
    executor.run(&net.main, click_feed(&click_rows(1, 4)), &[]).unwrap();
    let values = |executor: &Executor| ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0"].map(|name| dense(executor, name));
    let rows = executor.scope().sparse("rows").unwrap().len();
    let value = executor.run(&net.main.clone_for_test(), click_feed(&[]), &[probability]).unwrap();
    assert_eq!(value[0].dims(), [0, 1]);
    executor.run(&net.main, click_feed(&[]), &[]).unwrap();
    assert_eq!(executor.scope().sparse("rows").unwrap().len(), rows);
    assert!(values(&executor).iter().flatten().all(|value| value.is_finite()));
    executor.run(&net.main, click_feed(&click_rows(1, 4)), &[]).unwrap();
}

#[test]
fn two_executors_on_one_scope_see_the_same_parameters() {
    let Clicks { net, probability, .. } = clicks();
    let test = net.main.clone_for_test();
    let rows = click_rows(1, 16);
    let mut trainer = started(&net);
    let mut evaluator = Executor::new(trainer.scope().clone());
    let fetch = [probability];
    // The evaluator comes first: its tables are replaced when the training program is compiled with its rule.
    let mut last = evaluator.run(&test, click_feed(&rows), &fetch).unwrap();
    for _ in 0..3 {
        trainer.run(&net.main, click_feed(&rows), &[]).unwrap();
        let evaluated = evaluator.run(&test, click_feed(&rows), &fetch).unwrap();
        assert_eq!(trainer.run(&test, click_feed(&rows), &fetch).unwrap(), evaluated);
        assert_ne!(evaluated, last);
        last = evaluated;
    }
}

/// A model whose gradient is exactly -1 for every id: at rate 1, a row counts how often its id was seen.
fn counter() -> Net {
    let mut net = Net::new();
    let slot = net.slot("ids").unwrap();
    let table = ParamAttr { name: Some("counts".into()), ..ParamAttr::init(Initializer::Constant(0.0)) };
    let seen = net.embedding(slot, 1, &EmbeddingOptions { table, ..EmbeddingOptions::default() }).unwrap();
    let sum = net.reduce_sum(seen, &[], false).unwrap();
    let loss = net.scale(sum, -1.0, 0.0).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 1.0).minimize(&mut net.main, loss).unwrap();
    net
}

fn ids_schema() -> Schema {
    Schema::new(vec![Field::new("ids", FieldKind::Ids)]).unwrap()
}

fn ids_text(rows: &[Vec<Key>]) -> String {
    let mut text = String::new();
    for ids in rows {
        write!(text, "{}", ids.len()).unwrap();
        ids.iter().for_each(|id| write!(text, " {id}").unwrap());
        text.push('\n');
    }
    text
}

#[test]
fn every_row_is_trained_on_exactly_once_whatever_the_number_of_threads() {
    let folder = TempDir::new().unwrap();
    let mut numbers = Numbers(3);
    let mut expected = [0u64; 30];
    let files: Vec<PathBuf> = (0..3)
        .map(|part| {
            let rows: Vec<Vec<Key>> =
                (0..700).map(|_| (0..numbers.below(5)).map(|_| numbers.below(30)).collect()).collect();
            rows.iter().flatten().for_each(|&id| expected[id as usize] += 1);
            file(&folder, &format!("part-{part}"), &ids_text(&rows))
        })
        .collect();
    let net = counter();
    for threads in [1, 2, 4] {
        let config = multislot(&ids_schema(), files.clone()).batch_size(7).thread_num(threads);
        let queue = QueueDataset::new(config.clone()).unwrap();
        let mut in_memory = loaded(config);
        in_memory.local_shuffle(threads as u64).unwrap();
        for dataset in [&queue as &dyn Dataset, &in_memory] {
            let mut executor = started(&net);
            for pass in 1..=2 {
                let report = executor.train_from_dataset(&net.main, dataset, &RunOptions::default()).unwrap();
                assert_eq!((report.samples, report.steps), (2100, 300), "threads come from the dataset");
                for (id, &count) in expected.iter().enumerate() {
                    let got = row(&executor, "counts", id as Key);
                    assert_eq!(got, [(pass * count) as f32], "id {id}, {threads} threads, pass {pass}");
                }
            }
        }
    }
}

/// Training and evaluation can alternate any number of times; evaluation changes nothing.
#[test]
fn evaluation_between_training_passes_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let schema = clicks_schema();
    let train = loaded(multislot(&schema, vec![click_file(&folder, "train", &click_rows(1, 200))]).batch_size(16));
    // Ids that training never saw: evaluation uses their first values and creates no rows.
    let mut unseen = click_rows(2, 60);
    unseen.iter_mut().for_each(|row| row.b.push(1_000_000 + row.a[0]));
    let test_files = vec![click_file(&folder, "test", &unseen)];
    let queue = QueueDataset::new(multislot(&schema, test_files.clone()).batch_size(16)).unwrap();
    let in_memory = loaded(multislot(&schema, test_files).batch_size(16));
    let Clicks { net, probability, .. } = clicks();
    let test = net.main.clone_for_test();
    for threads in [1, 2] {
        let mut executor = started(&net);
        // Evaluating first works too.
        executor.infer_from_dataset(&test, &queue, &RunOptions::default()).unwrap();
        assert_eq!(executor.scope().sparse("rows").unwrap().len(), 0);
        let options = RunOptions { threads, ..RunOptions::default() };
        for _ in 0..4 {
            executor.train_from_dataset(&net.main, &train, &options).unwrap();
            let before = bits(&executor);
            let mut seen = Vec::new();
            // A copy for testing and the training program itself, which is evaluated like its copy.
            for (program, dataset) in [(&test, &queue as &dyn Dataset), (&net.main, &in_memory)] {
                let (sum, rows) = (Mutex::new(0.0), AtomicU64::new(0));
                let each_batch = |view: &BatchView<'_>| {
                    let values = view.fetch(probability)?;
                    *sum.lock().unwrap() += values.f32s().unwrap().iter().map(|&p| f64::from(p)).sum::<f64>();
                    rows.fetch_add(view.batch.rows as u64, Ordering::Relaxed);
                    Ok(())
                };
                let options = RunOptions { each_batch: Some(&each_batch), ..options };
                let report = executor.infer_from_dataset(program, dataset, &options).unwrap();
                assert_eq!((report.samples, rows.into_inner()), (60, 60));
                seen.push(sum.into_inner().unwrap());
                assert_eq!(bits(&executor), before);
            }
            assert!((seen[0] - seen[1]).abs() < 1e-9, "{seen:?}");
        }
        assert_eq!(executor.scope().sparse("rows").unwrap().len(), 20);
    }
}

#[test]
fn a_bad_line_ends_the_pass_with_file_and_line_and_the_executor_stays_usable() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let good = file(&folder, "good", &"1 5\n".repeat(10));
    let bad = file(&folder, "bad", &format!("{}1 five\n{}", "1 5\n".repeat(50), "1 5\n".repeat(50)));
    let config = |path: &PathBuf| multislot(&ids_schema(), vec![path.clone()]).batch_size(4);
    for threads in [1, 2] {
        let options = RunOptions { threads, ..RunOptions::default() };
        let mut executor = started(&net);
        let dataset = QueueDataset::new(config(&bad)).unwrap();
        let error = executor.train_from_dataset(&net.main, &dataset, &options).unwrap_err();
        let Error::Dataset(dataset::Error::BadLine { ref file, line, .. }) = error else { panic!("{error}") };
        assert_eq!((file, line), (&bad, 51));
        assert!(error.to_string().contains("`ids`") && error.to_string().contains("`five`"), "{error}");
        // Whatever was trained before the bad line stays; the next pass is complete.
        let before = executor.scope().sparse("counts").unwrap().read(5, |row, _| row[0]).unwrap_or(0.0);
        assert!(before <= 50.0);
        let dataset = QueueDataset::new(config(&good)).unwrap();
        executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
        assert_eq!(row(&executor, "counts", 5), [before + 10.0]);
    }
}

#[test]
fn a_missing_file_is_found_before_training() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let path = folder.path().join("absent");
    let dataset = QueueDataset::new(multislot(&ids_schema(), vec![path.clone()])).unwrap();
    let error = started(&net).train_from_dataset(&net.main, &dataset, &RunOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("data file `{}` does not exist", path.display()));
}

#[test]
fn a_dataset_without_a_field_of_the_program_is_refused() {
    let folder = TempDir::new().unwrap();
    let Clicks { net, .. } = clicks();
    let dataset = loaded(multislot(&ids_schema(), vec![file(&folder, "part", "1 5\n")]));
    let error = started(&net).train_from_dataset(&net.main, &dataset, &RunOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NotFed { .. }), "{error}");
}

#[test]
fn the_stop_flag_ends_a_pass_between_two_batches_and_is_reported() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let dataset = loaded(multislot(&ids_schema(), vec![file(&folder, "part", &"1 5\n".repeat(100))]).batch_size(2));
    let mut executor = started(&net);
    let (stop, batches) = (AtomicBool::new(false), AtomicU64::new(0));
    let each_batch = |_: &BatchView<'_>| {
        if batches.fetch_add(1, Ordering::Relaxed) + 1 == 3 {
            stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    };
    let options = RunOptions { stop: Some(&stop), each_batch: Some(&each_batch), ..RunOptions::default() };
    let report = executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
    assert_eq!((report.stopped, report.steps, report.samples), (true, 3, 6));
    assert_eq!(row(&executor, "counts", 5), [6.0]);
    stop.store(false, Ordering::Relaxed);
    let report = executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
    assert_eq!((report.stopped, report.samples), (false, 100));
}

#[test]
fn the_observer_sees_fetched_values_every_print_period() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let loss = net.main.nodes().last().unwrap().outputs[0];
    let dataset = loaded(multislot(&ids_schema(), vec![file(&folder, "part", &"1 5\n".repeat(21))]).batch_size(2));
    let mut executor = started(&net);
    let seen = Mutex::new(Vec::new());
    let observer = |observation: &Observation| {
        let values = observation.values.iter().map(|value| value.scalar().unwrap()).collect::<Vec<_>>();
        seen.lock().unwrap().push((observation.step, observation.samples, observation.progress.rows, values));
    };
    let fetch = [loss];
    let options = RunOptions { fetch: &fetch, print_period: 3, observer: Some(&observer), ..RunOptions::default() };
    executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
    // Batch n sees the count 2 (n - 1) in each of its two rows, and the loss is minus their sum.
    let loss_of = |step: u64| vec![-4.0 * (step as f64 - 1.0)];
    let expected: Vec<_> = [3u64, 6, 9].into_iter().map(|step| (step, 2 * step, 2 * step, loss_of(step))).collect();
    assert_eq!(*seen.lock().unwrap(), expected);

    // Without a period the observer is not called, and a second pass counts its steps from the beginning.
    seen.lock().unwrap().clear();
    let silent = RunOptions { print_period: 0, ..options };
    executor.train_from_dataset(&net.main, &dataset, &silent).unwrap();
    assert!(seen.lock().unwrap().is_empty());
    executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
    assert_eq!(seen.lock().unwrap().iter().map(|seen| seen.0).collect::<Vec<_>>(), [3, 6, 9]);
}

#[test]
fn fetched_values_are_called_by_fetch_info_or_by_their_names() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let loss = net.main.nodes().last().unwrap().outputs[0];
    let name = net.main.variable(loss).name.clone();
    let dataset = loaded(multislot(&ids_schema(), vec![file(&folder, "part", "1 5\n")]));
    let seen = Mutex::new(Vec::new());
    let observer = |observation: &Observation| seen.lock().unwrap().push(observation.info.clone());
    let fetch = [loss, loss];
    let fetch_info = ["epoch 0 loss"];
    let options = RunOptions {
        fetch: &fetch,
        fetch_info: &fetch_info,
        print_period: 1,
        observer: Some(&observer),
        ..RunOptions::default()
    };
    started(&net).train_from_dataset(&net.main, &dataset, &options).unwrap();
    assert_eq!(*seen.lock().unwrap(), [["epoch 0 loss".to_owned(), name]]);
}

#[test]
fn debug_reports_the_time_of_every_op_by_name() {
    let folder = TempDir::new().unwrap();
    let Clicks { net, .. } = clicks();
    let dataset = loaded(multislot(&clicks_schema(), vec![click_file(&folder, "part", &click_rows(1, 64))]));
    let mut executor = started(&net);
    let options = RunOptions { debug: true, threads: 2, ..RunOptions::default() };
    let report = executor.train_from_dataset(&net.main, &dataset, &options).unwrap();
    let mut names: Vec<&str> = report.profile.iter().map(|(name, _)| name.split(' ').next().unwrap()).collect();
    assert!(report.profile.is_sorted_by(|a, b| a.1 >= b.1), "most first");
    let mut expected: Vec<&str> = net.main.nodes().iter().map(|node| node.op.operator().name()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let quiet = executor.train_from_dataset(&net.main, &dataset, &RunOptions::default()).unwrap();
    assert!(quiet.profile.is_empty());
}

#[test]
fn a_panic_in_each_batch_becomes_an_error_and_stops_all_threads() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let files = vec![file(&folder, "part", &"1 5\n".repeat(400))];
    let config = multislot(&ids_schema(), files).batch_size(2);
    let (queue, in_memory) = (QueueDataset::new(config.clone()).unwrap(), loaded(config));
    for dataset in [&queue as &dyn Dataset, &in_memory] {
        let mut executor = started(&net);
        let batches = AtomicU64::new(0);
        let each_batch = |_: &BatchView<'_>| {
            assert!(batches.fetch_add(1, Ordering::Relaxed) < 9, "the tenth batch is too much");
            Ok(())
        };
        let options = RunOptions { threads: 2, each_batch: Some(&each_batch), ..RunOptions::default() };
        let error = executor.train_from_dataset(&net.main, dataset, &options).unwrap_err();
        assert!(matches!(error, Error::ThreadPanicked { .. }));
        assert_eq!(error.to_string(), "a training thread panicked: the tenth batch is too much");
        let observer = |_: &Observation| panic!("{} is enough", 1);
        let options = RunOptions { print_period: 1, observer: Some(&observer), ..RunOptions::default() };
        let error = executor.train_from_dataset(&net.main, dataset, &options).unwrap_err();
        assert_eq!(error.to_string(), "a training thread panicked: 1 is enough");
        // The executor continues as if nothing had happened.
        let before = row(&executor, "counts", 5)[0];
        let options = RunOptions { threads: 2, ..RunOptions::default() };
        executor.train_from_dataset(&net.main, dataset, &options).unwrap();
        assert_eq!(row(&executor, "counts", 5), [before + 400.0]);
    }
}

#[test]
fn an_error_in_each_batch_reaches_the_caller() {
    let folder = TempDir::new().unwrap();
    let net = counter();
    let dataset = loaded(multislot(&ids_schema(), vec![file(&folder, "part", &"1 5\n".repeat(40))]));
    let table = net.main.find("counts").unwrap();
    let each_batch = |view: &BatchView<'_>| view.fetch(table).map(drop);
    let options = RunOptions { threads: 2, each_batch: Some(&each_batch), ..RunOptions::default() };
    let error = started(&net).train_from_dataset(&net.main, &dataset, &options).unwrap_err();
    assert_eq!(error.to_string(), "`counts` cannot be fetched: it is a sparse table");
}

#[test]
fn an_error_inside_a_step_leaves_the_executor_usable() {
    let mut net = Net::new();
    let p = net.data("p", &[-1, 1], DType::F32).unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let shift = net.create_bias(&[1], &ParamAttr::named("shift")).unwrap();
    let shifted = net.add(p, shift).unwrap();
    net.auc(shifted, label).unwrap();
    let loss = net.mean(shifted).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.25).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    let feed = |p: f32| Feed::new().floats("p", 1, vec![p, 0.5]).unwrap().ints("label", 1, &[1, 0]).unwrap();
    executor.run(&net.main, feed(7.0), &[]).unwrap_err();
    assert_eq!(dense(&executor, "shift"), [0.0], "a step that failed trained nothing");
    executor.run(&net.main, feed(0.7), &[]).unwrap();
    assert_eq!(dense(&executor, "shift"), [-0.25]);
}
