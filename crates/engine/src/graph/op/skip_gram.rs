//! Skip-gram with negative sampling, fused: all context words of a centre word share the same negatives.
//!
//! For a row with contexts u_i (rows of the input table) and targets v_j (rows of the output table; v_0 is the centre word, the
//! others are negatives), with s_ij = u_i . v_j and z_j = 1 for j = 0, else 0:
//!
//! ```text
//! loss = sum_ij softplus(s_ij) - z_j s_ij      e_ij = sigmoid(s_ij) - z_j
//! du_i = sum_j e_ij v_j                        dv_j = sum_i e_ij u_i
//! ```
//!
//! Sharing the negatives among the contexts of a centre (Ji et al. 2016) reads 12 rows where one draw per pair would read 42, and
//! trains vectors of the same quality.
//!
//! B rows, C maximum contexts per row, T targets per row, D dim.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::{Error, Result};
use crate::graph::{Net, ParamAttr, RowLife, Var};
use crate::kernel::inner_product;
use crate::kernel::transcendental::sigmoid_and_softplus;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// Skip-gram with negative sampling. Inputs: contexts, targets, input table, output table. Outputs: the loss of each row,
/// and the errors e_ij that the backward needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkipGram {
    dim: usize,
    most_contexts: usize,
}

/// Options of a skip-gram layer.
#[derive(Debug, Clone, Default)]
pub struct SkipGramOptions {
    /// D.
    pub dim: usize,
    /// C, the maximum number of contexts per row.
    pub most_contexts: usize,
    /// The table of the word vectors.
    pub input: ParamAttr,
    /// The table of the output vectors.
    pub output: ParamAttr,
}

impl Net {
    /// The loss of distinguishing each row's first target from its other targets, given each of its contexts: [B, 1].
    pub fn skip_gram(&mut self, contexts: Var, targets: Var, options: &SkipGramOptions) -> Result<Var> {
        use openfleet_table::Initializer;
        let layer = self.unique_name("skip_gram");
        let (dim, range) = (options.dim, 0.5 / options.dim.max(1) as f32);
        let uniform = Initializer::Uniform { low: -range, high: range };
        let rows = RowLife::default();
        let input = self.sparse_table(&format!("{layer}.w"), dim, None, &options.input, uniform, &rows)?;
        let output = self.sparse_table(&format!("{layer}.w"), dim, None, &options.output, Initializer::Constant(0.0), &rows)?;
        let op = SkipGram { dim, most_contexts: options.most_contexts };
        self.append_one(&layer, op, &[contexts, targets, input, output])
    }
}

impl Operator for SkipGram {
    fn name(&self) -> &'static str {
        "skip_gram"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let targets = &inputs[1];
        let fixed = targets.shape.rank() == 2 && !targets.ragged && targets.dtype == DType::I64;
        let (true, Some(&Dim::Fixed(count)), DType::I64) = (fixed, targets.shape.0.get(1), inputs[0].dtype) else {
            return expected(self.name(), "a slot of contexts and integer targets [B, 1 + negatives]", &targets.shape);
        };
        Ok(vec![
            Signature::float(Shape::batch_by(1)),
            Signature::float(Shape::batch_by(self.most_contexts * count)),
        ])
    }

    fn lookups(&self) -> &'static [(usize, usize)] {
        &[(2, 0), (3, 1)]
    }

    fn has_gradient(&self, input: usize) -> bool {
        input >= 2
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (contexts, words, targets) = (inputs.ids(0), inputs.table(2, 0), inputs.table(3, 1));
        let count = inputs.columns(1);
        let (losses, errors) = outputs.two_floats(0, 1);
        for (row, bounds) in contexts.offsets.windows(2).enumerate() {
            let range = bounds[0] as usize..bounds[1] as usize;
            if range.len() > self.most_contexts {
                return Err(Error::Value {
                    op: self.name(),
                    what: "the number of contexts".into(),
                    expected: format!("at most {}", self.most_contexts),
                    got: range.len().to_string(),
                    row,
                });
            }
            losses[row] = row_forward(
                self.dim,
                &words.inverse[range],
                words.rows,
                &targets.inverse[row * count..(row + 1) * count],
                targets.rows,
                &mut errors[row * self.most_contexts * count..(row + 1) * self.most_contexts * count],
            );
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (contexts, words, targets) = (inputs.ids(0), inputs.table(2, 0), inputs.table(3, 1));
        let (count, errors, loss_gradients) = (inputs.columns(1), inputs.output(1), inputs.output_gradient(0));
        let rows = || contexts.offsets.windows(2).map(|bounds| bounds[0] as usize..bounds[1] as usize).enumerate();
        let errors_of = |row: usize| &errors[row * self.most_contexts * count..(row + 1) * self.most_contexts * count];
        let targets_of = |row: usize| &targets.inverse[row * count..(row + 1) * count];
        if let Some(gradient) = gradients.of(2) {
            let to = gradient.accumulate();
            for (row, range) in rows() {
                let contexts = &words.inverse[range];
                add_context_gradients(self.dim, loss_gradients[row], contexts, to, targets_of(row), targets.rows, errors_of(row));
            }
        }
        if let Some(gradient) = gradients.of(3) {
            let to = gradient.accumulate();
            for (row, range) in rows() {
                let contexts = &words.inverse[range];
                add_target_gradients(self.dim, loss_gradients[row], contexts, words.rows, targets_of(row), to, errors_of(row));
            }
        }
        Ok(())
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn row_forward(dim: usize, contexts: &[u32], words: &[f32], targets: &[u32], outputs: &[f32], errors: &mut [f32]) -> f32 {
    let errors = &mut errors[..contexts.len() * targets.len()];
    // First all scores, then the functions of all scores: so both loops are vectorized.
    let mut positive = 0.0;
    for (&context, scores) in contexts.iter().zip(errors.chunks_exact_mut(targets.len())) {
        let u = &words[context as usize * dim..][..dim];
        for (&target, score) in targets.iter().zip(&mut *scores) {
            *score = inner_product(u, &outputs[target as usize * dim..][..dim]);
        }
        positive += scores[0];
    }
    let loss = sigmoid_and_softplus(errors) - positive;
    // The first target of each context is the word itself, with the label 1.
    errors.iter_mut().step_by(targets.len()).for_each(|error| *error -= 1.0);
    loss
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add_context_gradients(
    dim: usize,
    scale: f32,
    contexts: &[u32],
    to: &mut [f32],
    targets: &[u32],
    outputs: &[f32],
    errors: &[f32],
) {
    for (&context, errors) in contexts.iter().zip(errors.chunks_exact(targets.len())) {
        let du = &mut to[context as usize * dim..][..dim];
        for (&target, &error) in targets.iter().zip(errors) {
            add_scaled(scale * error, &outputs[target as usize * dim..][..dim], du);
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add_target_gradients(
    dim: usize,
    scale: f32,
    contexts: &[u32],
    words: &[f32],
    targets: &[u32],
    to: &mut [f32],
    errors: &[f32],
) {
    for (j, &target) in targets.iter().enumerate() {
        let dv = &mut to[target as usize * dim..][..dim];
        for (i, &context) in contexts.iter().enumerate() {
            add_scaled(scale * errors[i * targets.len() + j], &words[context as usize * dim..][..dim], dv);
        }
    }
}

#[inline(always)]
fn add_scaled(factor: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}
