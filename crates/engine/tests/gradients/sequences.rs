//! Ops on sequences. Each test joins the sequences of a padded tensor `[B, T, W]` first, and pads what comes out again, so that
//! shapes are known; `sequence_pad` and `sequence_unpad` are checked with every other op.

use openfleet_engine::op::{LiteralValues, SequencePooling};
use openfleet_engine::{DType, Feed, Net, Result, Var};

use crate::constants::assert_near;
use crate::harness::{Options, build_error, check, compute, compute_of};

/// Three sequences, the second without rows.
const LENGTHS: [i64; 3] = [2, 0, 3];

fn integers(net: &mut Net, values: &[i64]) -> Result<Var> {
    net.literal(&[values.len()], LiteralValues::I64(values.to_vec()))
}

fn joined(net: &mut Net, padded: Var) -> Result<Var> {
    let lengths = integers(net, &LENGTHS)?;
    net.sequence_unpad(padded, lengths)
}

/// The sequences `[3, 3, ...]` with 9.0 behind them.
fn padded(net: &mut Net, joined: Var) -> Result<Var> {
    let padding = net.literal(&[1], LiteralValues::F32(vec![9.0]))?;
    Ok(net.sequence_pad(joined, padding, Some(3))?.0)
}

type Layer = fn(&mut Net, Var) -> Result<Var>;

/// What a layer of sequences computes from `[3, 3, 2]`, whose elements count up from 1: 1 to 4 in the first sequence, and 13 to 18
/// in the last.
fn computed(layer: Layer) -> (Vec<usize>, Vec<f32>) {
    let values: Vec<f32> = (1..=18).map(|i| i as f32).collect();
    compute_of(
        |net, p| {
            let joined = joined(net, p[0])?;
            layer(net, joined)
        },
        &[(&[3, 3, 2], &values)],
    )
}

#[test]
fn sequences_are_joined_and_padded() {
    assert_eq!(computed(|_, x| Ok(x)), (vec![5, 2], vec![1.0, 2.0, 3.0, 4.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]));
    let again = [1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0];
    assert_eq!(computed(padded), (vec![3, 3, 2], again.to_vec()));
    // As long as the longest, and a row of padding.
    let longest = computed(|net, x| {
        let row = net.literal(&[2], LiteralValues::F32(vec![-1.0, -2.0]))?;
        let (padded, lengths) = net.sequence_pad(x, row, None)?;
        assert_eq!(net.shape(padded).to_string(), "[3, -1, 2]");
        let lengths = net.cast(lengths, DType::F32)?;
        let flat = net.reshape(padded, &[-1])?;
        net.concat(&[flat, lengths], 0)
    });
    let expected =
        [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -1.0, -2.0, -1.0, -2.0, -1.0, -2.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0];
    assert_eq!(longest.1, [&expected[..], &[2.0, 0.0, 3.0]].concat());
}

#[test]
fn sequences_are_pooled() {
    for (pooling, empty, expected) in [
        (SequencePooling::Sum, 0.0, [4.0, 6.0, 0.0, 0.0, 45.0, 48.0]),
        (SequencePooling::Mean, 0.5, [2.0, 3.0, 0.5, 0.5, 15.0, 16.0]),
        (SequencePooling::Sqrtn, 0.0, [2.828_427, 4.242_640_7, 0.0, 0.0, 25.980_762, 27.712_812]),
        (SequencePooling::Max, -1.0, [3.0, 4.0, -1.0, -1.0, 17.0, 18.0]),
        (SequencePooling::First, 0.0, [1.0, 2.0, 0.0, 0.0, 13.0, 14.0]),
        (SequencePooling::Last, 0.0, [3.0, 4.0, 0.0, 0.0, 17.0, 18.0]),
    ] {
        let values: Vec<f32> = (1..=18).map(|i| i as f32).collect();
        let (dims, got) = compute_of(
            |net, p| {
                let joined = joined(net, p[0])?;
                net.sequence_pool(joined, pooling, empty)
            },
            &[(&[3, 3, 2], &values)],
        );
        assert_eq!(dims, [3, 2], "{pooling:?}");
        assert_near(&got, &expected);
        // Pooled elements are 0.3 apart, so that finite differences do not change which one is the greatest.
        let spread: Vec<f32> = (0..18).map(|i| ((i * 7) % 18) as f32 * 0.3 - 2.5).collect();
        check(
            |net, p| {
                let joined = joined(net, p[0])?;
                net.sequence_pool(joined, pooling, empty)
            },
            &[&[3, 3, 2]],
            Options::values(&[&spread]),
        );
    }
}

#[test]
fn the_softmax_of_each_sequence_adds_up_to_one() {
    let (_, got) = computed(|net, x| {
        let scaled = net.scale(x, 0.5, 0.0)?;
        net.sequence_softmax(scaled)
    });
    // Rows of a sequence are 2 apart, halved: 1 / (1 + e), e / (1 + e); 1, e, e² over 1 + e + e².
    let (two, three) = ([0.268_941_4, 0.731_058_6], [0.090_030_57, 0.244_728_5, 0.665_240_94]);
    let expected: Vec<f32> = two.iter().chain(&three).flat_map(|&weight| [weight, weight]).collect();
    assert_near(&got, &expected);
}

#[test]
fn the_rows_of_each_sequence_are_reversed() {
    let (_, got) = computed(|net, x| net.sequence_reverse(x));
    assert_eq!(got, [3.0, 4.0, 1.0, 2.0, 17.0, 18.0, 15.0, 16.0, 13.0, 14.0]);
}

#[test]
fn windows_have_zeros_where_the_sequence_ends() {
    let (dims, got) = computed(|net, x| net.sequence_window(x, -1, 3));
    assert_eq!(dims, [5, 6]);
    let expected = [
        [0.0, 0.0, 1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0, 3.0, 4.0, 0.0, 0.0],
        [0.0, 0.0, 13.0, 14.0, 15.0, 16.0],
        [13.0, 14.0, 15.0, 16.0, 17.0, 18.0],
        [15.0, 16.0, 17.0, 18.0, 0.0, 0.0],
    ];
    assert_eq!(got, expected.concat());
    // Windows of rows that come later, of which the last are outside.
    let (_, later) = computed(|net, x| net.sequence_window(x, 1, 1));
    assert_eq!(later, [3.0, 4.0, 0.0, 0.0, 15.0, 16.0, 17.0, 18.0, 0.0, 0.0]);
}

#[test]
fn layers_on_sequences_have_the_gradient_of_finite_differences() {
    let layers: [Layer; 4] = [
        |net, x| net.sequence_softmax(x),
        |net, x| net.sequence_reverse(x),
        |net, x| net.sequence_window(x, -1, 3),
        |net, x| net.sequence_window(x, -2, 2),
    ];
    for layer in layers {
        let build = |net: &mut Net, p: &[Var]| {
            let joined = joined(net, p[0])?;
            let computed = layer(net, joined)?;
            padded(net, computed)
        };
        check(build, &[&[3, 3, 2]], Options::default());
    }
}

#[test]
fn a_row_is_repeated_for_each_row_of_its_sequence() {
    let build = |net: &mut Net, p: &[Var]| {
        let sequences = joined(net, p[0])?;
        let expanded = net.sequence_expand(p[1], sequences)?;
        assert_eq!(net.lengths(expanded).unwrap(), net.lengths(sequences).unwrap());
        net.concat(&[sequences, expanded], 1)
    };
    let (dims, got) = compute_of(build, &[(&[3, 3, 1], &[0.0; 9]), (&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
    assert_eq!(dims, [5, 3]);
    assert_eq!(got, [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 5.0, 6.0], [0.0, 5.0, 6.0], [0.0, 5.0, 6.0]].concat());
    let padded_again = |net: &mut Net, p: &[Var]| {
        let both = build(net, p)?;
        padded(net, both)
    };
    check(padded_again, &[&[3, 3, 1], &[3, 2]], Options::default());
}

#[test]
fn attention_over_the_ids_of_a_slot_keeps_its_sequences_through_layers() {
    let feed = || Feed::new().ids("clicks", &[2, 0, 1], vec![4, 5, 6]).unwrap();
    let value = compute(
        |net| {
            let clicks = net.slot("clicks")?;
            let ids = net.slot_ids(clicks)?;
            let numbers = net.cast(ids, DType::F32)?;
            let ones = net.scale(numbers, 0.0, 1.0)?;
            let weights = net.sequence_softmax(ones)?;
            let weighted = net.multiply(numbers, weights)?;
            net.sequence_pool(weighted, SequencePooling::Sum, 0.0)
        },
        feed(),
    )
    .unwrap();
    assert_eq!((value.dims(), value.f32s().unwrap()), (&[3, 1][..], &[4.5, 0.0, 6.0][..]));
    let lengths = compute(
        |net| {
            let clicks = net.slot("clicks")?;
            net.slot_lengths(clicks)
        },
        feed(),
    );
    assert_eq!(lengths.unwrap().i64s().unwrap(), [2, 0, 1]);
}

#[test]
fn integers_are_joined_reversed_repeated_and_padded() {
    let value = compute(
        |net| {
            let clicks = net.slot("clicks")?;
            let ids = net.slot_ids(clicks)?;
            let reversed = net.sequence_reverse(ids)?;
            let padding = net.literal(&[1], LiteralValues::I64(vec![-1]))?;
            let (padded, lengths) = net.sequence_pad(reversed, padding, None)?;
            let joined = net.sequence_unpad(padded, lengths)?;
            let first = net.slice(padded, &[1], &[0], &[1])?;
            let first = net.squeeze(first, &[1])?;
            let repeated = net.sequence_expand(first, joined)?;
            net.concat(&[joined, repeated], 1)
        },
        Feed::new().ids("clicks", &[2, 0, 1], vec![4, 5, 6]).unwrap(),
    )
    .unwrap();
    assert_eq!((value.dims(), value.i64s().unwrap()), (&[3, 2][..], &[5, 5, 4, 5, 6, 6][..]));
}

#[test]
fn layers_on_sequences_refuse_what_does_not_fit() {
    assert_eq!(
        build_error(|net, v| net.sequence_softmax(v[0]), &[&[-1, 2]]),
        "`sequence_softmax` expects a slot, the embedding of each of its ids, or what follows from them row by row, got `data_0` of \
         shape [-1, 2], whose rows are not those of sequences"
    );
    assert_eq!(
        build_error(|net, v| net.sequence_unpad(v[0], v[1]), &[&[3, 3, 2], &[3]]),
        "`sequence_unpad` expects joined sequences [N, ...] and their lengths, integers [B], got [3, 3, 2] and [3] of F32"
    );
    let two_lengths = |net: &mut Net, v: &[Var]| {
        let lengths = integers(net, &[1, 2])?;
        net.sequence_unpad(v[0], lengths)
    };
    assert_eq!(
        build_error(two_lengths, &[&[3, 3, 2]]),
        "`sequence_unpad` expects padded sequences [B, T, ...] and lengths [B], got [3, 3, 2] and [2]"
    );
    let window = |net: &mut Net, v: &[Var]| {
        let joined = joined(net, v[0])?;
        net.sequence_window(joined, 0, 0)
    };
    assert_eq!(
        build_error(window, &[&[3, 3, 2]]),
        "`sequence_window` expects sequences [N, D] and windows of at least one row, got [-1, 2] and windows of 0"
    );
    let wide_padding = |net: &mut Net, v: &[Var]| {
        let joined = joined(net, v[0])?;
        let padding = net.literal(&[3], LiteralValues::F32(vec![0.0; 3]))?;
        net.sequence_pad(joined, padding, None)
    };
    assert_eq!(
        build_error(wide_padding, &[&[3, 3, 2]]),
        "`sequence_pad` expects one F32 as padding, or as many as a row of [-1, 2], got [3] of F32"
    );
}

#[test]
fn lengths_that_do_not_fit_are_refused_when_the_program_runs() {
    let unpad = |lengths: &'static [i64]| {
        move |net: &mut Net| {
            let padded = net.data("padded", &[-1, 2, 1], DType::F32)?;
            let lengths = integers(net, lengths)?;
            net.sequence_unpad(padded, lengths)
        }
    };
    let feed = || Feed::new().shaped_floats("padded", &[2, 2, 1], vec![1.0; 4], true).unwrap();
    let error = |lengths| {
        let error = compute(unpad(lengths), feed()).unwrap_err();
        std::error::Error::source(&error).map_or(error.to_string(), |source| source.to_string())
    };
    assert_eq!(error(&[1, 3]), "`sequence_unpad` expects lengths from 0 to 2, got 3 at 1");
    assert_eq!(error(&[-1, 1]), "`sequence_unpad` expects lengths from 0 to 2, got -1 at 0");
    assert!(error(&[1, 1, 1]).contains("padded sequences [B, T, ...] and lengths [B]"));
    // A length for padding that is too short.
    let short = |net: &mut Net| {
        let clicks = net.slot("clicks")?;
        let ids = net.slot_ids(clicks)?;
        let padding = net.literal(&[1], LiteralValues::I64(vec![0]))?;
        Ok(net.sequence_pad(ids, padding, Some(1))?.0)
    };
    let error = compute(short, Feed::new().ids("clicks", &[1, 2], vec![1, 2, 3]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "`sequence_pad` expects lengths from 0 to 1, got 2 at 1");
}
