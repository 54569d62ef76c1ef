//! A counter: a model whose result can be computed from the data alone.
//!
//! Every id has a row of one float that starts at 0, and the loss is the sum of the rows of all ids in a batch. So each
//! occurrence of an id has gradient 1, and with SGD at rate 1 the row of an id ends at minus the number of its occurrences: a row
//! that was trained twice or not at all shows up as a difference. The counts are exact up to 2^24 occurrences of an id.

use openfleet_table::Initializer;

use crate::error::Result;
use crate::graph::op::EmbeddingOptions;
use crate::graph::{Net, ParamAttr, Var};

/// The table of the counts.
pub const COUNTER_TABLE: &str = "counter";

/// Options of a counter.
#[derive(Debug, Clone)]
pub struct Counter {
    /// Multiplies the loss. Set it to N in modes that average the gradients of N streams, so that the counts are exact.
    pub scale: u32,
}

impl Default for Counter {
    fn default() -> Self {
        Counter { scale: 1 }
    }
}

/// Counts the ids of `slots`, at least one. Returns the loss: the sum over the batch, times the scale.
pub fn counter(net: &mut Net, slots: &[Var], shape: &Counter) -> Result<Var> {
    let table = ParamAttr {
        name: Some(COUNTER_TABLE.to_owned()),
        initializer: Some(Initializer::Constant(0.0)),
        ..ParamAttr::default()
    };
    let options = EmbeddingOptions { table, ..EmbeddingOptions::default() };
    let pooled = slots.iter().map(|&slot| net.embedding(slot, 1, &options)).collect::<Result<Vec<_>>>()?;
    let all = net.concat(&pooled, 1)?;
    let sum = net.reduce_sum(all, &[], false)?;
    net.scale(sum, shape.scale as f32, 0.0)
}
