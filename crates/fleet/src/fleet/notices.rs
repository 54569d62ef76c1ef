//! The few lines that a `Fleet` prints for the user.
//!
//! They are not log events and do not depend on the log level. Each line names its process, so that the joined output of a job can
//! be read. The exception is the two lines about absent servers, which are PaddlePaddle's word for word.
//!
//! Programs that watch the output of PaddlePaddle scripts wait for some of its other lines; [`Notices::with_paddle_lines`] adds those.

use std::io::Write;
use std::sync::Arc;

/// Prints the lines that a `Fleet` has for the user.
#[derive(Clone)]
pub struct Notices {
    sink: Arc<dyn Fn(&str) + Send + Sync>,
    paddle_lines: bool,
}

impl Notices {
    /// Prints to standard error. A closed standard error is ignored.
    pub fn stderr() -> Self {
        Notices::new(|line| {
            // One write per line: the processes of a job often share this file.
            let _ = std::io::stderr().lock().write_all(format!("{line}\n").as_bytes());
        })
    }

    /// Discards the lines.
    pub fn silent() -> Self {
        Notices::new(|_| {})
    }

    /// Passes each line to a function.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Notices { sink: Arc::new(sink), paddle_lines: false }
    }

    /// Also prints PaddlePaddle's lines: `Server listening on ...`, `Communicator start`.
    pub fn with_paddle_lines(self) -> Self {
        Notices { paddle_lines: true, ..self }
    }

    /// Prints a line.
    pub fn print(&self, line: &str) {
        (self.sink)(line);
    }

    /// Prints a line of PaddlePaddle's, if they are wanted.
    pub(super) fn print_for_paddle(&self, line: &str) {
        if self.paddle_lines {
            self.print(line);
        }
    }
}
