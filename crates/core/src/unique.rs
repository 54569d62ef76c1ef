//! De-duplication (placeholder).
/// x
pub struct Unique;
