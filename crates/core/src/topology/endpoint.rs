//! A host and a port.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A host and a port, written `host:port`; an IPv6 address is in brackets.
///
/// Names are compared case-insensitively, as in DNS; whether two different names are the same machine is not known.
///
/// ```
/// let endpoint: openfleet_core::Endpoint = "10.0.0.2:36000".parse()?;
/// assert_eq!((endpoint.host(), endpoint.port()), ("10.0.0.2", 36000));
/// assert_eq!(endpoint.to_string(), "10.0.0.2:36000");
/// # Ok::<(), openfleet_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// Without brackets, lower case.
    host: String,
    port: u16,
}

impl Endpoint {
    /// A host name, an IPv4 or an IPv6 address (without brackets), and a port above 0.
    pub fn new(host: &str, port: u16) -> Result<Self> {
        let text = || if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        if port == 0 {
            return Err(Error::Endpoint { text: text(), reason: "port 0 is nowhere" });
        }
        match host.parse::<Ipv6Addr>() {
            // One spelling per address.
            Ok(address) => Ok(Endpoint { host: address.to_string(), port }),
            Err(_) => {
                check_host(host).map_err(|reason| Error::Endpoint { text: text(), reason })?;
                Ok(Endpoint { host: host.to_ascii_lowercase(), port })
            }
        }
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Finds common mistakes; whether a name resolves is not checked.
fn check_host(host: &str) -> std::result::Result<(), &'static str> {
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.contains("//") {
        return Err("a scheme is not part of an endpoint");
    }
    if host.contains(':') {
        return Err("the host has a colon but is no IPv6 address");
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err("a host has letters, digits, `-`, `.` and `_` only");
    }
    Ok(())
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |reason| Error::Endpoint { text: text.to_owned(), reason };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
            Some(_) => return Err(wrong("brackets hold an IPv6 address")),
            // `::1:80` is ambiguous.
            None if host.parse::<Ipv6Addr>().is_ok() || text.parse::<Ipv6Addr>().is_ok() => {
                return Err(wrong("an IPv6 address stands in brackets"));
            }
            None => host,
        };
        // `u16::from_str` would accept `+80`.
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(|| wrong("the port is a number from 1 to 65535"))?;
        Endpoint::new(host, port).map_err(|error| match error {
            Error::Endpoint { reason, .. } => wrong(reason),
            other => other,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Hinted;
    use proptest::prelude::*;

    #[test]
    fn endpoints_that_are_understood() {
        let rows = [
            // What the PaddlePaddle scripts write.
            ("127.0.0.1:36011", "127.0.0.1:36011"),
            // A name, in any case, with the underscore that container networks use.
            ("Ps_0.Example.com:1", "ps_0.example.com:1"),
            // The shortest and the longest spelling of one IPv6 address.
            ("[::1]:80", "[::1]:80"),
            ("[0:0:0:0:0:0:0:1]:80", "[::1]:80"),
            // The largest port.
            ("localhost:65535", "localhost:65535"),
        ];
        for (text, shown) in rows {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn endpoints_that_are_refused_say_why() {
        let rows = [
            // Nothing at all.
            ("", "the port is missing"),
            // A host alone.
            ("10.0.0.2", "the port is missing"),
            // A port alone.
            (":36000", "the host is missing"),
            // No port after the colon.
            ("host:", "the port is a number from 1 to 65535"),
            // One more than the maximum.
            ("host:65536", "the port is a number from 1 to 65535"),
            // A sign is not a digit.
            ("host:+80", "the port is a number from 1 to 65535"),
            // Valid for listening, not for connecting.
            ("host:0", "port 0 is nowhere"),
            // A URL.
            ("tcp://host:80", "a scheme is not part of an endpoint"),
            // A list where one was expected.
            ("a:1,b:2", "the host has a colon but is no IPv6 address"),
            // A blank left by splitting at commas.
            (" host:80", "a host has letters, digits, `-`, `.` and `_` only"),
            // 80 could be the port or the last group.
            ("::1:80", "an IPv6 address stands in brackets"),
            // Brackets around a name.
            ("[host]:80", "brackets hold an IPv6 address"),
        ];
        for (text, expected) in rows {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, Error::Endpoint { text: text.into(), reason: expected }, "{text}");
            assert!(error.hint().unwrap().contains("host:port"));
        }
    }

    proptest! {
        #[test]
        fn endpoints_read_back_as_written(host in "[a-z0-9][a-z0-9._-]{0,30}", port in 1_u16..) {
            let endpoint = Endpoint::new(&host, port).unwrap();
            prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,40}|[\\[\\]:0-9a-f]{0,20}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
