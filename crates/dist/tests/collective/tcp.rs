//! Real sockets on loopback: joining, and ranks that are missing, wrong or lost.

use std::net::TcpListener;
use std::time::Duration;

use openfleet_core::error::report;
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::collective::{RankGroup, Rendezvous, TcpTransport};
use openfleet_dist::handshake::Secret;
use openfleet_dist::session::Identity;
use openfleet_dist::{Error, Reduce, Result};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn rendezvous(port: u16, rank: u32, size: u32) -> Rendezvous {
    Rendezvous {
        identity: Identity { job: "job".into(), secret: Secret::new("swordfish"), rank, incarnation: Incarnation(1) },
        size,
        meeting: Endpoint::new("127.0.0.1", port).unwrap(),
        bind: None,
        port: 0,
        host: None,
        wait_limit: Duration::from_secs(20),
        silence: Duration::from_secs(5),
        trusts_private_network: false,
    }
}

fn join(rendezvous: &Rendezvous) -> Result<TcpTransport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(rendezvous.join(&|_| {}))
}

/// Joins every rank on a thread of its own and runs `work` on it.
fn on_ranks<T: Send>(size: u32, work: impl Fn(&RankGroup) -> Result<T> + Sync) -> Vec<Result<T>> {
    let port = free_port();
    std::thread::scope(|scope| {
        let work = &work;
        let rank = |rank| scope.spawn(move || work(&RankGroup::new(join(&rendezvous(port, rank, size))?)));
        // The last one first: ranks may start in any order.
        let mut running: Vec<_> = (0..size).rev().map(rank).collect();
        running.reverse();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_join_reduce_and_depart() {
    for size in [2, 3, 5] {
        let results = on_ranks(size, |group| {
            let mut large: Vec<f32> = vec![group.rank() as f32; 400_000];
            group.all_reduce(Reduce::Sum, &mut large)?;
            let mut small = [1.0f64];
            group.all_reduce(Reduce::Sum, &mut small)?;
            group.depart()?;
            Ok((large, small[0]))
        });
        let expected = (0..size).sum::<u32>() as f32;
        for result in results {
            let (large, small) = result.unwrap();
            assert!(large.iter().all(|&value| value == expected));
            assert_eq!(small, f64::from(size));
        }
    }
}

#[test]
fn a_rank_that_leaves_without_departing_is_named_to_all_others() {
    let results = on_ranks(4, |group| {
        group.barrier()?;
        match group.rank() {
            // Its connections are closed, as when its process is killed.
            2 => Ok(()),
            _ => group.barrier(),
        }
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::RankLost { rank: 2, .. }), "on rank {rank}: {error}");
        assert!(report(&error).ends_with("hint: check the log of rank 2"), "{error}");
    }
}

#[test]
fn a_missing_rank_is_named_after_the_limit() {
    let port = free_port();
    let outcomes = std::thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let limited = Rendezvous { wait_limit: Duration::from_millis(700), ..rendezvous(port, rank, 3) };
                join(&limited).map(drop)
            })
        };
        let running = [rank(0), rank(1)];
        running.map(|rank| rank.join().unwrap().unwrap_err())
    });
    let message = outcomes[0].to_string();
    assert!(message.starts_with("rank 2 did not join the job at"), "{message}");
    let message = outcomes[1].to_string();
    assert!(message.contains("rank 2 did not join the job"), "{message}");
}

#[test]
fn a_wrong_size_a_second_rank_and_a_wrong_secret_are_refused() {
    let port = free_port();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || join(&rendezvous(port, 0, 2)).map(RankGroup::new));
        let refused = |rendezvous: Rendezvous| join(&rendezvous).map(drop).unwrap_err().to_string();
        let wrong_size = refused(rendezvous(port, 1, 3));
        assert!(wrong_size.ends_with("rank 0 was started with 2 ranks, this process with 3"), "{wrong_size}");
        let second = refused(rendezvous(port, 0, 2));
        assert!(second.contains("as rank 0: another process listens on"), "{second}");
        let beyond = refused(rendezvous(port, 7, 2));
        assert!(beyond.ends_with("this job has 2 ranks, from 0 to 1"), "{beyond}");
        let mut stranger = rendezvous(port, 1, 2);
        stranger.identity.secret = Secret::new("sword");
        assert!(refused(stranger).contains("secret of this job"));
        let mut other_job = rendezvous(port, 1, 2);
        other_job.identity.job = "another".into();
        assert!(refused(other_job).contains("this is job `job`, not `another`"));
        // After all these the right one still joins.
        let last = RankGroup::new(join(&rendezvous(port, 1, 2)).unwrap());
        let first = first.join().unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || first.depart().unwrap());
            last.depart().unwrap();
        });
    });
}

#[test]
fn an_open_address_needs_a_secret() {
    let mut open = rendezvous(free_port(), 0, 2);
    open.identity.secret = Secret::default();
    open.bind = Some("0.0.0.0".into());
    let error = join(&open).map(drop).unwrap_err();
    assert!(matches!(error, Error::OpenDoor { .. }), "{error}");
}
