//! Role makers: from the environment or arguments of a process to a checked [`Topology`]. One per file.
//!
//! A role maker reads [`Variables`], or the arguments of its constructor, first as text and then checked. If none is given,
//! [`choose`] takes the first whose variables are set:
//!
//! ```text
//! OPENFLEET_*  >  PADDLE_*  >  torchrun  >  MPI  >  Slurm  >  one local process
//! ```
//!
//! Explicit variables take precedence over those of a scheduler that happens to run the processes. Two explicit variables that
//! disagree are an error that names both. Role makers do not train, bind a server's port or connect to one.

mod environment;
mod error;
mod local;
mod mpi;
#[cfg(unix)]
mod own_file;
#[cfg(not(unix))]
#[path = "own_file_elsewhere.rs"]
mod own_file;
mod read;
mod rendezvous;
mod scheduler_ranks;
mod settings;
mod slurm;
mod torchrun;
mod user_defined;
mod user_defined_collective;

use openfleet_core::Topology;
use openfleet_dist::handshake::Secret;

pub use environment::Environment;
pub use error::{Error, Result};
pub use local::{Local, OneRank};
pub use mpi::Mpi;
pub use scheduler_ranks::SchedulerRanks;
pub use settings::{CollectiveBackend, Settings};
pub use slurm::Slurm;
pub use torchrun::Torchrun;
pub use user_defined::UserDefined;
pub use user_defined_collective::UserDefinedCollective;

use crate::variables::Variables;

/// Determines the processes of a job and which of them this is.
pub trait RoleMaker {
    /// Where the answer comes from, for the line that is printed: `PADDLE_* variables`.
    fn source(&self, variables: &Variables) -> String;

    /// The answer. `settings` has the other variables of the process, such as the secret and the time limit of waits.
    fn assign(&self, variables: &Variables, settings: &Settings) -> Result<Assignment>;
}

/// The result of a role maker.
#[derive(Debug)]
pub struct Assignment {
    /// All processes of the job, and which of them this is.
    pub topology: Topology,
    /// The address to bind to, if it differs from the host in the list of servers.
    pub bind: Option<String>,
    /// The secret, if the role maker created one for the job.
    pub secret: Option<Secret>,
    /// The port of this server, or of rank 0 of a collective job, reserved until it listens.
    pub reserved: Option<ReservedPort>,
    /// Whether a job without a secret may use private addresses. Scripts that use `PADDLE_*` variables were written for closed
    /// networks and know no secrets; OpenFleet's own variables require one.
    pub trusts_private_network: bool,
}

/// A bound port that refuses connections, so that no other process takes it before the server listens.
#[derive(Debug)]
pub struct ReservedPort(#[allow(dead_code, reason = "held, not used")] tokio::net::TcpSocket);

impl From<Topology> for Assignment {
    fn from(topology: Topology) -> Self {
        Assignment { topology, bind: None, secret: None, reserved: None, trusts_private_network: false }
    }
}

/// Whether the environment makes this process part of a job: [`choose`] finds more than one local process.
pub fn is_launched(variables: &Variables) -> bool {
    is_explicit(variables) || torchrun::applies(variables) || scheduler_ranks::applies(variables)
}

/// Whether `OPENFLEET_*` or `PADDLE_*` variables describe a job.
pub fn is_explicit(variables: &Variables) -> bool {
    environment::applies(variables)
}

/// The role maker for a process of a collective job that was given none.
pub fn choose_collective(variables: &Variables) -> Box<dyn RoleMaker> {
    if is_explicit(variables) {
        Box::new(Environment { collective: true })
    } else if torchrun::applies(variables) {
        Box::new(Torchrun)
    } else if scheduler_ranks::applies(variables) {
        Box::new(SchedulerRanks)
    } else {
        Box::new(OneRank)
    }
}

/// The role maker for a process that was given none.
pub fn choose(variables: &Variables) -> Box<dyn RoleMaker> {
    let environment = environment::applies(variables);
    // A role without a rank, in a Slurm step: the step numbers its tasks.
    if environment && !slurm::numbers(variables) {
        Box::new(Environment::default())
    } else if environment {
        Box::new(Slurm)
    } else if torchrun::applies(variables) {
        Box::new(Torchrun)
    } else if mpi::applies(variables) {
        Box::new(Mpi)
    } else if slurm::applies(variables) {
        Box::new(Slurm)
    } else {
        Box::new(Local)
    }
}
