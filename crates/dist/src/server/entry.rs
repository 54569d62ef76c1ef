//! How a worker enters a job: what it sees of each server, and what it agrees on with all of them.
//!
//! Servers that lost their tables, and those that still have them, must not be mixed: the ones would be at an older moment
//! than the others. Every time the servers begin, or return to a checkpoint, is a *generation*. A worker that enters looks at
//! all servers first. Where the newest generation was begun with these very server processes, it joins that, and takes along
//! servers that have not heard of it yet; otherwise it asks all of them to return to the same checkpoint, or to the beginning,
//! as the next generation. Workers of an older generation are refused from then on; they end
//! and are started again.
//!
//! A *run* is one launch of a job with all its restarts. Positions in a checkpoint count only in the run that wrote it, or
//! where somebody asked to continue that run; any other run takes the values and begins its data at the start.

use serde::{Deserialize, Serialize};

use super::coordinator::{Journal, StreamPositions};
use super::description::Team;
use crate::error::{Error, Result};

/// A checkpoint that servers return to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Where it is.
    pub address: String,
    /// Which save it is.
    pub id: String,
    /// How far its tables are, in pushes.
    pub step: u64,
    /// Whether it is continued whichever run wrote it.
    pub adopted: bool,
}

/// A server as a worker sees it before it enters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerView {
    /// Of the run.
    pub run: String,
    /// Tells this process of the server from one that is started in its place.
    #[serde(rename = "life")]
    pub instance: u64,
    /// 0 where nobody has entered yet.
    pub generation: u64,
    /// The processes of all servers that the generation was begun with, in order.
    #[serde(rename = "lives")]
    pub instances: Vec<u64>,
    /// Where the generation began.
    pub began: Option<Cut>,
    /// Where it returns to if it has to.
    pub cut: Option<Cut>,
    /// Whether the worker that asks would enter for a predecessor that took what it had learnt with it.
    pub must_return: bool,
}

/// What a worker agrees on with all servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enter {
    /// Who trains, and how.
    pub team: Team,
    /// Of the run.
    pub run: String,
    /// The generation to join, or to begin.
    pub generation: u64,
    /// The processes of all servers, in order.
    #[serde(rename = "lives")]
    pub instances: Vec<u64>,
    /// Where it begins.
    pub cut: Option<Cut>,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Entered {
    /// The worker takes part.
    In(Box<ResumePoint>),
    /// Others have begun a newer generation: look again.
    Stale,
}

/// How a worker stands on a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Its streams.
    pub streams: StreamPositions,
    /// What its script has done; the first server knows.
    pub journal: Journal,
    /// Barriers and all-reduces that the job has passed.
    pub collectives: u64,
}

/// Which generation a worker enters, by what it sees of all servers, in order. Says also whether servers have to return.
pub fn agree(team: Team, views: &[ServerView]) -> Result<(Enter, bool)> {
    let instances: Vec<u64> = views.iter().map(|server| server.instance).collect();
    let newest = views.iter().max_by_key(|server| server.generation).filter(|server| server.generation > 0);
    let must_return = views.iter().any(|server| server.must_return);
    let run = newest.or(views.first()).map(|server| server.run.clone()).unwrap_or_default();
    if let Some(newest) = newest.filter(|newest| newest.instances == instances && !must_return) {
        let (generation, cut) = (newest.generation, newest.began.clone());
        return Ok((Enter { team, run, generation, instances, cut }, false));
    }
    // Servers without tables cannot return to anything but what they know; the others follow them.
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

    /// A server of the pair with lives 10 and 11.
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
    fn servers_of_one_generation_are_joined_and_others_return_to_what_the_newcomers_know() {
        // The first worker of a job, without and with a checkpoint to begin from.
        assert_eq!(agreed(&[server(10, 0, None), server(11, 0, None)]), (1, None, false));
        assert_eq!(agreed(&[server(10, 0, Some("a")), server(11, 0, Some("a"))]), (1, Some("a".into()), false));
        // Later workers, and restarted ones.
        assert_eq!(agreed(&[server(10, 1, Some("a")), server(11, 1, Some("a"))]), (1, None, false));
        // The second server came back as another process: with the newest checkpoint, with an older one, with none.
        for known in [Some("b"), Some("a"), None] {
            let expected = (2, known.map(str::to_owned), true);
            assert_eq!(agreed(&[server(10, 1, Some("b")), server(12, 0, known)]), expected);
        }
    }

    #[test]
    fn a_server_that_has_not_heard_of_a_generation_that_was_begun_with_it_is_taken_along() {
        // Another worker is about to enter, or died while it did: the first time, and in a return.
        let mut first = server(10, 1, None);
        first.began = cut(Some("a"));
        assert_eq!(agreed(&[first.clone(), server(11, 0, Some("a"))]), (1, Some("a".into()), false));
        first.generation = 2;
        assert_eq!(agreed(&[first, server(11, 1, Some("b"))]), (2, Some("a".into()), false));
    }

    #[test]
    fn a_predecessor_that_took_something_with_it_makes_everybody_return() {
        let mut views = [server(10, 3, Some("b")), server(11, 3, Some("b"))];
        views[1].must_return = true;
        assert_eq!(agreed(&views), (4, Some("b".into()), true));
    }

    #[test]
    fn the_run_is_that_of_servers_that_are_in_it() {
        assert_eq!(agree(TEAM, &[server(12, 0, None), server(11, 4, None)]).unwrap().0.run, "run 4");
    }

    #[test]
    fn servers_that_begin_from_different_checkpoints_are_told_so() {
        let mut views = [server(10, 0, Some("a")), server(11, 0, None)];
        let error = agree(TEAM, &views).unwrap_err();
        assert_eq!(error.to_string(), "one server begins from `model`, another from `no checkpoint`");
        views[1] = server(11, 0, Some("b"));
        assert!(agree(TEAM, &views).is_err());
    }
}
