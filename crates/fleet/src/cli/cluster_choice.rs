//! Which mode to train in, and with how many servers and workers where all of them are in this process.

use clap::Args;
use openfleet_core::strategy::{Mode, OptionValue, Strategy, StrategyOptions};

use crate::error::{Error, Result};

/// The cluster's part of a command line.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers (inside this process, or those that a launcher started)")]
pub(crate) struct ClusterOptions {
    /// local, or with servers: sync, half_async, async, hybrid, geo [local; async in a job].
    #[arg(long)]
    mode: Option<String>,
    /// Servers in this process [1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    /// Workers in this process, which share the training files and the threads [1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// geo: batches between two exchanges [100].
    #[arg(long, value_name = "BATCHES")]
    k_steps: Option<i64>,
    /// hybrid: batches in flight, at most [4].
    #[arg(long, value_name = "BATCHES")]
    staleness: Option<i64>,
    /// An option of the strategy by its name, such as `max_merge_var_num=4`; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    strategy: Vec<String>,
    /// Let workers and servers talk over loopback sockets rather than within the process.
    #[arg(long)]
    sockets: bool,
}

/// What the options mean.
#[derive(Debug, Clone)]
pub(crate) struct ClusterChoice {
    pub(crate) options: StrategyOptions,
    pub(crate) strategy: Strategy,
    pub(crate) servers: usize,
    pub(crate) workers: u32,
    pub(crate) over_sockets: bool,
}

impl ClusterOptions {
    /// `None` for local training. `in_job`: whether a launcher has started the servers and workers.
    pub(crate) fn resolve(&self, in_job: bool) -> Result<Option<ClusterChoice>> {
        if in_job {
            let given = [
                (self.servers.is_some(), "--servers"),
                (self.workers.is_some(), "--workers"),
                (self.sockets, "--sockets"),
                (self.mode.as_deref() == Some("local"), "--mode local"),
            ];
            if let Some(&(_, option)) = given.iter().find(|(given, _)| *given) {
                let owner = "a process that a launcher has given its role".to_owned();
                let takers = "a process alone: the launcher says how many servers and workers there are";
                return Err(Error::MeaninglessOption { option, owner, takers });
            }
        }
        let mode = match self.mode.as_deref() {
            None if in_job => Some(Mode::Async),
            None | Some("local") => None,
            Some(mode) => Some(Mode::parse(mode)?),
        };
        let Some(mode) = mode else {
            let given = [
                (self.servers.is_some(), "--servers"),
                (self.workers.is_some(), "--workers"),
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
        let mut options = StrategyOptions::for_mode(mode);
        if self.k_steps.is_some() {
            options.k_steps = self.k_steps;
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
        let strategy = Strategy::resolve(&options)?;
        if strategy.mode() != mode {
            return Err(Error::BadOption {
                option: "--mode",
                expected: "the mode that the other options mean",
                got: format!("{mode}, but the others mean {}", strategy.mode()),
            });
        }
        Ok(Some(ClusterChoice {
            options,
            strategy,
            servers: self.servers.unwrap_or(1).into(),
            workers: self.workers.unwrap_or(1).into(),
            over_sockets: self.sockets,
        }))
    }
}

impl ClusterChoice {
    /// One line for people.
    pub(crate) fn describe(&self) -> String {
        let road = if self.over_sockets { "over loopback sockets" } else { "within this process" };
        format!("{}; {} servers and {} workers {road}", self.strategy.describe(), self.servers, self.workers)
    }
}
