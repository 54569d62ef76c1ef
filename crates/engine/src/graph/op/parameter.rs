//! A parameter that belongs to no layer. It needs no op; other ops read it directly.

use openfleet_table::Initializer;

use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};

impl Net {
    /// A parameter of these dimensions for networks that do their own arithmetic with it. Xavier, unless the attributes say
    /// otherwise. Two parameters with one name are the same parameter.
    pub fn create_parameter(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let layer = self.unique_name("create_parameter");
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        self.parameter(&format!("{layer}.w"), dims, attr, xavier)
    }

    /// A parameter that is initialised to 0, unless the attributes say otherwise.
    pub fn create_bias(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let layer = self.unique_name("create_parameter");
        self.parameter(&format!("{layer}.b"), dims, attr, Initializer::Constant(0.0))
    }
}
