//! `openfleet plan`: what a job would achieve and need, before it is started.
//!
//! [`args`] is the command line, [`job`] the tables and batches of the job, [`sizes`] its bytes, [`calibration`] what a batch
//! costs on this machine, [`defaults`] the same from the documentation, [`compute`] the time of forward and backward,
//! [`arithmetic`] the prediction, [`report`] what is printed.

mod args;
mod arithmetic;
mod calibration;
mod compute;
mod defaults;
mod job;
mod report;
mod sizes;

use openfleet_core::strategy::Mode;

pub(crate) use self::args::PlanArgs;
use self::arithmetic::{Costs, Job, Machines, Pacing, Prediction, predict};
use self::job::PlannedJob;
use self::report::{CostOrigin, Report};
use self::sizes::Sizes;
use super::output::remark;
use crate::error::{Error, Result};

/// Plans a job and prints the result.
pub(crate) fn run(arguments: &PlanArgs) -> Result<()> {
    check_numbers(arguments)?;
    let job = PlannedJob::resolve(arguments)?;
    let compute = match (arguments.measure, arguments.compute_ms) {
        (true, _) => compute::measure(&job)?,
        (false, Some(milliseconds)) => milliseconds / 1e3,
        (false, None) => {
            return Err(Error::MissingOption {
                option: "--compute-ms",
                owner: "`openfleet plan`".into(),
                remedy: "give the time of forward and backward of a batch, or measure it here with `--measure`",
            });
        }
    };
    let (costs, origin) = match arguments.no_calibrate {
        true => (defaults::costs(&job), CostOrigin::Documented),
        false if calibration::is_possible() => (calibration::measure(&job.load, job.strategy)?, CostOrigin::Measured),
        false => {
            remark("this system does not tell the processor time of threads: the costs are those of the documentation");
            (defaults::costs(&job), CostOrigin::Documented)
        }
    };
    let planner = Planner { arguments, job: &job, compute, costs };
    let needed = planner.needed_servers()?;
    let servers = arguments.server_num.map_or(needed.servers, |servers| servers as usize);
    let (sizes, prediction) = planner.plan(servers)?;
    let report = Report::new(arguments, &job, (compute, costs, origin), servers, &needed, &sizes, &prediction);
    report.print(arguments.json);
    Ok(())
}

/// How many servers are enough, and why not fewer.
pub(super) struct NeededServers {
    pub(super) servers: usize,
    pub(super) because: &'static str,
}

/// More servers than this are not considered.
const MOST_SERVERS: usize = 4096;

struct Planner<'a> {
    arguments: &'a PlanArgs,
    job: &'a PlannedJob,
    compute: f64,
    costs: Costs,
}

impl Planner<'_> {
    /// The plan with this many servers.
    fn plan(&self, servers: usize) -> Result<(Sizes, Prediction)> {
        let arguments = self.arguments;
        let sizes = Sizes::of(self.job, servers, arguments.worker_num)?;
        let own_cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let machines = Machines {
            cores: f64::from(arguments.cores.unwrap_or_else(own_cores)),
            is_one: arguments.one_machine,
            bytes_per_second: arguments.network_gbit * 1e9 / 8.0,
            round_trip: arguments.round_trip_ms / 1e3,
        };
        let prediction = predict(&Job {
            workers: arguments.worker_num,
            servers,
            batch_size: self.job.batch_size,
            pacing: self.pacing(),
            compute: self.compute,
            wait: arguments.wait_ms / 1e3,
            costs: self.costs,
            worker_bytes: sizes.worker,
            server_bytes: sizes.server,
            machines,
        });
        Ok((sizes, prediction))
    }

    fn pacing(&self) -> Pacing {
        match self.job.strategy.mode() {
            Mode::Async => Pacing::OnePushAhead,
            Mode::Sync => Pacing::AllTogether,
            _ => Pacing::EachAlone,
        }
    }

    /// The fewest servers whose memory is large enough and whose processors and networks are not too busy.
    fn needed_servers(&self) -> Result<NeededServers> {
        let memory = self.arguments.server_memory.map(|gigabytes| gigabytes * 1e9);
        // Why this many servers are not enough.
        let lack = |servers: usize| -> Result<Option<&'static str>> {
            let (sizes, prediction) = self.plan(servers)?;
            // More servers on the same machine do not make it faster.
            let is_busy = |used: f64| used > self.pacing().comfortable_use() && !self.arguments.one_machine;
            Ok(match () {
                () if memory.is_some_and(|most| sizes.memory as f64 > most) => Some("memory"),
                () if is_busy(prediction.server_processors_used) => Some("server processors"),
                () if is_busy(prediction.network_used) => Some("network"),
                () => None,
            })
        };
        let (mut too_few, mut because) = (0, "one server is the least");
        let mut enough = 1;
        while let Some(reason) = lack(enough)? {
            if enough >= MOST_SERVERS {
                return Err(Error::BadOption {
                    option: if reason == "memory" { "--server-memory" } else { "--worker-num" },
                    expected: "a job that at most 4096 servers can serve",
                    got: format!("one that still lacks {reason}"),
                });
            }
            (too_few, because, enough) = (enough, reason, 2 * enough);
        }
        while enough - too_few > 1 {
            let middle = (enough + too_few) / 2;
            match lack(middle)? {
                Some(reason) => (too_few, because) = (middle, reason),
                None => enough = middle,
            }
        }
        Ok(NeededServers { servers: enough, because })
    }
}

/// Numbers that clap cannot check.
fn check_numbers(arguments: &PlanArgs) -> Result<()> {
    let at_least_0 = [
        ("--compute-ms", arguments.compute_ms),
        ("--wait-ms", Some(arguments.wait_ms)),
        ("--round-trip-ms", Some(arguments.round_trip_ms)),
    ];
    let above_0 = [("--network-gbit", Some(arguments.network_gbit)), ("--server-memory", arguments.server_memory)];
    for (numbers, least_is_valid) in [(at_least_0.as_slice(), true), (&above_0, false)] {
        for &(option, number) in numbers {
            let Some(number) = number else { continue };
            if !(number.is_finite() && (number > 0.0 || (least_is_valid && number == 0.0))) {
                let expected = if least_is_valid { "a number of at least 0" } else { "a number above 0" };
                return Err(Error::BadOption { option, expected, got: number.to_string() });
            }
        }
    }
    Ok(())
}
