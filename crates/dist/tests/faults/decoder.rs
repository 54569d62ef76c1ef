//! Decoders: any bytes give a value or an error, and encoded values round-trip.

use openfleet_core::WorkId;
use openfleet_core::strategy::FloatWidth;
use openfleet_dist::frame::{HEADER, Header};
use openfleet_dist::gradients::{Counts, Head, PushEncoder, PushPart, PushView, PushedStage};
use openfleet_table::ShowClick;
use openfleet_testkit::hostile::{ask_anything, decode_as_everything};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes of a plausible request: many small numbers, so that counts are plausible, and some of any size.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0u32..4, 1 => any::<u32>(), 1 => Just(u32::MAX), 1 => Just(1 << 16)];
    vec(word, 0..64).prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// Tables and keys of a stage.
type Stage = (Vec<u32>, Vec<u64>);

/// Gradients of 16 bits are rounded at random, but alike in every repetition: also if the step is pushed in other parts.
#[test]
fn a_block_is_rounded_alike_in_every_part_of_a_step() {
    let gradients: Vec<Vec<f32>> = (0..3).map(|block| vec![1.0 + 1e-3 * block as f32; 100]).collect();
    let encode = |blocks: &[u32]| {
        let head = Head { width: FloatWidth::Bits16, ..Head::of(WorkId::step(1, 7)) };
        let mut push = PushEncoder::new(head).blocks();
        blocks.iter().for_each(|&block| push.block(block, &gradients[block as usize]));
        push.finish()
    };
    let rounded = |blocks: &[u32]| {
        let payload = encode(blocks);
        let view = PushView::decode(payload.bytes()).unwrap();
        view.blocks.iter().map(|(block, gradient)| (*block, gradient.to_vec())).collect::<Vec<_>>()
    };
    let whole = rounded(&[0, 1, 2]);
    assert_eq!([rounded(&[1]), rounded(&[0, 2])].concat(), [&whole[1..2], &whole[..1], &whole[2..]].concat());
    assert!(whole[1].1.iter().any(|value| value != &whole[1].1[0]), "it is rounded in both directions");
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(raw in vec(any::<u8>(), 0..300), likely in bytes()) {
        decode_as_everything(&raw);
        decode_as_everything(&likely);
        ask_anything(&raw);
        ask_anything(&likely);
    }

    #[test]
    fn a_header_must_match_byte_by_byte(
        kind in any::<u16>(), request in any::<u64>(), payload in vec(any::<u8>(), 0..50), at in 0..HEADER, flip in 1u8..,
    ) {
        let header = Header::of(kind, request, &payload);
        let mut bytes = header.encode();
        prop_assert_eq!(Header::decode(&bytes, 50).unwrap(), header);
        prop_assert!(header.check(&payload).is_ok());
        bytes[at] ^= flip;
        prop_assert!(Header::decode(&bytes, 50).is_err());
    }

    #[test]
    fn a_push_round_trips(
        (stream, first, more) in any::<(u32, u64, u8)>(),
        (want_values, narrow, wide_rows, counted, measured) in any::<(bool, bool, bool, bool, bool)>(),
        (changes_since, rate_factor) in (any::<Option<u64>>(), 0f32..1e3),
        stages in vec((vec(0u32..9, 0..3), vec(any::<u64>(), 0..6)), 0..3),
        blocks in vec((any::<u32>(), vec(-1e9f32..1e9, 0..5)), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let work = WorkId { stream, first_step: first, last_step: first.saturating_add(more.into()) };
        let stages: Vec<Stage> = stages;
        let width = if narrow { FloatWidth::Bits16 } else { FloatWidth::Bits32 };
        let part = PushPart { attempt: first ^ 7, number: u32::from(more), has_more: want_values != counted };
        let mut push =
            PushEncoder::new(Head { work, want_values, changes_since, width, wide_rows, counted, measured, part, rate_factor });
        // Small integers are exact in 16 bits.
        let gradient = |table: usize, at: usize| (table * 100 + at) as f32;
        for (tables, keys) in &stages {
            let dims: Vec<u32> = tables.iter().map(|table| table + 1).collect();
            let values: Vec<Vec<f32>> = dims
                .iter()
                .enumerate()
                .map(|(table, &dim)| (0..keys.len() * dim as usize).map(|at| gradient(table, at)).collect())
                .collect();
            let gradients = values.iter().zip(&dims).map(|(values, &dim)| values.chunks_exact(dim as usize));
            // Every other stage has counts.
            let (mut show, mut click) = (keys.iter().map(|&key| key as f32), keys.iter().map(|_| 1.0));
            let counts = (tables.len() % 2 == 0).then_some(Counts { show: &mut show, click: &mut click });
            push.stage(tables, &dims, keys, gradients, counts);
        }
        let mut push = push.blocks();
        blocks.iter().for_each(|(block, values)| push.block(*block, values));
        let payload = push.finish();

        let view = PushView::decode(payload.bytes()).unwrap();
        prop_assert_eq!((view.work, view.want_values, view.changes_since), (work, want_values, changes_since));
        prop_assert_eq!((view.part, view.rate_factor), (part, rate_factor));
        prop_assert_eq!((view.measured, view.stages.len(), view.blocks.len()), (measured, stages.len(), blocks.len()));
        for (PushedStage { keys, gradients, show_click }, (tables, expected)) in view.stages.iter().zip(&stages) {
            let shows: Vec<f32> = expected.iter().map(|&key| key as f32).collect();
            let clicks = vec![1.0; shows.len()];
            let counts = (counted && tables.len() % 2 == 0).then_some(ShowClick { show: &shows, click: &clicks });
            prop_assert_eq!(*show_click, counts);
            prop_assert_eq!((keys.tables, keys.keys), (tables.as_slice(), expected.as_slice()));
            for (table, values) in gradients.iter().enumerate() {
                prop_assert_eq!(values.len(), expected.len() * keys.dims[table] as usize);
                prop_assert!(values.iter().enumerate().all(|(at, &value)| value == gradient(table, at)));
            }
        }
        for ((block, values), (number, expected)) in view.blocks.iter().zip(&blocks) {
            // Either neighbour in 16 bits.
            let bound = |value: f32| if narrow { value.abs() / 128.0 } else { 0.0 };
            prop_assert_eq!((block, values.len()), (number, expected.len()));
            prop_assert!(values.iter().zip(expected).all(|(got, &sent)| (got - sent).abs() <= bound(sent)));
        }
        let shorter = cut.index(payload.bytes().len());
        prop_assert!(PushView::decode(&payload.bytes()[..shorter]).is_err(), "cut off at {}", shorter);
    }
}

/// The corpus of the fuzzer: one folder of `fuzz/corpus` per target.
fn corpus(target: &str, run: fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        run(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 8, "{count} files");
}

#[test]
fn the_corpus_of_the_fuzzer_does_no_harm() {
    corpus("decoder", decode_as_everything);
    corpus("requests", ask_anything);
}
