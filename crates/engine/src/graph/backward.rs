//! `append_backward`: which gradients are computed, and in which order.
//!
//! Nothing is differentiated here, because every op has its own backward. This file walks from the loss to the parameters and
//! names the gradient variables (`x@GRAD`), so that they can be fetched.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::{Program, Var, Variable, VariableKind};
use crate::value::DType;

/// The backward half of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backward {
    loss: Var,
    /// Indexes of nodes, in the order in which their backward runs.
    order: Vec<usize>,
    gradients: BTreeMap<Var, Var>,
}

impl Backward {
    /// The variable that is minimized.
    pub fn loss(&self) -> Var {
        self.loss
    }

    /// Indexes of nodes, in the order in which their backward runs.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Pairs of a variable and its gradient.
    pub fn gradients(&self) -> impl Iterator<Item = (Var, Var)> + '_ {
        self.gradients.iter().map(|(&of, &gradient)| (of, gradient))
    }

    /// The gradient of a variable.
    pub fn gradient_of(&self, var: Var) -> Option<Var> {
        self.gradients.get(&var).copied()
    }
}

impl Program {
    /// Adds the gradients of `loss` to the program and returns the pairs of trainable parameter (or table) and gradient. `only`
    /// restricts the parameters; no gradient flows into the variables in `frozen`.
    ///
    /// # Errors
    ///
    /// If the program has gradients already, the loss is not a single float, or no trainable parameter leads to it.
    pub fn append_backward(&mut self, loss: Var, only: Option<&[Var]>, frozen: &[Var]) -> Result<Vec<(Var, Var)>> {
        if let Some(backward) = &self.backward {
            return Err(Error::AlreadyDifferentiated { existing: self.variable(backward.loss).name.clone() });
        }
        let variable = self.variable(loss);
        if variable.dtype != DType::F32 || variable.shape.elements(2) != 1 || variable.shape.elements(3) != 1 {
            return Err(Error::LossShape { name: variable.name.clone(), shape: variable.shape.to_string() });
        }
        let takes_gradient = |program: &Program, var: Var| {
            let v = program.variable(var);
            let is_parameter = matches!(v.kind, VariableKind::Parameter(_) | VariableKind::SparseTable(_));
            !v.stop_gradient && !frozen.contains(&var) && (!is_parameter || only.is_none_or(|only| only.contains(&var)))
        };
        // Forward: which variables depend on something trainable.
        let mut depends = vec![false; self.variables().len()];
        for i in 0..depends.len() {
            let var = Var(i as u32);
            let kind = &self.variable(var).kind;
            depends[i] =
                matches!(kind, VariableKind::Parameter(_) | VariableKind::SparseTable(_)) && takes_gradient(self, var);
        }
        for node in self.nodes() {
            let operator = node.op.operator();
            let reaches = node
                .inputs
                .iter()
                .enumerate()
                .any(|(i, var)| depends[var.index()] && operator.has_gradient(i) && takes_gradient(self, *var));
            for &output in &node.outputs {
                depends[output.index()] = reaches && takes_gradient(self, output);
            }
        }
        if !depends[loss.index()] {
            return Err(Error::NothingToTrain { name: self.variable(loss).name.clone() });
        }
        // Backward: which of those the loss depends on.
        let mut needed = vec![false; depends.len()];
        needed[loss.index()] = true;
        let mut order = Vec::new();
        for (index, node) in self.nodes().iter().enumerate().rev() {
            if !node.outputs.iter().any(|output| needed[output.index()]) {
                continue;
            }
            order.push(index);
            for (i, &input) in node.inputs.iter().enumerate() {
                if depends[input.index()] && node.op.operator().has_gradient(i) {
                    needed[input.index()] = true;
                }
            }
        }
        // An op with several outputs gets a gradient for each output that can have one, even if only one is used.
        for &index in &order {
            for output in self.nodes()[index].outputs.clone() {
                needed[output.index()] |= depends[output.index()];
            }
        }
        let mut gradients = BTreeMap::new();
        for index in (0..needed.len()).filter(|&i| needed[i]) {
            let of = Var(index as u32);
            let variable = self.variable(of);
            let gradient = Variable {
                name: format!("{}@GRAD", variable.name),
                shape: variable.shape.clone(),
                dtype: DType::F32,
                kind: VariableKind::Gradient { of },
                stop_gradient: true,
                ragged: false,
            };
            gradients.insert(of, self.add_variable(gradient)?);
        }
        self.attach_backward(Backward { loss, order, gradients });
        Ok(self.parameter_gradients())
    }

    /// Pairs of a trained parameter or table and its gradient.
    pub(crate) fn parameter_gradients(&self) -> Vec<(Var, Var)> {
        let is_parameter =
            |var| matches!(self.variable(var).kind, VariableKind::Parameter(_) | VariableKind::SparseTable(_));
        let pairs = self.backward.iter().flat_map(Backward::gradients);
        pairs.filter(|&(of, _)| is_parameter(of)).collect()
    }
}
