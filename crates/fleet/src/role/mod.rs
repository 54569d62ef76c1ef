//! Role makers: from what a process was told to a checked [`Topology`]. One a file.
//!
//! A role maker reads [`Variables`] (or the arguments of its constructor), first word for word, then checked once. With
//! none given, [`choose`] takes the first whose variables are set:
//!
//! ```text
//! OPENFLEET_*  >  PADDLE_*  >  torchrun  >  MPI  >  Slurm  >  one local process
//! ```
//!
//! Explicit variables win over those of a scheduler that happens to run the processes; two explicit ones that disagree
//! are an error naming both. Nothing here trains, binds a server's port or connects to one.

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
mod settings;
mod slurm;
mod torchrun;
mod user_defined;
mod user_defined_collective;

use openfleet_core::Topology;
use openfleet_dist::handshake::Secret;

pub use environment::Environment;
pub use error::{Error, Result};
pub use local::Local;
pub use mpi::Mpi;
pub use settings::Settings;
pub use slurm::Slurm;
pub use torchrun::Torchrun;
pub use user_defined::UserDefined;
pub use user_defined_collective::UserDefinedCollective;

use crate::variables::Variables;

/// Says who exists, where, and who this process is.
pub trait RoleMaker {
    /// Where the answer comes from, for the line that says so: `PADDLE_* variables`.
    fn source(&self, variables: &Variables) -> String;

    /// The answer. `settings` is what else the process was told: the secret and the limit of waits.
    fn assign(&self, variables: &Variables, settings: &Settings) -> Result<Assignment>;
}

/// What a role maker found.
#[derive(Debug)]
pub struct Assignment {
    /// Who exists and who this is.
    pub topology: Topology,
    /// The address this server should bind to, where the role maker knows better than the list of servers.
    pub bind: Option<String>,
    /// The job's secret, where the role maker made one for it.
    pub secret: Option<Secret>,
    /// This server's port, kept for it until it listens.
    pub reserved: Option<ReservedPort>,
    /// Whether a job without a secret may use private addresses. Scripts of the `PADDLE_*` form never knew of secrets, and the
    /// networks they were written for are closed; our own forms have no such past.
    pub trusts_private_network: bool,
}

/// A port that is bound and refuses connections, so that nobody else takes it before the server listens.
#[derive(Debug)]
pub struct ReservedPort(#[allow(dead_code, reason = "held, not used")] tokio::net::TcpSocket);

impl From<Topology> for Assignment {
    fn from(topology: Topology) -> Self {
        Assignment { topology, bind: None, secret: None, reserved: None, trusts_private_network: false }
    }
}

/// Whether the environment makes this process part of a job: whether [`choose`] finds more than a process alone.
pub fn is_launched(variables: &Variables) -> bool {
    environment::applies(variables)
        || torchrun::applies(variables)
        || mpi::applies(variables)
        || slurm::applies(variables)
}

/// The role maker for a process that was given none.
pub fn choose(variables: &Variables) -> Box<dyn RoleMaker> {
    let environment = environment::applies(variables);
    // A role without a rank, in a step of Slurm: the step numbers its tasks.
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
