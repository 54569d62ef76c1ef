//! stub until merged
use openfleet_core::{Batch, Schema, Hinted};
/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub enum Error {}
impl Hinted for Error {}
/// x
pub type Result<T> = std::result::Result<T, Error>;
/// x
#[derive(Debug, Clone, Default)]
pub struct Progress { /// x
 pub skipped_lines: u64 }
/// x
pub trait Dataset: Send + Sync {
    /// x
    fn schema(&self) -> &Schema; 
    /// x
    fn batch_size(&self) -> usize;
    /// x
    fn thread_num(&self) -> usize;
    /// x
    fn rows(&self) -> Option<usize>; 
    /// x
    fn open(&self) -> Result<Box<dyn BatchReader + '_>>; }
/// x
pub trait BatchReader: Send + Sync { 
    /// x
    fn next(&self, batch: &mut Batch) -> Result<bool>; 
    /// x
    fn progress(&self) -> Progress; }
