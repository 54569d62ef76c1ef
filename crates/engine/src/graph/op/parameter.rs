//! A free parameter: a variable that no layer made. It needs no op; other ops read it as it is.

use openfleet_table::Initializer;

use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};

impl Net {
    /// A parameter of these dimensions, Xavier unless the attributes say otherwise, for networks that do their own
    /// arithmetic with it. Two with one name are one parameter.
    pub fn create_parameter(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let layer = self.unique_name("create_parameter");
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        self.parameter(&format!("{layer}.w"), dims, attr, xavier)
    }

    /// A parameter that is 0 at first unless the attributes say otherwise.
    pub fn create_bias(&mut self, dims: &[usize], attr: &ParamAttr) -> Result<Var> {
        let layer = self.unique_name("create_parameter");
        self.parameter(&format!("{layer}.b"), dims, attr, Initializer::Constant(0.0))
    }
}
