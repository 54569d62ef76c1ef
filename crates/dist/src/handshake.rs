//! How both sides of a connection prove that they belong to the same job, before anything else is sent.
//!
//! ```text
//! worker -> server   Hello      version, job, role, rank, incarnation, a nonce
//! server -> worker   Challenge  a nonce, and the server's proof over both nonces and the hello
//! worker -> server   Proof      the worker's proof over the same
//! server -> worker   Welcome, or a refusal that says why
//! ```
//!
//! A proof is an HMAC-SHA256 with the job's secret. Neither side sends the secret, and nonces are fresh, so replaying a
//! recorded handshake fails. An empty secret proves nothing and is for loopback only. The functions are pure: nonces are
//! arguments.

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::error::{Error, Result};

/// Maximum payload before the peer is authenticated, in bytes.
pub const CAP: u64 = 4096;

/// A number used once.
pub type Nonce = [u8; 16];

/// The first message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The job both sides must belong to.
    pub job: String,
    /// The caller's rank among the workers.
    pub rank: u32,
    /// Increases with every restart of the worker; an older incarnation is refused.
    pub incarnation: u64,
    /// A fresh nonce.
    pub nonce: Nonce,
}

/// The server's answer to a hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// A fresh nonce.
    pub nonce: Nonce,
    /// Proves that the server knows the secret.
    pub proof: [u8; 32],
}

/// The job's secret. Its `Debug` output does not reveal it.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret from bytes; empty for none.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(bytes.into())
    }

    /// Whether the secret is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One side's proof over a hello and both nonces. `side` prevents that one side's proof is replayed as the other's.
    pub fn proof(&self, side: Side, hello: &Hello, server_nonce: &Nonce) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!("HMAC accepts keys of any length"));
        mac.update(match side {
            Side::Server => b"openfleet server",
            Side::Worker => b"openfleet worker",
        });
        mac.update(&(hello.job.len() as u64).to_le_bytes());
        mac.update(hello.job.as_bytes());
        mac.update(&hello.rank.to_le_bytes());
        mac.update(&hello.incarnation.to_le_bytes());
        mac.update(&hello.nonce);
        mac.update(server_nonce);
        mac.finalize().into_bytes().into()
    }

    /// Fails unless `proof` is the proof of `side`.
    pub fn check(&self, side: Side, hello: &Hello, server_nonce: &Nonce, proof: &[u8; 32]) -> Result<()> {
        if bool::from(self.proof(side, hello, server_nonce).ct_eq(proof)) { Ok(()) } else { Err(Error::WrongSecret) }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_empty() { "Secret(none)" } else { "Secret(hidden)" })
    }
}

/// The side of a connection that makes a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The server.
    Server,
    /// The worker.
    Worker,
}

/// A nonce from the operating system's random numbers.
pub fn fresh_nonce() -> Nonce {
    let mut nonce = Nonce::default();
    // Without random numbers a proof could be forged: do not connect.
    getrandom::fill(&mut nonce)
        .unwrap_or_else(|error| panic!("the operating system provides no random numbers: {error}"));
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { job: "job".into(), rank: 1, incarnation: 2, nonce: [3; 16] }
    }

    #[test]
    fn only_the_same_secret_side_hello_and_nonce_prove_anything() {
        let secret = Secret::new("swordfish");
        let proof = secret.proof(Side::Worker, &hello(), &[4; 16]);
        secret.check(Side::Worker, &hello(), &[4; 16], &proof).unwrap();
        assert!(Secret::new("sword").check(Side::Worker, &hello(), &[4; 16], &proof).is_err());
        assert!(secret.check(Side::Server, &hello(), &[4; 16], &proof).is_err());
        assert!(
            secret.check(Side::Worker, &hello(), &[5; 16], &proof).is_err(),
            "a replay fails because the nonce differs"
        );
        let older = Hello { incarnation: 1, ..hello() };
        assert!(secret.check(Side::Worker, &older, &[4; 16], &proof).is_err());
    }

    #[test]
    fn a_secret_never_shows_itself() {
        assert_eq!(format!("{:?}", Secret::new("swordfish")), "Secret(hidden)");
    }
}
