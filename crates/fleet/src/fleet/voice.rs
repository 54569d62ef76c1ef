//! Where a `Fleet` says its few lines for people.
//!
//! They are not log events: they appear whatever a log's level is. A line names who speaks, so that the joined output of a
//! job can be read (but for the two lines about absent servers, which scripts know word for word).

use std::io::Write;
use std::sync::Arc;

/// Where a `Fleet` says its few lines for people.
#[derive(Clone)]
pub struct Voice(Arc<dyn Fn(&str) + Send + Sync>);

impl Voice {
    /// To standard error. One that is closed is no error.
    pub fn stderr() -> Self {
        Voice::new(|line| {
            // In one piece: processes of a job often share this file.
            let _ = std::io::stderr().lock().write_all(format!("{line}\n").as_bytes());
        })
    }

    /// To nobody.
    pub fn silent() -> Self {
        Voice::new(|_| {})
    }

    /// To whoever wants to hear it, line by line.
    pub fn new(hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Voice(Arc::new(hear))
    }

    /// Says a line.
    pub fn say(&self, line: &str) {
        (self.0)(line);
    }
}
