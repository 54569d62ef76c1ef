//! Replacement of the server in a build without the feature `serve`: an error that says so.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use openfleet_engine::Predictor;

#[path = "options.rs"]
#[allow(dead_code, reason = "nothing reads the options without the server")]
mod options;

use crate::error::{Error, Result};
pub(crate) use options::{Limits, Options};

/// Always fails.
pub(crate) fn serve(_: Predictor, _: Options, _: &AtomicBool, _: impl FnOnce(SocketAddr)) -> Result<()> {
    Err(Error::NotBuilt { what: "`openfleet serve`", feature: "serve" })
}
