//! A build without TLS reports an error if TLS is configured.

use std::sync::Arc;

use openfleet_core::Hinted as _;
use openfleet_dist::tls::ServerTls;
use openfleet_dist::{Error, Server, ServerConfig, State};

use crate::counter::config;

#[tokio::test]
async fn a_build_without_tls_says_how_to_get_it() {
    let tls = Some(ServerTls { certificates: "server.pem".into(), key: "key.pem".into() });
    let bound = Server::bind("127.0.0.1", 0, ServerConfig { tls, ..config() }, Arc::new(State::new())).await;
    let error = bound.err().unwrap();
    assert!(matches!(error, Error::NoTls), "{error}");
    assert!(error.hint().unwrap().contains("feature `tls`"));
}
