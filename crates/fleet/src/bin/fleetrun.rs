//! The `fleetrun` program: see `fleetrun --help`.

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    ExitCode::from(openfleet::launch::main(std::env::args_os()))
}

#[cfg(not(unix))]
#[allow(clippy::print_stderr, reason = "this is where errors become text")]
fn main() -> ExitCode {
    eprintln!("error: `fleetrun` needs a Unix: it ends processes by groups and signals");
    ExitCode::FAILURE
}
