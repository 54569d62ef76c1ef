//! The operations of a group in the order that all ranks agree on, and ranks that disagree.

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use openfleet_core::error::report;
use openfleet_dist::collective::{InProcess, MpiTransport, RankGroup, Transport};
use openfleet_dist::{Reduce, Result};

/// Runs `work` on every rank of a group and returns the outcomes in rank order. Every rank departs in the end.
fn on_groups<T: Send>(size: usize, work: impl Fn(&RankGroup) -> Result<T> + Sync) -> Vec<Result<T>> {
    let groups: Vec<_> =
        InProcess::group(size).into_iter().map(|transport| Arc::new(RankGroup::new(transport))).collect();
    std::thread::scope(|scope| {
        let work = &work;
        let rank = |group: Arc<RankGroup>| {
            scope.spawn(move || {
                let done = work(&group)?;
                group.depart()?;
                Ok(done)
            })
        };
        let running: Vec<_> = groups.iter().cloned().map(rank).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_operation_of_a_group() {
    let results = on_groups(3, |group| {
        let rank = group.rank();
        group.barrier()?;
        let mut sum = [rank as f64, 1.0];
        group.all_reduce(Reduce::Sum, &mut sum)?;
        let mut bytes = [rank as u8; 4];
        group.broadcast(2, &mut bytes)?;
        let gathered = group.all_gather(&vec![rank as u8; rank])?;
        let part = group.reduce_scatter(Reduce::Sum, &[1i64, 2, 3])?;
        let parts: Vec<Vec<u8>> = (0..3).map(|to| vec![(10 * rank + to) as u8; to]).collect();
        let mail = group.all_to_all(&parts)?;
        Ok((sum, bytes, gathered, part, mail))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (sum, bytes, gathered, part, mail) = result.unwrap();
        assert_eq!(sum, [3.0, 3.0]);
        assert_eq!(bytes, [2; 4]);
        assert_eq!(gathered, [vec![], vec![1], vec![2, 2]]);
        assert_eq!(part, [3 * (rank as i64 + 1)]);
        let expected: Vec<Vec<u8>> = (0..3).map(|from| vec![(10 * from + rank) as u8; rank]).collect();
        assert_eq!(mail, expected);
    }
}

#[test]
fn a_rank_that_has_departed_keeps_nobody_waiting() {
    let results = on_groups(3, |group| {
        // Rank 1 has a shorter script.
        if group.rank() == 1 {
            return Ok(0.0);
        }
        group.barrier()?;
        let mut least = [group.rank() as f64];
        group.all_reduce(Reduce::Max, &mut least)?;
        assert_eq!(group.all_gather(&[group.rank() as u8])?, [vec![0], vec![], vec![2]]);
        group.broadcast(0, &mut [0; 10])?;
        Ok(least[0])
    });
    let results: Vec<f64> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(results, [2.0, 0.0, 2.0], "the departed rank contributes nothing");
}

#[test]
fn ranks_at_different_operations_get_an_error_that_names_both() {
    let results = on_groups(2, |group| match group.rank() {
        0 => group.barrier(),
        _ => group.all_reduce(Reduce::Sum, &mut [1.0f32; 5]),
    });
    for result in results {
        let message = report(&result.unwrap_err());
        assert!(message.starts_with("rank 0 is at a barrier, rank 1 at an all-reduce of 5 numbers"), "{message}");
    }
}

#[test]
fn a_rank_that_fails_is_named_to_all_others() {
    let results = on_groups(3, |group| match group.rank() {
        1 => {
            group.fail("it cannot read its data");
            group.barrier()
        }
        _ => group.barrier(),
    });
    for result in results {
        assert_eq!(result.unwrap_err().to_string(), "rank 1 is lost: it cannot read its data");
    }
}

/// Notes which thread calls what.
struct Noted {
    transport: InProcess,
    calls: Arc<Mutex<Vec<(&'static str, ThreadId)>>>,
}

impl Noted {
    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push((call, std::thread::current().id()));
    }
}

impl Transport for Noted {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn size(&self) -> usize {
        self.transport.size()
    }

    fn exchange(&self, to: usize, send: &[u8], from: usize, receive: &mut [u8]) -> Result<()> {
        self.note("exchange");
        self.transport.exchange(to, send, from, receive)
    }

    fn abort(&self, reason: &str) {
        self.transport.abort(reason);
    }

    fn close(&self) {
        self.note("close");
    }
}

/// An MPI library expects its first and last call from the same thread.
#[test]
fn one_thread_opens_uses_and_closes_a_transport() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut transports = InProcess::group(2).into_iter();
    let (first, second) = (transports.next().unwrap(), transports.next().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || RankGroup::new(second).depart().unwrap());
        let noted = calls.clone();
        let open = move || {
            let noted = Noted { transport: first, calls: noted };
            noted.note("open");
            Ok(noted)
        };
        let group = RankGroup::open(open).unwrap();
        group.depart().unwrap();
    });
    let calls = calls.lock().unwrap();
    let names: Vec<&str> = calls.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["open", "exchange", "close"]);
    assert!(calls.iter().all(|(_, thread)| *thread == calls[0].1 && *thread != std::thread::current().id()));
}

#[test]
#[cfg(not(feature = "mpi"))]
fn a_build_without_mpi_says_so() {
    let error = RankGroup::open(|| MpiTransport::open(0, 2)).map(drop).unwrap_err();
    let message = report(&error);
    assert!(message.starts_with("this build of OpenFleet does not support MPI between ranks\n\nhint: "), "{message}");
}

/// No `mpirun` has started this process: the library makes it a job of one. What a job does by MPI is tested in the crate of
/// `Fleet`, under `mpirun`.
#[test]
#[cfg(feature = "mpi")]
fn a_program_that_uses_mpi_itself_keeps_it() {
    let refused = |rank, size| MpiTransport::open(rank, size).map(drop).unwrap_err().to_string();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).unwrap();
    assert_eq!(refused(1, 2), "this process is rank 1 of 2 in the job, and rank 0 of 1 in MPI");
    let transport = MpiTransport::open(0, 1).unwrap();
    let (sent, mut received) = (vec![7; 100_000], vec![0; 100_000]);
    transport.exchange(0, &sent, 0, &mut received).unwrap();
    assert_eq!(sent, received);
    transport.close();
    assert!(!mpi::environment::is_finalized(), "the library is the program's");
    drop(universe);
    assert_eq!(refused(0, 1), "MPI has already ended in this process, and cannot start again");
}
