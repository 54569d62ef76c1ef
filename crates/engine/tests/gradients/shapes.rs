//! Ops that only move elements.

use openfleet_engine::op::LiteralValues;
use openfleet_engine::{DType, Error, Feed, Net, Result, Tensor, Var};

use crate::harness::{Options, build_error, check, compute, compute_of, drawn};

/// Six numbers that encode their position.
const SIX: (&[usize], &[f32]) = (&[2, 3], &[11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);

/// Checks an op on a parameter, and on a batch [B, 2, 3] that depends on one.
fn check_moving(
    dims: &[usize],
    op: impl Fn(&mut Net, Var) -> Result<Var>,
    batched: impl Fn(&mut Net, Var) -> Result<Var>,
) {
    check(|net, p| op(net, p[0]), &[dims], Options::default());
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2, 3], DType::F32)?;
            let moved = net.multiply(x, p[0])?;
            batched(net, moved)
        },
        &[&[2, 3]],
        Options::default().fed(|rows| Feed::new().floats("x", 6, drawn(5, rows * 6, (0.5, 1.5))).unwrap()),
    );
}

/// The result of an op on the integers 1 to 12, fed as [B, 2, 3] with two rows.
fn integers(op: impl FnOnce(&mut Net, Var) -> Result<Var>) -> Tensor {
    let build = |net: &mut Net| {
        let x = net.data("x", &[-1, 2, 3], DType::I64)?;
        op(net, x)
    };
    compute(build, Feed::new().ints("x", 6, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).unwrap()).unwrap()
}

fn ints(dims: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_i64(dims, values.to_vec()).unwrap()
}

/// The op refuses a slot whose rows have different lengths.
fn refuses_ragged(name: &str, op: impl FnOnce(&mut Net, Var) -> Result<Var>) {
    let ragged = |net: &mut Net, _: &[Var]| {
        let slot = net.slot("slot")?;
        op(net, slot)
    };
    let message = format!("`{name}` expects a fixed number of elements per row, got a slot of variable length");
    assert_eq!(build_error(ragged, &[]), message);
}

#[test]
fn reshape_keeps_the_elements_and_knows_the_batch() {
    check_moving(&[2, 3], |net, x| net.reshape(x, &[3, 2]), |net, x| net.reshape(x, &[-1, 1]));
    check_moving(&[2, 3], |net, x| net.reshape(x, &[-1]), |net, x| net.reshape(x, &[0, -1]));
    check_moving(&[2, 3], |net, x| net.reshape(x, &[0, 1, 3]), |net, x| net.reshape(x, &[3, -1, 2]));
    assert_eq!(compute_of(|net, p| net.reshape(p[0], &[-1, 2]), &[SIX]), (vec![3, 2], SIX.1.to_vec()));
    let flat: Vec<i64> = (1..=12).collect();
    assert_eq!(integers(|net, x| net.reshape(x, &[-1, 1])), ints(&[12, 1], &flat));
    assert_eq!(integers(|net, x| net.reshape(x, &[0, -1])), ints(&[2, 6], &flat));
    // 6 B rows of 1 and back again.
    let and_back = |net: &mut Net, x| {
        let rows = net.reshape(x, &[-1, 1])?;
        net.reshape(rows, &[-1, 3, 2])
    };
    assert_eq!(integers(and_back), ints(&[2, 3, 2], &flat));
}

#[test]
fn reshape_refuses_another_number_of_elements() {
    let message = |shape: &[i64]| build_error(|net, v| net.reshape(v[0], shape), &[&[-1, 2, 3]]);
    assert_eq!(message(&[-1, 2, -1]), "`reshape` expects a single -1, got [-1, 2, -1]");
    assert_eq!(
        message(&[32, 6]),
        "`reshape` expects as many elements as [-1, 2, 3] has, got [32, 6]; write -1 or 0 for the batch"
    );
    assert_eq!(message(&[0, 5]), "`reshape` expects as many elements as [-1, 2, 3] has, got [0, 5]");
    assert_eq!(message(&[-1, 2, 3, 0]), "`reshape` expects 0 only where [-1, 2, 3] has a dimension, got [-1, 2, 3, 0]");
    assert_eq!(message(&[-1, -2]), "`reshape` expects sizes, 0 or -1, got [-1, -2]");
    refuses_ragged("reshape", |net, x| net.reshape(x, &[-1]));
}

#[test]
fn squeeze_and_unsqueeze_remove_and_insert_dimensions_of_1() {
    check_moving(
        &[2, 1, 3],
        |net, x| net.squeeze(x, &[1]),
        |net, x| {
            let x = net.unsqueeze(x, &[1, -1])?;
            net.squeeze(x, &[])
        },
    );
    let shape = |op: &dyn Fn(&mut Net, Var) -> Result<Var>, x| compute_of(|net, p| op(net, p[0]), &[x]);
    let one: (&[usize], &[f32]) = (&[1, 2, 1], &[1.0, 2.0]);
    assert_eq!(shape(&|net, x| net.squeeze(x, &[]), one), (vec![2], vec![1.0, 2.0]));
    assert_eq!(shape(&|net, x| net.squeeze(x, &[-1]), one).0, [1, 2]);
    // "If the dimension of given axis is not of size 1, the dimension remain unchanged."
    assert_eq!(shape(&|net, x| net.squeeze(x, &[0, 1]), one).0, [2, 1]);
    assert_eq!(shape(&|net, x| net.squeeze(x, &[]), (&[1, 1], &[5.0])).0, [1]);
    assert_eq!(shape(&|net, x| net.unsqueeze(x, &[0, 2, -1]), SIX), (vec![1, 2, 1, 3, 1], SIX.1.to_vec()));
    let flat: Vec<i64> = (1..=12).collect();
    let and_back = |net: &mut Net, x| {
        let x = net.unsqueeze(x, &[1])?;
        net.squeeze(x, &[1])
    };
    assert_eq!(integers(and_back), ints(&[2, 2, 3], &flat));
    // A batch of one row keeps its dimension.
    let one_row = compute(
        |net| {
            let x = net.data("x", &[-1, 1], DType::F32)?;
            net.squeeze(x, &[])
        },
        Feed::new().floats("x", 1, vec![7.0]).unwrap(),
    );
    assert_eq!(one_row.unwrap().dims(), [1]);
}

#[test]
fn squeeze_and_unsqueeze_refuse_missing_axes() {
    let message = build_error(|net, v| net.squeeze(v[0], &[2]), &[&[-1, 1]]);
    assert_eq!(message, "`squeeze` expects axes of [-1, 1], got 2");
    let message = build_error(|net, v| net.unsqueeze(v[0], &[3]), &[&[-1, 1]]);
    assert_eq!(message, "`unsqueeze` expects axes at which [-1, 1] can take another dimension, got 3");
    refuses_ragged("squeeze", |net, x| net.squeeze(x, &[]));
    refuses_ragged("unsqueeze", |net, x| net.unsqueeze(x, &[0]));
}

#[test]
fn transpose_permutes_dimensions() {
    check_moving(&[2, 3], |net, x| net.transpose(x, &[1, 0]), |net, x| net.transpose(x, &[0, 2, 1]));
    check_moving(&[2, 3, 2], |net, x| net.transpose(x, &[2, 0, 1]), |net, x| net.transpose(x, &[2, 0, 1]));
    check_moving(&[2, 3, 2, 2], |net, x| net.transpose(x, &[0, 2, 3, 1]), |net, x| net.transpose(x, &[0, 1, 2]));
    let transposed = compute_of(|net, p| net.transpose(p[0], &[1, 0]), &[SIX]);
    assert_eq!(transposed, (vec![3, 2], vec![11.0, 21.0, 12.0, 22.0, 13.0, 23.0]));
    assert_eq!(
        integers(|net, x| net.transpose(x, &[1, 0, 2])),
        ints(&[2, 2, 3], &[1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12])
    );
    assert_eq!(
        build_error(|net, v| net.transpose(v[0], &[0, 0]), &[&[-1, 2]]),
        "`transpose` expects each dimension of [-1, 2] once, got [0, 0]"
    );
    refuses_ragged("transpose", |net, x| net.transpose(x, &[0, 1]));
}

#[test]
fn slice_takes_ranges_that_may_count_from_the_end() {
    const END: i64 = i32::MAX as i64;
    check_moving(&[2, 3], |net, x| net.slice(x, &[1], &[1], &[3]), |net, x| net.slice(x, &[2], &[-2], &[-1]));
    check_moving(
        &[3, 2, 3],
        |net, x| net.slice(x, &[0, 2], &[1, 0], &[3, -1]),
        |net, x| net.slice(x, &[0, 1, -1], &[0, 1, 1], &[END, 2, END]),
    );
    let sliced =
        |axes: &[i64], starts: &[i64], ends: &[i64]| compute_of(|net, p| net.slice(p[0], axes, starts, ends), &[SIX]);
    assert_eq!(sliced(&[1], &[1], &[3]), (vec![2, 2], vec![12.0, 13.0, 22.0, 23.0]));
    assert_eq!(sliced(&[0, 1], &[1, -3], &[10, -1]), (vec![1, 2], vec![21.0, 22.0]));
    assert_eq!(sliced(&[-1], &[-100], &[1]), (vec![2, 1], vec![11.0, 21.0]));
    assert_eq!(integers(|net, x| net.slice(x, &[2], &[1], &[2])), ints(&[2, 2, 1], &[2, 5, 8, 11]));
}

#[test]
fn slice_refuses_empty_ranges_and_incomplete_ones() {
    let message = |axes: &[i64], starts: &[i64], ends: &[i64]| {
        build_error(|net, v| net.slice(v[0], axes, starts, ends), &[&[-1, 3]])
    };
    assert_eq!(message(&[1], &[2], &[2]), "`slice` expects a range with elements along axis 1 of [-1, 3], got 2..2");
    assert_eq!(message(&[1, -1], &[0, 0], &[1, 1]), "`slice` expects different axes of [-1, 3], got [1, -1]");
    assert_eq!(
        message(&[1], &[0], &[]),
        "`slice` expects a start and an end for each axis, got 1 axes, 1 starts, 0 ends"
    );
    refuses_ragged("slice", |net, x| net.slice(x, &[], &[], &[]));
}

#[test]
fn tile_repeats_whole_dimensions() {
    check_moving(&[2, 3], |net, x| net.tile(x, &[2, 2]), |net, x| net.tile(x, &[1, 3, 2]));
    check_moving(&[2, 3], |net, x| net.tile(x, &[2]), |net, x| net.tile(x, &[2, 1, 1]));
    check_moving(&[3], |net, x| net.tile(x, &[2, 2, 1]), |net, x| net.tile(x, &[2, 1, 1, 2]));
    let tiled = |times: &[usize]| compute_of(|net, p| net.tile(p[0], times), &[(&[2, 1], &[1.0, 2.0])]);
    assert_eq!(tiled(&[2, 3]), (vec![4, 3], vec![1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]));
    assert_eq!(tiled(&[2]), (vec![2, 2], vec![1.0, 1.0, 2.0, 2.0]));
    assert_eq!(tiled(&[2, 1, 1]), (vec![2, 2, 1], vec![1.0, 2.0, 1.0, 2.0]));
    assert_eq!(
        integers(|net, x| {
            let first = net.slice(x, &[1, 2], &[0, 0], &[1, 2])?;
            net.tile(first, &[2, 1, 1])
        }),
        ints(&[4, 1, 2], &[1, 2, 7, 8, 1, 2, 7, 8])
    );
    assert_eq!(
        build_error(|net, v| net.tile(v[0], &[0, 1]), &[&[-1, 2]]),
        "`tile` expects to repeat at least once, got [0, 1]"
    );
    refuses_ragged("tile", |net, x| net.tile(x, &[1]));
}

#[test]
fn expand_repeats_dimensions_of_1() {
    check_moving(
        &[2, 1, 3],
        |net, x| net.expand(x, &[2, 2, -1, 3]),
        |net, x| {
            let x = net.unsqueeze(x, &[1])?;
            net.expand(x, &[-1, 4, -1, 3])
        },
    );
    // One parameter row per row of the batch.
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2], DType::F32)?;
            net.expand_as(p[0], x)
        },
        &[&[1, 2]],
        Options::default().fed(|rows| Feed::new().floats("x", 2, vec![0.0; rows * 2]).unwrap()),
    );
    let expanded = compute_of(|net, p| net.expand(p[0], &[2, 3]), &[(&[2, 1], &[1.0, 2.0])]);
    assert_eq!(expanded, (vec![2, 3], vec![1.0, 1.0, 1.0, 2.0, 2.0, 2.0]));
    assert_eq!(
        build_error(|net, v| net.expand(v[0], &[4, 4]), &[&[4, 2]]),
        "`expand` expects dimensions that are 1 or those of [4, 4], aligned at the right, got [4, 2]"
    );
    assert_eq!(
        build_error(|net, v| net.expand(v[0], &[-1, 4, 2]), &[&[4, 2]]),
        "`expand` expects sizes, and -1 only where [4, 2] has a dimension, got [-1, 4, 2]"
    );
    refuses_ragged("expand", |net, x| net.expand(x, &[-1, -1]));
}

#[test]
fn stack_joins_along_a_new_axis() {
    for axis in [0, 1, -1] {
        check(|net, p| net.stack(p, axis), &[&[2, 3], &[2, 3]], Options::default());
        check(|net, p| net.stack(&[p[0], p[0], p[0]], axis), &[&[2, 3]], Options::default());
    }
    for axis in [1, 2, 3] {
        check_moving(
            &[2],
            |net, x| net.stack(&[x], 0),
            |net, x| {
                let square = net.square(x)?;
                net.stack(&[x, square], axis)
            },
        );
    }
    let stacked = |axis| {
        compute_of(|net, p| net.stack(p, axis), &[(&[2], &[1.0, 2.0]), (&[2], &[3.0, 4.0]), (&[2], &[5.0, 6.0])])
    };
    assert_eq!(stacked(0), (vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(stacked(-1), (vec![2, 3], vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
    let twice = |net: &mut Net, x| {
        let x = net.slice(x, &[1, 2], &[0, 0], &[1, 2])?;
        net.stack(&[x, x], 1)
    };
    assert_eq!(integers(twice), ints(&[2, 2, 1, 2], &[1, 2, 1, 2, 7, 8, 7, 8]));
}

#[test]
fn stack_refuses_inputs_of_different_shapes() {
    assert_eq!(
        build_error(|net, v| net.stack(v, 0), &[&[-1, 2], &[-1, 3]]),
        "`stack` expects inputs of one shape, got [-1, 2] and [-1, 3]"
    );
    assert_eq!(
        build_error(|net, v| net.stack(v, 3), &[&[-1, 2], &[-1, 2]]),
        "`stack` expects an axis at which [-1, 2] can take another dimension, got 3"
    );
    assert_eq!(build_error(|net, v| net.stack(v, 0), &[]), "`stack` expects at least one input, got none");
    refuses_ragged("stack", |net, x| net.stack(&[x], 0));
}

#[test]
fn split_is_the_inverse_of_concat() {
    for axis in [0, 1, -1] {
        // One part is used twice, one not at all.
        let parts = |net: &mut Net, x| {
            let parts = net.split(x, 3, axis)?;
            let sum = net.multiply(parts[0], parts[2])?;
            net.add(sum, parts[0])
        };
        check(|net, p| parts(net, p[0]), &[&[3, 3, 3]], Options::default());
    }
    check_moving(
        &[2, 5],
        |net, x| {
            let parts = net.split_sections(x, &[1, -1, 2], 1)?;
            net.multiply(parts[1], parts[2])
        },
        |net, x| {
            let parts = net.split_sections(x, &[2, 1], 2)?;
            net.concat(&[parts[1], parts[0]], 2)
        },
    );
    // No gradient flows back from a part with `stop_gradient`.
    check(
        |net, p| {
            let parts = net.split(p[0], 3, 1)?;
            net.stop_gradient(parts[1]);
            net.concat(&[parts[0], parts[2]], 1)
        },
        &[&[2, 3]],
        Options::default(),
    );
    let part = |i: usize| compute_of(|net, p| Ok(net.split_sections(p[0], &[1, 2], 1)?[i]), &[SIX]);
    assert_eq!(part(0), (vec![2, 1], vec![11.0, 21.0]));
    assert_eq!(part(1), (vec![2, 2], vec![12.0, 13.0, 22.0, 23.0]));
    assert_eq!(integers(|net, x| Ok(net.split(x, 2, 1)?[1])), ints(&[2, 1, 3], &[4, 5, 6, 10, 11, 12]));
}

#[test]
fn split_refuses_parts_that_do_not_add_up_to_the_axis() {
    let equal = |parts, axis| build_error(|net, v| net.split(v[0], parts, axis), &[&[-1, 6]]);
    assert_eq!(equal(4, 1), "`split` expects a number of parts that divides 6, got 4");
    assert_eq!(equal(0, 1), "`split` expects a number of parts that divides 6, got 0");
    assert_eq!(equal(2, 0), "`split` expects an axis other than the batch, whose size is not known, got 0");
    assert_eq!(equal(2, 2), "`split` expects an axis of [-1, 6], got 2");
    let sections = |sections: &[i64]| build_error(|net, v| net.split_sections(v[0], sections, 1), &[&[-1, 6]]);
    for wrong in [&[2, 3][..], &[-1, -1], &[7, -1], &[8, -2], &[]] {
        assert_eq!(
            sections(wrong),
            format!("`split` expects sizes that add up to 6, at most one of them -1, got {wrong:?}")
        );
    }
    refuses_ragged("split", |net, x| Ok(net.split(x, 1, 1)?[0]));
}

#[test]
fn gather_selects_rows_by_index() {
    let index = |net: &mut Net| net.data("index", &[-1, 1], DType::I64);
    // Rows of a parameter; some selected twice, some never.
    check(
        |net, p| {
            let index = index(net)?;
            net.gather(p[0], index)
        },
        &[&[4, 2]],
        Options::default().fed(|rows| {
            let index: Vec<i64> = (0..rows as i64).map(|row| [3, 0, 3, 2, 0][row as usize % 5]).collect();
            Feed::new().ints("index", 1, &index).unwrap()
        }),
    );
    // Rows of a batch.
    check(
        |net, p| {
            let (x, index) = (net.data("x", &[-1, 2], DType::F32)?, index(net)?);
            let rows = net.multiply(x, p[0])?;
            net.gather(rows, index)
        },
        &[&[2]],
        Options::default().fed(|rows| {
            let feed = Feed::new().floats("x", 2, drawn(5, rows * 2, (-1.0, 1.0))).unwrap();
            feed.ints("index", 1, &(0..rows as i64).rev().map(|row| row / 2).collect::<Vec<_>>()).unwrap()
        }),
    );
    let picked = |at: &[i64]| {
        compute(
            |net| {
                let (x, index) = (net.data("x", &[-1, 2], DType::I64)?, index(net)?);
                let index = net.squeeze(index, &[1])?;
                net.gather(x, index)
            },
            Feed::new().ints("x", 2, &[1, 2, 3, 4, 5, 6]).unwrap().ints("index", 1, at).unwrap(),
        )
    };
    assert_eq!(picked(&[2, 0, 2]).unwrap(), ints(&[3, 2], &[5, 6, 1, 2, 5, 6]));
    for (at, wrong) in [([0, 3, 0], 3), ([0, -1, 0], -1)] {
        let error = picked(&at).unwrap_err();
        assert!(matches!(error, Error::Value { row: 1, .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!("`gather`: an index must be from 0 to 2, the last row of x, got {wrong} at row 1")
        );
    }
}

#[test]
fn gather_refuses_an_invalid_index() {
    assert_eq!(
        build_error(|net, v| net.gather(v[0], v[1]), &[&[4, 2], &[-1, 1]]),
        "`gather` expects an index of integers, [M] or [M, 1], got floats of shape [-1, 1]"
    );
    let wide = |net: &mut Net, v: &[Var]| {
        let index = net.data("index", &[-1, 2], DType::I64)?;
        net.gather(v[0], index)
    };
    let message = build_error(wide, &[&[4, 2]]);
    assert_eq!(message, "`gather` expects an index of integers, [M] or [M, 1], got [-1, 2]");
    let ragged = |net: &mut Net, v: &[Var]| {
        let slot = net.slot("slot")?;
        net.gather(v[0], slot)
    };
    let message = build_error(ragged, &[&[4, 2]]);
    assert_eq!(message, "`gather` expects an index of integers, [M] or [M, 1], got a slot of variable length");
}

#[test]
fn a_batch_without_rows_passes_through_and_leaves_no_gradient() {
    let options = Options::default().fed(|rows| {
        let feed = Feed::new().floats("x", 6, drawn(5, rows * 6, (0.5, 1.5))).unwrap();
        feed.ints("index", 1, &(0..rows as i64).rev().collect::<Vec<_>>()).unwrap()
    });
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2, 3], DType::F32)?;
            let index = net.data("index", &[-1, 1], DType::I64)?;
            let x = net.multiply(x, p[0])?;
            let x = net.add(x, p[1])?;
            let x = net.matmul(x, p[2])?;
            let x = net.transpose(x, &[0, 2, 1])?;
            let x = net.gather(x, index)?;
            let square = net.bmm(x, x)?;
            let x = net.stack(&[x, square], 1)?;
            let x = net.tile(x, &[2, 1, 1, 1])?;
            let x = net.slice(x, &[1], &[1], &[2])?;
            let parts = net.split(x, 2, 3)?;
            let row = net.expand_as(p[1], parts[0])?;
            let condition = net.less_than(parts[0], row)?;
            let x = net.select(condition, parts[1], row)?;
            net.reshape(x, &[-1, 1])
        },
        &[&[2, 3], &[1], &[3, 2]],
        Options { rows: vec![2, 0, 3], epsilon: 1e-3, floor: 1e-2, ..options },
    );
}

#[test]
fn gather_nd_and_scatter_pick_and_replace_parts() {
    let index = |net: &mut Net, dims: &[usize], values: &[i64]| net.literal(dims, LiteralValues::I64(values.to_vec()));
    check(
        |net, p| {
            let at = index(net, &[3, 1], &[1, 0, 1])?;
            net.gather_nd(p[0], at)
        },
        &[&[2, 3]],
        Options::default(),
    );
    check(
        |net, p| {
            let at = index(net, &[2, 2], &[1, -1, 0, 0])?;
            net.gather_nd(p[0], at)
        },
        &[&[2, 3, 2]],
        Options::default(),
    );
    let outside = compute(
        |net| {
            let x = net.fill_constant(&[2, 3], 1.0)?;
            let at = index(net, &[1, 2], &[0, 3])?;
            net.gather_nd(x, at)
        },
        Feed::new().floats("rows", 1, vec![0.0]).unwrap(),
    );
    let message = outside.unwrap_err().to_string();
    assert!(message.contains("an index of dimension 1") && message.contains("from 0 to 2"), "{message}");

    // Row 2 is named twice.
    type Into = fn(&mut Net, Var, Var, Var) -> Result<Var>;
    let cases: [(Into, &[f32]); 3] = [
        (|net, x, at, updates| net.scatter(x, at, updates, true), &[1.0, 10.0, 30.0]),
        (|net, x, at, updates| net.scatter(x, at, updates, false), &[1.0, 10.0, 50.0]),
        (|net, x, at, updates| net.scatter_add(x, at, updates), &[1.0, 12.0, 53.0]),
    ];
    for (op, expected) in cases {
        let (_, got) = compute_of(
            |net, p| {
                let at = index(net, &[3], &[2, 1, 2])?;
                op(net, p[0], at, p[1])
            },
            &[(&[3, 1], &[1.0, 2.0, 3.0]), (&[3, 1], &[20.0, 10.0, 30.0])],
        );
        assert_eq!(got, expected);
        check(
            |net, p| {
                let at = index(net, &[3], &[2, 1, 2])?;
                op(net, p[0], at, p[1])
            },
            &[&[3, 2], &[3, 2]],
            Options::default(),
        );
    }
    let message = build_error(|net, v| net.scatter(v[0], v[1], v[2], true), &[&[3, 2], &[3], &[3, 2]]);
    assert!(message.starts_with("`scatter` expects x [N, ..], an index of integers [M]"), "{message}");
}

#[test]
fn classes_are_drawn_by_their_weights() {
    let draw = |weights: &[f32], count: usize, replacement: bool| {
        compute(
            |net| {
                let weights = net.literal(&[1, weights.len()], LiteralValues::F32(weights.to_vec()))?;
                net.multinomial(weights, count, replacement)
            },
            Feed::new().floats("rows", 1, vec![0.0]).unwrap(),
        )
    };
    let many = draw(&[1.0, 0.0, 3.0], 4000, true).unwrap();
    let counts = [0, 1, 2].map(|class| many.i64s().unwrap().iter().filter(|&&drawn| drawn == class).count());
    assert_eq!(counts[1], 0);
    assert!((counts[2] as f32 / 4000.0 - 0.75).abs() < 0.05, "{counts:?}");
    let mut all = draw(&[1.0, 5.0, 3.0], 3, false).unwrap().i64s().unwrap().to_vec();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2], "without replacement each class once");
    let error = draw(&[1.0, 0.0, 0.0], 2, false).unwrap_err().to_string();
    assert!(error.contains("at least 2 of them above 0"), "{error}");
}
