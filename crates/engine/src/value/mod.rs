//! Plain values: tensors, shapes, and the feed of one batch.

mod feed;
mod shape;
mod tensor;

pub(crate) use feed::FedDims;
pub use feed::Feed;
pub use shape::{Dim, Shape};
pub use tensor::{DType, Elements, Tensor};
pub(crate) use tensor::{can_allocate, check_memory_for};
