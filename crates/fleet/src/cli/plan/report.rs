//! What `openfleet plan` prints: a table for people, or one JSON object.

use openfleet_dist::message_sizes::MessageSize;
use serde::Serialize;

use super::NeededServers;
use super::args::PlanArgs;
use super::arithmetic::{Costs, Limit, Prediction};
use super::job::PlannedJob;
use super::sizes::Sizes;
use crate::cli::output::{bytes, count, plural, rate, result};

/// Where the costs of a batch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CostOrigin {
    /// Measured on this machine.
    Measured,
    /// Constants of the documentation.
    Documented,
}

/// The result, with numbers in the units of their names.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    mode: String,
    worker_num: u32,
    server_num: usize,
    servers_needed: usize,
    servers_needed_for: &'static str,
    batch_size: usize,
    keys_per_batch: usize,
    dense_parameters: usize,
    rows: u64,
    samples_per_second: f64,
    limit: Limit,
    batch_ms: f64,
    compute_ms: f64,
    wait_ms: f64,
    pull_ms: f64,
    push_ms: f64,
    worker_sent_bytes_per_batch: u64,
    worker_received_bytes_per_batch: u64,
    /// Sent and received.
    worker_bytes_per_second: f64,
    server_bytes_per_second: f64,
    worker_cpu_seconds_per_million_samples: f64,
    server_cpu_seconds_per_million_samples: f64,
    server_processors_used: f64,
    network_used: f64,
    server_memory_bytes: u64,
    server_row_bytes: u64,
    costs: Costs,
    costs_are: CostOrigin,
}

impl Report {
    pub(super) fn new(
        arguments: &PlanArgs,
        job: &PlannedJob,
        (compute, costs, origin): (f64, Costs, CostOrigin),
        servers: usize,
        needed: &NeededServers,
        sizes: &Sizes,
        prediction: &Prediction,
    ) -> Self {
        let batches_per_second = 1.0 / prediction.batch;
        let both = |size: MessageSize| (size.request + size.reply) as f64;
        let per_million = 1e6 / job.batch_size as f64;
        let messages = 2.0 * servers as f64;
        let cost = costs.pull.plus(1.0, costs.push).plus(messages, costs.message);
        Report {
            model: job.description.clone(),
            mode: job.strategy.mode().to_string(),
            worker_num: arguments.worker_num,
            server_num: servers,
            servers_needed: needed.servers,
            servers_needed_for: needed.because,
            batch_size: job.batch_size,
            keys_per_batch: job.keys(),
            dense_parameters: job.dense_parameters(),
            rows: job.load.rows,
            samples_per_second: prediction.samples_per_second,
            limit: prediction.limit,
            batch_ms: prediction.batch * 1e3,
            compute_ms: compute * 1e3,
            wait_ms: arguments.wait_ms,
            pull_ms: prediction.pull * 1e3,
            push_ms: prediction.push * 1e3,
            worker_sent_bytes_per_batch: sizes.worker.request,
            worker_received_bytes_per_batch: sizes.worker.reply,
            worker_bytes_per_second: both(sizes.worker) * batches_per_second,
            server_bytes_per_second: both(sizes.server) * batches_per_second * f64::from(arguments.worker_num),
            worker_cpu_seconds_per_million_samples: (compute + cost.worker) * per_million,
            server_cpu_seconds_per_million_samples: cost.server * per_million,
            server_processors_used: prediction.server_processors_used,
            network_used: prediction.network_used,
            server_memory_bytes: sizes.memory,
            server_row_bytes: sizes.rows,
            costs,
            costs_are: origin,
        }
    }

    pub(super) fn print(&self, as_json: bool) {
        if as_json {
            // Numbers and strings always serialize.
            result(&serde_json::to_string(self).unwrap_or_default());
            return;
        }
        let servers = plural(self.server_num, "server");
        result(&format!(
            "{}; {} dense parameters, {} rows per table",
            self.model,
            count(self.dense_parameters as u64),
            count(self.rows)
        ));
        result(&format!(
            "{}: {} with batches of {} rows and {} distinct keys, {servers}",
            self.mode,
            plural(self.worker_num as usize, "worker"),
            count(self.batch_size as u64),
            count(self.keys_per_batch as u64),
        ));
        let limit = match self.limit {
            Limit::Compute => "computing and waiting on the workers",
            Limit::RoundTrips => "the time of round trips",
            Limit::Processors => "the processors of the machine",
            Limit::ServerProcessors => "the processors of the servers",
            Limit::Network => "the network",
        };
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let lines = [
            ("speed", format!("{} samples/s", rate(self.samples_per_second))),
            ("limited by", limit.to_owned()),
            (
                "a batch",
                format!(
                    "{:.1} ms: {:.1} compute, {:.1} wait, {:.1} pull, {:.1} push and the rest",
                    self.batch_ms,
                    self.compute_ms,
                    self.wait_ms,
                    self.pull_ms,
                    self.batch_ms - self.compute_ms - self.wait_ms - self.pull_ms,
                ),
            ),
            (
                "per worker",
                format!(
                    "{}/s; per batch {} sent and {} received",
                    bytes(self.worker_bytes_per_second as u64),
                    bytes(self.worker_sent_bytes_per_batch),
                    bytes(self.worker_received_bytes_per_batch),
                ),
            ),
            (
                "per server",
                format!(
                    "{}/s; {} of memory, of which {} rows",
                    bytes(self.server_bytes_per_second as u64),
                    bytes(self.server_memory_bytes),
                    bytes(self.server_row_bytes),
                ),
            ),
            (
                "processors",
                format!(
                    "{} used on a machine with a server; {:.1} s on workers and {:.1} s on servers per million samples",
                    percent(self.server_processors_used),
                    self.worker_cpu_seconds_per_million_samples,
                    self.server_cpu_seconds_per_million_samples,
                ),
            ),
            ("network", format!("{} used on a server", percent(self.network_used))),
            ("servers needed", format!("{} ({})", self.servers_needed, self.servers_needed_for)),
            (
                "costs",
                match self.costs_are {
                    CostOrigin::Measured => "measured on this machine".to_owned(),
                    CostOrigin::Documented => {
                        "from the documentation; without `--no-calibrate` they are measured here".to_owned()
                    }
                },
            ),
        ];
        for (name, text) in lines {
            result(&format!("{name:<16}{text}"));
        }
    }
}
