//! Passes log events of the Rust crates to Python's `logging`.
//!
//! Events come from threads without the GIL, some of which hold locks, so none of them may wait for the GIL. They put events into
//! a channel, and one thread passes them on.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use openfleet::log::{self, Level, LevelFilter};
use openfleet::variables::Variables;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::raise;

/// How long the process waits for its last events at exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

enum Message {
    Event(Level, String),
    /// Answers once all earlier events have been passed on.
    Flush(Sender<()>),
}

static MESSAGES: Mutex<Option<Sender<Message>>> = Mutex::new(None);

/// Calls `take(level, text)` for every event from now on, with the level numbers of `logging`. Returns the level that
/// `OPENFLEET_LOG` sets, if it is set.
#[pyfunction]
pub(crate) fn log_to(take: Py<PyAny>) -> PyResult<Option<u8>> {
    let variables = Variables::of_process();
    let chosen = log::level(&variables).map_err(raise)?;
    let is_chosen = variables.get(openfleet::variables::LOG).is_some();
    // Without `OPENFLEET_LOG`, pass on everything from info on and let `logging` filter.
    let level = if is_chosen { chosen } else { LevelFilter::INFO };
    let (sender, messages) = crossbeam_channel::unbounded();
    *MESSAGES.lock() = Some(sender.clone());
    std::thread::Builder::new().name("log".to_owned()).spawn(move || pass_on(&messages, &take))?;
    log::to(level, move |level, text| {
        // The receiving thread lives until the process ends.
        let _ = sender.send(Message::Event(level, text));
    });
    Ok(is_chosen.then(|| chosen.into_level().map_or(u8::MAX, number)))
}

/// Waits until all events so far have been passed on, for one second at most.
#[pyfunction]
pub(crate) fn flush_log(py: Python<'_>) {
    let Some(messages) = MESSAGES.lock().clone() else { return };
    py.detach(|| {
        let (done, flushed) = crossbeam_channel::bounded(1);
        if messages.send(Message::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(FLUSH_TIMEOUT);
        }
    });
}

fn pass_on(messages: &Receiver<Message>, take: &Py<PyAny>) {
    for message in messages {
        match message {
            Message::Event(level, text) => {
                let passed_on = Python::try_attach(|py| {
                    if let Err(error) = take.call1(py, (number(level), text)) {
                        error.print(py);
                    }
                });
                if passed_on.is_none() {
                    // The interpreter has shut down.
                    return;
                }
            }
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

/// Returns the number of a level in `logging`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}
