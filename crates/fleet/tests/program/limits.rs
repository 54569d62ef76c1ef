//! `openfleet serve` with clients that are slow, silent or too many: their connections are closed, and other clients get
//! answers.
//!
//! These tests do not read a clock: limits are short, and a test waits until the server closes the connection.
#![cfg(unix)]

use serde_json::{Value, json};

use crate::data::Workspace;
use crate::http::{Connection, Server};
use crate::own_model;

const HEALTH: [&str; 6] = [
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/own/ready",
    "/v2/models/own/versions/1/ready",
    "/v1/models/own",
    "/v1/models/own/versions/1",
];

fn good() -> Value {
    json!({ "inputs": { "user": [1], "item": [1], "dense": [[0, 0]] } })
}

fn served(options: &[&str]) -> (Workspace, Server) {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    let server = Server::start(&workspace, &[&["own"], options].concat());
    (workspace, server)
}

/// A connection with a request in flight: its header has been sent, its body has not.
fn at_work(server: &Server) -> Connection {
    let mut connection = server.connect();
    connection.send(
        b"POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
    );
    // The server requests the body when it reads it: from then on the request counts as in flight.
    assert_eq!(connection.line(), "HTTP/1.1 100 Continue");
    assert_eq!(connection.line(), "");
    connection
}

/// Sends requests on new connections until one is not refused. Fails after one minute.
fn predicted_at_last(server: &Server) {
    for _ in 0..6000 {
        let answer = server.post("/v1/models/own:predict", &good());
        if answer.status != 503 {
            answer.json();
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no connection became free");
}

#[test]
fn a_client_that_does_not_finish_its_header_is_disconnected() {
    let (_place, server) = served(&["--header-timeout", "0.3"]);
    let mut silent = server.connect();
    let mut half = server.connect();
    half.send(b"POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Le");
    // The second header of a connection has the same limit.
    let mut second = server.connect();
    assert_eq!(second.ask("GET", "/v2", &[], b"").status, 200);
    second.send(b"GET /v2 HTTP/1.1\r\n");
    for connection in [&mut silent, &mut half, &mut second] {
        assert_eq!(connection.closed(), "");
    }
    server.post("/v1/models/own:predict", &good()).json();
}

#[test]
fn a_header_that_comes_byte_by_byte_has_the_limit_of_one_that_stops() {
    let (_place, server) = served(&["--header-timeout", "0.3"]);
    let mut slow = server.connect();
    // Ends only if the server closes although bytes keep coming.
    slow.send(b"GET /v2 HTTP/1.1\r\nX: ");
    let written = slow.send_until_closed(b"x");
    assert!(written > 0);
    assert_eq!(server.get("/v2").status, 200);
}

#[test]
fn a_body_that_does_not_arrive_is_refused_with_408_and_the_connection_closed() {
    let (_place, server) = served(&["--body-timeout", "0.3"]);
    let mut half = server.connect();
    half.send(b"POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"inputs\":");
    assert_eq!(half.answer().error(408), "the body did not arrive within 0.3 s (`--body-timeout`)");
    half.closed();
    server.post("/v1/models/own:predict", &good()).json();
}

#[test]
fn a_connection_without_requests_is_closed_and_one_with_requests_is_kept() {
    let (_place, server) = served(&["--idle-timeout", "2"]);
    let mut used = server.connect();
    let mut idle = server.connect();
    assert_eq!(idle.ask("GET", "/v2", &[], b"").status, 200);
    // Requests that together take longer than the limit, with shorter pauses.
    for _ in 0..20 {
        used.ask("POST", "/v1/models/own:predict", &[], good().to_string().as_bytes()).json();
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    assert_eq!(idle.closed(), "");
    assert_eq!(used.closed(), "");
    // A request whose body takes longer than the idle limit is in flight.
    let mut slow = at_work(&server);
    let mut other = server.connect();
    assert_eq!(other.ask("GET", "/v2", &[], b"").status, 200);
    assert_eq!(other.closed(), "");
    let body = good().to_string();
    slow.send(format!("{body}{}", " ".repeat(1000 - body.len())).as_bytes());
    slow.answer().json();
}

#[test]
fn a_client_that_does_not_take_its_answer_is_disconnected() {
    let (_place, server) = served(&["--idle-timeout", "0.5", "--max-connections", "1"]);
    let mut deaf = server.connect();
    // Responses of some megabytes, far more than socket buffers hold, which the client does not read.
    let count = 16_000;
    let columns = json!({ "user": vec![1; count], "item": vec![1; count], "dense": vec![[0, 0]; count] });
    let body = json!({ "inputs": columns }).to_string();
    for _ in 0..40 {
        let head = format!("POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        if !(deaf.try_send(head.as_bytes()) && deaf.try_send(body.as_bytes())) {
            break;
        }
    }
    // It was the only allowed connection: another one gets answers once it is closed.
    predicted_at_last(&server);
}

#[test]
fn health_is_answered_and_predictions_are_refused_when_all_connections_are_in_use() {
    let (_place, server) = served(&["--max-connections", "3"]);
    let mut busy: Vec<_> = (0..3).map(|_| at_work(&server)).collect();
    for path in HEALTH.iter().chain(&["/metrics"]) {
        let mut check = server.connect();
        let answer = check.ask("GET", path, &[], b"");
        assert_eq!((answer.status, answer.headers["connection"].as_str()), (200, "close"), "{path}");
        check.closed();
    }
    for path in ["/v1/models/own:predict", "/v2/models/own/infer", "/v2/models/own/ready"] {
        let mut refused = server.connect();
        let answer = refused.ask("POST", path, &[], good().to_string().as_bytes());
        let error = answer.error(503);
        assert!(error.contains("connections as it may, 3 (`--max-connections`)"), "{error}");
        assert_eq!((&*answer.headers["connection"], &*answer.headers["retry-after"]), ("close", "1"));
        refused.closed();
    }
    for path in ["/v2/models/own", "/v1/models/own/metadata", "/elsewhere"] {
        server.get(path).error(503);
    }
    let refused = "openfleet_requests_total{protocol=\"tf_serving\",status=\"503\"} 2";
    assert!(server.get("/metrics").text().lines().any(|line| line == refused));
    // The existing connections get answers, and so does a new one after one of them has ended.
    let body = good().to_string();
    for connection in &mut busy {
        connection.send(format!("{body}{}", " ".repeat(1000 - body.len())).as_bytes());
        connection.answer().json();
    }
    drop(busy.pop());
    predicted_at_last(&server);
}

#[test]
fn a_new_client_takes_the_place_of_a_connection_that_asks_nothing() {
    let (_place, server) = served(&["--max-connections", "2", "--idle-timeout", "10m", "--header-timeout", "10m"]);
    let mut idle = server.connect();
    assert_eq!(idle.ask("GET", "/v2", &[], b"").status, 200);
    let mut busy = at_work(&server);
    // Refused while the idle one may only be pausing, which is one second.
    predicted_at_last(&server);
    assert_eq!(idle.closed(), "");
    let body = good().to_string();
    busy.send(format!("{body}{}", " ".repeat(1000 - body.len())).as_bytes());
    busy.answer().json();
}

#[test]
fn health_is_answered_however_many_connections_say_nothing() {
    let (_place, server) = served(&["--max-connections", "4", "--idle-timeout", "10m", "--header-timeout", "10m"]);
    let mut silent = Vec::new();
    for count in 0..200 {
        let mut connection = server.connect();
        if count % 2 == 0 {
            connection.send(b"GET /v2/health/live HTTP/1.1\r\n");
        }
        silent.push(connection);
    }
    for path in HEALTH {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let (code, rest) = server.end("-TERM");
    assert_eq!((code, rest.as_str()), (Some(0), ""));
}

#[test]
fn limits_are_checked_before_listening() {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    for (option, value, expected) in [
        ("--max-connections", "0", "expected a whole number of at least 1"),
        ("--idle-timeout", "0", "expected a time above 0"),
        ("--header-timeout", "soon", "expected a time above 0, as in `90`, `90s`, `15m` or `2h`"),
        ("--body-timeout", "-1", "expected a time above 0"),
    ] {
        let error = workspace.run(&["serve", "own", &format!("{option}={value}")]).failed(2);
        assert!(error.contains(option) && error.contains(expected), "{error}");
    }
}
