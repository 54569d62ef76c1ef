//! What a bad network, dying workers and hostile peers may not do.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod collective;
mod counter;
mod death;
mod decoder;
mod hostile;
mod modes;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
mod without_tls;
