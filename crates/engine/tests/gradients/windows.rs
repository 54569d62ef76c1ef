//! Convolutions and pooling.
//!
//! The numbers are those of PyTorch: `golden/torch_layers.py` prints them.

use openfleet_engine::op::{Pool, PoolWindows, Windows};
use openfleet_engine::{DType, Feed};

use crate::constants::assert_near;
use crate::harness::{Options, build_error, check, compute_of, drawn};

const fn windows(size: usize, stride: usize, before: usize, after: usize, dilation: usize) -> Windows {
    Windows { size, stride, before, after, dilation }
}

/// Two channels of 3 x 4.
fn planes(rows: usize) -> Vec<f32> {
    (0..rows * 24).map(|i| ((i * 7) % 13) as f32 / 4.0 - 1.5).collect()
}

/// Three filters of 2 x 2 x 3.
fn filters() -> Vec<f32> {
    (0..36).map(|i| ((i * 5) % 11) as f32 / 8.0 - 0.5).collect()
}

#[test]
fn convolutions_agree_with_pytorch() {
    let run = |windows: [Windows; 2], groups: usize, filters: (&[usize], &[f32])| {
        compute_of(|net, p| net.conv2d(p[0], p[1], windows, groups), &[(&[2, 2, 3, 4], &planes(2)), filters])
    };
    let (all, of_group) = (filters(), filters()[..24].to_vec());
    let plain = run([windows(0, 1, 0, 0, 1), windows(0, 1, 0, 0, 1)], 1, (&[3, 2, 2, 3], &all));
    assert_eq!(plain.0, [2, 3, 2, 2]);
    assert_near(&plain.1, &PLAIN);
    let padded = run([windows(0, 2, 1, 1, 1), windows(0, 1, 2, 2, 2)], 1, (&[3, 2, 2, 3], &all));
    assert_eq!(padded.0, [2, 3, 2, 4]);
    assert_near(&padded.1, &PADDED);
    let groups = run([windows(0, 1, 0, 0, 1), windows(0, 2, 1, 1, 1)], 2, (&[4, 1, 2, 3], &of_group));
    assert_eq!(groups.0, [2, 4, 2, 2]);
    assert_near(&groups.1, &GROUPS);
}

#[test]
fn convolutions_have_the_gradient_of_finite_differences() {
    for ([down, across], groups, shape) in [
        ([windows(0, 1, 0, 0, 1), windows(0, 1, 0, 0, 1)], 1, &[2, 2, 2, 3]),
        ([windows(0, 2, 1, 0, 1), windows(0, 1, 2, 2, 2)], 1, &[2, 2, 2, 3]),
        ([windows(0, 1, 1, 1, 2), windows(0, 3, 1, 2, 1)], 1, &[3, 2, 2, 2]),
        ([windows(0, 1, 0, 0, 1), windows(0, 2, 1, 1, 1)], 2, &[4, 1, 2, 3]),
    ] {
        check(|net, p| net.conv2d(p[0], p[1], [down, across], groups), &[&[2, 2, 3, 4], shape], Options::default());
    }
    // The batch, longer and shorter.
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2, 3, 4], DType::F32)?;
            let moved = net.multiply(x, p[0])?;
            net.conv2d(moved, p[1], [windows(0, 1, 1, 1, 1), windows(0, 2, 0, 0, 1)], 1)
        },
        &[&[2, 3, 4], &[2, 2, 2, 3]],
        Options::default().fed(|rows| Feed::new().floats("x", 24, drawn(5, rows * 24, (0.5, 1.5))).unwrap()),
    );
}

#[test]
fn a_convolution_refuses_what_does_not_fit() {
    let message = |shapes: &[&[i64]], groups| {
        let one = windows(0, 1, 0, 0, 1);
        build_error(|net, v| net.conv2d(v[0], v[1], [one, one], groups), shapes)
    };
    assert_eq!(
        message(&[&[-1, 2, 3, 4], &[3, 1, 2, 2]], 1),
        "`conv2d` expects x [N, C, H, W] and filters [M, C / 1, KH, KW] with M divisible by 1, got [-1, 2, 3, 4] and \
         [3, 1, 2, 2]"
    );
    assert!(message(&[&[-1, 2, 3, 4], &[3, 1, 2, 2]], 2).contains("with M divisible by 2"));
    assert_eq!(
        message(&[&[-1, 2, 3, 4], &[3, 2, 2, 5]], 1),
        "`conv2d` expects at least 5 elements, with the padding, for a window, got 4"
    );
}

const MAX: Pool = Pool::Max;
const MEAN: Pool = Pool::Mean { count_padding: false };
const MEAN_WITH_PADDING: Pool = Pool::Mean { count_padding: true };

fn sliding(down: Windows, across: Windows, ceil: bool) -> PoolWindows {
    PoolWindows::Sliding { windows: [down, across], ceil }
}

#[test]
fn pooling_agrees_with_pytorch() {
    let run = |pool: Pool, windows: PoolWindows| {
        compute_of(|net, p| net.pool2d(p[0], pool, windows), &[(&[1, 2, 3, 4], &planes(1))])
    };
    let padded = sliding(windows(2, 2, 1, 1, 1), windows(3, 2, 1, 1, 1), false);
    let ceil = sliding(windows(2, 2, 0, 0, 1), windows(3, 2, 0, 0, 1), true);
    for (pool, windows, dims, expected) in [
        (MAX, padded, [1, 2, 2, 2], &MAX_PADDED[..]),
        (MAX, ceil, [1, 2, 2, 2], &MAX_CEIL),
        (MEAN, padded, [1, 2, 2, 2], &MEAN_PADDED),
        (MEAN_WITH_PADDING, padded, [1, 2, 2, 2], &MEAN_COUNTED),
        (MAX, PoolWindows::Adaptive([2, 3]), [1, 2, 2, 3], &MAX_ADAPTIVE),
        (MEAN, PoolWindows::Adaptive([2, 3]), [1, 2, 2, 3], &MEAN_ADAPTIVE),
    ] {
        let (got_dims, got) = run(pool, windows);
        assert_eq!(got_dims, dims, "{pool:?} {windows:?}");
        assert_near(&got, expected);
    }
}

#[test]
fn pooling_has_the_gradient_of_finite_differences() {
    // Numbers far enough apart that a finite difference changes no maximum.
    let apart: Vec<f32> = (0..24).map(|i| (i * 7 % 24) as f32 / 10.0).collect();
    let padded = sliding(windows(2, 2, 1, 1, 1), windows(3, 2, 1, 1, 1), false);
    let ceil = sliding(windows(2, 2, 0, 0, 1), windows(3, 2, 0, 0, 1), true);
    for windows in [padded, ceil, PoolWindows::Adaptive([2, 3])] {
        for pool in [MAX, MEAN, MEAN_WITH_PADDING] {
            check(|net, p| net.pool2d(p[0], pool, windows), &[&[1, 2, 3, 4]], Options::values(&[&apart]));
        }
    }
}

#[test]
fn pooling_refuses_what_does_not_fit() {
    let message = |down: Windows, across: Windows| {
        build_error(|net, v| net.pool2d(v[0], MAX, sliding(down, across, false)), &[&[-1, 2, 3, 4]])
    };
    assert!(message(windows(2, 2, 2, 0, 1), windows(2, 2, 0, 0, 1)).contains("padding below the size of a window"));
    assert!(message(windows(2, 0, 0, 0, 1), windows(2, 2, 0, 0, 1)).contains("at least 1"));
    assert_eq!(
        build_error(|net, v| net.pool2d(v[0], MAX, PoolWindows::Adaptive([1, 0])), &[&[-1, 2, 3, 4]]),
        "`pool2d` expects at least one window, got [1, 0]"
    );
}

const PLAIN: [f32; 24] = [
    0.0625, -0.84375, 0.5, -0.40625, -1.03125, 0.375, -0.28125, 1.125, -0.40625, -1.15625, 0.65625, -0.09375, -2.59375,
    0.5625, 0.28125, -0.625, 0.21875, -0.8125, -0.65625, 0.75, 0.28125, -0.46875, 0.125, -0.625,
];
const PADDED: [f32; 48] = [
    -0.90625, 0.34375, -0.71875, 0.5625, -1.1875, 1.40625, 0.25, 0.5, -0.40625, 0.8125, -0.90625, 0.34375, -1.25,
    1.28125, -1.1875, 1.40625, -0.25, -1.125, -0.40625, 0.8125, 0.40625, 0.8125, -1.25, 1.28125, 1.0625, 1.09375,
    -0.84375, -0.78125, -1.5, 1.09375, 0.15625, 0.40625, -0.8125, -0.8125, 1.0625, 1.09375, -1.4375, 1.09375, -1.5,
    1.09375, 1.09375, -1.0, -0.8125, -0.8125, 0.0, 0.40625, -1.4375, 1.09375,
];
const GROUPS: [f32; 32] = [
    -0.71875, -0.5, -0.03125, -0.0625, -0.15625, -0.34375, -0.21875, -0.34375, -0.5625, -1.09375, 0.0, -0.15625,
    0.1875, 0.21875, 0.0, 0.03125, -0.65625, -0.71875, -0.375, -0.28125, -0.9375, -0.34375, -0.1875, -0.34375,
    -0.84375, -1.15625, -0.28125, -0.625, -0.9375, -0.5, 0.09375, 0.125,
];
const MAX_PADDED: [f32; 8] = [0.25, 0.5, 1.25, 1.5, 0.0, 0.25, 1.0, 1.25];
const MAX_CEIL: [f32; 8] = [0.75, 1.0, 1.25, 1.5, 0.75, 0.75, 1.25, 1.25];
const MEAN_PADDED: [f32; 8] = [-0.625, -0.166667, 0.125, 0.583333, -0.75, -0.833333, 0.0, -0.0833333];
const MEAN_COUNTED: [f32; 8] = [-0.208333, -0.0833333, 0.0833333, 0.583333, -0.25, -0.416667, 0.0, -0.0833333];
const MAX_ADAPTIVE: [f32; 12] = [0.75, 0.75, 1.0, 1.25, 1.25, 1.5, 0.5, 0.75, 0.75, 1.0, 1.25, 1.25];
const MEAN_ADAPTIVE: [f32; 12] = [-0.375, -0.25, -0.125, 0.125, 0.25, 0.375, -0.5, -0.375, -0.25, 0.0, 0.125, 0.25];
