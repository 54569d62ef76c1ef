//! Which of the listed hosts this machine is.
//!
//! The addresses come from the network interfaces, not from the host name: on many systems the machine's own name resolves to
//! `127.0.0.1` or `127.0.1.1`, which is in no list. A name in a list means this machine if it is its host name or resolves to
//! one of its addresses. `--host` overrides both.

use std::net::{IpAddr, ToSocketAddrs};

use nix::ifaddrs::getifaddrs;

/// This machine, or the host that `--host` names.
#[derive(Debug, Clone)]
pub(crate) enum Machine {
    /// Identified by its interfaces and its host name.
    Own { addresses: Vec<IpAddr>, name: String },
    /// `--host`.
    Named(String),
}

impl Machine {
    /// Asks the operating system. What it does not tell is left empty, because the lists or `--host` may be enough.
    pub(crate) fn this() -> Self {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for interface in getifaddrs().into_iter().flatten() {
            let Some(address) = interface.address else { continue };
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
            addresses.extend(v4.or(v6).filter(|address| !addresses.contains(address)));
        }
        let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        Machine::Own { addresses, name }
    }

    /// Whether `host`, an address or a name, is this machine.
    pub(crate) fn owns(&self, host: &str) -> bool {
        match self {
            Machine::Named(told) => {
                let same = |a: &IpAddr| resolve(host).contains(a);
                told.eq_ignore_ascii_case(host) || resolve(told).iter().any(same)
            }
            Machine::Own { addresses, name } => {
                let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
                let is_name = host.parse::<IpAddr>().is_err();
                // `node1` and `node1.cluster` are the same machine; `node1.a` and `node1.b` may not be.
                let same_name = name.eq_ignore_ascii_case(host)
                    || (name.contains('.') != host.contains('.') && short(name) == short(host));
                (is_name && !name.is_empty() && same_name)
                    || resolve(host).iter().any(|address| address.is_loopback() || addresses.contains(address))
            }
        }
    }

    /// The names of this machine, for an error.
    pub(crate) fn describe(&self) -> String {
        match self {
            Machine::Named(told) => format!("`{told}` (`--host`)"),
            Machine::Own { addresses, name } => {
                let addresses = addresses.iter().map(|address| format!("`{address}`"));
                let all: Vec<String> = addresses.chain(Some(format!("`{name}`"))).collect();
                all.join(", ")
            }
        }
    }
}

/// The addresses of a host: itself if it is an address, otherwise what its name resolves to.
fn resolve(host: &str) -> Vec<IpAddr> {
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    (host, 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_knows_its_addresses_and_its_name() {
        let addresses = vec!["10.0.0.2".parse().unwrap(), "fe80::1".parse().unwrap()];
        let machine = Machine::Own { addresses, name: "node2.cluster".into() };
        // Its addresses; any loopback address; its name in any case, with and without the domain.
        for own in ["10.0.0.2", "fe80::1", "127.0.0.1", "127.0.1.1", "localhost", "node2", "Node2.cluster"] {
            assert!(machine.owns(own), "{own}");
        }
        for other in ["10.0.0.3", "10.0.0.20", "node3.invalid", "node2.other.invalid", ""] {
            assert!(!machine.owns(other), "{other}");
        }
    }

    #[test]
    fn a_machine_that_was_told_asks_nobody() {
        let machine = Machine::Named("127.0.0.2".into());
        assert!(machine.owns("127.0.0.2") && !machine.owns("127.0.0.1"), "even loopback has hosts, then");
        assert!(Machine::Named("Node2".into()).owns("node2"));
        assert!(Machine::Named("localhost".into()).owns("127.0.0.1"), "a name stands for its addresses");
    }

    #[test]
    fn the_interfaces_of_this_machine_are_found() {
        let Machine::Own { addresses, .. } = Machine::this() else { panic!("nobody told it") };
        assert!(addresses.iter().any(IpAddr::is_loopback), "{addresses:?}");
    }
}
