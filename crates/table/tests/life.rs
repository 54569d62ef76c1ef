//! The lifetime of a row: admission, contents, and removal.

use openfleet_core::Key;
use openfleet_table::{
    Accessor, Adagrad, Adam, Admission, CtrFields, CtrOptions, Error, Initializer, Missing, NonFinite, Optimizer,
    PushReport, Schedule, Scratch, Sgd, ShowClick, Shrunk, SparseSpec, SparseTable,
};

fn spec(dim: usize) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer: Optimizer::Sgd(Sgd {}),
        schedule: Schedule::Constant(1.0),
        regularizer: None,
        initializer: Initializer::Uniform { low: 0.1, high: 0.2 },
        seed: 42,
        shards: 4,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    }
}

fn ctr(options: CtrOptions) -> Accessor {
    Accessor::Ctr(options)
}

fn table(spec: SparseSpec) -> SparseTable {
    SparseTable::new(spec).expect("the specification is sound")
}

fn pull(table: &SparseTable, keys: &[Key], missing: Missing) -> Vec<f32> {
    let mut rows = vec![f32::NAN; keys.len() * table.dim()];
    table.pull(keys, missing, &mut rows, &mut Scratch::new()).expect("lengths agree");
    rows
}

fn push(table: &SparseTable, keys: &[Key], gradients: &[f32]) -> PushReport {
    table.push(keys, gradients, &mut Scratch::new()).expect("lengths agree")
}

fn show(table: &SparseTable, key: Key, show: f32, click: f32) -> PushReport {
    let counts = ShowClick { show: &[show], click: &[click] };
    table.push_with(&[key], &vec![0.0; table.dim()], Some(counts), &mut Scratch::new()).expect("lengths agree")
}

fn fields(table: &SparseTable, key: Key) -> Option<CtrFields> {
    table.read_row(key, |row| row.ctr.expect("a ctr table"))
}

// --- admission ---

#[test]
fn a_counted_key_gets_its_row_at_the_training_pull_that_makes_it_enough() {
    let table = table(SparseSpec { admission: Admission::Count(3), ..spec(2) });
    for _ in 0..2 {
        assert_eq!(pull(&table, &[1], Missing::Create), [0.0, 0.0]);
        assert_eq!(pull(&table, &[1], Missing::Initial), [0.0, 0.0], "evaluation counts nothing");
        let report = push(&table, &[1], &[1.0, 1.0]);
        assert_eq!((report.applied, report.not_admitted), (0, 1));
    }
    assert!(table.is_empty());
    assert!(pull(&table, &[1], Missing::Create).iter().all(|weight| (0.1..0.2).contains(weight)));
    assert_eq!(push(&table, &[1], &[1.0, 1.0]).applied, 1);
    assert_eq!((table.len(), table.not_admitted()), (1, 2));
}

#[test]
fn a_key_named_three_times_in_one_pull_was_seen_three_times() {
    let table = table(SparseSpec { admission: Admission::Count(3), ..spec(1) });
    let rows = pull(&table, &[1, 2, 1, 1], Missing::Create);
    assert_eq!(rows[..3], [0.0, 0.0, 0.0]);
    assert!(rows[3] > 0.0);
    assert_eq!(table.len(), 1);
}

#[test]
fn an_evicted_key_has_to_be_seen_as_often_again() {
    let table = table(SparseSpec { admission: Admission::Count(2), ..spec(1) });
    pull(&table, &[1, 1], Missing::Create);
    assert_eq!(table.shrink(5, 0).by_age, 1);
    assert_eq!(pull(&table, &[1], Missing::Create), [0.0]);
    assert!(pull(&table, &[1], Missing::Create)[0] > 0.0);
}

#[test]
fn chance_admits_a_key_for_good_or_never() {
    let table = table(SparseSpec { admission: Admission::Probability(0.25), ..spec(1) });
    let keys: Vec<Key> = (0..10_000).collect();
    let first = pull(&table, &keys, Missing::Create);
    let admitted = first.iter().filter(|weight| **weight > 0.0).count();
    // Four standard deviations: 4 * sqrt(10000 * 0.25 * 0.75) = 173.
    assert!(admitted.abs_diff(2500) < 173, "{admitted}");
    for _ in 0..3 {
        assert_eq!(pull(&table, &keys, Missing::Create), first);
        assert_eq!(pull(&table, &keys, Missing::Initial), first);
    }
    let report = push(&table, &keys, &vec![0.0; keys.len()]);
    assert_eq!((report.applied, report.not_admitted), (admitted, keys.len() - admitted));
    assert_eq!(table.len(), admitted);
}

#[test]
fn shows_and_clicks_admit_together() {
    let admission = Admission::ShowClick { show: 5.0, click: 2.0 };
    let table = table(SparseSpec { admission, accessor: ctr(CtrOptions::default()), ..spec(2) });
    assert_eq!(show(&table, 1, 4.0, 1.0).not_admitted, 1);
    assert_eq!(show(&table, 1, 4.0, 0.0).not_admitted, 1);
    assert!(table.is_empty(), "8 shows are enough, 1 click is not");
    assert_eq!(show(&table, 1, 1.0, 1.0).not_admitted, 1, "computed on zeros, like those before it");
    let earned = fields(&table, 1).unwrap();
    assert_eq!((earned.show, earned.click, earned.has_long), (9.0, 2.0, false));
    assert_eq!(show(&table, 1, 1.0, 0.0).applied, 1);
}

#[test]
fn keys_that_are_not_admitted_cost_little() {
    let table = table(SparseSpec { admission: Admission::Count(3), shards: 64, ..spec(64) });
    pull(&table, &(0..20_000).collect::<Vec<Key>>(), Missing::Create);
    assert!(table.bytes() <= 20_000 * 40, "{} bytes", table.bytes());
}

// --- eviction ---

#[test]
fn rows_older_than_asked_go_and_their_memory_is_given_back_and_used_again() {
    let table = table(spec(8));
    let (old, young): (Vec<Key>, Vec<Key>) = ((0..50_000).collect(), (50_000..51_000).collect());
    table.set_stamp(10);
    push(&table, &old, &vec![0.5; old.len() * 8]);
    table.set_stamp(17);
    push(&table, &young, &vec![0.25; young.len() * 8]);
    let (before, kept) = (table.bytes(), pull(&table, &young, Missing::Initial));
    assert_eq!(table.shrink(17, 7), Shrunk::default(), "an age of exactly 7 is not above 7");
    assert_eq!(table.shrink(18, 7), Shrunk { by_age: 50_000, ..Shrunk::default() });
    assert_eq!(table.len(), 1000);
    assert!(table.bytes() * 30 < before, "{} of {before} bytes", table.bytes());
    assert_eq!(pull(&table, &young, Missing::Initial), kept);
    let mut shown: Vec<Key> = Vec::new();
    table.for_each(|key, _, _| shown.push(key));
    shown.sort_unstable();
    assert_eq!(shown, young);
    // A row that is created again starts from its initial values, as if it had never existed.
    let fresh = self::table(spec(8));
    assert_eq!(pull(&table, &old, Missing::Create), pull(&fresh, &old, Missing::Create));
    assert!(table.bytes() <= before + before / 8);
}

#[test]
fn a_table_never_keeps_more_rows_than_its_capacity() {
    let table = table(SparseSpec { capacity: Some(1000), shards: 16, ..spec(4) });
    let hot: Vec<Key> = (0..100).collect();
    let mut created = 0;
    for round in 0..200u64 {
        let mut keys = hot.clone();
        keys.extend(1_000_000 + round * 300..1_000_000 + (round + 1) * 300);
        created += 300;
        pull(&table, &keys, Missing::Create);
        assert!(table.len() <= 1000);
        push(&table, &keys, &vec![0.01; keys.len() * 4]);
        assert!(table.len() <= 1000);
    }
    assert!(table.len() > 900, "full shards, not empty ones: {}", table.len());
    // At most the rows of a round that were evicted before their push are created again.
    assert!(table.evicted() >= created + 100 - 1000);
    // Rows that are used in every round were never the least recently used.
    let survivors = hot.iter().filter(|key| table.stamp(**key).is_some()).count();
    assert_eq!(survivors, 100);
    let bytes_a_row = table.bytes() / table.len();
    assert!(bytes_a_row < 4 * 4 + 60, "{bytes_a_row} bytes a row");
}

#[test]
fn evicted_neighbours_in_a_request_larger_than_the_table_shift_no_gradient() {
    let initializer = Initializer::Constant(0.0);
    let table = table(SparseSpec { capacity: Some(50), shards: 1, initializer, ..spec(1) });
    let keys: Vec<Key> = (0..1000).collect();
    let gradients: Vec<f32> = keys.iter().map(|key| -(*key as f32)).collect();
    assert_eq!(push(&table, &keys, &gradients).applied, 1000);
    assert_eq!((table.len(), table.evicted()), (50, 950));
    table.for_each(|key, weights, _| assert_eq!(weights, [key as f32]));
}

// --- the ctr accessor ---

#[test]
fn shrinking_decays_and_deletes_as_worked_by_hand() {
    // score = (show - click) * 0.1 + click * 1
    let options = CtrOptions { show_click_decay_rate: 0.5, delete_threshold: 0.8, ..CtrOptions::default() };
    let table = table(SparseSpec { accessor: ctr(options), ..spec(3) });
    show(&table, 1, 10.0, 1.0); // 1.9 -> 5, 0.5: 0.95 stays -> 2.5, 0.25: 0.475 goes
    show(&table, 2, 4.0, 0.0); //  0.4 -> 2, 0: 0.2 goes
    show(&table, 3, 100.0, 10.0); // 19 -> 9.5 -> 4.75
    show(&table, 4, 16.0, 0.0); // 1.6 -> 0.8 stays, being not below
    assert_eq!(fields(&table, 1).unwrap().delta_score, 9.0 * 0.1 + 1.0);
    assert_eq!(table.shrink(0, u32::MAX), Shrunk { by_score: 1, ..Shrunk::default() });
    let after = fields(&table, 1).unwrap();
    assert_eq!((after.show, after.click, after.unseen_days), (5.0, 0.5, 0));
    assert_eq!(table.shrink(0, u32::MAX), Shrunk { by_score: 2, ..Shrunk::default() });
    let after = fields(&table, 3).unwrap();
    assert_eq!((after.show, after.click, table.len()), (25.0, 2.5, 1));
}

#[test]
fn rows_go_after_more_than_thirty_unseen_days_and_a_push_starts_counting_afresh() {
    let table = table(SparseSpec { accessor: ctr(CtrOptions::default()), ..spec(3) });
    show(&table, 1, 1.0, 0.0);
    show(&table, 2, 1.0, 0.0);
    (0..30).for_each(|_| table.end_of_day());
    assert_eq!(table.shrink(0, u32::MAX).total(), 0);
    show(&table, 2, 1.0, 0.0);
    table.end_of_day();
    assert_eq!(table.shrink(0, u32::MAX), Shrunk { by_unseen_days: 1, ..Shrunk::default() });
    assert_eq!((fields(&table, 1), fields(&table, 2).unwrap().unseen_days), (None, 1));
}

#[test]
fn the_long_part_is_zeros_until_the_score_reaches_the_threshold() {
    let options = CtrOptions { embedx_threshold: 1.0, ..CtrOptions::default() };
    let table = table(SparseSpec { accessor: ctr(options), ..spec(4) });
    let plain = self::table(spec(4));
    let first = pull(&plain, &[7], Missing::Initial);
    assert_eq!(pull(&table, &[7], Missing::Create), [0.0; 4], "the weight starts from 0 as well");
    // Nine shows without a click score 0.9: the weight is trained, the long part does not exist.
    for _ in 0..9 {
        assert_eq!(push(&table, &[7], &[-1.0, -1.0, -1.0, -1.0]).applied, 1);
    }
    assert_eq!(pull(&table, &[7], Missing::Create), [9.0, 0.0, 0.0, 0.0]);
    let short_bytes = table.bytes();
    // The tenth creates it with initial values; the gradient of that push was computed on zeros.
    show(&table, 7, 1.0, 1.0);
    assert_eq!(pull(&table, &[7], Missing::Create), [9.0, first[1], first[2], first[3]]);
    push(&table, &[7], &[-1.0, -1.0, -1.0, -1.0]);
    assert_eq!(pull(&table, &[7], Missing::Create), [10.0, first[1] + 1.0, first[2] + 1.0, first[3] + 1.0]);
    assert_eq!(table.bytes() - short_bytes, 4 * 4, "three weights and whose they are");
}

#[test]
fn without_counts_a_key_was_shown_once_and_not_clicked() {
    let table = table(SparseSpec { accessor: ctr(CtrOptions::default()), ..spec(2) });
    push(&table, &[1, 1], &[0.0; 4]);
    let fields = fields(&table, 1).unwrap();
    assert_eq!((fields.show, fields.click, fields.delta_score, fields.has_long), (2.0, 0.0, 0.2, true));
}

#[test]
fn ctr_rows_train_like_plain_ones_once_they_are_long() {
    let optimizer = Optimizer::Adam(Adam::default());
    let plain = table(SparseSpec { optimizer, ..spec(5) });
    let long = table(SparseSpec {
        optimizer,
        accessor: ctr(CtrOptions { zero_init: false, ..CtrOptions::default() }),
        ..spec(5)
    });
    pull(&plain, &[1, 2, 3], Missing::Create);
    plain.for_each(|key, weights, state| long.assign(key, weights, Some(state)).unwrap());
    for step in 0..20 {
        let gradients: Vec<f32> = (0..15).map(|i| ((i * 7 + step) % 11) as f32 * 0.1 - 0.5).collect();
        push(&plain, &[3, 1, 2], &gradients);
        push(&long, &[3, 1, 2], &gradients);
    }
    assert_eq!(pull(&plain, &[1, 2, 3], Missing::Create), pull(&long, &[1, 2, 3], Missing::Create));
    assert_eq!(plain.read(2, |_, state| state.to_vec()), long.read(2, |_, state| state.to_vec()));
}

#[test]
fn every_ctr_row_shown_can_be_restored_in_another_table() {
    let options = CtrOptions { embedx_threshold: 1.0, show_click_decay_rate: 0.9, ..CtrOptions::default() };
    let optimizer = Optimizer::Adagrad(Adagrad::default());
    let make = |shards| table(SparseSpec { shards, optimizer, accessor: ctr(options), ..spec(4) });
    let (table, copy) = (make(4), make(32));
    for day in 0..6u32 {
        table.set_stamp(day);
        let keys: Vec<Key> = (0..300).filter(|key| key % (u64::from(day) + 1) == 0).collect();
        let shows: Vec<f32> = keys.iter().map(|key| (key % 9) as f32).collect();
        let counts = ShowClick { show: &shows, click: &vec![0.0; keys.len()] };
        table.push_with(&keys, &vec![0.1; keys.len() * 4], Some(counts), &mut Scratch::new()).unwrap();
        table.end_of_day();
    }
    copy.assign(0, &[1.0; 4], None).unwrap(); // something to be overwritten
    table.for_each_row(|row| copy.restore(row).unwrap());
    let listed = |table: &SparseTable| {
        let mut rows = Vec::new();
        table.for_each_row(|row| rows.push((row.key, row.stamp, row.weights.to_vec(), row.state.to_vec(), row.ctr)));
        rows.sort_by_key(|row| row.0);
        rows
    };
    assert_eq!(listed(&table), listed(&copy));
    assert!(listed(&table).iter().any(|row| row.4.unwrap().has_long));
    assert!(listed(&table).iter().any(|row| !row.4.unwrap().has_long));
}

#[test]
fn the_defaults_are_those_of_the_original_s_python_front() {
    let options = CtrOptions::default();
    assert_eq!((options.nonclk_coeff, options.click_coeff, options.embedx_threshold), (0.1, 1.0, 0.0));
    assert_eq!((options.show_click_decay_rate, options.delete_threshold), (1.0, 0.0));
    assert_eq!((options.base_threshold, options.delta_threshold, options.delta_keep_days), (0.0, 0.0, 16));
    assert_eq!((options.delete_after_unseen_days, options.zero_init), (30, true));
    let fields = CtrFields { show: 10.0, click: 1.0, delta_score: 0.2, unseen_days: 16, has_long: true };
    let strict = CtrOptions { base_threshold: 1.5, delta_threshold: 0.25, ..options };
    assert!(options.is_in_base(&fields) && options.is_in_delta(&fields));
    assert!(strict.is_in_base(&fields) && !strict.is_in_delta(&fields));
    assert!(!options.is_in_base(&CtrFields { unseen_days: 17, ..fields }));
}

#[test]
fn counts_that_are_no_counts_are_refused_with_their_gradient() {
    let table = table(SparseSpec { accessor: ctr(CtrOptions::default()), ..spec(1) });
    for (shows, clicks) in [(f32::NAN, 0.0), (1.0, f32::INFINITY), (-1.0, 0.0), (1.0, -1.0)] {
        assert_eq!(show(&table, 1, shows, clicks).non_finite, 1);
    }
    assert!(table.is_empty());
    let counts = ShowClick { show: &[1.0], click: &[] };
    let error = table.push_with(&[1], &[0.0], Some(counts), &mut Scratch::new()).unwrap_err();
    assert_eq!(error, Error::Length { what: "click", expected: 1, got: 0 });
}

// --- gradients that are not finite ---

#[test]
fn numbers_too_large_to_be_squared_count_as_not_finite() {
    let table = table(SparseSpec { optimizer: Optimizer::Adagrad(Adagrad::default()), ..spec(1) });
    let report = push(&table, &[1, 2], &[1e38, 1.0]);
    assert_eq!((report.applied, report.non_finite), (1, 1));
}

#[test]
fn clipping_puts_every_number_into_range_and_counts_the_gradients_it_changed() {
    let initializer = Initializer::Constant(0.0);
    let table = table(SparseSpec { non_finite: NonFinite::Clip(2.0), initializer, ..spec(2) });
    let gradients = [1.0, -1.0, f32::NAN, 1.0, f32::NEG_INFINITY, 1e38, 3.0, 0.5];
    let report = push(&table, &[1, 2, 3, 4], &gradients);
    assert_eq!(report, PushReport { applied: 4, clipped: 3, ..PushReport::default() });
    assert_eq!(pull(&table, &[1, 2, 3, 4], Missing::Initial), [-1.0, 1.0, 0.0, -1.0, 2.0, -2.0, -2.0, -0.5]);
    assert_eq!(table.non_finite(), 3);
}

#[test]
fn stopping_names_the_first_key_and_changes_nothing() {
    let table = table(SparseSpec { non_finite: NonFinite::Stop, ..spec(1) });
    let keys = [1, 77, 3, 78];
    let error = table.push(&keys, &[1.0, f32::NAN, 1.0, f32::NAN], &mut Scratch::new()).unwrap_err();
    assert_eq!(error, Error::NonFiniteRow { key: 77 });
    assert_eq!(error.to_string(), "the gradient of key 77 is not finite");
    assert_eq!((table.len(), table.step(), table.non_finite()), (0, 0, 2));
    assert_eq!(push(&table, &keys, &[1.0; 4]).applied, 4);
}

// --- specifications ---

#[test]
fn settings_that_cannot_work_are_refused_with_their_reason() {
    let refused = |spec: SparseSpec| SparseTable::new(spec).unwrap_err().to_string();
    assert_eq!(
        refused(SparseSpec { capacity: Some(3), ..spec(1) }),
        "`capacity` of a sparse table must be at least one row per shard, got 3"
    );
    assert_eq!(
        refused(SparseSpec {
            accessor: ctr(CtrOptions { show_click_decay_rate: 1.5, ..CtrOptions::default() }),
            ..spec(1)
        }),
        "`show_click_decay_rate` of the ctr accessor must be from 0 to 1, got 1.5"
    );
    assert_eq!(
        refused(SparseSpec { non_finite: NonFinite::Clip(f32::INFINITY), ..spec(1) }),
        "`clip` of the policy for gradients that are not finite must be above 0 and below 2^60, got inf"
    );
    let read: SparseSpec = serde_json::from_str(&serde_json::to_string(&spec(3)).unwrap()).unwrap();
    assert_eq!(read, spec(3));
}
