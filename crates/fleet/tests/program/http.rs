//! `openfleet serve` as a child process, and a minimal HTTP client for it.
#![cfg(unix)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::data::Workspace;

/// A server on a free port, killed when the test ends.
pub(crate) struct Server {
    child: Child,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

/// An HTTP response.
pub(crate) struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Server {
    /// Serves a directory of the workspace; returns when the server has printed its address.
    pub(crate) fn start(workspace: &Workspace, options: &[&str]) -> Self {
        let arguments = [&["serve"], options, &["--listen", "127.0.0.1:0"]].concat();
        let mut child = workspace.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("serving ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server ended early");
        }
        let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
        Server { child, address, stderr }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection for several requests.
    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Connection(BufReader::new(stream))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.connect().ask("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.connect().ask("POST", path, &[], body.to_string().as_bytes())
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Sends a signal and waits for the end; returns the exit code and the rest of standard error.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }

    /// Waits for an end that was requested; returns the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n", body.len())
                .as_bytes(),
        );
        self.send(body);
        self.answer()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A server that has refused a body may have closed the connection; its response is still readable.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Whether the server accepted the bytes: it does not after it has closed.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    /// Sends the same bytes repeatedly until the server has closed; returns how often they were accepted.
    pub(crate) fn send_until_closed(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while self.try_send(bytes) {
            sent += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        sent
    }

    /// One line, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until the server closes the connection; returns what it sent before. Fails after one minute.
    pub(crate) fn closed(&mut self) -> String {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            // Closed while bytes of the client were unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the server did not close the connection: {error}"),
        }
        String::from_utf8_lossy(&rest).into_owned()
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        Answer { status, headers, body }
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of a successful response.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The error text of a refused request.
    pub(crate) fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.headers["content-type"], "application/json");
        let json: Value = serde_json::from_slice(&self.body).unwrap();
        json["error"].as_str().unwrap().to_owned()
    }
}
