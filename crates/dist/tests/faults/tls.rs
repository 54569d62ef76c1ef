//! TLS over real sockets, with certificates created by the test: it works, it does not replace the secret, and mismatches are
//! named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::Secret;
use openfleet_dist::session::Identity;
use openfleet_dist::tls::{ClientTls, ServerTls};
use openfleet_dist::{ClientConfig, Cluster, Error, Link, Server, ServerConfig, State};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::counter::{Thread, check, config, sample, tables};

/// An authority that signs certificates for one host.
struct Files {
    folder: TempDir,
    server: ServerTls,
    client: ClientTls,
}

impl Files {
    fn for_host(host: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| -> PathBuf {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let client = ClientTls { authorities: write("ca.pem", authority.self_signed(&authority_key).unwrap().pem()) };
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
        let server = ServerTls {
            certificates: write("server.pem", certificate.pem()),
            key: write("key.pem", key.serialize_pem()),
        };
        Files { folder, server, client }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

type Running = (Arc<State>, Endpoint, JoinHandle<openfleet_dist::Result<()>>);

fn start(runtime: &Runtime, tls: Option<ServerTls>) -> Running {
    let state = Arc::new(State::new());
    let config = ServerConfig { tls, ..config() };
    let server = runtime.block_on(Server::bind("127.0.0.1", 0, config, state.clone())).unwrap();
    let endpoint = server.endpoint().unwrap();
    (state, endpoint, runtime.spawn(server.run()))
}

fn link(runtime: &Runtime, endpoint: &Endpoint, rank: u32, secret: &str, tls: Option<ClientTls>) -> Link {
    let secret = Secret::new(secret);
    let identity = Identity { job: config().job, secret, rank, incarnation: Incarnation(1) };
    let client = ClientConfig { tls, ..ClientConfig::new(identity) };
    Link::remote(runtime.handle(), endpoint.clone(), client, Arc::new(Tcp))
}

fn cluster(links: Vec<Link>, worker: Worker) -> Cluster {
    Cluster::new(links, worker, Strategy::resolve(&StrategyOptions::for_mode(Mode::Sync)).unwrap())
}

/// The error that a worker gets when it asks a server for its status.
fn refusal(runtime: &Runtime, endpoint: &Endpoint, secret: &str, tls: Option<ClientTls>) -> String {
    let link = link(runtime, endpoint, 0, secret, tls);
    let error = cluster(vec![link], Worker { rank: 0, count: 1, threads: 1 }).status().unwrap_err();
    assert!(matches!(&error, Error::Server { endpoint: named, .. } if *named == endpoint.to_string()), "{error}");
    error.to_string()
}

#[test]
fn a_job_trains_over_tls_and_its_servers_end() {
    const SECRET: &str = "a test's secret";
    let (runtime, files) = (runtime(), Files::for_host("127.0.0.1"));
    let servers: Vec<Running> = (0..2).map(|_| start(&runtime, Some(files.server.clone()))).collect();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let link = |(_, endpoint, _): &Running| link(&runtime, endpoint, rank, SECRET, Some(files.client.clone()));
            let cluster = cluster(servers.iter().map(link).collect(), Worker { rank, count: 2, threads: 1 });
            scope.spawn(move || {
                let (sparse, dense) = tables();
                let communicator = cluster.communicator(&sparse, &dense).unwrap();
                let mut thread = Thread::new();
                communicator.begin(0).unwrap();
                for step in 0..30 {
                    thread.step(communicator.as_ref(), &sample(1, rank, step), (2.0, 2.0)).unwrap();
                }
                communicator.finish(0).unwrap();
                cluster.close().unwrap();
            });
        }
    });
    let states: Vec<Arc<State>> = servers.iter().map(|(state, ..)| state.clone()).collect();
    check(&states, (0..2).flat_map(|rank| (0..30).map(move |step| sample(1, rank, step))), "over TLS");
    for (_, _, running) in servers {
        runtime.block_on(running).unwrap().unwrap();
    }
}

#[test]
fn the_secret_is_asked_for_over_tls_too() {
    let (runtime, files) = (runtime(), Files::for_host("127.0.0.1"));
    let (state, endpoint, _running) = start(&runtime, Some(files.server.clone()));
    let said = refusal(&runtime, &endpoint, "a guess", Some(files.client.clone()));
    assert!(said.contains("the other side does not know the secret of this job"), "{said}");
    assert!(state.status().connected.is_empty());
}

#[test]
fn a_server_signed_by_another_authority_or_for_another_host_is_not_trusted() {
    let runtime = runtime();
    let (right, stranger, elsewhere) =
        (Files::for_host("127.0.0.1"), Files::for_host("127.0.0.1"), Files::for_host("parameters.example"));
    for (server, client, reason) in
        [(&right, &stranger, "certificate"), (&elsewhere, &elsewhere, "certificate not valid for name")]
    {
        let (state, endpoint, _running) = start(&runtime, Some(server.server.clone()));
        let said = refusal(&runtime, &endpoint, "a test's secret", Some(client.client.clone()));
        let expected = format!("no TLS with server `{endpoint}`, trusting `{}`", client.path("ca.pem").display());
        assert!(said.contains(&expected) && said.contains(reason), "{said}");
        assert!(said.contains("hint: check that TLS is configured on both sides"), "{said}");
        assert!(state.status().connected.is_empty());
    }
}

#[test]
fn a_side_without_tls_gets_a_readable_refusal() {
    let (runtime, files) = (runtime(), Files::for_host("127.0.0.1"));
    let (_state, endpoint, _running) = start(&runtime, Some(files.server.clone()));
    let said = refusal(&runtime, &endpoint, "a test's secret", None);
    let expected = format!("server `{endpoint}` refused worker 0: this server requires TLS");
    assert!(said.contains(&expected), "{said}");

    let (_state, endpoint, _running) = start(&runtime, None);
    let said = refusal(&runtime, &endpoint, "a test's secret", Some(files.client.clone()));
    assert!(said.contains(&format!("no TLS with server `{endpoint}`")), "{said}");
    assert!(said.contains("hint: check that TLS is configured on both sides"), "{said}");
}

#[test]
fn files_that_are_missing_or_hold_something_else_are_named() {
    let (runtime, files) = (runtime(), Files::for_host("127.0.0.1"));
    let bind = |certificates: &Path, key: &Path| {
        let tls = Some(ServerTls { certificates: certificates.into(), key: key.into() });
        let server = Server::bind("127.0.0.1", 0, ServerConfig { tls, ..config() }, Arc::new(State::new()));
        runtime.block_on(server).err().unwrap()
    };
    let (good, key, absent) = (files.path("server.pem"), files.path("key.pem"), files.path("absent.pem"));
    for (certificates, key, named) in
        [(&absent, &key, &absent), (&good, &absent, &absent), (&key, &key, &key), (&good, &good, &good)]
    {
        let error = bind(certificates, key);
        assert!(matches!(&error, Error::TlsFile { path, .. } if *path == named.display().to_string()), "{error}");
    }
    // A key that is not the certificate's.
    let other = Files::for_host("127.0.0.1");
    assert!(matches!(bind(&good, &other.path("key.pem")), Error::TlsFile { .. }));

    let (_state, endpoint, _running) = start(&runtime, Some(files.server.clone()));
    let said = refusal(&runtime, &endpoint, "a test's secret", Some(ClientTls { authorities: absent.clone() }));
    assert!(said.contains(&format!("`{}` cannot be used for TLS", absent.display())), "{said}");
    assert!(said.contains("hint: give the path of a PEM file"), "{said}");
}
