//! Adds layers: holds the current main and startup programs and the names in use.
//!
//! A `Net` replaces what PaddlePaddle keeps in process-wide globals (default programs, name counters). It is an ordinary value,
//! so two networks can be built side by side. Each op's file adds its layer as a method (`net.fc(...)`, `net.relu(...)`); this
//! file has what they share.

use openfleet_table::{Initializer, Regularizer};

use crate::error::{Error, Result};
use crate::graph::names::NameGenerator;
use crate::graph::op::{Initialize, Op, Operator, Signature};
use crate::graph::{Node, ParameterAttributes, Program, RowLife, SparseAttributes, Var, Variable, VariableKind};
use crate::value::{DType, Dim, Shape};

/// How a layer's parameter is named, initialised and trained. The layer chooses whatever is not set.
#[derive(Debug, Clone, Default)]
pub struct ParamAttr {
    /// A fixed name. Two layers with the same name share the parameter.
    pub name: Option<String>,
    /// How the first values are made.
    pub initializer: Option<Initializer>,
    /// Multiplies the optimizer's learning rate; 1 if not set.
    pub learning_rate: Option<f32>,
    /// Replaces the optimizer's regularizer.
    pub regularizer: Option<Regularizer>,
    /// `true` never updates the parameter.
    pub frozen: bool,
    /// The first values themselves, in row-major order, in place of an initializer. Only for dense parameters.
    pub values: Option<Vec<f32>>,
}

impl ParamAttr {
    /// Attributes with a name and nothing else.
    pub fn named(name: impl Into<String>) -> Self {
        ParamAttr { name: Some(name.into()), ..ParamAttr::default() }
    }

    /// Attributes with an initializer and nothing else.
    pub fn init(initializer: Initializer) -> Self {
        ParamAttr { initializer: Some(initializer), ..ParamAttr::default() }
    }
}

/// The programs that layers are added to, and the names in use.
#[derive(Debug, Default)]
pub struct Net {
    /// The program that gets the ops.
    pub main: Program,
    /// The program that sets first values.
    pub startup: Program,
    names: NameGenerator,
    /// The line of the script that adds layers, for messages about them.
    pub line: Option<String>,
}

/// The signatures of the outputs of an op.
pub(super) fn infer(operator: &dyn Operator, inputs: &[Signature]) -> Result<Vec<Signature>> {
    match operator.infer(inputs) {
        Err(error) => infer_by_trial(operator, inputs).ok_or(error),
        inferred => inferred,
    }
}

/// The signatures of the outputs for inputs with unknown dimensions that the shape rule does not accept: dimensions that come out
/// the same for two sizes of the unknown ones are fixed, the others unknown. `None` if the op does not accept such inputs at all.
fn infer_by_trial(operator: &dyn Operator, inputs: &[Signature]) -> Option<Vec<Signature>> {
    if !inputs.iter().any(|input| input.shape.has_unknown()) {
        return None;
    }
    let with = |size: usize| {
        let mut inputs = inputs.to_vec();
        for dim in inputs.iter_mut().flat_map(|input| &mut input.shape.0) {
            match *dim {
                Dim::Fixed(_) => {}
                Dim::PerRow(times) => *dim = Dim::Fixed(times * size),
                Dim::Unknown => *dim = Dim::Fixed(size),
            }
        }
        operator.infer(&inputs).ok()
    };
    let (mut outputs, others) = (with(PRIMES[0])?, with(PRIMES[1])?);
    for (output, other) in outputs.iter_mut().zip(others) {
        for (dim, other) in output.shape.0.iter_mut().zip(other.shape.0) {
            if *dim != other {
                *dim = Dim::Unknown;
            }
        }
    }
    Some(outputs)
}

/// Per output: whether its first dimension is that of the inputs that join sequences, whatever its size.
fn keep_rows(operator: &dyn Operator, inputs: &[Signature], are_sequences: &[bool]) -> Vec<bool> {
    let with = |size: usize| {
        let mut inputs = inputs.to_vec();
        for (input, &is_sequence) in inputs.iter_mut().zip(are_sequences) {
            for (axis, dim) in input.shape.0.iter_mut().enumerate() {
                *dim = match *dim {
                    Dim::Fixed(size) => Dim::Fixed(size),
                    _ if is_sequence && axis == 0 => Dim::Fixed(size),
                    Dim::PerRow(times) => Dim::Fixed(times * PRIMES[0]),
                    Dim::Unknown => Dim::Fixed(PRIMES[0]),
                };
            }
        }
        let kept = |output: Signature| output.shape.0.first() == Some(&Dim::Fixed(size));
        operator.infer(&inputs).ok().map(|outputs| outputs.into_iter().map(kept).collect::<Vec<_>>())
    };
    match (with(PRIMES[1]), with(PRIMES[2])) {
        (Some(one), Some(other)) => one.into_iter().zip(other).map(|(one, other)| one && other).collect(),
        _ => Vec::new(),
    }
}

/// Sizes for trials, which are not the product of other sizes by chance.
const PRIMES: [usize; 3] = [1009, 2003, 3001];

impl Net {
    /// A net with two empty programs.
    pub fn new() -> Self {
        Net::default()
    }

    /// A net whose programs draw all random numbers from this seed.
    pub fn with_seed(seed: u64) -> Self {
        let mut net = Net::new();
        net.main.seed = seed;
        net.startup.seed = seed;
        net
    }

    /// Runs `build` with other programs as the current ones and then restores the old ones, whatever `build` returns.
    pub fn program_guard<T>(
        &mut self,
        main: &mut Program,
        startup: &mut Program,
        build: impl FnOnce(&mut Net) -> T,
    ) -> T {
        std::mem::swap(&mut self.main, main);
        std::mem::swap(&mut self.startup, startup);
        let built = build(self);
        std::mem::swap(&mut self.main, main);
        std::mem::swap(&mut self.startup, startup);
        built
    }

    /// Runs `build` with name counters that start from 0 and then restores the old ones.
    pub fn unique_name_guard<T>(&mut self, build: impl FnOnce(&mut Net) -> T) -> T {
        let outer = std::mem::take(&mut self.names);
        let built = build(self);
        self.names = outer;
        built
    }

    /// `word_N`, unique within this net.
    pub fn unique_name(&mut self, word: &str) -> String {
        self.names.generate(word)
    }

    /// A variable that each batch feeds. If `shape[0]` is -1, it is the batch; any other -1 is a size that is known only when the
    /// program runs. Fails if the name is taken.
    pub fn data(&mut self, name: &str, shape: &[i64], dtype: DType) -> Result<Var> {
        self.main.add_variable(Variable {
            name: name.to_owned(),
            shape: Shape::of_data(shape),
            dtype,
            kind: VariableKind::Data,
            stop_gradient: true,
            ragged: false,
        })
    }

    /// A sparse slot that each batch feeds: any number of ids per row, including none.
    pub fn slot(&mut self, name: &str) -> Result<Var> {
        self.main.add_variable(Variable {
            name: name.to_owned(),
            shape: Shape::batch_by(1),
            dtype: DType::I64,
            kind: VariableKind::Data,
            stop_gradient: true,
            ragged: true,
        })
    }

    /// A dense parameter. `word` is the layer's name and the parameter's letter, as in `fc_0.w`.
    pub fn parameter(&mut self, word: &str, dims: &[usize], attr: &ParamAttr, default: Initializer) -> Result<Var> {
        let name = attr.name.clone().unwrap_or_else(|| self.names.generate(word));
        let variable = Variable {
            name,
            shape: Shape::fixed(dims),
            dtype: DType::F32,
            kind: VariableKind::Parameter(ParameterAttributes {
                learning_rate: attr.learning_rate.unwrap_or(1.0),
                regularizer: attr.regularizer,
                trainable: !attr.frozen,
            }),
            stop_gradient: attr.frozen,
            ragged: false,
        };
        let first = match &attr.values {
            None => Initialize::Random(attr.initializer.unwrap_or(default)),
            Some(values) if values.len() == dims.iter().product::<usize>() => Initialize::Values(values.clone()),
            Some(values) => {
                return Err(Error::ElementCount {
                    dims: dims.to_vec(),
                    expected: dims.iter().product(),
                    got: values.len(),
                });
            }
        };
        self.persistable(variable, first)
    }

    /// A value in the scope that ops change: counters, running statistics.
    pub fn state(&mut self, name: &str, dims: &[usize], dtype: DType, first: Initialize) -> Result<Var> {
        let variable = Variable {
            name: name.to_owned(),
            shape: Shape::fixed(dims),
            dtype,
            kind: VariableKind::State,
            stop_gradient: true,
            ragged: false,
        };
        self.persistable(variable, first)
    }

    /// A sparse table, shared by name. Its rows need no startup op, because each is initialised when it is first seen. The
    /// startup program still lists the table, so that running it empties the table.
    pub fn sparse_table(
        &mut self,
        word: &str,
        dim: usize,
        vocabulary: Option<u64>,
        attr: &ParamAttr,
        default: Initializer,
        life: &RowLife,
    ) -> Result<Var> {
        if attr.values.is_some() {
            return Err(Error::Input {
                op: "embedding",
                expected: "an initializer that draws the rows of a sparse table".into(),
                got: "given values; set them in the scope after the startup program".into(),
            });
        }
        let name = attr.name.clone().unwrap_or_else(|| self.names.generate(word));
        let rows = vocabulary.map_or(Dim::Fixed(0), |v| Dim::Fixed(v as usize));
        let variable = Variable {
            name,
            shape: Shape(vec![rows, Dim::Fixed(dim)]),
            dtype: DType::F32,
            kind: VariableKind::SparseTable(SparseAttributes {
                dim,
                vocabulary,
                initializer: attr.initializer.unwrap_or(default),
                learning_rate: attr.learning_rate.unwrap_or(1.0),
                regularizer: attr.regularizer,
                trainable: !attr.frozen,
                rows: life.clone(),
            }),
            stop_gradient: attr.frozen,
            ragged: false,
        };
        let (var, is_new) = self.main.find_or_add(variable.clone())?;
        if is_new {
            self.startup.find_or_add(variable)?;
        }
        Ok(var)
    }

    /// Adds an op and returns its outputs, which are named after `word`. Fails if the op does not support the inputs.
    pub fn append(&mut self, word: &str, op: impl Into<Op>, inputs: &[Var]) -> Result<Vec<Var>> {
        let op = op.into();
        let inputs = &self.with_read_states(op.operator(), inputs)?;
        self.check_kinds(op.operator(), inputs)?;
        let signatures: Vec<Signature> = inputs.iter().map(|&var| Signature::of(self.main.variable(var))).collect();
        let outputs = infer(op.operator(), &signatures)?;
        let are_sequences: Vec<bool> = inputs.iter().map(|&var| self.main.lengths(var).is_some()).collect();
        let lengths = inputs.iter().find_map(|&var| self.main.lengths(var));
        let kept = lengths.map(|_| keep_rows(op.operator(), &signatures, &are_sequences)).unwrap_or_default();
        let stop_gradient = inputs.iter().all(|&var| self.main.variable(var).stop_gradient);
        let layer = self.names.generate(word);
        let outputs = outputs
            .into_iter()
            .map(|output| {
                let name = self.names.generate(&format!("{layer}.tmp"));
                let stop_gradient = stop_gradient || !output.dtype.is_float();
                self.main.add_variable(Variable {
                    name,
                    shape: output.shape,
                    dtype: output.dtype,
                    kind: VariableKind::Temporary,
                    stop_gradient,
                    ragged: false,
                })
            })
            .collect::<Result<Vec<Var>>>()?;
        if let Some(lengths) = lengths {
            for (&output, _) in outputs.iter().zip(kept).filter(|(_, kept)| *kept) {
                self.main.set_lengths(output, lengths);
            }
        }
        self.main.add_node(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        if let Some(line) = &self.line {
            self.main.set_made_at(line);
        }
        Ok(outputs)
    }

    /// Adds an op with a single output.
    pub fn append_one(&mut self, word: &str, op: impl Into<Op>, inputs: &[Var]) -> Result<Var> {
        Ok(self.append(word, op, inputs)?[0])
    }

    /// Stops gradients from flowing into this variable.
    pub fn stop_gradient(&mut self, var: Var) {
        self.main.stop_gradient(var);
    }

    /// The shape of a variable of the main program.
    pub fn shape(&self, var: Var) -> &Shape {
        &self.main.variable(var).shape
    }

    /// The inputs, with the current values of states that the op does not change itself.
    fn with_read_states(&mut self, operator: &dyn Operator, inputs: &[Var]) -> Result<Vec<Var>> {
        let mut read = inputs.to_vec();
        for (input, var) in read.iter_mut().enumerate() {
            if self.main.variable(*var).kind == VariableKind::State && !operator.changes_state(input) {
                *var = match self.main.state_value(*var) {
                    Some(value) => value,
                    None => self.read_state(*var)?,
                };
            }
        }
        Ok(read)
    }

    /// Tables and states are not tensors: only ops that declare them as such may read them.
    fn check_kinds(&self, operator: &dyn Operator, inputs: &[Var]) -> Result<()> {
        for (input, &var) in inputs.iter().enumerate() {
            let variable = self.main.variable(var);
            let (fits, kind) = match variable.kind {
                VariableKind::SparseTable(_) => {
                    (operator.lookups().iter().any(|&(table, _)| table == input), "a sparse table")
                }
                VariableKind::State => (operator.changes_state(input), "a state"),
                VariableKind::Gradient { .. } => (false, "a gradient, which can only be fetched"),
                _ => (true, ""),
            };
            if !fits {
                return Err(Error::Input {
                    op: operator.name(),
                    expected: format!("a tensor as input {input}"),
                    got: format!("`{}`, {kind}", variable.name),
                });
            }
        }
        Ok(())
    }

    fn persistable(&mut self, variable: Variable, first: Initialize) -> Result<Var> {
        let (var, is_new) = self.main.find_or_add(variable.clone())?;
        if is_new {
            let (output, is_new) = self.startup.find_or_add(variable)?;
            if is_new {
                self.startup.add_node(Node { op: first.into(), inputs: vec![], outputs: vec![output] });
            }
        }
        Ok(var)
    }
}
