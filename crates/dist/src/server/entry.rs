//! How a worker enters a job: what it sees of each server, and what it agrees on with all of them.
//!
//! Servers that lost their tables, and those that still have them, must not be mixed: the ones would be at an older moment
//! than the others. Every time the servers begin, or return to a checkpoint, is a *generation*. A worker that enters looks at
//! all servers first. Where all are of one generation, it joins that; otherwise it asks all of them to return to the same
//! checkpoint, or to the beginning, as the next generation. Workers of an older generation are refused from then on; they end
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
pub struct Seen {
    /// Of the run.
    pub run: String,
    /// 0 where nobody has entered yet.
    pub generation: u64,
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
    /// Where it begins.
    pub cut: Option<Cut>,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Entered {
    /// The worker takes part.
    In(Box<Standing>),
    /// Others have begun a newer generation: look again.
    Stale,
}

/// How a worker stands on a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Its streams.
    pub streams: StreamPositions,
    /// What its script has done; the first server knows.
    pub journal: Journal,
    /// Barriers and all-reduces that the job has passed.
    pub collectives: u64,
}

/// Which generation a worker enters, by what it sees of all servers, in order. Says also whether servers have to return.
pub fn agree(team: Team, seen: &[Seen]) -> Result<(Enter, bool)> {
    let newest = seen.iter().map(|server| server.generation).max().unwrap_or(0);
    let fresh: Vec<&Seen> = seen.iter().filter(|server| server.generation == 0).collect();
    let agree = seen.iter().all(|server| server.generation == newest);
    let must_return = seen.iter().any(|server| server.must_return);
    let oldest = seen.iter().find(|server| server.generation > 0).or(seen.first());
    let run = oldest.map(|server| server.run.clone()).unwrap_or_default();
    if newest > 0 && agree && !must_return {
        return Ok((Enter { team, run, generation: newest, cut: None }, false));
    }
    // Servers without tables cannot return to anything but what they know; the others follow them.
    let decisive = if fresh.is_empty() { seen.iter().take(1).collect() } else { fresh };
    let cut = decisive.first().and_then(|server| server.cut.clone());
    let id = |cut: &Option<Cut>| cut.as_ref().map(|cut| cut.id.clone());
    if let Some(other) = decisive.iter().find(|server| id(&server.cut) != id(&cut)) {
        let name = |cut: &Option<Cut>| cut.as_ref().map_or("no checkpoint".into(), |cut| cut.address.clone());
        return Err(Error::OtherCheckpoint { first: name(&cut), other: name(&other.cut) });
    }
    Ok((Enter { team, run, generation: newest + 1, cut }, newest > 0))
}

#[cfg(test)]
mod tests {
    use openfleet_core::strategy::Mode;

    use super::*;

    const TEAM: Team = Team { mode: Mode::Async, workers: 2, threads: 1 };

    fn server(generation: u64, cut: Option<&str>) -> Seen {
        let cut = cut.map(|id| Cut { address: "model".into(), id: id.into(), step: 7, adopted: false });
        Seen { run: format!("run {generation}"), generation, cut, must_return: false }
    }

    fn agreed(seen: &[Seen]) -> (u64, Option<String>, bool) {
        let (enter, returns) = agree(TEAM, seen).unwrap();
        (enter.generation, enter.cut.map(|cut| cut.id), returns)
    }

    #[test]
    fn servers_of_one_generation_are_joined_and_others_return_to_what_the_newcomers_know() {
        // The first worker of a job, without and with a checkpoint to begin from.
        assert_eq!(agreed(&[server(0, None), server(0, None)]), (1, None, false));
        assert_eq!(agreed(&[server(0, Some("a")), server(0, Some("a"))]), (1, Some("a".into()), false));
        // Later workers, and restarted ones.
        assert_eq!(agreed(&[server(1, Some("a")), server(1, Some("a"))]), (1, None, false));
        // The second server came back: with the newest checkpoint, with an older one, with none.
        for known in [Some("b"), Some("a"), None] {
            let expected = (2, known.map(str::to_owned), true);
            assert_eq!(agreed(&[server(1, Some("b")), server(0, known)]), expected);
        }
        // A worker died after it had told one server of two.
        assert_eq!(agreed(&[server(2, Some("b")), server(1, Some("a"))]), (3, Some("b".into()), true));
    }

    #[test]
    fn a_predecessor_that_took_something_with_it_makes_everybody_return() {
        let mut seen = [server(3, Some("b")), server(3, Some("b"))];
        seen[1].must_return = true;
        assert_eq!(agreed(&seen), (4, Some("b".into()), true));
    }

    #[test]
    fn the_run_is_that_of_servers_that_are_in_it() {
        assert_eq!(agree(TEAM, &[server(0, None), server(4, None)]).unwrap().0.run, "run 4");
    }

    #[test]
    fn servers_that_begin_from_different_checkpoints_are_told_so() {
        let mut seen = [server(0, Some("a")), server(0, None)];
        let error = agree(TEAM, &seen).unwrap_err();
        assert_eq!(error.to_string(), "one server begins from `model`, another from `no checkpoint`");
        seen[1] = server(0, Some("b"));
        assert!(agree(TEAM, &seen).is_err());
    }
}
