//! The rank in a collective job from arguments.

use openfleet_core::{Role, Topology};

use super::error::Result;
use super::user_defined::{listed, rank};
use super::{Assignment, RoleMaker, Settings};
use crate::variables::Variables;

/// The rank in a collective job from arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserDefinedCollective {
    /// This worker's rank.
    pub current_id: i64,
    /// All workers, `host:port`, in rank order.
    pub worker_endpoints: Vec<String>,
}

impl RoleMaker for UserDefinedCollective {
    fn source(&self, _variables: &Variables) -> String {
        "rank from arguments".into()
    }

    fn assign(&self, _variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        let workers = listed("worker_endpoints", &self.worker_endpoints)?;
        let rank = rank(self.current_id, workers.len(), Role::Worker, "`worker_endpoints`")?;
        Ok(Topology::collective(rank, workers.len(), workers, None)?.into())
    }
}
