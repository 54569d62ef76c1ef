//! Linear regression, the usual first program.

use crate::error::Result;
use crate::graph::op::Activation;
use crate::graph::{Net, Var};

/// The outputs of a linear regression.
#[derive(Debug, Clone, Copy)]
pub struct FitALine {
    /// The mean squared error of the batch.
    pub loss: Var,
    /// The predictions, [B, 1].
    pub prediction: Var,
}

/// Fits `label` [B, 1] by a linear function of `x` [B, N].
pub fn fit_a_line(net: &mut Net, x: Var, label: Var) -> Result<FitALine> {
    let prediction = net.fc(x, 1, Activation::Linear)?;
    let losses = net.square_error_cost(prediction, label)?;
    Ok(FitALine { loss: net.mean(losses)?, prediction })
}
