//! (room)
pub mod synthetic;
