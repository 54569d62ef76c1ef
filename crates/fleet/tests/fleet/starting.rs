//! How servers start and workers find them, and the errors if they cannot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openfleet::Result;
use openfleet::fleet::{Fleet, Notices, ProcessContext};
use openfleet::variables::Variables;
use openfleet_core::error::report;
use openfleet_core::strategy::Mode;
use openfleet_dist::client::Tcp;

use crate::{free_endpoints, model};

/// The context of a process, with its lines recorded.
fn context(variables: Variables) -> (ProcessContext, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let notices = Notices::new(move |line| heard.lock().unwrap().push(line.to_owned()));
    (ProcessContext { variables, notices, connector: Arc::new(Tcp) }, said)
}

fn server(endpoint: &str) -> Variables {
    Variables::default()
        .with("OPENFLEET_ROLE", "server")
        .with("OPENFLEET_RANK", "0")
        .with("OPENFLEET_SERVERS", endpoint)
        .with("OPENFLEET_WORKER_NUM", "1")
}

fn worker(endpoint: &str) -> Variables {
    server(endpoint).with("OPENFLEET_ROLE", "worker")
}

fn serve(variables: Variables) -> Result<()> {
    let fleet = Fleet::init_in(None, context(variables).0)?;
    // A server that could start would end at once.
    fleet.stop_handle().stop();
    fleet.init_server(None)?;
    fleet.run_server()
}

#[test]
fn server_and_worker_say_where_they_are_and_proxies_do_not_matter() {
    let endpoint = free_endpoints(1).remove(0);
    let proxied = |variables: Variables| {
        let proxy = "http://proxy.invalid:3128";
        variables.with("http_proxy", proxy).with("https_proxy", proxy).with("ALL_PROXY", proxy)
    };
    let (beside_server, server_said) = context(proxied(server(&endpoint)));
    let (beside_worker, worker_said) = context(proxied(worker(&endpoint)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fleet = Fleet::init_in(None, beside_server).unwrap();
            fleet.init_server(None).unwrap();
            fleet.run_server().unwrap();
        });
        let fleet = Fleet::init_in(None, beside_worker).unwrap();
        model(&fleet, Mode::Sync);
        fleet.init_worker().unwrap();
        fleet.stop_worker().unwrap();
    });
    assert_eq!(
        *server_said.lock().unwrap(),
        [
            "server 0 of 1 (1 worker): role from OPENFLEET_*".to_owned(),
            format!("server 0 of 1: listening on {endpoint}"),
            "server 0 of 1: ended".to_owned(),
        ]
    );
    let worker_said = worker_said.lock().unwrap();
    assert_eq!(worker_said[0], "worker 0 of 1 (1 server): role from OPENFLEET_*");
    assert_eq!(worker_said.last().unwrap(), "worker 0 of 1: communicator started, trainer id 0");
}

#[test]
fn a_server_that_never_comes_is_named() {
    let endpoint = free_endpoints(1).remove(0);
    for limited in [
        // Set by the environment.
        Fleet::init_in(None, context(worker(&endpoint).with("OPENFLEET_WAIT_SECONDS", "0")).0).unwrap(),
        // Set by the program.
        Fleet::init_in(None, context(worker(&endpoint)).0).unwrap().wait_limit(Duration::ZERO),
    ] {
        model(&limited, Mode::Async);
        assert_eq!(
            limited.init_worker().unwrap_err().to_string(),
            format!("server `{endpoint}` did not answer within 0 s")
        );
    }
}

#[test]
fn a_worker_that_waits_can_be_interrupted() {
    let fleet = Fleet::init_in(None, context(worker(&free_endpoints(1)[0])).0).unwrap();
    model(&fleet, Mode::Async);
    fleet.stop_handle().stop();
    assert_eq!(fleet.init_worker().unwrap_err().to_string(), "interrupted while waiting for servers");
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = taken.local_addr().unwrap().to_string();
    let message = report(&serve(server(&endpoint)).unwrap_err());
    assert!(message.starts_with(&format!("listening on `{endpoint}` failed\n  because: ")), "{message}");
    assert!(message.ends_with("\n\nhint: another program has this port: end it, or choose another port"), "{message}");
}

#[test]
fn an_address_of_another_machine_is_named_with_what_to_do() {
    // An address reserved for documentation: no machine has it.
    let message = report(&serve(server("203.0.113.1:36000")).unwrap_err());
    assert!(message.starts_with("listening on `203.0.113.1:36000` failed\n  because: "), "{message}");
    assert!(message.contains("`OPENFLEET_BIND`"), "{message}");
}

#[test]
fn a_server_that_everybody_can_reach_needs_a_secret() {
    let port = free_endpoints(1)[0].rsplit_once(':').unwrap().1.to_owned();
    let open = server(&format!("127.0.0.1:{port}")).with("OPENFLEET_BIND", "0.0.0.0");
    let message = report(&serve(open.clone()).unwrap_err());
    assert_eq!(
        message,
        format!(
            "refusing to listen on `0.0.0.0:{port}` without a secret: anyone could read and change the tables\n\nhint: \
             set `OPENFLEET_SECRET` to the same text for every process of the job, or start it with `fleetrun`, which \
             makes one; without a secret a server listens on 127.0.0.1 only, and with the role in `PADDLE_*` variables \
             alone on private addresses too"
        )
    );
    serve(open.with("OPENFLEET_SECRET", "swordfish")).unwrap();
    // The unspecified address is not a private one, in whichever variables.
    let open = Variables::default()
        .with("TRAINING_ROLE", "PSERVER")
        .with("PADDLE_PSERVERS_IP_PORT_LIST", format!("10.89.176.11:{port}"))
        .with("POD_IP", "10.89.176.11")
        .with("PADDLE_PORT", &port)
        .with("PADDLE_TRAINERS_NUM", "1")
        .with("OPENFLEET_BIND", "0.0.0.0");
    let message = report(&serve(open).unwrap_err());
    assert!(message.starts_with(&format!("refusing to listen on `0.0.0.0:{port}` without a secret")), "{message}");
}

#[test]
fn a_worker_without_a_secret_is_told_so_instead_of_waiting_for_servers_that_may_not_listen() {
    let paddle = |server: &str| {
        Variables::default()
            .with("TRAINING_ROLE", "TRAINER")
            .with("PADDLE_PSERVERS_IP_PORT_LIST", server)
            .with("PADDLE_TRAINERS_NUM", "1")
            .with("PADDLE_TRAINER_ID", "0")
    };
    let public = "203.0.113.1:36000";
    for (told, server) in
        [(paddle(public), public), (worker(public), public), (worker("10.0.0.1:36000"), "10.0.0.1:36000")]
    {
        let fleet = Fleet::init_in(None, context(told).0).unwrap();
        model(&fleet, Mode::Async);
        let message = report(&fleet.init_worker().unwrap_err());
        let expected = format!("refusing to train with server `{server}` without a secret: anyone could");
        assert!(message.starts_with(&expected) && message.contains("hint: set `OPENFLEET_SECRET`"), "{message}");
    }
}

#[test]
fn a_server_with_a_secret_need_not_resolve_its_own_name() {
    let port = free_endpoints(1)[0].rsplit_once(':').unwrap().1.to_owned();
    let variables = server(&format!("server-0.job.invalid:{port}")).with("OPENFLEET_SECRET", "swordfish");
    let (beside, said) = context(variables);
    let fleet = Fleet::init_in(None, beside).unwrap();
    fleet.stop_handle().stop();
    fleet.init_server(None).unwrap();
    fleet.run_server().unwrap();
    assert_eq!(said.lock().unwrap()[1], format!("server 0 of 1: listening on 0.0.0.0:{port}"));
}

#[test]
fn a_worker_with_another_secret_is_told_so_at_once() {
    let endpoint = free_endpoints(1).remove(0);
    let fleet = Fleet::init_in(None, context(server(&endpoint).with("OPENFLEET_SECRET", "swordfish")).0).unwrap();
    fleet.init_server(None).unwrap();
    let handle = fleet.stop_handle();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| fleet.run_server());
        let stranger = Fleet::init_in(None, context(worker(&endpoint).with("OPENFLEET_SECRET", "sword")).0).unwrap();
        model(&stranger, Mode::Async);
        let message = report(&stranger.init_worker().unwrap_err());
        assert!(message.starts_with("this worker cannot join the job"), "{message}");
        assert!(message.contains("`OPENFLEET_SECRET`"), "{message}");
        assert!(!message.contains("sword"), "{message}");
        handle.stop();
        running.join().unwrap().unwrap();
    });
}
