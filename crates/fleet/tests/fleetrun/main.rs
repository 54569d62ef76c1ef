//! The built `fleetrun` with real processes: small shell scripts in place of training. Each test is a story of what a user does
//! and sees.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says why")]

mod arguments;
mod clicks;
mod collective;
mod ending;
mod hosts;
mod jobs;
mod killing;
mod logs;
mod machines;
mod planning;
mod restarting;
mod schedulers;
mod slow_link;
mod workspace;
