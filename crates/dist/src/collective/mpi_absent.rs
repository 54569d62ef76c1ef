//! Stand-in for a build without MPI: choosing it is an error.

use super::transport::Transport;
use crate::error::{Error, Result};

/// One rank of an MPI job; it cannot be constructed.
pub struct MpiTransport(std::convert::Infallible);

impl MpiTransport {
    /// Always fails.
    pub fn open(_: usize, _: usize) -> Result<Self> {
        Err(Error::NoMpi)
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        match self.0 {}
    }

    fn size(&self) -> usize {
        match self.0 {}
    }

    fn exchange(&self, _: usize, _: &[u8], _: usize, _: &mut [u8]) -> Result<()> {
        match self.0 {}
    }

    fn abort(&self, _: &str) {
        match self.0 {}
    }
}
