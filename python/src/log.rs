//! Events of the rooms below, for Python's `logging`.
//!
//! Threads that have nothing to do with Python note them, some with locks in their hands: none of them may wait for the GIL. So a
//! thread of its own hands them over.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use openfleet::log::{self, Level, LevelFilter};
use openfleet::variables::Variables;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::raise;

/// How long the end of a process waits for its last lines.
const PATIENCE: Duration = Duration::from_secs(1);

enum Note {
    Event(Level, String),
    /// Whoever waits is told when everything before has been handed over.
    Flush(Sender<()>),
}

static NOTES: Mutex<Option<Sender<Note>>> = Mutex::new(None);

/// Calls `take(level, text)` for every event from now on, with the numbers of `logging`. Gives the level that `OPENFLEET_LOG`
/// asks for, if it does.
#[pyfunction]
pub(crate) fn log_to(take: Py<PyAny>) -> PyResult<Option<u8>> {
    let variables = Variables::of_process();
    let chosen = log::level(&variables).map_err(raise)?;
    let is_chosen = variables.get(openfleet::variables::LOG).is_some();
    // What is not asked for by name is for `logging` to choose from.
    let level = if is_chosen { chosen } else { LevelFilter::INFO };
    let (sender, notes) = crossbeam_channel::unbounded();
    *NOTES.lock() = Some(sender.clone());
    std::thread::Builder::new().name("log".to_owned()).spawn(move || hand_over(&notes, &take))?;
    log::to(level, move |level, text| {
        // There is always somebody who listens, until the process ends.
        let _ = sender.send(Note::Event(level, text));
    });
    Ok(is_chosen.then(|| chosen.into_level().map_or(u8::MAX, number)))
}

/// Waits until what was noted so far has been handed over.
#[pyfunction]
pub(crate) fn flush_log(py: Python<'_>) {
    let Some(notes) = NOTES.lock().clone() else { return };
    py.detach(|| {
        let (done, waits) = crossbeam_channel::bounded(1);
        if notes.send(Note::Flush(done)).is_ok() {
            let _ = waits.recv_timeout(PATIENCE);
        }
    });
}

fn hand_over(notes: &Receiver<Note>, take: &Py<PyAny>) {
    for note in notes {
        match note {
            Note::Event(level, text) => {
                let handed_over = Python::try_attach(|py| {
                    if let Err(error) = take.call1(py, (number(level), text)) {
                        error.print(py);
                    }
                });
                if handed_over.is_none() {
                    // The interpreter has ended.
                    return;
                }
            }
            Note::Flush(done) => drop(done.send(())),
        }
    }
}

/// The level's number in `logging`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}
