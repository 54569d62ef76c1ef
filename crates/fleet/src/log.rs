//! Where log events (`tracing`) go: to standard error, or to a front end.
//!
//! A library does not decide where its process logs; the programs do, and the Python package passes events to `logging`.
//! Warnings and errors are shown unless `OPENFLEET_LOG` sets another level. Each event is one line without a time stamp,
//! because the launcher and the schedulers add their own. Spans are not shown; OpenFleet opens none.

use std::fmt::Write as _;
use std::io::Write as _;

pub use tracing::Level;
use tracing::field::{Field, Visit};
pub use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::error::Result;
use crate::role;
use crate::variables::{self, Variables};

/// Sends the events of this process to standard error. An existing subscriber keeps them.
pub fn to_stderr(variables: &Variables) -> Result<()> {
    to(level(variables)?, |level, text| {
        // One write per line: the processes of a job often share this file.
        let _ = std::io::stderr().lock().write_all(format!("{}: {text}\n", name(level)).as_bytes());
    });
    Ok(())
}

/// Passes the events of this process down to a level to a function. An existing subscriber keeps them.
pub fn to(level: LevelFilter, take: impl Fn(Level, String) + Send + Sync + 'static) {
    // An error means that there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(Events { level, take });
}

/// `warn`, `info`.
pub fn name(level: Level) -> String {
    level.as_str().to_ascii_lowercase()
}

/// The level of `OPENFLEET_LOG`; warnings and errors by default.
pub fn level(variables: &Variables) -> Result<LevelFilter> {
    match variables.get(variables::LOG) {
        None => Ok(LevelFilter::WARN),
        // `LevelFilter` would accept numbers too.
        Some(text) => {
            text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_alphabetic())).ok_or_else(|| {
                role::Error::Value {
                    name: variables::LOG,
                    value: text.to_owned(),
                    expected: "`error`, `warn`, `info`, `debug`, `trace` or `off`".into(),
                    hint: None,
                }
                .into()
            })
        }
    }
}

struct Events<F> {
    level: LevelFilter,
    take: F,
}

impl<F: Fn(Level, String) + Send + Sync + 'static> Subscriber for Events<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Only OpenFleet's events: those of libraries are for their authors.
        *metadata.level() <= self.level && metadata.target().starts_with("openfleet")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        (self.take)(*event.metadata().level(), line.0);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// `server 127.0.0.1:36000 has been silent for 3.1 s`.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" if self.0.is_empty() => write!(self.0, "{value:?}"),
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_a_word() {
        let level = |text: &str| level(&Variables::default().with("OPENFLEET_LOG", text));
        assert_eq!(level("").unwrap(), LevelFilter::WARN);
        assert_eq!(level("Debug").unwrap(), LevelFilter::DEBUG);
        assert_eq!(level("off").unwrap(), LevelFilter::OFF);
        for text in ["loud", "3", "info,tokio=debug"] {
            assert_eq!(
                level(text).unwrap_err().to_string(),
                format!("`OPENFLEET_LOG` = `{text}`: expected `error`, `warn`, `info`, `debug`, `trace` or `off`")
            );
        }
    }
}
