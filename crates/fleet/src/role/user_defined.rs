//! The role from arguments, for a script that knows its cluster.

use openfleet_core::{Endpoint, Role, Topology};

use super::error::{Error, Result};
use super::read::endpoints;
use super::{Assignment, RoleMaker, Settings};
use crate::variables::Variables;

/// The role from arguments. Numbers are signed and endpoints text, as scripts have them; everything is checked when the
/// role is made.
///
/// ```
/// use openfleet::role::{RoleMaker, Settings, UserDefined};
/// use openfleet::variables::Variables;
/// use openfleet_core::Role;
///
/// let role = UserDefined {
///     current_id: 0,
///     role: Role::Worker,
///     worker_num: 3,
///     server_endpoints: vec!["127.0.0.1:6001".into(), "127.0.0.1:6002".into()],
///     ..UserDefined::default()
/// };
/// let variables = Variables::default();
/// let assignment = role.assign(&variables, &Settings::read(&variables)?)?;
/// assert_eq!(assignment.topology.to_string(), "worker 0 of 3 (2 servers)");
/// # Ok::<(), openfleet::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDefined {
    /// The rank of this process within its role.
    pub current_id: i64,
    /// The role of this process.
    pub role: Role,
    /// The number of workers; 0 means the number of `worker_endpoints`.
    pub worker_num: i64,
    /// All servers, `host:port`, in rank order.
    pub server_endpoints: Vec<String>,
    /// All workers, `host:port`, in rank order; may be empty.
    pub worker_endpoints: Vec<String>,
}

impl Default for UserDefined {
    fn default() -> Self {
        UserDefined {
            current_id: 0,
            role: Role::Worker,
            worker_num: 0,
            server_endpoints: Vec::new(),
            worker_endpoints: Vec::new(),
        }
    }
}

impl RoleMaker for UserDefined {
    fn source(&self, _variables: &Variables) -> String {
        "role from arguments".into()
    }

    fn assign(&self, _variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        let servers = listed("server_endpoints", &self.server_endpoints)?;
        let workers = match self.worker_endpoints.as_slice() {
            [] => Vec::new(),
            list => listed("worker_endpoints", list)?,
        };
        let worker_count = match usize::try_from(self.worker_num) {
            Ok(0) if !workers.is_empty() => workers.len(),
            Ok(count) if count > 0 => count,
            _ => return Err(wrong("worker_num", self.worker_num, "a number from 1 up".into())),
        };
        let (count, because) = match self.role {
            Role::Worker => (worker_count, "`worker_num`"),
            Role::Server => (servers.len(), "`server_endpoints`"),
        };
        let rank = rank(self.current_id, count, self.role, because)?;
        Ok(Topology::new(self.role, rank, servers, worker_count, workers)?.into())
    }
}

/// Checks the id of one of `count` processes.
pub(super) fn rank(current_id: i64, count: usize, role: Role, because: &str) -> Result<usize> {
    let rank = usize::try_from(current_id).ok().filter(|&rank| rank < count);
    rank.ok_or_else(|| {
        let expected = format!("the rank of a {role}, from 0 to {} because of {because}", count - 1);
        wrong("current_id", current_id, expected)
    })
}

/// Parses a list with at least one endpoint.
pub(super) fn listed(name: &'static str, list: &[String]) -> Result<Vec<Endpoint>> {
    if list.is_empty() {
        return Err(Error::Missing {
            name,
            needed: "the list has no endpoint".into(),
            hint: "list at least one `host:port`".into(),
        });
    }
    let value = list.join(",");
    endpoints(&value).map_err(|expected| Error::Value { name, value, expected, hint: None })
}

fn wrong(name: &'static str, value: i64, expected: String) -> Error {
    Error::Value { name, value: value.to_string(), expected, hint: None }
}
