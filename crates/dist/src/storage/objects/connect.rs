//! Creates the client of a bucket, with settings from the environment.
//!
//! The names of the variables are object_store's, which uses those of the clouds' own tools. The timeouts are set here: an
//! unreachable server is an error within half a minute.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use openfleet_table::checkpoint::StorageError;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;

use super::explain::{BucketAddress, chain};
use crate::error::{Error, Result};
use crate::storage::addresses::Cloud;

/// Timeout for establishing a connection.
const CONNECTING: Duration = Duration::from_secs(5);
/// Timeout for a reply without progress. (A reply that makes progress has no time limit: parts are large, and networks may be
/// slow.)
const STANDING_STILL: Duration = Duration::from_secs(20);
/// How often a request is retried, and for how long.
const RETRIES: usize = 4;
const RETRYING: Duration = Duration::from_secs(15);

/// A client of the bucket in `bucket_url`.
pub(super) fn connect(
    cloud: Cloud,
    address: &str,
    bucket_url: &str,
    place: &BucketAddress,
) -> Result<Arc<dyn ObjectStore>> {
    // The builders have different types, but methods of the same names.
    macro_rules! build {
        ($builder:ty) => {
            <$builder>::from_env()
                .with_url(bucket_url)
                .with_retry(retries())
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
        };
    }
    let built = match cloud {
        #[cfg(feature = "s3")]
        Cloud::S3 => build!(object_store::aws::AmazonS3Builder),
        #[cfg(feature = "gcs")]
        Cloud::Gcs => build!(object_store::gcp::GoogleCloudStorageBuilder),
        #[cfg(feature = "azure")]
        Cloud::Azure => build!(object_store::azure::MicrosoftAzureBuilder),
        #[allow(unreachable_patterns, reason = "a build may have all of them")]
        _ => return Err(Error::NotBuilt { address: address.into(), feature: cloud.feature() }),
    };
    built.map_err(|error| Error::StorageSetup {
        address: address.into(),
        source: Box::new(StorageError {
            kind: io::ErrorKind::InvalidInput,
            message: chain(&error),
            hint: Some(place.credentials_hint().into()),
        }),
    })
}

fn retries() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(2), base: 2.0 };
    RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRYING }
}

/// HTTP with our TLS provider. (object_store's own connector needs a provider installed for the whole process, which a library
/// must not do.)
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic { store: "HTTP", source };
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_platform_verifier())
            .map_err(|error| failed(error.into()))?
            .with_no_client_auth();
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(!allows_http)
            .connect_timeout(CONNECTING)
            .read_timeout(STANDING_STILL)
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(HttpClient::new(client))
    }
}
