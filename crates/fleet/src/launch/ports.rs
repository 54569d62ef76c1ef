//! Ports for the processes of a job on one machine, reserved until their process starts.
//!
//! A port that the system assigns (`bind` to 0) is in the range that it also uses for the source ports of outgoing connections.
//! A worker that tries to reach a server that does not listen yet could get the server's own port, and even connect to itself.
//! So free ports are searched below that range, and a listener holds each of them until its process starts.

use std::io::ErrorKind;
use std::net::TcpListener;

use openfleet_core::Endpoint;
use openfleet_core::topology::Role;

use super::error::Error;
use crate::error::Result;

/// The file in which Linux shows its range of source ports.
const SOURCE_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The default of Linux.
const USUAL_FIRST_SOURCE_PORT: u16 = 32768;
/// Below are the well-known ports and those that people choose by hand.
const LOWEST: u16 = 10_000;
/// Attempts before the system is asked for any free port.
const ATTEMPTS: u32 = 200;

/// A port that no other process can take while this value lives.
#[derive(Debug)]
pub struct PortReservation {
    _listener: TcpListener,
}

impl PortReservation {
    /// Reserves exactly this endpoint for a process.
    pub(crate) fn at(endpoint: &Endpoint, role: Role, rank: usize) -> Result<Self> {
        match TcpListener::bind((endpoint.host(), endpoint.port())) {
            Ok(listener) => Ok(PortReservation { _listener: listener }),
            Err(source) => Err(Error::PortInUse { role, rank, endpoint: endpoint.clone(), source }.into()),
        }
    }

    /// Like [`PortReservation::at`]. If the address is not one of this machine's, as behind address translation, it reserves
    /// the port on all addresses and returns the address to bind to instead.
    pub(crate) fn at_or_behind(endpoint: &Endpoint, role: Role, rank: usize) -> Result<(Self, Option<String>)> {
        let everywhere = if endpoint.host().contains(':') { "::" } else { "0.0.0.0" };
        let refused = match PortReservation::at(endpoint, role, rank) {
            Ok(reserved) => return Ok((reserved, None)),
            Err(refused) => refused,
        };
        let is_elsewhere = matches!(&refused, crate::Error::Launch(Error::PortInUse { source, .. })
            if source.kind() == ErrorKind::AddrNotAvailable);
        match TcpListener::bind((everywhere, endpoint.port())) {
            Ok(listener) if is_elsewhere => Ok((PortReservation { _listener: listener }, Some(everywhere.to_owned()))),
            _ => Err(refused),
        }
    }

    /// Reserves any free port of `host`.
    ///
    /// # Errors
    ///
    /// If no port of `host` can be bound.
    pub fn free(host: &str) -> Result<(Self, u16)> {
        let no_port = |source| Error::NoPort { host: host.to_owned(), source };
        let below = first_source_port();
        let listener = (below > LOWEST)
            .then(|| (0..ATTEMPTS).find_map(|_| TcpListener::bind((host, random(LOWEST, below))).ok()))
            .flatten();
        let listener = match listener {
            Some(listener) => listener,
            None => TcpListener::bind((host, 0)).map_err(no_port)?,
        };
        let port = listener.local_addr().map_err(no_port)?.port();
        Ok((PortReservation { _listener: listener }, port))
    }
}

fn first_source_port() -> u16 {
    let range = std::fs::read_to_string(SOURCE_PORTS).unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(USUAL_FIRST_SOURCE_PORT)
}

/// Random, so that two launchers that start together do not try the same ports in the same order.
fn random(from: u16, below: u16) -> u16 {
    let nonce = openfleet_dist::handshake::fresh_nonce();
    from + u16::from_le_bytes([nonce[0], nonce[1]]) % (below - from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn reserved_ports_are_distinct_and_out_of_the_way_of_connections() {
        let reserved: Vec<(PortReservation, u16)> =
            (0..20).map(|_| PortReservation::free("127.0.0.1").unwrap()).collect();
        let ports: HashSet<u16> = reserved.iter().map(|(_, port)| *port).collect();
        assert_eq!(ports.len(), 20);
        assert!(ports.iter().all(|port| *port < first_source_port()), "{ports:?}");
    }

    #[test]
    fn a_reserved_port_is_refused_to_others_until_it_is_released() {
        let (reserved, port) = PortReservation::free("127.0.0.1").unwrap();
        let endpoint = Endpoint::new("127.0.0.1", port).unwrap();
        let refused = PortReservation::at(&endpoint, Role::Server, 1).unwrap_err();
        assert_eq!(refused.to_string(), format!("server 1 cannot listen on `127.0.0.1:{port}`"));
        drop(reserved);
        PortReservation::at(&endpoint, Role::Server, 1).unwrap();
    }
}
