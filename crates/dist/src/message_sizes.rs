//! How many bytes the messages of a batch have, before anything is sent: for planning a job.
//!
//! The messages are encoded by the functions that encode real ones, with zeros instead of keys and floats, and measured. So the
//! sizes follow every change of the encoding. This module knows no mode: the caller says what the reply to a push carries.

use std::time::Duration;

use openfleet_core::WorkId;
use openfleet_core::strategy::FloatWidth;
use openfleet_table::Missing;

use crate::floats;
use crate::frame::{HEADER, Payload};
use crate::gradients::{Head, PushEncoder, put_barrier};
use crate::pull::PullEncoder;

/// The distinct keys of a batch that one server has, and the tables that are looked up with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageSize {
    /// Number of keys.
    pub keys: usize,
    /// For each table, the weights per row.
    pub dims: Vec<usize>,
}

/// What the reply to a push carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushReplyKind {
    /// The dense values after a step of a group: sync and half-async.
    SteppedValues,
    /// How the dense values have changed, with 8 bits each: async with 16-bit floats.
    Changes,
}

/// Bytes of a request and of its reply, with their headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageSize {
    /// From the worker to the server.
    pub request: u64,
    /// From the server to the worker.
    pub reply: u64,
}

/// A pull of the rows of these keys.
pub fn pull(stages: &[StageSize]) -> MessageSize {
    let (mut request, mut reply) = (PullEncoder::new(Missing::Create, 0, stages.len()), Payload::new());
    for StageSize { keys, dims } in stages {
        let numbers = vec![0; dims.len()];
        request.stage(&numbers, &numbers, &vec![0; *keys]);
        for dim in dims {
            reply.append::<f32>(keys * dim);
        }
    }
    MessageSize { request: framed(&request.finish()), reply: framed(&reply) }
}

/// A push of the gradients of these keys and of dense blocks with these numbers of floats.
pub fn push(stages: &[StageSize], blocks: &[usize], width: FloatWidth, kind: PushReplyKind) -> MessageSize {
    let mut request = PushEncoder::new(Head { width, ..Head::of(WorkId::step(0, 0)) });
    for StageSize { keys, dims } in stages {
        let numbers = vec![0; dims.len()];
        let dims_of_tables: Vec<u32> = dims.iter().map(|&dim| dim as u32).collect();
        let rows: Vec<Vec<f32>> = dims.iter().map(|&dim| vec![0.0; dim]).collect();
        let gradients = rows.iter().map(|row| std::iter::repeat_n(row.as_slice(), *keys));
        request.stage(&numbers, &dims_of_tables, &vec![0; *keys], gradients, None);
    }
    let mut request = request.blocks();
    let mut reply = Payload::new();
    if kind == PushReplyKind::Changes {
        reply.put(&[0u64, 1]);
    }
    for &floats in blocks {
        let zeros = vec![0.0; floats];
        request.block(0, &zeros);
        match kind {
            PushReplyKind::SteppedValues => reply.put(&zeros),
            PushReplyKind::Changes => floats::put_differences(&mut reply, &zeros, &mut zeros.clone()),
        }
    }
    if kind == PushReplyKind::SteppedValues {
        put_barrier(&mut reply, Duration::ZERO);
    }
    MessageSize { request: framed(&request.finish()), reply: framed(&reply) }
}

fn framed(payload: &Payload) -> u64 {
    (HEADER + payload.bytes().len()) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openfleet_core::placement::{DenseParameter, Placement, PlacementRule};
    use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
    use openfleet_table::{
        Accessor, Adam, Admission, DenseSpec, Initializer, NonFinite, Optimizer, RowStorage, Schedule, SparseSpec,
    };

    use super::*;
    use crate::communicator::Worker;
    use crate::request::Request;
    use crate::request::pull_changes::PullChanges;
    use crate::stage::{DenseStage, Lookup, SparseStage};
    use crate::{Cluster, Link, State};

    const DIMS: [usize; 2] = [1, 9];
    const SERVERS: usize = 3;
    /// Large enough for several blocks, and odd.
    const FLOATS: usize = 30_001;
    const KEYS: u64 = 101;

    fn sparse_spec(dim: usize) -> SparseSpec {
        SparseSpec {
            dim,
            optimizer: Optimizer::Adam(Adam::default()),
            schedule: Schedule::Constant(1e-3),
            regularizer: None,
            initializer: Initializer::Constant(0.0),
            seed: 1,
            shards: 4,
            accessor: Accessor::Plain,
            admission: Admission::All,
            capacity: None,
            non_finite: NonFinite::Skip,
            salted: false,
            storage: RowStorage::default(),
        }
    }

    /// Payload bytes that a worker sends and receives for one batch after the first, and for the flush after it.
    fn traffic(mode: Mode) -> (u64, u64) {
        let states: Vec<Arc<State>> = (0..SERVERS).map(|_| Arc::new(State::new())).collect();
        let links = states.iter().map(|state| Link::in_process("server", state.clone(), 0)).collect();
        let mut options = StrategyOptions::for_mode(mode);
        if mode == Mode::Async {
            // On a busy machine pushes would be merged.
            options.max_merge_var_num = Some(1);
        }
        let strategy = Strategy::resolve(&options).unwrap();
        let cluster = Cluster::new(links, Worker { rank: 0, count: 1, threads: 1 }, strategy);
        let sparse = DIMS.map(|dim| (format!("rows_{dim}"), sparse_spec(dim)));
        let dense_spec = DenseSpec {
            shape: vec![FLOATS],
            optimizer: Optimizer::Adam(Adam::default()),
            schedule: Schedule::Constant(1e-3),
            regularizer: None,
            non_finite: NonFinite::Skip,
        };
        let communicator =
            cluster.communicator(&sparse, &[("values".to_owned(), dense_spec, vec![0.0; FLOATS])]).unwrap();
        let lookup = |(table, dim): (usize, usize)| {
            let floats = KEYS as usize * dim;
            Lookup { table, dim, trained: true, rows: vec![0.0; floats], gradients: vec![0.1; floats] }
        };
        let mut sparse =
            [SparseStage { lookups: DIMS.into_iter().enumerate().map(lookup).collect(), ..SparseStage::default() }];
        let (values, gradient) = (vec![0.0; FLOATS], vec![0.1; FLOATS]);
        let mut dense = [DenseStage { values, gradient, trained: true, ..DenseStage::default() }];
        communicator.begin(0).unwrap();
        let mut traffic = Vec::new();
        for _ in 0..3 {
            let work = WorkId::step(0, communicator.next_step(0).unwrap().number);
            sparse[0].unique.start(KEYS as usize);
            sparse[0].unique.add(&(0..KEYS).map(openfleet_core::key::mix).collect::<Vec<_>>());
            communicator.pull_sparse(&mut sparse, Missing::Create).unwrap();
            communicator.pull_dense(&mut dense).unwrap();
            communicator.push(work, &mut sparse, &mut dense).unwrap();
            // If two pushes are in the queue of async mode, only the reply to the second has changes.
            communicator.flush().unwrap();
            traffic.push(cluster.traffic());
        }
        communicator.finish(0).unwrap();
        cluster.close().unwrap();
        (traffic[2].0 - traffic[1].0, traffic[2].1 - traffic[1].1)
    }

    #[test]
    fn sizes_are_those_of_the_messages_that_communicators_send() {
        let parameters = vec![DenseParameter::new("values", [FLOATS])];
        let placement = Placement::new(parameters, SERVERS, PlacementRule::default()).unwrap();
        let kinds = [
            (Mode::Async, FloatWidth::Bits16, PushReplyKind::Changes),
            (Mode::Sync, FloatWidth::Bits32, PushReplyKind::SteppedValues),
            (Mode::HalfAsync, FloatWidth::Bits32, PushReplyKind::SteppedValues),
        ];
        for (mode, width, kind) in kinds {
            let mut expected = (0, 0);
            for server in 0..SERVERS {
                let keys =
                    (0..KEYS).filter(|&key| placement.server_of(openfleet_core::key::mix(key)) == server).count();
                let stages = [StageSize { keys, dims: DIMS.to_vec() }];
                let blocks: Vec<usize> = placement.blocks_on(server).map(|block| block.length).collect();
                for message in [pull(&stages), push(&stages, &blocks, width, kind)] {
                    expected.0 += message.request - HEADER as u64;
                    expected.1 += message.reply - HEADER as u64;
                }
                if mode == Mode::Async {
                    // A flush fetches exact values.
                    let request = PullChanges { held: 0, blocks: vec![0; blocks.len()] };
                    let mut reply = Payload::new();
                    reply.put(&[0u64, 0]);
                    blocks.iter().for_each(|&floats| reply.put(&vec![0.0f32; floats]));
                    expected.0 += request.encode().unwrap().bytes().len() as u64;
                    expected.1 += reply.bytes().len() as u64;
                }
            }
            assert_eq!(traffic(mode), expected, "{mode}");
        }
    }
}
