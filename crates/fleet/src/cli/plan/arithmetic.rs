//! What a job achieves, from what one batch costs. Pure arithmetic: no clock, no socket, no table.
//!
//! A batch of a worker takes the time T. Its parts are the time of computing and waiting, and the round trips of a pull and of
//! a push. A round trip takes longer when the processors and the network are busy with the batches of other workers, and how
//! busy they are follows from T. So T is found by iteration. No resource can be used for more than all of its time, which
//! bounds T from below:
//!
//! ```text
//! one machine   T >= workers x (processor time of a batch on workers and servers) / cores
//! a cluster     T >= workers x (processor time of a batch on one server) / cores,   T >= bytes of a batch / rate
//! ```
//!
//! All times are in seconds.

use openfleet_dist::message_sizes::MessageSize;
use serde::Serialize;

/// Processor time, of a worker and of all servers together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Cost {
    pub(super) worker: f64,
    pub(super) server: f64,
}

impl Cost {
    pub(super) fn total(self) -> f64 {
        self.worker + self.server
    }

    /// What is left without another cost; never less than nothing.
    pub(super) fn minus(self, other: Cost) -> Cost {
        Cost { worker: (self.worker - other.worker).max(0.0), server: (self.server - other.server).max(0.0) }
    }

    pub(super) fn times(self, times: f64) -> Cost {
        Cost::default().plus(times, self)
    }

    /// This cost and `times` times another.
    pub(super) fn plus(self, times: f64, other: Cost) -> Cost {
        Cost { worker: self.worker + times * other.worker, server: self.server + times * other.server }
    }
}

/// What a batch costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Costs {
    /// The rows of a pull: finding, copying, sending and receiving them.
    pub(super) pull: Cost,
    /// The gradients of a push and the dense values in its reply.
    pub(super) push: Cost,
    /// A request with its reply, whatever they carry; there is one pull and one push per server.
    pub(super) message: Cost,
    /// How much longer a request with its reply takes than the processors work for it: waking threads, system calls.
    pub(super) wake_up: f64,
}

/// Who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pacing {
    /// Every worker waits for all others at every step.
    AllTogether,
    /// A worker waits for the reply to its push.
    EachAlone,
    /// A worker computes while its push is in flight, and is at most one push ahead.
    OnePushAhead,
}

/// In async mode a worker waits for the reply to its push for at most this share of the time of its batch
/// (`communicator/asynchronous.rs`).
const WAITING_SHARE: f64 = 0.125;
/// In async mode, rows are requested one batch ahead if a pull takes at least this long and this share of a batch
/// (`communicator/asynchronous/pacing.rs`).
const SLOW_PULL: f64 = 4e-3;
const SLOW_PULL_SHARE: f64 = 0.15;

/// The part of a push that is work of the training thread itself: rounding and copying gradients. The rest is work of threads
/// that send and receive.
const ENCODING_SHARE: f64 = 0.5;

/// The job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) workers: u32,
    pub(super) servers: usize,
    /// Rows of the data per batch.
    pub(super) batch_size: usize,
    pub(super) pacing: Pacing,
    /// Processor time of a worker for forward and backward.
    pub(super) compute: f64,
    /// Time of a batch without work, on the worker.
    pub(super) wait: f64,
    pub(super) costs: Costs,
    /// Messages of a batch to and from all servers.
    pub(super) worker_bytes: MessageSize,
    /// Messages of a batch to and from the server with the most bytes.
    pub(super) server_bytes: MessageSize,
    pub(super) machines: Machines,
}

/// Where the processes run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machines {
    /// Cores of each machine.
    pub(super) cores: f64,
    /// All processes run on one machine. Otherwise each has its own.
    pub(super) is_one: bool,
    /// Rate of the network of a machine, in each direction.
    pub(super) bytes_per_second: f64,
    /// Time of an empty message there and back.
    pub(super) round_trip: f64,
}

/// What keeps a job from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    /// Computing and waiting on the workers.
    Compute,
    /// The time of round trips, while nothing is fully used.
    RoundTrips,
    /// The processors of the machine that all processes share.
    Processors,
    /// The processors of servers.
    ServerProcessors,
    /// The network of servers or workers.
    Network,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prediction {
    pub(super) samples_per_second: f64,
    /// Time of a batch on each worker.
    pub(super) batch: f64,
    /// Of which round trips of pulls.
    pub(super) pull: f64,
    /// Of which waiting for pushes.
    pub(super) push: f64,
    /// Used share of the processors of the busiest machine with a server.
    pub(super) server_processors_used: f64,
    /// Used share of the network of the busiest server, in the busier direction.
    pub(super) network_used: f64,
    pub(super) limit: Limit,
}

/// A share of a resource from which on it counts as fully used: requests wait for it most of the time.
const FULL: f64 = 0.85;
/// The same for workers that step together: they compute at the same time, and then leave the servers idle.
const FULL_IN_STEPS: f64 = 0.5;
const ITERATIONS: usize = 400;

/// Predicts the speed of a job.
pub(super) fn predict(job: &Job) -> Prediction {
    let demands = Demands::of(job);
    let mut batch = demands.batch_time(job, 0.0).total();
    for _ in 0..ITERATIONS {
        let next = demands.batch_time(job, 1.0 / batch).total();
        batch = 0.5 * (batch + next.max(demands.least(job)));
    }
    let per_second = 1.0 / batch;
    let parts = demands.batch_time(job, per_second);
    let (processors, network) = (demands.processors(job) * per_second, demands.network(job) * per_second);
    let full = if job.pacing == Pacing::AllTogether { FULL_IN_STEPS } else { FULL };
    let limit = match () {
        () if processors >= full && job.machines.is_one => Limit::Processors,
        () if processors >= full => Limit::ServerProcessors,
        () if network >= full || demands.worker_transfer * per_second >= full => Limit::Network,
        () if parts.own < parts.pull + parts.push => Limit::RoundTrips,
        () => Limit::Compute,
    };
    Prediction {
        samples_per_second: f64::from(job.workers) * job.batch_size as f64 * per_second,
        batch,
        pull: parts.pull,
        push: (batch - parts.own - parts.pull).max(0.0),
        server_processors_used: processors,
        network_used: network,
        limit,
    }
}

/// Servers are enough if their processors and networks are used for at most this share of the time.
const COMFORTABLE: f64 = 0.7;
/// The same for workers that step together, which wait for the servers in this share of the time.
const COMFORTABLE_IN_STEPS: f64 = 0.35;

impl Pacing {
    /// The share of the time for which processors and networks of servers may be used.
    pub(super) fn comfortable_use(self) -> f64 {
        if self == Pacing::AllTogether { COMFORTABLE_IN_STEPS } else { COMFORTABLE }
    }
}

/// What a batch needs of each resource, in seconds of the resource.
struct Demands {
    pull: Cost,
    push: Cost,
    /// Time to transfer the bytes of a batch, in the busier direction.
    worker_transfer: f64,
    server_transfer: f64,
}

/// The parts of the time of a batch.
struct Parts {
    /// Computing, waiting and encoding.
    own: f64,
    pull: f64,
    push: f64,
}

impl Parts {
    fn total(&self) -> f64 {
        self.own + self.pull + self.push
    }
}

impl Demands {
    fn of(job: &Job) -> Self {
        let (costs, servers) = (&job.costs, job.servers as f64);
        let transfer = |size: MessageSize| match job.machines.is_one {
            true => 0.0,
            false => size.request.max(size.reply) as f64 / job.machines.bytes_per_second,
        };
        Demands {
            pull: costs.pull.plus(servers, costs.message),
            push: costs.push.plus(servers, costs.message),
            worker_transfer: transfer(job.worker_bytes),
            server_transfer: transfer(job.server_bytes),
        }
    }

    /// Time of the processors of the busiest machine, per second of a batch's time, if each worker trains one batch per second.
    fn processors(&self, job: &Job) -> f64 {
        let server = self.pull.server + self.push.server;
        let demand = match job.machines.is_one {
            true => job.compute + self.pull.worker + self.push.worker + server,
            false => server / job.servers as f64,
        };
        f64::from(job.workers) * demand / job.machines.cores
    }

    fn network(&self, job: &Job) -> f64 {
        f64::from(job.workers) * self.server_transfer
    }

    /// No batch is faster than its resources allow.
    fn least(&self, job: &Job) -> f64 {
        self.processors(job).max(self.network(job)).max(self.worker_transfer)
    }

    /// The time of a batch if each worker trains this many batches per second.
    fn batch_time(&self, job: &Job, per_second: f64) -> Parts {
        let Machines { cores, is_one, round_trip, .. } = job.machines;
        let workers = f64::from(job.workers);
        // Of several servers on one machine, only as many work at once as there are cores.
        let parallel = if is_one { cores.min(job.servers as f64) } else { job.servers as f64 };
        let server_cores = if is_one { cores } else { cores * job.servers as f64 };
        // A request finds those of the other workers. If all workers step together, all requests arrive at the same moment.
        let others = 1.0 - 1.0 / workers;
        let together = job.pacing == Pacing::AllTogether;
        let processors = stretch(self.processors(job) * per_second * others, cores);
        let server_time = |server: f64| match together {
            true => (server / parallel).max(workers * server / server_cores),
            false => server / parallel * processors,
        };
        let worker_time = |worker: f64| match (is_one, together) {
            (true, true) => worker.max(workers * worker / cores),
            (true, false) => worker * processors,
            (false, _) => worker,
        };
        let network = match together {
            true => workers,
            false => stretch(self.network(job) * per_second * others, 1.0),
        };
        let transfer = self.worker_transfer.max(self.server_transfer * network);
        // The transfers of a pull and of a push, by their shares of the work.
        let share = self.pull.total() / (self.pull.total() + self.push.total()).max(f64::MIN_POSITIVE);
        let latency = job.costs.wake_up + if is_one { 0.0 } else { round_trip };
        let encoding = self.push.worker * ENCODING_SHARE;
        let own = job.wait + worker_time(job.compute + encoding);
        let pull = worker_time(self.pull.worker) + server_time(self.pull.server) + latency + transfer * share;
        let push = worker_time(self.push.worker - encoding)
            + server_time(self.push.server)
            + latency
            + transfer * (1.0 - share);
        if job.pacing != Pacing::OnePushAhead {
            return Parts { own, pull, push };
        }
        let is_ahead = pull >= SLOW_PULL && pull >= SLOW_PULL_SHARE * own;
        let pull = if is_ahead { (pull - own).max(0.0) } else { pull };
        let before_push = own + pull;
        Parts { own, pull, push: push.min(WAITING_SHARE * before_push).max(push - before_push) }
    }
}

/// How much longer work takes on `units` equal units that are used for this share of their time: Sakasegawa's approximation of
/// the queue M/M/c ("An approximation formula L_q = alpha rho^beta / (1 - rho)", 1977).
fn stretch(used: f64, units: f64) -> f64 {
    let used = used.clamp(0.0, 0.99);
    1.0 + used.powf((2.0 * (units + 1.0)).sqrt() - 1.0) / (units * (1.0 - used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        pull: Cost { worker: 0.2e-3, server: 0.3e-3 },
        push: Cost { worker: 1e-3, server: 1.5e-3 },
        message: Cost { worker: 0.05e-3, server: 0.05e-3 },
        wake_up: 0.1e-3,
    };

    /// A worker and a server on one machine of four cores, which wait 40 ms per batch.
    fn job() -> Job {
        Job {
            workers: 1,
            servers: 1,
            batch_size: 512,
            pacing: Pacing::OnePushAhead,
            compute: 0.0,
            wait: 40e-3,
            costs: COSTS,
            worker_bytes: MessageSize { request: 1_000_000, reply: 600_000 },
            server_bytes: MessageSize { request: 1_000_000, reply: 600_000 },
            machines: Machines { cores: 4.0, is_one: true, bytes_per_second: 1e9, round_trip: 1e-3 },
        }
    }

    fn near(got: f64, expected: f64) -> bool {
        (got / expected - 1.0).abs() < 0.01
    }

    #[test]
    fn the_batch_of_a_single_worker_takes_its_wait_and_its_costs() {
        // 40 ms, 3 ms of content, two requests with 0.1 ms of work and 0.1 ms until threads wake up.
        let expected = 40e-3 + 3e-3 + 2.0 * 0.2e-3;
        for pacing in [Pacing::OnePushAhead, Pacing::EachAlone, Pacing::AllTogether] {
            let predicted = predict(&Job { pacing, ..job() });
            assert!(near(predicted.batch, expected), "{pacing:?}: {predicted:?}");
            assert!(near(predicted.samples_per_second, 512.0 / expected));
            assert_eq!(predicted.limit, Limit::Compute);
        }
    }

    #[test]
    fn the_cores_of_one_machine_bound_the_speed_of_all_processes() {
        // A batch uses 3.2 ms of processors; four cores have 4,000 ms per second.
        for pacing in [Pacing::OnePushAhead, Pacing::EachAlone, Pacing::AllTogether] {
            let predicted = predict(&Job { workers: 200, pacing, ..job() });
            let bound = 4.0 / 3.2e-3 * 512.0;
            assert!(predicted.samples_per_second <= bound * 1.001, "{pacing:?}: {predicted:?}");
            assert_eq!(predicted.limit, Limit::Processors, "{pacing:?}");
        }
        let async_speed = predict(&Job { workers: 200, ..job() }).samples_per_second;
        assert!(near(async_speed, 4.0 / 3.2e-3 * 512.0), "{async_speed}");
    }

    #[test]
    fn workers_that_wait_for_each_other_are_not_faster_than_those_that_do_not() {
        for workers in [1, 3, 10, 40] {
            let speed = |pacing| predict(&Job { workers, pacing, ..job() }).samples_per_second;
            let (ahead, alone, together) =
                (speed(Pacing::OnePushAhead), speed(Pacing::EachAlone), speed(Pacing::AllTogether));
            assert!(ahead >= alone * 0.999 && alone >= together * 0.999, "{workers}: {ahead} {alone} {together}");
        }
    }

    #[test]
    fn more_servers_help_if_their_processors_are_the_limit() {
        let machines = Machines { is_one: false, bytes_per_second: 1e12, ..job().machines };
        let cluster = |workers, servers| predict(&Job { workers, servers, machines, ..job() });
        let one = cluster(400, 1);
        assert_eq!(one.limit, Limit::ServerProcessors);
        // 1.8 ms of content and two messages of 0.05 ms, on four cores.
        assert!(near(one.samples_per_second, 512.0 * 4.0 / 1.9e-3), "{one:?}");
        assert!(cluster(400, 4).samples_per_second > 2.0 * one.samples_per_second);
        // With few workers they are not.
        let gain = cluster(2, 4).samples_per_second / cluster(2, 1).samples_per_second;
        assert!((0.95..1.05).contains(&gain), "{gain}");
    }

    #[test]
    fn the_network_bounds_the_speed() {
        // 1 MB per batch in the busier direction at 10 MB/s.
        let machines = Machines { is_one: false, bytes_per_second: 1e7, ..job().machines };
        let one = predict(&Job { machines, ..job() });
        assert!(near(one.batch, 0.1) && one.limit == Limit::Network, "{one:?}");
        let eight = predict(&Job { workers: 8, machines, ..job() });
        assert!(near(eight.samples_per_second, 512.0 / 0.1), "one server has one network: {eight:?}");
    }

    #[test]
    fn work_is_stretched_as_in_a_queue() {
        for used in [0.0, 0.3, 0.6, 0.9] {
            assert!(near(stretch(used, 1.0), 1.0 / (1.0 - used)), "M/M/1: 1 / (1 - rho)");
            assert!((stretch(used, 2.0) * (1.0 - used * used) - 1.0).abs() < 0.06, "M/M/2: 1 / (1 - rho^2)");
        }
    }
}
