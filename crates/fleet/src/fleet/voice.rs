//! Where a `Fleet` says its few lines for people.
//!
//! They are not log events: they appear whatever a log's level is. A line names who speaks, so that the joined output of a
//! job can be read (but for the two lines about absent servers, which scripts know word for word).

//! Scripts written for PaddlePaddle are often watched by programs that wait for its words. A voice may repeat the few lines that
//! those know beside ours.

use std::io::Write;
use std::sync::Arc;

/// Where a `Fleet` says its few lines for people.
#[derive(Clone)]
pub struct Voice {
    hear: Arc<dyn Fn(&str) + Send + Sync>,
    paddle_lines: bool,
}

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
        Voice { hear: Arc::new(hear), paddle_lines: false }
    }

    /// The same, which says PaddlePaddle's lines too: `Server listening on ...`, `Communicator start`.
    pub fn with_paddle_lines(self) -> Self {
        Voice { paddle_lines: true, ..self }
    }

    /// Says a line.
    pub fn say(&self, line: &str) {
        (self.hear)(line);
    }

    /// Says a line of PaddlePaddle's, if it is wanted.
    pub(super) fn say_as_paddle(&self, line: &str) {
        if self.paddle_lines {
            self.say(line);
        }
    }
}
