//! Every algorithm on one to seven ranks that are threads of this process.

use openfleet_dist::collective::algorithms::{
    all_gather, all_gather_varied, all_reduce, all_reduce_narrow, broadcast, part, reduce_scatter,
};
use openfleet_dist::collective::{InProcess, Transport};
use openfleet_dist::{Reduce, Result};

/// Runs `work` on every rank and returns the results in rank order.
fn on_ranks<T: Send>(size: usize, work: impl Fn(&InProcess) -> Result<T> + Sync) -> Vec<T> {
    let transports = InProcess::group(size);
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = transports.iter().map(|transport| scope.spawn(move || work(transport))).collect();
        running.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    })
}

/// Numbers that add up differently in another order.
fn numbers(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((i * 7 + rank * 13) % 101) as f32 * 0.37 + 1.0 / (1 + i + rank) as f32).collect()
}

/// Shorter than the number of ranks, below and above the limit of the ring, and several chunks.
const LENGTHS: [usize; 6] = [0, 1, 3, 1000, 20_011, 150_001];

#[test]
fn an_all_reduce_gives_every_rank_the_same_bits() {
    for size in 1..=7 {
        for length in LENGTHS {
            let reduced = on_ranks(size, |transport| {
                let mut values = numbers(transport.rank(), length);
                all_reduce(transport, Reduce::Sum, &mut values).map(|()| values)
            });
            let given: Vec<Vec<f32>> = (0..size).map(|rank| numbers(rank, length)).collect();
            for (i, &value) in reduced[0].iter().enumerate() {
                let exact: f64 = given.iter().map(|numbers| f64::from(numbers[i])).sum();
                assert!(
                    (f64::from(value) - exact).abs() <= exact.abs() * 1e-6,
                    "{size} ranks, element {i} of {length}"
                );
            }
            assert!(reduced.iter().all(|other| *other == reduced[0]), "{size} ranks, {length} numbers");
        }
    }
}

#[test]
fn a_second_run_gives_the_same_bits() {
    let run = || {
        on_ranks(3, |transport| {
            let mut values = numbers(transport.rank(), 50_000);
            all_reduce(transport, Reduce::Sum, &mut values).map(|()| values)
        })
    };
    assert_eq!(run(), run());
}

#[test]
fn maximum_minimum_and_other_types() {
    for length in [5, 20_000] {
        let reduced = on_ranks(4, |transport| {
            let rank = transport.rank();
            let mut largest: Vec<f64> = vec![rank as f64 - 2.0; length];
            all_reduce(transport, Reduce::Max, &mut largest)?;
            let mut smallest: Vec<i64> = vec![10 - rank as i64; length];
            all_reduce(transport, Reduce::Min, &mut smallest)?;
            let mut sums: Vec<i64> = vec![1 << 60; length];
            all_reduce(transport, Reduce::Sum, &mut sums)?;
            let mut with_nan: Vec<f32> = vec![if rank == 2 { f32::NAN } else { 1.0 }; length];
            all_reduce(transport, Reduce::Max, &mut with_nan)?;
            Ok((largest, smallest, sums, with_nan))
        });
        for (largest, smallest, sums, with_nan) in reduced {
            assert!(largest.iter().all(|&value| value == 1.0));
            assert!(smallest.iter().all(|&value| value == 7));
            assert!(sums.iter().all(|&value| value == 1 << 62));
            assert!(with_nan.iter().all(|value| value.is_nan()), "NaN is a result that the user has to see");
        }
    }
}

#[test]
fn sixteen_bits_on_the_wire_keep_ranks_equal_and_lose_little() {
    for size in [2, 3, 5] {
        let reduced = on_ranks(size, |transport| {
            let mut values = numbers(transport.rank(), 70_000);
            all_reduce_narrow(transport, &mut values).map(|()| values)
        });
        assert!(reduced.iter().all(|other| *other == reduced[0]));
        let exact: f32 = (0..size).map(|rank| numbers(rank, 70_000)[500]).sum();
        assert!((reduced[0][500] - exact).abs() < exact.abs() * 0.02, "{} and {exact}", reduced[0][500]);
    }
}

#[test]
fn a_reduce_scatter_gives_every_rank_its_part() {
    for size in 1..=5 {
        let parts = on_ranks(size, |transport| {
            let mut values = numbers(transport.rank(), 10_007);
            reduce_scatter(transport, Reduce::Sum, &mut values)
        });
        let whole = on_ranks(size, |transport| {
            let mut values = numbers(transport.rank(), 10_007);
            all_reduce(transport, Reduce::Sum, &mut values).map(|()| values)
        });
        assert_eq!(parts.concat().len(), 10_007);
        for (rank, own) in parts.iter().enumerate() {
            let expected = &whole[0][part(10_007, rank, size)];
            assert!(own.iter().zip(expected).all(|(a, b)| (a - b).abs() <= b.abs() * 1e-6), "rank {rank} of {size}");
        }
    }
}

#[test]
fn gathers_and_broadcasts_on_every_number_of_ranks() {
    for size in 1..=7 {
        let gathered = on_ranks(size, |transport| {
            let mut all = vec![0; size * 3];
            all_gather(transport, &[transport.rank() as u8; 3], &mut all).map(|()| all)
        });
        let expected: Vec<u8> = (0..size).flat_map(|rank| [rank as u8; 3]).collect();
        assert!(gathered.iter().all(|all| *all == expected), "{size} ranks");

        // Rank 1 has nothing, and one rank has several chunks.
        let lengths: Vec<usize> = (0..size).map(|rank| if rank == 1 { 0 } else { rank * 100_000 + 5 }).collect();
        let gathered = on_ranks(size, |transport| {
            let mut all = vec![0; lengths.iter().sum()];
            let mine = vec![transport.rank() as u8; lengths[transport.rank()]];
            all_gather_varied(transport, &mine, &lengths, &mut all).map(|()| all)
        });
        let expected: Vec<u8> =
            lengths.iter().enumerate().flat_map(|(rank, &length)| vec![rank as u8; length]).collect();
        assert!(gathered.iter().all(|all| *all == expected), "{size} ranks");

        for root in 0..size {
            let copies = on_ranks(size, |transport| {
                let mut bytes = vec![if transport.rank() == root { 7 } else { 0 }; 1000];
                broadcast(transport, root, &mut bytes).map(|()| bytes)
            });
            assert!(copies.iter().all(|copy| copy.iter().all(|&byte| byte == 7)), "from {root} of {size}");
        }
    }
}
