//! A request allocates nothing after warm-up: a training step must not wait for the allocator, nor for another thread in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use openfleet_table::{
    Accessor, Adam, Admission, CtrOptions, DenseSpec, DenseTable, Initializer, Missing, NonFinite, Optimizer, Schedule,
    Scratch, SparseSpec, SparseTable,
};

struct Counting;

thread_local! {
    // Per thread, so that the threads of the test harness are not counted.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches a thread-local number only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let before = ALLOCATIONS.with(Cell::get);
    step();
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}
