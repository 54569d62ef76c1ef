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

/// One process that is a collective job of one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneRank;

impl RoleMaker for OneRank {
    fn source(&self, _variables: &Variables) -> String {
        "no role variables are set".into()
    }

    fn assign(&self, _variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        Ok(Topology::collective(0, 1, Vec::new(), None)?.into())
    }
}
