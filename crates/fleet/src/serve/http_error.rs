//! Why a request was not answered: a status and one sentence, as JSON in either protocol.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use openfleet_core::error::report;
use serde_json::json;

/// A request that is not answered.
#[derive(Debug, PartialEq)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    /// What failed, on what, expected and got.
    pub(crate) message: String,
}

impl HttpError {
    /// The request says something that the model cannot take.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// There is no such thing here.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    /// More than one request may bring.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::PAYLOAD_TOO_LARGE, message: message.into() }
    }

    /// The model's answer cannot be sent.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.into() }
    }
}

/// What the engine refuses of a feed is the client's to correct; anything else is not.
impl From<openfleet_engine::Error> for HttpError {
    fn from(error: openfleet_engine::Error) -> Self {
        use openfleet_engine::Error::{Core, FeedMismatch, NotFed, Value};
        match error {
            Core(_) | FeedMismatch { .. } | NotFed { .. } | Value { .. } => HttpError::bad(report(&error)),
            other => HttpError::failed(report(&other)),
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.message }).to_string();
        (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
