//! Where layers are added: the current main and startup program, and the names in use.
//!
//! A `Net` stands for what the original keeps in process-wide globals (default programs, the name counters); here it is
//! a value, so two networks can be built side by side. Each op's file adds its layer as a method (`net.fc(...)`,
//! `net.relu(...)`); this file has what all of them need.

use openfleet_table::{Initializer, Regularizer};

use crate::error::{Error, Result};
use crate::graph::names::NameGenerator;
use crate::graph::op::{Initialize, Op, Operator, Signature};
use crate::graph::{
    Node, ParameterAttributes, Program, RowLife, SparseAttributes, Var, Variable, VariableKind, check_data_shape,
};
use crate::value::{DType, Dim, Shape};

/// How a layer's parameter is named, initialised and trained. The default leaves all of it to the layer.
#[derive(Debug, Clone, Default)]
pub struct ParamAttr {
    /// A fixed name; two layers that give the same one share the parameter.
    pub name: Option<String>,
    /// First values.
    pub initializer: Option<Initializer>,
    /// Multiplies the optimizer's learning rate; 1 if absent.
    pub learning_rate: Option<f32>,
    /// Replaces the optimizer's regularizer.
    pub regularizer: Option<Regularizer>,
    /// `true` keeps the first values for ever.
    pub frozen: bool,
}

impl ParamAttr {
    /// Only a name.
    pub fn named(name: impl Into<String>) -> Self {
        ParamAttr { name: Some(name.into()), ..ParamAttr::default() }
    }

    /// Only an initializer.
    pub fn init(initializer: Initializer) -> Self {
        ParamAttr { initializer: Some(initializer), ..ParamAttr::default() }
    }
}

/// The programs and names that layers are added to.
#[derive(Debug, Default)]
pub struct Net {
    /// Where ops go.
    pub main: Program,
    /// Where first values go.
    pub startup: Program,
    names: NameGenerator,
}

impl Net {
    /// Empty default programs.
    pub fn new() -> Self {
        Net::default()
    }

    /// Both programs draw all their random numbers from this seed.
    pub fn with_seed(seed: u64) -> Self {
        let mut net = Net::new();
        net.main.seed = seed;
        net.startup.seed = seed;
        net
    }

    /// Builds into other programs; the current ones are back afterwards, whatever `build` returns.
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

    /// Builds with name counters that start from 0; the current ones are back afterwards.
    pub fn unique_name_guard<T>(&mut self, build: impl FnOnce(&mut Net) -> T) -> T {
        let outer = std::mem::take(&mut self.names);
        let built = build(self);
        self.names = outer;
        built
    }

    /// `word_N`, unique within this generator.
    pub fn unique_name(&mut self, word: &str) -> String {
        self.names.generate(word)
    }

    /// A variable that each batch feeds: `shape[0]` is -1, the other dimensions are fixed.
    pub fn data(&mut self, name: &str, shape: &[i64], dtype: DType) -> Result<Var> {
        let shape = Shape::of(shape);
        check_data_shape(&shape)?;
        self.main.add_variable(Variable {
            name: name.to_owned(),
            shape,
            dtype,
            kind: VariableKind::Data,
            stop_gradient: true,
            ragged: false,
        })
    }

    /// A sparse slot that each batch feeds: any number of ids a row, none included.
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

    /// A dense parameter. `word` is the layer's name and the letter, as in `fc_0.w`.
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
        let initializer = attr.initializer.unwrap_or(default);
        self.persistable(variable, Initialize::Random(initializer))
    }

    /// A value that ops change and that is kept in the scope: counters, running statistics.
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

    /// A sparse table, shared by name. Its rows need no startup op: each is initialised when it is first seen. The startup
    /// program knows of the table all the same, to empty it.
    pub fn sparse_table(
        &mut self,
        word: &str,
        dim: usize,
        vocabulary: Option<u64>,
        attr: &ParamAttr,
        default: Initializer,
        life: &RowLife,
    ) -> Result<Var> {
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

    /// Adds an op whose outputs are named after `word`, and gives them.
    pub fn append(&mut self, word: &str, op: impl Into<Op>, inputs: &[Var]) -> Result<Vec<Var>> {
        let op = op.into();
        self.check_kinds(op.operator(), inputs)?;
        let signatures: Vec<Signature> = inputs.iter().map(|&var| Signature::of(self.main.variable(var))).collect();
        let outputs = op.operator().infer(&signatures)?;
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
        self.main.add_node(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        Ok(outputs)
    }

    /// Adds an op with a single output.
    pub fn append_one(&mut self, word: &str, op: impl Into<Op>, inputs: &[Var]) -> Result<Var> {
        Ok(self.append(word, op, inputs)?[0])
    }

    /// No gradient flows into this variable any more.
    pub fn stop_gradient(&mut self, var: Var) {
        self.main.stop_gradient(var);
    }

    /// The shape of a variable of the main program.
    pub fn shape(&self, var: Var) -> &Shape {
        &self.main.variable(var).shape
    }

    /// Tables and states are not tensors: only the ops that say so may be given one.
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
