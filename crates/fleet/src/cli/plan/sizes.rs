//! Bytes of a job: of the messages of a batch, and of the memory of a server. Both come from the code that sends and keeps them.

use openfleet_core::placement::{DenseParameter, Placement};
use openfleet_core::strategy::Mode;
use openfleet_dist::message_sizes::{self, MessageSize, PushReplyKind, StageSize};

use super::job::PlannedJob;
use crate::error::Result;

/// Memory of a server without tables, connections and messages: program, threads and their stacks.
const PROCESS_BYTES: u64 = 8 << 20;
/// Memory of a connection: buffers of sockets and frames, beside large messages.
const CONNECTION_BYTES: u64 = 1 << 18;

/// Bytes that depend on the number of servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Messages of a batch between a worker and all servers.
    pub(super) worker: MessageSize,
    /// Messages of a batch between a worker and the server with the most bytes.
    pub(super) server: MessageSize,
    /// Memory of the server with the most.
    pub(super) memory: u64,
    /// Of which rows, their optimizer state and their index.
    pub(super) rows: u64,
}

impl Sizes {
    /// The sizes of a job with these numbers of servers and workers.
    pub(super) fn of(job: &PlannedJob, servers: usize, workers: u32) -> Result<Self> {
        let load = &job.load;
        let parameter = |(name, spec): &(String, openfleet_table::DenseSpec)| {
            DenseParameter::new(name.clone(), spec.shape.clone()).whole_if(spec.optimizer.needs_whole_parameters())
        };
        let parameters = load.dense.iter().map(parameter).collect();
        let placement = Placement::new(parameters, servers, job.strategy.placement())?;
        let stages: Vec<StageSize> = load
            .stages
            .iter()
            .map(|stage| StageSize {
                keys: stage.keys.div_ceil(servers),
                dims: stage.tables.iter().map(|&table| load.sparse[table].1.dim).collect(),
            })
            .collect();
        let reply = match job.strategy.mode() {
            Mode::Async => PushReplyKind::Changes,
            _ => PushReplyKind::SteppedValues,
        };
        let rows: u64 = load.sparse.iter().map(|(_, spec)| spec.bytes_for(load.rows.div_ceil(servers as u64))).sum();
        let pull = message_sizes::pull(&stages);
        let (mut worker, mut server, mut dense_memory) = (MessageSize::default(), MessageSize::default(), 0);
        for number in 0..servers {
            let blocks: Vec<_> = placement.blocks_on(number).collect();
            let lengths: Vec<usize> = blocks.iter().map(|block| block.length).collect();
            let push = message_sizes::push(&stages, &lengths, job.strategy.float_width(), reply);
            let here = MessageSize { request: pull.request + push.request, reply: pull.reply + push.reply };
            worker = MessageSize { request: worker.request + here.request, reply: worker.reply + here.reply };
            if here.request + here.reply > server.request + server.reply {
                server = here;
            }
            let tables: u64 = blocks
                .iter()
                .map(|block| {
                    let (_, spec) = &load.dense[block.parameter];
                    openfleet_table::DenseSpec { shape: vec![block.length], ..spec.clone() }.bytes()
                })
                .sum();
            let floats: u64 = lengths.iter().sum::<usize>() as u64;
            // Async: the copy of each worker, and the last reply to it, for a repeat. Sync: the gradients of each worker.
            let per_worker = match reply {
                PushReplyKind::Changes => floats * 4 + push.reply,
                PushReplyKind::SteppedValues => push.request,
            };
            // Each worker has a request and a reply in memory, and a narrow push is converted to 32 bits.
            let per_worker = per_worker + 2 * push.request + here.reply + CONNECTION_BYTES;
            dense_memory = dense_memory.max(tables + u64::from(workers) * per_worker);
        }
        Ok(Sizes { worker, server, memory: PROCESS_BYTES + rows + dense_memory, rows })
    }
}
