//! Shapes that are known only when a program runs.

use openfleet_engine::op::{Activation, FcOptions, Initialize, Size};
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, Program, Result, Tensor, Var};
use openfleet_table::{Adam, Optimizer};

use crate::{constant, started};

fn floats(name: &str, dims: &[usize], values: &[f32]) -> Feed {
    Feed::new().shaped_floats(name, dims, values.to_vec(), true).unwrap()
}

fn run(executor: &mut Executor, program: &Program, feed: Feed, var: Var) -> (Vec<usize>, Vec<f32>) {
    let value = executor.run(program, feed, &[var]).unwrap().remove(0);
    (value.dims().to_vec(), value.f32s().unwrap().to_vec())
}

/// The mean over the elements of each row, of `[B, L]` with a length that only the batch knows, times a weight that is trained.
fn mean_of_rows(net: &mut Net) -> Result<(Var, Var)> {
    let x = net.data("x", &[-1, -1], DType::F32)?;
    let weight = constant(net, "w", &[1], 2.0);
    let weighted = net.multiply(x, weight)?;
    let means = net.reduce_mean(weighted, &[1], true)?;
    Ok((means, net.mean(means)?))
}

#[test]
fn batches_of_every_length_are_computed_and_trained() {
    let mut net = Net::with_seed(1);
    let (means, loss) = mean_of_rows(&mut net).unwrap();
    assert_eq!(net.shape(means).to_string(), "[-1, 1]");
    assert!(net.main.has_unknown_shapes());
    net.main.append_backward(loss, None, &[]).unwrap();
    let gradient = net.main.find("w@GRAD").unwrap();
    let mut executor = started(&net);
    // Longer, shorter, the first shape again, one row, and a row without elements behind one with some.
    for (dims, values) in [
        ([2, 2], vec![1.0, 3.0, 5.0, 7.0]),
        ([1, 3], vec![1.0, 2.0, 6.0]),
        ([3, 1], vec![1.0, 2.0, 3.0]),
        ([2, 2], vec![0.0, 2.0, 4.0, 6.0]),
    ] {
        let expected: Vec<f32> = values.chunks(dims[1]).map(|row| row.iter().sum::<f32>() / dims[1] as f32).collect();
        let (got_dims, got) = run(&mut executor, &net.main, floats("x", &dims, &values), means);
        assert_eq!((got_dims, got), (vec![dims[0], 1], expected.iter().map(|mean| 2.0 * mean).collect()), "{dims:?}");
        let slope = expected.iter().sum::<f32>() / dims[0] as f32;
        assert_eq!(run(&mut executor, &net.main, floats("x", &dims, &values), gradient).1, [slope], "{dims:?}");
    }
}

#[test]
fn more_shapes_than_are_remembered_are_computed_too() {
    let mut net = Net::with_seed(1);
    let (means, _) = mean_of_rows(&mut net).unwrap();
    let mut executor = started(&net);
    for _ in 0..2 {
        for length in 1..100 {
            let (_, means) = run(&mut executor, &net.main, floats("x", &[1, length], &vec![3.0; length]), means);
            assert!((means[0] - 6.0).abs() < 1e-5, "length {length}: {means:?}");
        }
    }
}

#[test]
fn sizes_of_one_tensor_shape_another() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, -1, 2], DType::F32).unwrap();
    let sizes = net.sizes(x).unwrap();
    let length = net.slice(sizes, &[0], &[1], &[2]).unwrap();
    // [B, L, 2] -> [B, L * 2] -> [B, L, 2], and one row of L numbers for each.
    let flat = net.reshape(x, &[0, -1]).unwrap();
    let again = net.reshape_to(flat, &[Size::Known(0), Size::Of(length), Size::Known(2)]).unwrap();
    let ones = net.fill_sizes(&[Size::Of(length)], 1.0).unwrap();
    let steps = net.cumsum(ones, 0).unwrap();
    let tiled = net.tile_by(steps, &[Size::Of(length)]).unwrap();
    let first = net.slice_at(x, &[1], &[Size::Known(0)], &[Size::Of(length)]).unwrap();
    let mut executor = started(&net);
    for length in [3, 1, 2] {
        let values: Vec<f32> = (0..2 * 2 * length).map(|i| i as f32).collect();
        let mut run = |var| run(&mut executor, &net.main, floats("x", &[2, length, 2], &values), var);
        assert_eq!(run(again), (vec![2, length, 2], values.clone()));
        assert_eq!(run(first), (vec![2, length, 2], values.clone()));
        let steps: Vec<f32> = (0..length * length).map(|i| (i % length + 1) as f32).collect();
        assert_eq!(run(tiled), (vec![length * length], steps));
    }
}

#[test]
fn a_part_of_the_batch_and_selected_elements_have_gradients() {
    let mut net = Net::with_seed(1);
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let weight = constant(&mut net, "w", &[2], 1.0);
    let weighted = net.multiply(x, weight).unwrap();
    let head = net.slice(weighted, &[0], &[0], &[2]).unwrap();
    let limit = net.fill_constant(&[1], 2.5).unwrap();
    let mask = net.greater_than(head, limit).unwrap();
    let chosen = net.masked_select(head, mask).unwrap();
    assert_eq!(net.shape(chosen).to_string(), "[-1]");
    let loss = net.reduce_sum(chosen, &[], false).unwrap();
    let places = net.nonzero(mask).unwrap();
    net.main.append_backward(loss, None, &[]).unwrap();
    let gradient = net.main.find("w@GRAD").unwrap();
    let mut executor = started(&net);
    let feed = || floats("x", &[3, 2], &[1.0, 3.0, 4.0, 5.0, 9.0, 9.0]);
    assert_eq!(run(&mut executor, &net.main, feed(), chosen), (vec![3], vec![3.0, 4.0, 5.0]));
    assert_eq!(run(&mut executor, &net.main, feed(), gradient).1, [4.0, 8.0]);
    let places = executor.run(&net.main, feed(), &[places]).unwrap().remove(0);
    assert_eq!(places, Tensor::from_i64(&[3, 2], vec![0, 1, 1, 0, 1, 1]).unwrap());
    // The same fed shape, with another number of elements above the limit: none at all.
    let none = floats("x", &[3, 2], &[0.0; 6]);
    assert_eq!(run(&mut executor, &net.main, none, chosen), (vec![0], vec![]));
}

#[test]
fn what_does_not_fit_is_refused_with_the_op_the_shapes_and_the_line() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, -1], DType::F32).unwrap();
    let y = net.data("y", &[-1, -1], DType::F32).unwrap();
    net.line = Some("train.py:12".to_owned());
    let sum = net.add(x, y).unwrap();
    let mut executor = started(&net);
    let feed = floats("x", &[2, 3], &[0.0; 6]).shaped_floats("y", &[2, 4], vec![0.0; 8], true).unwrap();
    let error = executor.run(&net.main, feed, &[sum]).unwrap_err();
    assert_eq!(error.to_string(), "`elementwise_add` of train.py:12 cannot run on inputs of shapes [2, 3] and [2, 4]");
    // The next batch, which fits, is computed.
    let feed = floats("x", &[1, 1], &[1.0]).shaped_floats("y", &[1, 1], vec![2.0], true).unwrap();
    assert_eq!(run(&mut executor, &net.main, feed, sum), (vec![1, 1], vec![3.0]));
    let wrong = floats("x", &[2, 3, 1], &[0.0; 6]).shaped_floats("y", &[2, 3], vec![0.0; 6], true).unwrap();
    let error = executor.run(&net.main, wrong, &[sum]).unwrap_err();
    assert!(error.to_string().contains("field `x`") && error.to_string().contains("[2, 3, 1]"), "{error}");
}

#[test]
fn a_batch_may_be_added_to_a_tensor_of_as_many_rows() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 1], DType::F32).unwrap();
    let fixed = net.fill_constant(&[3, 1], 10.0).unwrap();
    let sum = net.add(x, fixed).unwrap();
    let mut executor = started(&net);
    let feed = |rows: usize| floats("x", &[rows, 1], &(0..rows).map(|i| i as f32).collect::<Vec<_>>());
    assert_eq!(run(&mut executor, &net.main, feed(3), sum), (vec![3, 1], vec![10.0, 11.0, 12.0]));
    assert_eq!(run(&mut executor, &net.main, feed(1), sum), (vec![3, 1], vec![10.0; 3]));
    let error = executor.run(&net.main, feed(2), &[sum]).unwrap_err();
    assert_eq!(error.to_string(), "`elementwise_add` cannot run on inputs of shapes [2, 1] and [3, 1]");
}

#[test]
fn a_program_without_unknown_dimensions_is_not_one_with_shapes_at_run() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 4], DType::F32).unwrap();
    let y = net.fc(x, 2, Activation::Relu).unwrap();
    net.reshape(y, &[-1, 1]).unwrap();
    assert!(!net.main.has_unknown_shapes());
}

#[test]
fn a_state_is_read_and_written_and_keeps_its_value() {
    let mut net = Net::with_seed(1);
    let count = net.state("count", &[1], DType::F32, Initialize::Zeros).unwrap();
    let one = net.fill_constant(&[1], 1.0).unwrap();
    let before = net.assign(count).unwrap();
    let more = net.add(count, one).unwrap();
    net.write_state(more, count).unwrap();
    // What comes after the write reads the new value.
    let after = net.scale(count, 10.0, 0.0).unwrap();
    let mut executor = started(&net);
    let nothing = || Feed::new().floats("rows", 1, vec![0.0]).unwrap();
    for step in 0..3 {
        let values = executor.run(&net.main, nothing(), &[before, after]).unwrap();
        let values: Vec<f32> = values.iter().map(|value| value.f32s().unwrap()[0]).collect();
        assert_eq!(values, [step as f32, 10.0 * (step + 1) as f32]);
    }
    assert_eq!(executor.scope().get("count").unwrap().f32s().unwrap(), [3.0]);
}

#[test]
fn training_with_shapes_at_run_is_the_same_as_with_fixed_ones() {
    let losses = |length: i64| {
        let mut net = Net::with_seed(5);
        let x = net.data("x", &[-1, length, 2], DType::F32).unwrap();
        let y = net.fc_with(x, 3, FcOptions { row_axes: 2, ..Default::default() }).unwrap();
        let pooled = net.reduce_mean(y, &[1], false).unwrap();
        let squares = net.square(pooled).unwrap();
        let loss = net.mean(squares).unwrap();
        Minimize::new(Optimizer::Adam(Adam::default()), 0.1).minimize(&mut net.main, loss).unwrap();
        let mut executor = started(&net);
        let mut step = |step: usize| {
            let values: Vec<f32> = (0..24).map(|i| ((i * 7 + step * 5) % 11) as f32 / 11.0).collect();
            let feed = match length {
                -1 => floats("x", &[4, 3, 2], &values),
                _ => Feed::new().floats("x", 6, values).unwrap(),
            };
            run(&mut executor, &net.main, feed, loss).1[0]
        };
        (0..6).map(&mut step).collect::<Vec<_>>()
    };
    assert_eq!(losses(-1), losses(3), "to the bit");
}
