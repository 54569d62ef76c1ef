//! A parameter that belongs to no layer. It needs no op; other ops read it directly.

use openfleet_table::Initializer;

use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};

impl Net {
    /// A parameter of these dimensions for networks that do their own arithmetic with it. Xavier, unless the attributes say
    /// otherwise. Two parameters with one name are the same parameter.
    pub fn create_parameter(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        let word = self.word("w", attr);
        self.parameter(&word, dims, attr, xavier)
    }

    /// A parameter that is initialised to 0, unless the attributes say otherwise.
    pub fn create_bias(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let word = self.word("b", attr);
        self.parameter(&word, dims, attr, Initializer::Constant(0.0))
    }

    /// The word that a parameter is named after. Names of others do not depend on parameters that bring a name.
    fn word(&mut self, kind: &str, attr: &ParamAttr) -> String {
        let layer = if attr.name.is_none() { self.unique_name("create_parameter") } else { String::new() };
        format!("{layer}.{kind}")
    }
}
