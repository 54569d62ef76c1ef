//! A request allocates nothing after warm-up: a training step must not wait for the allocator, nor for another thread in it.

use openfleet_table::{
    Accessor, Adam, Admission, CtrOptions, DenseSpec, DenseTable, Initializer, Missing, NonFinite, Optimizer, Schedule,
    Scratch, SparseSpec, SparseTable,
};
use openfleet_testkit::allocation::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn warm_pulls_and_pushes_allocate_nothing() {
    let optimizer = Optimizer::Adam(Adam::default());
    let schedule = Schedule::Constant(0.01);
    let initializer = Initializer::Constant(0.0);
    let plain = SparseSpec {
        dim: 10,
        optimizer,
        schedule: schedule.clone(),
        regularizer: None,
        initializer,
        seed: 0,
        shards: 64,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    };
    let ctr = SparseSpec {
        accessor: Accessor::Ctr(CtrOptions::default()),
        admission: Admission::Count(2),
        capacity: Some(20_000),
        ..plain.clone()
    };
    let tables = [plain, ctr].map(|spec| SparseTable::new(spec).unwrap());
    let dense = DenseTable::new(DenseSpec {
        shape: vec![5000],
        optimizer,
        schedule,
        regularizer: None,
        non_finite: NonFinite::Skip,
    })
    .unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    let (mut rows, gradients, mut copy) = (vec![0.0; 30_000], vec![0.1; 30_000], vec![0.0; 5000]);
    let mut scratch = Scratch::new();
    let mut step = || {
        for table in &tables {
            table.pull(&keys, Missing::Create, &mut rows, &mut scratch).unwrap();
            table.push(&keys, &gradients, &mut scratch).unwrap();
        }
        dense.push_and_pull(&gradients[..5000], &mut 0, &mut copy).unwrap();
    };
    // The counted keys are admitted in the second step.
    (0..3).for_each(|_| step());
    assert_eq!(allocations(step), 0);
}
