//! Word2Vec: skip-gram with negative sampling.
//!
//! For each centre word, the batch has the words around it and the words to tell it from; see
//! [`WordsDataset`](crate::dataset::WordsDataset). Input vectors start uniform in ±0.5/dim and output vectors at zero, as in the
//! original word2vec. The loss is a sum, not a mean, so that a batch of any size moves a word as far as its pairs would one by
//! one.

use openfleet_table::Initializer;

use crate::error::Result;
use crate::graph::op::SkipGramOptions;
use crate::graph::{Net, ParamAttr, Var};
use crate::value::DType;

/// The sizes of a Word2Vec.
#[derive(Debug, Clone)]
pub struct Word2Vec {
    /// Floats per vector.
    pub dim: usize,
    /// The maximum number of words to the left and to the right.
    pub window: usize,
    /// Negative samples per centre word.
    pub negatives: usize,
}

impl Default for Word2Vec {
    fn default() -> Self {
        Word2Vec { dim: 100, window: 5, negatives: 5 }
    }
}

/// The outputs of a Word2Vec.
#[derive(Debug, Clone, Copy)]
pub struct Word2VecVars {
    /// The sum of the losses of all pairs in the batch.
    pub loss: Var,
}

/// The table of the word vectors.
pub const INPUT_TABLE: &str = "word_vectors";
/// The table of the output vectors.
pub const OUTPUT_TABLE: &str = "output_vectors";

/// Builds a Word2Vec over the fields `context` and `target`.
pub fn word2vec(net: &mut Net, shape: &Word2Vec) -> Result<Word2VecVars> {
    let context = net.slot("context")?;
    let target = net.data("target", &[-1, 1 + shape.negatives as i64], DType::I64)?;
    let range = 0.5 / shape.dim.max(1) as f32;
    let table = |name: &str, initializer| ParamAttr {
        name: Some(name.to_owned()),
        initializer: Some(initializer),
        ..ParamAttr::default()
    };
    let losses = net.skip_gram(
        context,
        target,
        &SkipGramOptions {
            dim: shape.dim,
            most_contexts: 2 * shape.window,
            input: table(INPUT_TABLE, Initializer::Uniform { low: -range, high: range }),
            output: table(OUTPUT_TABLE, Initializer::Constant(0.0)),
        },
    )?;
    Ok(Word2VecVars { loss: net.reduce_sum(losses, &[], false)? })
}
