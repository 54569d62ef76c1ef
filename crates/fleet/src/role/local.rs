//! One process that trains alone and holds its own tables.

use openfleet_core::Topology;

use super::{Assignment, Result, RoleMaker, Settings};
use crate::variables::Variables;

/// One process that trains alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Local;

impl RoleMaker for Local {
    fn source(&self, _variables: &Variables) -> String {
        "no role variables are set".into()
    }

    fn assign(&self, _variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        Ok(Topology::local().into())
    }
}
