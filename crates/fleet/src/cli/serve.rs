//! `openfleet serve`: predictions of a saved model over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;

use super::Outcome;
use super::data_choice::threads;
use super::infer::UNFINISHED;
use super::output::remark;
use crate::error::Result;
use crate::launch::duration;
use crate::model_dir;
use crate::serve::{Limits, Options, serve};

/// `openfleet serve ...`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Saved model: a directory or bucket that `train --save` or `save_inference_model` wrote.
    #[arg(value_name = "ADDRESS")]
    model: String,
    /// Name of the model in URLs [the last part of its address].
    #[arg(long)]
    name: Option<String>,
    /// Address and port to listen on; port 0 chooses a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8501")]
    listen: SocketAddr,
    /// Threads that compute predictions; 0 means one per core.
    #[arg(long, default_value_t = 0, value_parser = threads)]
    threads: usize,
    /// Largest body of a request in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    max_body: usize,
    /// Most rows per request.
    #[arg(long, value_name = "ROWS", default_value_t = 16_384)]
    max_rows: usize,
    /// Most connections. Further connections get answers to health checks, and 503 for anything else.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    max_connections: usize,
    /// Close a connection whose request header is not complete after this time.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    header_timeout: Duration,
    /// Refuse a request whose body is not complete after this time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    body_timeout: Duration,
    /// Close an idle connection, or one that does not read its response, after this time.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    idle_timeout: Duration,
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

pub(crate) fn run(arguments: &ServeArgs, stop: &AtomicBool) -> Result<Outcome> {
    let opened = model_dir::open(&arguments.model, "ADDRESS")?;
    if opened.description.as_ref().is_some_and(|description| !description.complete) {
        remark(UNFINISHED);
    }
    if !arguments.listen.ip().is_loopback() {
        remark("there is no authentication: anyone who can reach this address gets answers");
    }
    let options = Options {
        name: arguments.name.clone().unwrap_or_else(|| name_of(&arguments.model)),
        listen: arguments.listen,
        threads: match arguments.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        },
        max_body: arguments.max_body,
        max_rows: arguments.max_rows,
        limits: Limits {
            max_connections: arguments.max_connections,
            header: arguments.header_timeout,
            body: arguments.body_timeout,
            idle: arguments.idle_timeout,
        },
    };
    let name = options.name.clone();
    serve(opened.predictor, options, stop, |address| remark(&format!("serving {name} on http://{address}")))?;
    // A signal is the normal end of a server.
    Ok(Outcome::Done)
}

/// The name of a model: the last part of its address. Paths such as `.` and `..` are resolved first.
fn name_of(address: &str) -> String {
    let whole = Path::new(address).canonicalize().unwrap_or_else(|_| address.into());
    whole.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
