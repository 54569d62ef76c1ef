//! Options of PaddlePaddle's two launchers (`paddle.distributed.launch` and `paddle.distributed.fleet.launch`) that have no
//! effect here. They are accepted, because scripts and job files contain them, and each prints one line that says why.
//!
//! Options that have a meaning here are in [`super::options`]. This file knows no job: a reason must hold for every job.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// The heading in `--help`.
const HEADING: &str = "PaddlePaddle options without effect";

/// An option: its name, what its value is called, and the reason, as text after `it has no effect:`.
struct WithoutEffect(&'static str, &'static str, &'static str);

const OPTIONS: &[WithoutEffect] = &[
    WithoutEffect("legacy", "BOOL", "there is only one launcher"),
    WithoutEffect("sort-ip", "BOOL", "machines are numbered by `--rank`, or by their order in `--ips`"),
    WithoutEffect("enable-gpu-log", "BOOL", "nothing here computes on a GPU"),
    WithoutEffect(
        "backend",
        "NAME",
        "ranks exchange gradients over TCP, or by MPI with `OPENFLEET_COLLECTIVE_BACKEND=mpi`",
    ),
    WithoutEffect("with-gloo", "0/1", "Gloo is not used: workers meet at the servers, or at the first rank"),
    WithoutEffect("gloo-port", "PORT", "Gloo is not used: workers meet at the servers, or at the first rank"),
    WithoutEffect("http-port", "PORT", "Gloo is not used: workers meet at the servers, or at the first rank"),
    WithoutEffect("auto-parallel-config", "FILE", "programs are not split automatically"),
    WithoutEffect("auto-tuner-json", "FILE", "jobs are not tuned automatically; `openfleet plan` predicts their speed"),
    WithoutEffect("cluster-topo-path", "FILE", "programs are not split automatically"),
    WithoutEffect("rank-mapping-path", "FILE", "programs are not split automatically"),
    WithoutEffect("enable-auto-mapping", "BOOL", "programs are not split automatically"),
    WithoutEffect(
        "heter-workers",
        "IP:PORT;...",
        "every worker computes the whole program, so there are no heter workers",
    ),
    WithoutEffect(
        "heter-worker-num",
        "N;...",
        "every worker computes the whole program, so there are no heter workers",
    ),
    WithoutEffect("heter-devices", "NAME;...", "every worker computes the whole program, on CPUs"),
    WithoutEffect("coordinators", "IP:PORT,...", "there is no federated training, so there are no coordinators"),
    WithoutEffect("coordinator-num", "N", "there is no federated training, so there are no coordinators"),
    WithoutEffect("elastic-server", "IP:PORT", "the number of machines is fixed while a job runs"),
    WithoutEffect("elastic-timeout", "SECONDS", "the number of machines is fixed while a job runs"),
    WithoutEffect("elastic-pre-hook", "COMMAND", "the number of machines is fixed while a job runs"),
    WithoutEffect("np", "N", "the number of machines is fixed while a job runs; `--nnodes` says it"),
    WithoutEffect("scale", "N", "the number of machines is fixed while a job runs"),
    WithoutEffect("force", "BOOL", "the number of machines is fixed while a job runs"),
];

/// Adds the options to a command.
pub(crate) fn add_to(command: Command) -> Command {
    command.args(OPTIONS.iter().map(|&WithoutEffect(name, value, reason)| {
        let argument = Arg::new(name).long(name).value_name(value).help(format!("It has no effect: {reason}"));
        argument.allow_negative_numbers(true).help_heading(HEADING)
    }))
}

/// One line for each of the options that the user has given.
pub(crate) fn lines(matches: &ArgMatches) -> Vec<String> {
    let is_given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let given = OPTIONS.iter().filter(|option| is_given(option.0));
    given.map(|WithoutEffect(name, _, reason)| line(&format!("--{name}"), reason)).collect()
}

/// The line for an option that has no effect in this job.
pub(crate) fn line(option: &str, reason: &str) -> String {
    format!("`{option}` has no effect: {reason}")
}
