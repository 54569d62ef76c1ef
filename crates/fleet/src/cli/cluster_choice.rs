//! The options for the training mode and for servers and workers inside this process, and what they resolve to.

use clap::Args;
use openfleet_core::strategy::{Mode, OptionValue, Strategy, StrategyOptions};

use crate::error::{Error, Result};
use crate::fleet::Fleet;

/// Options for the mode, and for servers and workers inside this process.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers (inside this process, or started by a launcher)")]
pub(crate) struct ClusterOptions {
    /// Training mode: local, with servers sync, half_async, async, hybrid or geo, or collective without servers [local; async in a
    /// job with servers, collective in one without].
    #[arg(long)]
    mode: Option<String>,
    /// Servers inside this process [1].
    #[arg(long, alias = "servers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    server_num: Option<u16>,
    /// Workers inside this process; they share the training files and the threads [1].
    #[arg(long, alias = "workers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    worker_num: Option<u16>,
    /// geo: batches between two exchanges of rows with the servers; 0: adaptive, from 100 [0].
    #[arg(long, value_name = "BATCHES")]
    k_steps: Option<i64>,
    /// hybrid: the most batches in flight [4].
    #[arg(long, value_name = "BATCHES")]
    staleness: Option<i64>,
    /// Strategy option by name, such as `max_merge_var_num=4`; repeat for more.
    #[arg(long, value_name = "NAME=VALUE")]
    strategy: Vec<String>,
    /// Connect workers and servers of this process by loopback sockets instead of direct calls.
    #[arg(long)]
    sockets: bool,
}

/// The resolved options.
#[derive(Debug, Clone)]
pub(crate) struct ClusterChoice {
    pub(crate) options: StrategyOptions,
    pub(crate) strategy: Strategy,
    pub(crate) servers: usize,
    pub(crate) workers: u32,
    pub(crate) over_sockets: bool,
}

impl ClusterOptions {
    /// Whether the mode is given, and is collective.
    pub(crate) fn is_collective(&self) -> bool {
        self.mode.as_deref().is_some_and(|mode| matches!(Mode::parse(mode), Ok(Mode::Collective)))
    }

    /// `None` for local training. `job` is the process of a job that a launcher started.
    pub(crate) fn resolve(&self, job: Option<&Fleet>) -> Result<Option<ClusterChoice>> {
        let in_job = job.is_some();
        let is_collective = job.is_some_and(|job| job.topology().is_collective());
        if in_job {
            let given = [
                (self.server_num.is_some(), "--server-num"),
                (self.worker_num.is_some(), "--worker-num"),
                (self.sockets, "--sockets"),
                (self.mode.as_deref() == Some("local"), "--mode local"),
            ];
            if let Some(&(_, option)) = given.iter().find(|(given, _)| *given) {
                let owner = "a process that a launcher started".to_owned();
                let takers = "a process without a launcher: the launcher decides the numbers of servers and workers";
                return Err(Error::MeaninglessOption { option, owner, takers });
            }
        }
        let mode = match self.mode.as_deref() {
            None if is_collective => Some(Mode::Collective),
            None if in_job => Some(Mode::Async),
            None | Some("local") => None,
            Some(mode) => Some(Mode::parse(mode)?),
        };
        if let Some(mode) = mode.filter(|mode| in_job && (*mode == Mode::Collective) != is_collective) {
            return Err(Error::BadOption {
                option: "--mode",
                expected: if is_collective { "collective: this job has no servers" } else { "a mode with servers" },
                got: mode.to_string(),
            });
        }
        let Some(mode) = mode else {
            let given = [
                (self.server_num.is_some(), "--server-num"),
                (self.worker_num.is_some(), "--worker-num"),
                (self.k_steps.is_some(), "--k-steps"),
                (self.staleness.is_some(), "--staleness"),
                (!self.strategy.is_empty(), "--strategy"),
                (self.sockets, "--sockets"),
            ];
            return match given.iter().find(|(given, _)| *given) {
                Some(&(_, option)) => Err(Error::MeaninglessOption {
                    option,
                    owner: "local training".into(),
                    takers: "training with servers: choose a `--mode`",
                }),
                None => Ok(None),
            };
        };
        let servers_only = [
            (self.server_num.is_some(), "--server-num"),
            (self.k_steps.is_some(), "--k-steps"),
            (self.staleness.is_some(), "--staleness"),
        ];
        if let Some(&(_, option)) = servers_only.iter().find(|(given, _)| *given && mode == Mode::Collective) {
            let owner = "mode collective".to_owned();
            return Err(Error::MeaninglessOption { option, owner, takers: "modes with servers" });
        }
        let mut options = StrategyOptions::for_mode(mode);
        match self.k_steps {
            // The number to begin with is that of the mode.
            None | Some(0) if mode == Mode::Geo => options.geo_adaptive = Some(true),
            None => {}
            Some(_) => options.k_steps = self.k_steps,
        }
        if self.staleness.is_some() {
            options.staleness = self.staleness;
        }
        for written in &self.strategy {
            let (name, value) = written.split_once('=').ok_or_else(|| Error::BadOption {
                option: "--strategy",
                expected: "NAME=VALUE",
                got: written.clone(),
            })?;
            options.set(name.trim(), OptionValue::parse(value.trim()))?;
        }
        let strategy = match mode {
            Mode::Collective => Strategy::resolve_collective(&options)?,
            _ => Strategy::resolve(&options)?,
        };
        if strategy.mode() != mode {
            return Err(Error::BadOption {
                option: "--mode",
                expected: "the mode of the other options",
                got: format!("{mode}, while the other options select {}", strategy.mode()),
            });
        }
        Ok(Some(ClusterChoice {
            options,
            strategy,
            servers: self.server_num.unwrap_or(1).into(),
            workers: self.worker_num.unwrap_or(1).into(),
            over_sockets: self.sockets,
        }))
    }
}

impl ClusterChoice {
    /// One line that describes the choice.
    pub(crate) fn describe(&self) -> String {
        let transport = if self.over_sockets { "over loopback sockets" } else { "inside this process" };
        if self.strategy.mode() == Mode::Collective {
            return format!("{}; {} ranks {transport}", self.strategy.describe(), self.workers);
        }
        format!("{}; {} servers and {} workers {transport}", self.strategy.describe(), self.servers, self.workers)
    }
}
