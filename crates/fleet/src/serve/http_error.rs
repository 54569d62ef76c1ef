//! Why a request failed: a status and one sentence, as JSON in both protocols.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use openfleet_core::error::report;
use serde_json::json;

/// An HTTP error response.
#[derive(Debug, PartialEq)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    /// What failed, on what, expected and got.
    pub(crate) message: String,
}

impl HttpError {
    /// The request contains something that the model cannot take (400).
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// The path or the model does not exist (404).
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    /// The request is larger than the limit (413).
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::PAYLOAD_TOO_LARGE, message: message.into() }
    }

    /// The result of the model cannot be sent (500).
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        HttpError { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.into() }
    }
}

/// A feed that the engine refuses is the client's error; other errors are the server's.
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
