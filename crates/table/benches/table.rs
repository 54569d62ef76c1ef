//! Speed and size of tables: `cargo bench -p openfleet-table`, with a number of million rows as an argument to run one size
//! only (`cargo bench -p openfleet-table -- 1`).
//!
//! One run compares four things: plain tables of several shapes, the same requests on dashmap, the cost of accessors, admission
//! and a capacity, and weights of 16 bits with weights of 32. `-- storage` runs only the last, and `-- adam` only a plain table with
//! Adam (`cargo bench -p openfleet-table -- adam 1 50` for the cost of 50 million rows).
//!
//! One thread, keys in random order over the whole table, requests of 4,096 keys: the load of a server core. Each figure is the
//! best of several rounds, because other processes can only make a round slower. Nothing is asserted.

#![allow(clippy::disallowed_methods, reason = "a bench is the one place of this crate that needs a clock")]
#![allow(clippy::print_stdout, reason = "the lines are the result")]

use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dashmap::DashMap;
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{
    Accessor, Adagrad, Adam, Admission, CtrOptions, DenseSpec, DenseTable, Initializer, Missing, NonFinite, Optimizer,
    RowStorage, RowwiseAdagrad, Schedule, Scratch, Sgd, SparseSpec, SparseTable,
};
use openfleet_testkit::bench::{is_measuring, size};

const REQUEST: usize = 4096;
const ROUNDS: usize = 5;

fn main() {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { if is_measuring() { vec![1, 10] } else { vec![1] } } else { sizes };
    let only = |name: &str| std::env::args().any(|argument| argument == name);
    let (only_storage, only_adam) = (only("storage"), only("adam"));
    if !only_storage && !only_adam {
        dense();
    }
    for millions in sizes {
        let rows = size(millions * 1_000_000, 20_000);
        if only_adam {
            sparse("dim 10 adam", rows, 10, Optimizer::Adam(Adam::default()));
            continue;
        }
        storage(rows);
        if only_storage {
            continue;
        }
        sparse("dim 10 adam", rows, 10, Optimizer::Adam(Adam::default()));
        sparse("dim 10 adagrad", rows, 10, Optimizer::Adagrad(Adagrad::default()));
        sparse("dim 20 sgd", rows, 20, Optimizer::Sgd(Sgd {}));
        against_dashmap(rows);
        kinds(rows);
    }
}

fn spec(dim: usize, optimizer: Optimizer) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(1e-3),
        regularizer: None,
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        seed: 1,
        shards: DEFAULT_SHARDS,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    }
}

/// A bijection of the counter: keys are spread over all 64 bits and can be drawn again by number.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Requests for keys out of `row_count`, in random order.
fn draw(row_count: usize, requests: usize) -> Vec<Vec<u64>> {
    let mut random = Random(7);
    (0..requests).map(|_| (0..REQUEST).map(|_| key(random.next() % row_count as u64)).collect()).collect()
}

/// Creates the rows of the first `row_count` keys by pulling each once.
fn fill(table: &SparseTable, row_count: usize) {
    let (mut scratch, mut rows) = (Scratch::new(), vec![0.0; REQUEST * table.dim()]);
    for start in (0..row_count).step_by(REQUEST) {
        let keys: Vec<u64> = (start..row_count.min(start + REQUEST)).map(|number| key(number as u64)).collect();
        let rows = &mut rows[..keys.len() * table.dim()];
        table.pull(&keys, Missing::Create, rows, &mut scratch).expect("lengths agree");
    }
}

/// Lookups and AdaGrad updates of rows of 20 floats (10 weights and their state), here and on dashmap, with its default hasher
/// and with one as cheap as ours, on one core.
fn against_dashmap(row_count: usize) {
    const DIM: usize = 10;
    let batches = draw(row_count, (row_count / REQUEST).clamp(100, 1000));
    let total = (batches.len() * REQUEST) as f64;
    let mut random = Random(11);
    let gradients: Vec<f32> = (0..REQUEST * DIM).map(|_| random.unit() - 0.5).collect();
    let mut rows = vec![0.0; REQUEST * DIM];
    let ours = {
        let table = SparseTable::new(spec(DIM, Optimizer::Adagrad(Adagrad::default()))).expect("sound");
        fill(&table, row_count);
        let mut scratch = Scratch::new();
        let pull = best(|| {
            for keys in &batches {
                table.pull(keys, Missing::Create, &mut rows, &mut scratch).expect("lengths agree");
                black_box(&rows);
            }
        });
        let push = best(|| {
            for keys in &batches {
                black_box(table.push(keys, &gradients, &mut scratch).expect("lengths agree"));
            }
        });
        (total / pull, total / push)
    };
    for (name, theirs) in [
        ("as it comes", on_dashmap(&DashMap::new(), row_count, &batches, &gradients)),
        (
            "with our hash",
            on_dashmap(&DashMap::<_, _, BuildHasherDefault<Mix>>::default(), row_count, &batches, &gradients),
        ),
    ] {
        println!(
            "dashmap {name:<14} {:>3} M rows: pull {:5.2} M/s, ours {:5.2}: {:.1} times  \
             push {:5.2} M/s, ours {:5.2}: {:.1} times",
            row_count / 1_000_000,
            theirs.0 / 1e6,
            ours.0 / 1e6,
            ours.0 / theirs.0,
            theirs.1 / 1e6,
            ours.1 / 1e6,
            ours.1 / theirs.1,
        );
    }
}

/// Keys per second that a map of rows returns and updates.
fn on_dashmap<S: BuildHasher + Clone>(
    map: &DashMap<u64, [f32; 20], S>,
    row_count: usize,
    batches: &[Vec<u64>],
    gradients: &[f32],
) -> (f64, f64) {
    const DIM: usize = 10;
    for number in 0..row_count as u64 {
        map.insert(key(number), [0.01; 2 * DIM]);
    }
    let total = (batches.len() * REQUEST) as f64;
    let mut rows = vec![0.0; REQUEST * DIM];
    let pull = best(|| {
        for keys in batches {
            for (key, row) in keys.iter().zip(rows.chunks_exact_mut(DIM)) {
                if let Some(found) = map.get(key) {
                    row.copy_from_slice(&found[..DIM]);
                }
            }
            black_box(&rows);
        }
    });
    let rule = Optimizer::Adagrad(Adagrad::default());
    let push = best(|| {
        for keys in batches {
            for (key, gradient) in keys.iter().zip(gradients.chunks_exact(DIM)) {
                if let Some(mut found) = map.get_mut(key) {
                    let (weights, state) = found.split_at_mut(DIM);
                    rule.apply(1e-3, 1, weights, state, gradient);
                }
            }
        }
    });
    (total / pull, total / push)
}

/// One round of mixing, as our own index does.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write_u64(&mut self, key: u64) {
        self.0 = openfleet_core::key::mix(key);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Rows of 16 weights with row-wise AdaGrad, with weights of 32 and of 16 bits. Rounds of the two tables alternate, because the
/// machine may be faster at one time than at another, and processor time is measured, so that other programs matter less.
fn storage(row_count: usize) {
    const DIM: usize = 16;
    let storages = [RowStorage::Float32, RowStorage::Bfloat16];
    let tables = storages.map(|storage| {
        let spec = SparseSpec { storage, ..spec(DIM, Optimizer::RowwiseAdagrad(RowwiseAdagrad::default())) };
        let table = SparseTable::new(spec).expect("the specification is sound");
        let before = resident_bytes();
        fill(&table, row_count);
        let resident = resident_bytes().saturating_sub(before) as f64 / row_count as f64;
        (table, resident)
    });
    let batches = draw(row_count, (row_count / REQUEST).clamp(100, 1000));
    let total = (batches.len() * REQUEST) as f64;
    let mut random = Random(11);
    let gradients: Vec<f32> = (0..REQUEST * DIM).map(|_| random.unit() - 0.5).collect();
    let (mut scratch, mut rows) = (Scratch::new(), vec![0.0; REQUEST * DIM]);
    let mut seconds = [[f64::INFINITY; 2]; 2];
    for _ in 0..size(ROUNDS, 1) {
        for ((table, _), [pull, push]) in tables.iter().zip(&mut seconds) {
            *pull = pull.min(processor_time(|| {
                for keys in &batches {
                    table.pull(keys, Missing::Create, &mut rows, &mut scratch).expect("lengths agree");
                    black_box(&rows);
                }
            }));
            *push = push.min(processor_time(|| {
                for keys in &batches {
                    black_box(table.push(keys, &gradients, &mut scratch).expect("lengths agree"));
                }
            }));
        }
    }
    for (((table, resident), storage), [pull, push]) in tables.iter().zip(storages).zip(seconds) {
        println!(
            "storage {:<8} {:>3} M rows of {DIM}, row-wise adagrad: pull {:6.2} M/s ({:.2} of float32)  push {:6.2} M/s \
             ({:.2} of float32)  bytes/row {:.1} (resident {resident:.1})",
            storage.name(),
            row_count / 1_000_000,
            total / pull / 1e6,
            seconds[0][0] / pull,
            total / push / 1e6,
            seconds[0][1] / push,
            table.bytes() as f64 / row_count as f64,
        );
    }
}

/// The cost of other kinds of tables compared with the plain one, with rows of 10 weights and AdaGrad.
fn kinds(row_count: usize) {
    let base = || spec(10, Optimizer::Adagrad(Adagrad::default()));
    let batches = draw(row_count, (row_count / REQUEST).clamp(100, 1000));
    let gradients = vec![0.01; REQUEST * 10];
    let mut rows = vec![0.0; REQUEST * 10];
    let tables = [
        ("plain", base()),
        ("ctr, all long", SparseSpec { accessor: Accessor::Ctr(CtrOptions::default()), ..base() }),
        (
            "ctr, none long",
            SparseSpec {
                accessor: Accessor::Ctr(CtrOptions { embedx_threshold: 1e9, ..CtrOptions::default() }),
                ..base()
            },
        ),
        ("with a capacity", SparseSpec { capacity: Some(row_count), ..base() }),
        ("half by chance", SparseSpec { admission: Admission::Probability(0.5), ..base() }),
        ("none by count", SparseSpec { admission: Admission::Count(1 << 24), ..base() }),
    ];
    for (name, spec) in tables {
        let table = SparseTable::new(spec).expect("the specification is sound");
        fill(&table, row_count);
        let mut scratch = Scratch::new();
        let total = (batches.len() * REQUEST) as f64;
        let push = best(|| {
            for keys in &batches {
                black_box(table.push(keys, &gradients, &mut scratch).expect("lengths agree"));
            }
        });
        let pull = best(|| {
            for keys in &batches {
                table.pull(keys, Missing::Create, &mut rows, &mut scratch).expect("lengths agree");
                black_box(&rows);
            }
        });
        let (len, bytes) = (table.len(), table.bytes());
        let started = Instant::now();
        let shrunk = table.shrink(1, 0);
        println!(
            "sparse {name:<15} {:>3} M keys: pull {:6.2} M/s  push {:6.2} M/s  {:>5.1} bytes a key, {len} rows; \
             shrink removes {:.1} M/s",
            row_count / 1_000_000,
            total / pull / 1e6,
            total / push / 1e6,
            bytes as f64 / row_count as f64,
            shrunk.total() as f64 / started.elapsed().as_secs_f64() / 1e6,
        );
    }
}

fn sparse(name: &str, row_count: usize, dim: usize, optimizer: Optimizer) {
    let floats = dim * (1 + optimizer.state_slots());
    let table = SparseTable::new(spec(dim, optimizer)).expect("the specification is sound");
    let resident_before = resident_bytes();
    let mut scratch = Scratch::new();
    let mut rows = vec![0.0; REQUEST * dim];
    let mut random = Random(7);
    let started = Instant::now();
    fill(&table, row_count);
    let create = row_count as f64 / started.elapsed().as_secs_f64();
    let resident = resident_bytes().saturating_sub(resident_before);
    // Later tables use memory that earlier ones have freed: only the first shows how much it needs.
    let resident = if resident_before < 64 << 20 {
        format!("; resident {:.1}", resident as f64 / row_count as f64)
    } else {
        String::new()
    };

    let requests = (row_count / REQUEST).clamp(100, 1000);
    let batches = draw(row_count, requests);
    let gradients: Vec<f32> = (0..REQUEST * dim).map(|_| random.unit() - 0.5).collect();
    let total = (requests * REQUEST) as f64;
    let pull = best(|| {
        for keys in &batches {
            table.pull(keys, Missing::Create, &mut rows, &mut scratch).expect("lengths agree");
            black_box(&rows);
        }
    });
    let push = best(|| {
        for keys in &batches {
            black_box(table.push(keys, &gradients, &mut scratch).expect("lengths agree"));
        }
    });
    let (beside_pull, beside_push) = side_by_side(&table, &batches, &gradients);
    println!(
        "sparse {name:<14} {:>3} M rows: create {:5.2} M/s  pull {:6.2} M/s  push {:6.2} M/s  \
         (a thread each, together: {:.2} and {:.2})  bytes/row {:.1} (row {} + {:.1}{resident})",
        row_count / 1_000_000,
        create / 1e6,
        total / pull / 1e6,
        total / push / 1e6,
        beside_pull / 1e6,
        beside_push / 1e6,
        table.bytes() as f64 / row_count as f64,
        floats * 4,
        table.bytes() as f64 / row_count as f64 - (floats * 4) as f64,
    );
}

/// Keys per second of a thread that pulls and of one that pushes, on the same table at the same time.
fn side_by_side(table: &SparseTable, batches: &[Vec<u64>], gradients: &[f32]) -> (f64, f64) {
    let running = AtomicUsize::new(2);
    // The two sides start half a round apart, otherwise one would find in the cache what the other has just touched. The side
    // that finishes first continues, uncounted, so that the other never runs alone.
    let race = |start: usize, request: &mut dyn FnMut(&[u64])| {
        let mut keys = batches.iter().cycle().skip(start);
        let started = Instant::now();
        keys.by_ref().take(batches.len()).for_each(|keys| request(keys));
        let speed = (batches.len() * REQUEST) as f64 / started.elapsed().as_secs_f64();
        running.fetch_sub(1, Ordering::Relaxed);
        keys.take_while(|_| running.load(Ordering::Relaxed) > 0).for_each(|keys| request(keys));
        speed
    };
    std::thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let (mut scratch, mut rows) = (Scratch::new(), vec![0.0; REQUEST * table.dim()]);
            race(0, &mut |keys| table.pull(keys, Missing::Create, &mut rows, &mut scratch).expect("lengths agree"))
        });
        let mut scratch = Scratch::new();
        let pushed = race(batches.len() / 2, &mut |keys| {
            black_box(table.push(keys, gradients, &mut scratch).expect("lengths agree"));
        });
        (puller.join().unwrap_or(f64::NAN), pushed)
    })
}

fn dense() {
    let len = 430_000;
    let mut random = Random(3);
    let gradient: Vec<f32> = (0..len).map(|_| random.unit() - 0.5).collect();
    let mut copy = vec![0.0; len];
    let source = gradient.clone();
    let memcpy = best(|| (0..50).for_each(|_| black_box(&mut copy).copy_from_slice(black_box(&source)))) / 50.0;
    println!("copy of {len} floats: {:.1} us, {:.1} GB/s", memcpy * 1e6, (len * 8) as f64 / memcpy / 1e9);
    for optimizer in [Optimizer::Sgd(Sgd {}), Optimizer::Adagrad(Adagrad::default()), Optimizer::Adam(Adam::default())]
    {
        let schedule = Schedule::Constant(1e-3);
        let table = DenseTable::new(DenseSpec {
            shape: vec![len],
            optimizer,
            schedule,
            regularizer: None,
            non_finite: NonFinite::Skip,
        })
        .expect("the specification is sound");
        // Weights and slots are read and written, the gradient is read, the worker's copy is written.
        let bytes = (len * 4 * (2 * (1 + optimizer.state_slots()) + 2)) as f64;
        let seconds = best(|| {
            for _ in 0..50 {
                table.push_and_pull(black_box(&gradient), &mut 0, &mut copy).expect("lengths agree");
            }
        }) / 50.0;
        println!(
            "dense {:<8} of {len} floats: {:.1} us a push, {:.1} GB/s",
            optimizer.name(),
            seconds * 1e6,
            bytes / seconds / 1e9
        );
    }
}

/// The shortest of several rounds, in seconds.
fn best(mut round: impl FnMut()) -> f64 {
    (0..size(ROUNDS, 1))
        .map(|_| {
            let started = Instant::now();
            round();
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// The processor time of one round, in seconds.
fn processor_time(mut round: impl FnMut()) -> f64 {
    let started = Instant::now();
    let now = || {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let nanoseconds = schedstat.split(' ').next().and_then(|number| number.parse::<f64>().ok());
        // Systems without this file only tell the time.
        nanoseconds.map_or_else(|| started.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
    };
    let before = now();
    round();
    now() - before
}

/// Resident memory of this process if the system provides it, else 0.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// SplitMix64: enough for drawing keys.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        openfleet_core::key::mix(self.0)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}
