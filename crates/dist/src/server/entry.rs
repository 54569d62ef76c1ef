//! How a worker enters a job: what it sees of each server, and what it agrees on with all of them.
//!
//! Servers that lost their tables must not be mixed with servers that still have them: their tables would be from different
//! points in time. Each time the servers start, or return to a checkpoint, a new *generation* begins. A worker that enters
//! inspects all servers first. If the newest generation was begun with exactly these server processes, the worker joins it, and
//! tells servers about it that do not know it yet. Otherwise it asks all servers to return to the same checkpoint, or to the
//! beginning, as the next generation. Workers of an older generation are refused from then on; they exit and are restarted.
//!
//! A *run* is one launch of a job with all its restarts. The positions in a checkpoint are used only in the run that wrote it,
//! or if the user asked to continue that run. Any other run takes the values and reads its data from the start.

use serde::{Deserialize, Serialize};

use super::coordinator::{Journal, StreamPositions};
use super::description::Team;
use crate::error::{Error, Result};

/// A checkpoint that servers return to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Where the checkpoint is stored.
    pub address: String,
    /// Id of the save.
    pub id: String,
    /// Number of pushes that its tables have applied.
    pub step: u64,
    /// Whether its positions are used even if another run wrote it.
    pub adopted: bool,
}

/// A server as a worker sees it before it enters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerView {
    /// Id of the run.
    pub run: String,
    /// Identifies the server process; a restarted server has another number.
    #[serde(rename = "life")]
    pub instance: u64,
    /// Current generation; 0 if no worker has entered yet.
    pub generation: u64,
    /// The instances of all servers that the generation was begun with, in order.
    #[serde(rename = "lives")]
    pub instances: Vec<u64>,
    /// The checkpoint that the generation began from.
    pub began: Option<Cut>,
    /// The checkpoint to return to if that is necessary.
    pub cut: Option<Cut>,
    /// Whether the servers must return because the predecessor of this worker died with unsent progress.
    pub must_return: bool,
}

/// What a worker agrees on with all servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enter {
    /// The team that trains.
    pub team: Team,
    /// Id of the run.
    pub run: String,
    /// The generation to join, or to begin.
    pub generation: u64,
    /// The instances of all servers, in order.
    #[serde(rename = "lives")]
    pub instances: Vec<u64>,
    /// The checkpoint to begin from.
    pub cut: Option<Cut>,
}

/// A server's reply to a worker that enters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Entered {
    /// The worker takes part in the job.
    In(Box<ResumePoint>),
    /// Another worker has begun a newer generation: inspect the servers again.
    Stale,
}

/// Where a worker resumes, according to one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Positions of its streams.
    pub streams: StreamPositions,
    /// What its script has done; only the first server knows.
    pub journal: Journal,
    /// Number of collectives that the job has completed.
    pub collectives: u64,
}

/// Decides which generation a worker enters, given its view of all servers in order. Also returns whether servers have to
/// return to a checkpoint.
pub fn agree(team: Team, views: &[ServerView]) -> Result<(Enter, bool)> {
    let instances: Vec<u64> = views.iter().map(|server| server.instance).collect();
    let newest = views.iter().max_by_key(|server| server.generation).filter(|server| server.generation > 0);
    let must_return = views.iter().any(|server| server.must_return);
    let run = newest.or(views.first()).map(|server| server.run.clone()).unwrap_or_default();
    if let Some(newest) = newest.filter(|newest| newest.instances == instances && !must_return) {
        let (generation, cut) = (newest.generation, newest.began.clone());
        return Ok((Enter { team, run, generation, instances, cut }, false));
    }
    // Servers without tables can only return to a checkpoint they know; the others follow them.
    let fresh: Vec<&ServerView> = views.iter().filter(|server| server.generation == 0).collect();
    let decisive = if fresh.is_empty() { newest.into_iter().collect() } else { fresh };
    let cut = decisive.first().and_then(|server| server.cut.clone());
    let id = |cut: &Option<Cut>| cut.as_ref().map(|cut| cut.id.clone());
    if let Some(other) = decisive.iter().find(|server| id(&server.cut) != id(&cut)) {
        let name = |cut: &Option<Cut>| cut.as_ref().map_or("no checkpoint".into(), |cut| cut.address.clone());
        return Err(Error::OtherCheckpoint { first: name(&cut), other: name(&other.cut) });
    }
    let generation = newest.map_or(0, |newest| newest.generation) + 1;
    Ok((Enter { team, run, generation, instances, cut }, newest.is_some()))
}

#[cfg(test)]
mod tests {
    use openfleet_core::strategy::Mode;

    use super::*;

    const TEAM: Team = Team { mode: Mode::Async, workers: 2, threads: 1 };

    fn cut(id: Option<&str>) -> Option<Cut> {
        id.map(|id| Cut { address: "model".into(), id: id.into(), step: 7, adopted: false })
    }

    /// A server of the pair with instances 10 and 11.
    fn server(instance: u64, generation: u64, cut_id: Option<&str>) -> ServerView {
        let instances = if generation == 0 { vec![] } else { vec![10, 11] };
        let run = format!("run {generation}");
        ServerView { run, instance, generation, instances, began: None, cut: cut(cut_id), must_return: false }
    }

    fn agreed(views: &[ServerView]) -> (u64, Option<String>, bool) {
        let (enter, returns) = agree(TEAM, views).unwrap();
        (enter.generation, enter.cut.map(|cut| cut.id), returns)
    }

    #[test]
    fn servers_of_one_generation_are_joined_and_others_return_to_what_restarted_servers_know() {
        // The first worker of a job, without and with a checkpoint to begin from.
        assert_eq!(agreed(&[server(10, 0, None), server(11, 0, None)]), (1, None, false));
        assert_eq!(agreed(&[server(10, 0, Some("a")), server(11, 0, Some("a"))]), (1, Some("a".into()), false));
        // Later workers, and restarted ones.
        assert_eq!(agreed(&[server(10, 1, Some("a")), server(11, 1, Some("a"))]), (1, None, false));
        // The second server was restarted: it knows the newest checkpoint, an older one, or none.
        for known in [Some("b"), Some("a"), None] {
            let expected = (2, known.map(str::to_owned), true);
            assert_eq!(agreed(&[server(10, 1, Some("b")), server(12, 0, known)]), expected);
        }
    }

    #[test]
    fn a_server_that_does_not_know_a_generation_begun_with_it_joins_that_generation() {
        // Another worker is about to enter, or died while it did: in the first generation, and in a later one.
        let mut first = server(10, 1, None);
        first.began = cut(Some("a"));
        assert_eq!(agreed(&[first.clone(), server(11, 0, Some("a"))]), (1, Some("a".into()), false));
        first.generation = 2;
        assert_eq!(agreed(&[first, server(11, 1, Some("b"))]), (2, Some("a".into()), false));
    }

    #[test]
    fn a_predecessor_with_unsent_progress_makes_all_servers_return() {
        let mut views = [server(10, 3, Some("b")), server(11, 3, Some("b"))];
        views[1].must_return = true;
        assert_eq!(agreed(&views), (4, Some("b".into()), true));
    }

    #[test]
    fn the_run_id_comes_from_a_server_with_tables() {
        assert_eq!(agree(TEAM, &[server(12, 0, None), server(11, 4, None)]).unwrap().0.run, "run 4");
    }

    #[test]
    fn servers_that_begin_from_different_checkpoints_are_an_error() {
        let mut views = [server(10, 0, Some("a")), server(11, 0, None)];
        let error = agree(TEAM, &views).unwrap_err();
        assert_eq!(error.to_string(), "one server begins from `model`, another from `no checkpoint`");
        views[1] = server(11, 0, Some("b"));
        assert!(agree(TEAM, &views).is_err());
    }
}
