//! TLS with rustls, version 1.3 only, because both sides are ours. The crypto provider is passed explicitly and not installed
//! for the process.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::{ClientTls, ServerTls};
use crate::error::{Error, Result};
use crate::net::Stream;

/// The server side.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Reads the certificate and the key. Fails if a file cannot be used.
    pub fn new(config: &ServerTls) -> Result<Self> {
        let chain = certificates(&config.certificates)?;
        let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|source| unusable(&config.key, source))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = builder
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|source| unusable(&config.certificates, source))?;
        Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    /// Does the TLS handshake with a worker.
    pub async fn accept<S: Stream>(&self, stream: S) -> std::io::Result<server::TlsStream<S>> {
        self.0.accept(stream).await
    }
}

/// The client side.
#[derive(Clone)]
pub struct Connector {
    connector: TlsConnector,
    authorities: String,
}

impl Connector {
    /// Reads the certificates of the authorities. Fails if the file cannot be used.
    pub fn new(config: &ClientTls) -> Result<Self> {
        let path = &config.authorities;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|source| unusable(path, source))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|source| unusable(path, source))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Connector { connector: TlsConnector::from(Arc::new(config)), authorities: path.display().to_string() })
    }

    /// Does the TLS handshake with a server, and checks that its certificate names the host and is signed by an authority. A
    /// server that cannot be trusted is [`Error::Tls`]; a lost connection is [`Error::Socket`], and may be retried.
    pub async fn connect<S: Stream>(&self, host: &str, stream: S, endpoint: &str) -> Result<client::TlsStream<S>> {
        let untrusted = |reason: String| Error::Tls {
            endpoint: endpoint.to_owned(),
            authorities: self.authorities.clone(),
            reason,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| untrusted(error.to_string()))?;
        self.connector.connect(name, stream).await.map_err(|source| {
            match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(error) => untrusted(error.to_string()),
                None => Error::Socket { action: "connecting to", endpoint: endpoint.to_owned(), source },
            }
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|source| unusable(path, source))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it holds no certificate"));
    }
    Ok(certificates)
}

fn unusable(path: &Path, reason: impl ToString) -> Error {
    Error::TlsFile { path: path.display().to_string(), reason: reason.to_string() }
}
