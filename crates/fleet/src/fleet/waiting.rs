//! Waiting for servers, with a time limit and regular messages.
//!
//! Every link connects by itself: it resolves the name again on each attempt and retries within a second, so training starts
//! as soon as the last server listens. This module sends a heartbeat over each link and prints which servers have not answered, in
//! PaddlePaddle's two lines. A server that answers with a refusal ends the wait at once, because retrying would not help.

use std::time::Duration;

use openfleet_dist::client::Pending;
use openfleet_dist::request::heartbeat::Heartbeat;
use openfleet_dist::{Error as DistError, Link};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Notices;
use crate::error::{Error, Result};

/// Time for servers that start together with this worker, before the first two lines.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two repetitions of the lines.
const PERIOD: Duration = Duration::from_secs(3);

/// Returns when all servers have answered, or the limit has passed, or `interrupted` turns true.
pub(super) async fn for_servers(
    links: &[Link],
    limit: Duration,
    notices: &Notices,
    mut interrupted: watch::Receiver<bool>,
) -> Result<()> {
    let end = Instant::now() + limit;
    let mut absent: Vec<&Link> = links.iter().collect();
    let mut patience = FIRST;
    loop {
        let now = Instant::now();
        let until = (now + patience).min(end);
        tokio::select! {
            still_absent = ask(absent, until - now) => absent = still_absent?,
            _ = interrupted.wait_for(|interrupted| *interrupted) => return Err(Error::WaitInterrupted),
        }
        if absent.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = absent.iter().map(|link| link.name().to_owned()).collect();
        if Instant::now() >= end {
            return Err(Error::ServersAbsent { endpoints: names, waited: limit });
        }
        let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        notices.print("server not ready, wait 3 sec to retry...");
        notices.print(&format!("not ready endpoints:[{}]", quoted.join(", ")));
        patience = PERIOD;
    }
}

/// The links that do not answer within a time limit.
async fn ask(links: Vec<&Link>, within: Duration) -> Result<Vec<&Link>> {
    let asked = links.into_iter().map(|link| Ok((link, link.send_within(&Heartbeat, within)?)));
    let asked: Vec<(&Link, Pending)> = asked.collect::<openfleet_dist::Result<_>>()?;
    let mut absent = Vec::new();
    for (link, pending) in asked {
        match pending.answer().await {
            Ok(_) => {}
            Err(DistError::Deadline { .. }) => absent.push(link),
            Err(source) => return Err(Error::Unwelcome { source }),
        }
    }
    Ok(absent)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::io::ErrorKind;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use openfleet_core::error::report;
    use openfleet_core::topology::{Endpoint, Incarnation};
    use openfleet_dist::client::{BoxedStream, Connector};
    use openfleet_dist::handshake::Secret;
    use openfleet_dist::listener::serve;
    use openfleet_dist::session::Identity;
    use openfleet_dist::{ClientConfig, ServerConfig, State};
    use parking_lot::Mutex;

    use super::*;

    /// Servers that start to listen at a given time of a paused clock.
    struct Scripted {
        began: Instant,
        /// By port; other ports never listen.
        ready_after: Vec<(u16, Duration)>,
        attempts: AtomicUsize,
    }

    impl Connector for Scripted {
        fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = std::io::Result<BoxedStream>> + Send>> {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            let after = self.ready_after.iter().find(|(port, _)| *port == endpoint.port());
            let listens = after.is_some_and(|(_, after)| self.began.elapsed() >= *after);
            Box::pin(async move {
                if !listens {
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let config = ServerConfig { secret: Secret::new("swordfish"), ..ServerConfig::default() };
                tokio::spawn(serve(theirs, Arc::new(config), Arc::new(State::new()), "a worker".into()));
                Ok(Box::new(ours) as BoxedStream)
            })
        }
    }

    /// Waits for servers `a:1` and `b:2`; gives the outcome, the lines and the attempts to connect.
    async fn wait(ready_after: Vec<(u16, Duration)>, secret: &str, limit: u64) -> (Result<()>, Vec<String>, usize) {
        let connector = Arc::new(Scripted { began: Instant::now(), ready_after, attempts: AtomicUsize::new(0) });
        let identity = Identity {
            job: ServerConfig::default().job,
            secret: Secret::new(secret),
            rank: 0,
            incarnation: Incarnation(1),
        };
        let links: Vec<Link> = ["a:1", "b:2"]
            .map(|server| {
                let config = ClientConfig::new(identity.clone());
                let runtime = tokio::runtime::Handle::current();
                Link::remote(&runtime, server.parse().unwrap(), config, connector.clone())
            })
            .into();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = lines.clone();
        let notices = Notices::new(move |line| heard.lock().push(line.to_owned()));
        let (_interrupt, interrupted) = watch::channel(false);
        let outcome = for_servers(&links, Duration::from_secs(limit), &notices, interrupted).await;
        let lines = lines.lock().clone();
        (outcome, lines, connector.attempts.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_printed_when_all_servers_answer() {
        let now = Duration::ZERO;
        let (outcome, lines, _) = wait(vec![(1, now), (2, now)], "swordfish", 900).await;
        outcome.unwrap();
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn paddles_two_lines_name_the_missing_servers_every_three_seconds() {
        let began = Instant::now();
        let ready = vec![(1, Duration::from_secs(3)), (2, Duration::from_secs(8))];
        let (outcome, lines, attempts) = wait(ready, "swordfish", 900).await;
        outcome.unwrap();
        let wait_line = "server not ready, wait 3 sec to retry...";
        let expected = [
            wait_line,
            // After 1 s.
            "not ready endpoints:['a:1', 'b:2']",
            wait_line,
            // After 4 s: the first has come.
            "not ready endpoints:['b:2']",
            wait_line,
            // After 7 s.
            "not ready endpoints:['b:2']",
        ];
        assert_eq!(lines, expected);
        assert!(began.elapsed() < Duration::from_secs(10), "waiting ends when the last server comes");
        assert!(attempts > 6, "each attempt is a new connection to a name that is resolved again: {attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_ends_in_an_error_that_names_the_endpoints() {
        let began = Instant::now();
        let (outcome, lines, _) = wait(vec![(1, Duration::ZERO)], "swordfish", 900).await;
        assert_eq!(
            report(&outcome.unwrap_err()),
            "server `b:2` did not answer within 900 s\n\nhint: check that they are running and that the list of servers \
             (`PADDLE_PSERVERS_IP_PORT_LIST` or `OPENFLEET_SERVERS`) is the same on every machine; \
             `OPENFLEET_WAIT_SECONDS` is the limit"
        );
        assert_eq!(began.elapsed().as_secs(), 900, "of a clock that the test turns");
        // After 1, 4, 7, ... 898 s.
        assert_eq!(lines.len(), 2 * 300);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_ends_the_wait_at_once() {
        let now = Duration::ZERO;
        let (outcome, lines, _) = wait(vec![(1, now), (2, now)], "sword", 900).await;
        let message = report(&outcome.unwrap_err());
        assert!(message.starts_with("this worker cannot join the job\n  because: server `a:1`"), "{message}");
        assert!(message.contains("does not know the secret of this job"), "{message}");
        assert!(message.ends_with("and that no other job uses these servers"), "{message}");
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_interruption_ends_the_wait() {
        let identity = Identity { job: "job".into(), secret: Secret::default(), rank: 0, incarnation: Incarnation(1) };
        let connector =
            Arc::new(Scripted { began: Instant::now(), ready_after: Vec::new(), attempts: AtomicUsize::new(0) });
        let runtime = tokio::runtime::Handle::current();
        let link = Link::remote(&runtime, "a:1".parse().unwrap(), ClientConfig::new(identity), connector);
        let (interrupt, interrupted) = watch::channel(false);
        let links = [link];
        let notices = Notices::new(move |_| {
            interrupt.send_replace(true);
        });
        let outcome = for_servers(&links, Duration::from_secs(900), &notices, interrupted).await;
        assert_eq!(outcome.unwrap_err().to_string(), "interrupted while waiting for servers");
    }
}
