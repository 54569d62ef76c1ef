//! TLS by rustls, version 1.3 only: both sides are ours. Its provider of cryptography is handed over and not installed for
//! the process.

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

/// The server's half.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Reads the files.
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

    /// Agrees with a worker on keys.
    pub async fn accept<S: Stream>(&self, stream: S) -> std::io::Result<server::TlsStream<S>> {
        self.0.accept(stream).await
    }
}

/// The worker's half.
#[derive(Clone)]
pub struct Connector {
    connector: TlsConnector,
    authorities: String,
}

impl Connector {
    /// Reads the file.
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

    /// Agrees with a server on keys, and checks that its certificate names the host and is signed by an authority. A server
    /// that is not to be trusted is [`Error::Tls`]; one that went away is [`Error::Socket`], and may be tried again.
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
