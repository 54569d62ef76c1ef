//! Serves predictions of a saved model over HTTP, in two protocols on one port.
//!
//! There is one file per protocol: `open_inference` (Triton and KServe) and `tf_serving`. Each turns requests into columns;
//! `inputs` makes a feed of them, and `outputs` writes the model's results. There is one model in one version, and no
//! authentication: anyone who can reach the port gets answers.
//!
//! Small requests are answered on the thread that read them. Large ones, of which as many run at once as there are threads, let
//! the other connections of their thread continue first. Next to a client that requests batches of 4,096 without a pause
//! (`comparisons/serve.py`, three rounds on a busy machine), the slowest of a hundred single rows took 4 to 8 ms on one thread;
//! 88 to 113 ms with everything answered on the thread that read it, and 42 to 115 ms with small requests queued too. On two
//! threads there was no difference.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::LengthLimitError;
use openfleet_engine::{Predictor, Tensor};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::error::{Error, Result};
use connections::Admission;
use http_error::HttpError;
use inputs::{GivenColumn, Input};
use metrics::{Metrics, Protocol};
pub(crate) use options::{Limits, Options};
use outputs::Output;

mod connections;
mod http_error;
mod inputs;
mod metrics;
mod numbers;
mod open_inference;
mod options;
mod outputs;
mod tf_serving;

/// The only version of the model.
const VERSION: &str = "1";

/// Bodies up to this size are answered on the thread that read them: some tens of rows, a fraction of a millisecond.
const SMALL: usize = 64 * 1024;

/// How long requests in flight may take after the server was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// The time between two checks of the stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// The model and everything needed to answer, shared by all connections.
struct Served {
    name: String,
    predictor: Predictor,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    max_body: usize,
    max_rows: usize,
    limits: Limits,
    metrics: Metrics,
    /// Limits the number of large requests that run at once.
    turns: Semaphore,
}

type Shared = Arc<Served>;

/// Serves until `stop` is set, then completes the requests in flight. Calls `ready` with the address once connections are
/// accepted.
pub(crate) fn serve(
    predictor: Predictor,
    options: Options,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads.max(1))
        .thread_name("openfleet-serve")
        .enable_all()
        .build()
        .map_err(|source| Error::Runtime { source })?;
    let ended = runtime.block_on(answer_until(predictor, options, stop, ready));
    // Requests that exceed their time are abandoned.
    runtime.shutdown_background();
    ended
}

async fn answer_until(
    predictor: Predictor,
    options: Options,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let failed = |source| Error::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let router = router(Served::new(predictor, &options)?);
    let end = Arc::new(Notify::new());
    let asked = end.clone();
    let server = connections::run(listener, router, options.limits, async move { asked.notified().await });
    let server = tokio::spawn(server);
    ready(address);
    asked_to(stop).await;
    end.notify_one();
    // Slower requests are abandoned.
    drop(tokio::time::timeout(GRACE, server).await);
    Ok(())
}

async fn asked_to(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}

fn router(served: Served) -> Router {
    let served = Arc::new(served);
    let mut router = Router::new().route("/metrics", get(metrics_text));
    for (path, method) in open_inference::routes().into_iter().chain(tf_serving::routes()) {
        router = router.route(path, method);
    }
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(served.clone(), admit))
        .layer(from_fn_with_state(served.clone(), measure))
        .with_state(served)
}

impl Served {
    fn new(predictor: Predictor, options: &Options) -> Result<Self> {
        Ok(Served {
            name: options.name.clone(),
            inputs: Input::all_of(&predictor)?,
            outputs: Output::all_of(&predictor),
            predictor,
            max_body: options.max_body,
            max_rows: options.max_rows,
            limits: options.limits.clone(),
            metrics: Metrics::default(),
            turns: Semaphore::new(options.threads.max(1)),
        })
    }

    /// Checks that the request names this model.
    fn check(&self, asked: &Asked) -> Result<(), HttpError> {
        let Asked { name, version } = asked;
        if *name != self.name {
            return Err(HttpError::unknown(format!("there is no model `{name}`; the model served is `{}`", self.name)));
        }
        match version.as_deref() {
            None | Some(VERSION) => Ok(()),
            Some(other) => Err(HttpError::unknown(format!(
                "there is no version `{other}` of model `{name}`; the version served is `{VERSION}`"
            ))),
        }
    }

    /// The outputs for the columns of a request.
    fn predict(&self, given: Vec<GivenColumn>) -> Result<Vec<Tensor>, HttpError> {
        let (feed, rows) = inputs::feed(&self.inputs, given, self.max_rows)?;
        let tensors = self.predictor.predict(feed)?;
        self.metrics.predicted(rows);
        Ok(tensors)
    }
}

/// The model name in a path.
struct Asked {
    name: String,
    version: Option<String>,
}

impl Asked {
    /// Splits the verb off the last segment, if it has one. A name may contain colons.
    fn split_verb(mut self) -> (Self, Option<String>) {
        let last = self.version.as_mut().unwrap_or(&mut self.name);
        let verb = last.rsplit_once(':').map(|(before, verb)| (before.len(), verb.to_owned()));
        if let Some((end, _)) = verb {
            last.truncate(end);
        }
        (self, verb.map(|(_, verb)| verb))
    }
}

impl FromRequestParts<Shared> for Asked {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, HttpError> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut segments) = path.map_err(|error| HttpError::bad(format!("the path is no text: {error}")))?;
        Ok(Asked { name: segments.remove("name").unwrap_or_default(), version: segments.remove("version") })
    }
}

/// Reads the body and answers it, on this thread or as a large request.
async fn answer_with(
    served: Shared,
    request: Request,
    answer: impl FnOnce(&Served, &HeaderMap, &[u8]) -> Result<Response, HttpError>,
) -> Result<Response, HttpError> {
    let (parts, body) = request.into_parts();
    if let Some(encoding) = parts.headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let got = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        let message = format!("header `Content-Encoding`: expected a body that is not compressed, got `{got}`");
        return Err(HttpError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message });
    }
    let too_large = |got: &str| {
        HttpError::too_large(format!("expected a body of at most {} bytes (`--max-body`), got {got}", served.max_body))
    };
    // A body that is announced as too large is not read.
    let announced =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = announced.filter(|&length| length > served.max_body as u64) {
        return Err(too_large(&length.to_string()));
    }
    let limit = served.limits.body;
    let body = match tokio::time::timeout(limit, to_bytes(body, served.max_body)).await {
        Ok(body) => body,
        Err(_) => {
            let message = format!("the body did not arrive within {} s (`--body-timeout`)", limit.as_secs_f64());
            return Err(HttpError { status: StatusCode::REQUEST_TIMEOUT, message });
        }
    };
    let body: Bytes = body.map_err(|error| match error.into_inner() {
        error if error.is::<LengthLimitError>() => too_large("more"),
        error => HttpError::bad(format!("the body ended early: {error}")),
    })?;
    if body.len() <= SMALL {
        return answer(&served, &parts.headers, &body);
    }
    // The semaphore is never closed.
    let _turn = served.turns.acquire().await;
    tokio::task::block_in_place(|| answer(&served, &parts.headers, &body))
}

async fn measure(State(served): State<Shared>, request: Request, next: Next) -> Response {
    let (protocol, predicts) = (Protocol::of(request.uri().path()), request.method() == Method::POST);
    let began = Instant::now();
    let response = next.run(request).await;
    served.metrics.answered(protocol, response.status().as_u16());
    if predicts && response.status().is_success() {
        served.metrics.took(began.elapsed());
    }
    response
}

/// On a connection over the limit, answers only health checks and closes the connection.
async fn admit(State(served): State<Shared>, request: Request, next: Next) -> Response {
    if request.extensions().get() != Some(&Admission::HealthOnly) {
        return next.run(request).await;
    }
    let path = request.uri().path();
    let is_health = path == "/metrics" || open_inference::is_health(path) || tf_serving::is_health(path);
    let mut response = if is_health && request.method() == Method::GET {
        next.run(request).await
    } else {
        let message = format!(
            "the server has as many connections as it may, {} (`--max-connections`), and all are in use; try again later",
            served.limits.max_connections
        );
        let refusal = HttpError { status: StatusCode::SERVICE_UNAVAILABLE, message };
        ([(header::RETRY_AFTER, "1")], refusal).into_response()
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn metrics_text(State(served): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], served.metrics.text()).into_response()
}

async fn no_such_path(State(served): State<Shared>, uri: Uri) -> HttpError {
    let (path, name) = (uri.path(), &served.name);
    HttpError::unknown(format!(
        "there is nothing at `{path}`; the model served is at `/v2/models/{name}` and `/v1/models/{name}`"
    ))
}

async fn wrong_method(method: Method, uri: Uri) -> HttpError {
    let expected = if uri.path().ends_with("/infer") { "POST" } else { "GET" };
    let message = format!("`{}`: expected {expected}, got {method}", uri.path());
    HttpError { status: StatusCode::METHOD_NOT_ALLOWED, message }
}

fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
