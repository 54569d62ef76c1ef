//! The `openfleet` program: see `openfleet help`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openfleet::cli::{self, Outcome};
use openfleet::log;
use openfleet::variables::Variables;
use openfleet_core::error::report;

/// What a shell expects of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

#[allow(clippy::print_stderr, reason = "this is where errors become text")]
fn main() -> ExitCode {
    let command = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if let Err(error) = log::to_stderr(&Variables::of_process()) {
        eprintln!("error: {}", report(&error));
        return ExitCode::FAILURE;
    }
    let stop = Arc::new(AtomicBool::new(false));
    if let Err(error) = listen(stop.clone()) {
        eprintln!("warning: Ctrl-C will end the program at once rather than after the batch: {error}");
    }
    match cli::run(&command, &stop) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("error: {}", report(&error));
            ExitCode::FAILURE
        }
    }
}

/// The first Ctrl-C or SIGTERM asks for an end between two batches, the second does not ask.
fn listen(stop: Arc<AtomicBool>) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::SeqCst) {
            #[allow(clippy::disallowed_methods, reason = "the user insists, and this is the program itself")]
            std::process::exit(INTERRUPTED.into());
        }
    })
}
