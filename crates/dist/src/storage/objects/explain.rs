//! Error messages for object stores: what failed, where, and what to check.
//!
//! Messages contain addresses and responses. They cannot contain credentials, because nothing here has them.

use std::error::Error as _;
use std::io;

use object_store::Error;
use object_store::path::Path;
use openfleet_table::checkpoint::StorageError;

use crate::storage::addresses::Cloud;

/// A bucket, and its cloud.
pub(super) struct BucketAddress {
    /// The bucket's address, for messages.
    pub(super) name: String,
    cloud: Option<Cloud>,
}

impl BucketAddress {
    pub(super) fn new(name: &str, cloud: Option<Cloud>) -> Self {
        BucketAddress { name: name.to_owned(), cloud }
    }

    /// Turns the failure of an operation on a key into an error with a hint.
    pub(super) fn explain(&self, error: Error, key: &Path) -> io::Error {
        let said = chain(&error);
        let is_no_bucket =
            ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|words| said.contains(words));
        let (kind, message, hint) = match error {
            _ if is_no_bucket => {
                (io::ErrorKind::NotFound, format!("the bucket does not exist ({said})"), self.bucket_hint())
            }
            Error::NotFound { .. } => (io::ErrorKind::NotFound, format!("there is no object `{key}` ({said})"), None),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                let message = format!("access to `{key}` was denied ({said})");
                (io::ErrorKind::PermissionDenied, message, Some(self.credentials_hint().to_owned()))
            }
            _ if said.contains("scheme is not allowed") => {
                (io::ErrorKind::InvalidInput, format!("`{key}`: {said}"), Some(self.http_hint().to_owned()))
            }
            _ => (io::ErrorKind::Other, format!("`{key}`: {said}"), Some(self.reach_hint().to_owned())),
        };
        StorageError { kind, message, hint }.into()
    }

    fn bucket_hint(&self) -> Option<String> {
        let endpoint = match self.cloud {
            Some(Cloud::S3) => " and `AWS_REGION` or `AWS_ENDPOINT_URL`",
            Some(Cloud::Azure) => " and `AZURE_STORAGE_ACCOUNT_NAME`",
            _ => "",
        };
        Some(format!("create the bucket first, or check its name in `{}`{endpoint}", self.name))
    }

    /// Where the credentials are configured.
    pub(super) fn credentials_hint(&self) -> &'static str {
        match self.cloud {
            Some(Cloud::S3) => {
                "set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` in every process of the job (servers write \
                 checkpoints), for an account that may list the bucket and read, write and delete its objects"
            }
            Some(Cloud::Gcs) => {
                "set `GOOGLE_APPLICATION_CREDENTIALS` to the file of an account that may list the bucket and read, write \
                 and delete its objects"
            }
            Some(Cloud::Azure) => {
                "set `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`, for an account that may list the container \
                 and read, write and delete its blobs"
            }
            None => "check the store's credentials",
        }
    }

    fn http_hint(&self) -> &'static str {
        match self.cloud {
            Some(Cloud::S3) => "give an `https://` endpoint, or set `AWS_ALLOW_HTTP=true`",
            _ => "give an `https://` endpoint",
        }
    }

    fn reach_hint(&self) -> &'static str {
        match self.cloud {
            Some(Cloud::S3) if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() => self.credentials_hint(),
            Some(Cloud::S3) => {
                "check that the server in `AWS_ENDPOINT_URL`, or the Amazon region in `AWS_REGION`, is reachable from this machine"
            }
            _ => "check that the object store is reachable from this machine",
        }
    }
}

/// The text of an error and all its causes, each once.
pub(super) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    without_markup(text)
}

/// Clouds respond with an XML page; two of its elements are readable.
fn without_markup(text: String) -> String {
    let inside = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(inside, _)| inside)
    };
    match (text.split_once('<'), inside("Code"), inside("Message")) {
        (Some((before, _)), Some(code), Some(message)) => format!("{before}{code}: {message}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Error {
        Error::Generic { store: "S3", source: text.into() }
    }

    fn explained(error: Error) -> StorageError {
        BucketAddress::new("s3://b/p", Some(Cloud::S3)).explain(error, &Path::from("p/file")).into()
    }

    #[test]
    fn xml_markup_is_removed_from_an_error() {
        let said = chain(&generic(
            "404 Not Found: <?xml?><Error><Code>NoSuchBucket</Code><Message>It is not</Message></Error>",
        ));
        assert_eq!(said, "Generic S3 error: 404 Not Found: NoSuchBucket: It is not");
        assert_eq!(chain(&generic("1 < 2")), "Generic S3 error: 1 < 2");
    }

    #[test]
    fn an_error_has_a_kind_and_a_hint() {
        let missing = explained(Error::NotFound { path: "p/file".into(), source: "404".into() });
        assert_eq!((missing.kind, missing.hint), (io::ErrorKind::NotFound, None));
        let bucket = explained(generic("<Code>NoSuchBucket</Code>"));
        assert_eq!(bucket.kind, io::ErrorKind::NotFound);
        assert!(bucket.hint.is_some_and(|hint| hint.contains("`s3://b/p`")), "{}", bucket.message);
        let denied = explained(Error::PermissionDenied { path: "p/file".into(), source: "403".into() });
        assert_eq!(denied.kind, io::ErrorKind::PermissionDenied);
        assert!(denied.message.contains("`p/file`"), "{}", denied.message);
        assert!(denied.hint.is_some_and(|hint| hint.contains("AWS_SECRET_ACCESS_KEY")));
    }
}
