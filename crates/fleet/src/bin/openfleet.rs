//! The `openfleet` program: see `openfleet help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(openfleet::cli::main(std::env::args_os()))
}
