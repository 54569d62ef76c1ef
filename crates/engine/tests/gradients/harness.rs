//! Checks the gradient of anything built from parameters against central finite differences.
//!
//! The op's output is multiplied by fixed pseudo-random weights, so that every element counts differently, and summed to a loss.
//! Each check runs on the parameters themselves (only the op uses them), and on copies of them that are also used before and
//! after the op: there the op's backward must either write first or add.

use std::sync::Arc;

use openfleet_engine::{DType, Dim, Error, Executor, Feed, Net, ParamAttr, Program, Result, Scope, Tensor, Var};
use openfleet_table::Initializer;

/// The size of a batch that nothing reads: results must not depend on it.
const SOME_ROWS: usize = 3;

/// Options of a gradient check.
pub(crate) struct Options {
    /// Parameters are drawn from this range; it must avoid kinks and poles.
    pub range: (f32, f32),
    /// Values of the parameters in order; parameters without values are drawn.
    pub values: Vec<Vec<f32>>,
    /// What else is fed for a batch of this many rows.
    pub feed: Box<dyn Fn(usize) -> Feed>,
    /// Batch sizes to check, in this order, on the same executor.
    pub rows: Vec<usize>,
    /// The step of the finite differences.
    pub epsilon: f32,
    /// How far the two gradients may differ, relative to the larger.
    pub tolerance: f64,
    /// A difference that is always allowed.
    pub floor: f64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            range: (-1.0, 1.0),
            values: Vec::new(),
            feed: Box::new(|_| Feed::new()),
            rows: vec![3],
            epsilon: 1e-2,
            tolerance: 1e-2,
            floor: 1e-3,
        }
    }
}

impl Options {
    /// Parameters between two numbers.
    pub(crate) fn range(low: f32, high: f32) -> Self {
        Options { range: (low, high), ..Options::default() }
    }

    /// Parameters as given.
    pub(crate) fn values(values: &[&[f32]]) -> Self {
        Options { values: values.iter().map(|v| v.to_vec()).collect(), ..Options::default() }
    }

    /// Also feeds batches of several sizes: longer, shorter, and a single row.
    pub(crate) fn fed(mut self, feed: impl Fn(usize) -> Feed + 'static) -> Self {
        self.feed = Box::new(feed);
        self.rows = vec![2, 5, 3, 1];
        self
    }
}

/// Where else the op's inputs are used.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Others {
    None,
    Before,
    After,
}

/// Checks what `build` computes from parameters of the given dimensions.
#[track_caller]
pub(crate) fn check(build: impl Fn(&mut Net, &[Var]) -> Result<Var>, dims: &[&[usize]], options: Options) {
    for others in [Others::None, Others::Before, Others::After] {
        check_among(&build, dims, &options, others);
    }
}

#[track_caller]
fn check_among(build: impl Fn(&mut Net, &[Var]) -> Result<Var>, dims: &[&[usize]], options: &Options, others: Others) {
    let mut net = Net::with_seed(7);
    let mut constants = Vec::new();
    let parameters: Vec<Var> = dims.iter().map(|dims| free(&mut net, dims, false)).collect();
    let inputs: Vec<Var> = match others {
        Others::None => parameters.clone(),
        _ => parameters.iter().zip(dims).map(|(&p, dims)| copy(&mut net, p, dims, &mut constants)).collect(),
    };
    let mut parts = Vec::new();
    if others == Others::Before {
        parts.extend(inputs.iter().zip(dims).map(|(&input, dims)| weigh(&mut net, input, dims, &mut constants)));
    }
    let output = build(&mut net, &inputs).unwrap();
    let per_row = net.shape(output).elements(1);
    let batched = net.shape(output).0.iter().any(|dim| matches!(dim, Dim::PerRow(_)));
    let weighted = if batched {
        let rows = net.reshape(output, &[-1, per_row as i64]).unwrap();
        let weights = net.data("weights", &[-1, per_row as i64], DType::F32).unwrap();
        net.multiply(rows, weights).unwrap()
    } else {
        let dims = net.shape(output).sizes(1);
        weigh(&mut net, output, &dims, &mut constants)
    };
    parts.push(weighted);
    if others == Others::After {
        parts.extend(inputs.iter().zip(dims).map(|(&input, dims)| weigh(&mut net, input, dims, &mut constants)));
    }
    let mut means = Vec::new();
    for &part in &parts {
        means.push(net.mean(part).unwrap());
    }
    let loss = means[1..].iter().fold(means[0], |sum, &mean| net.add(sum, mean).unwrap());
    let pairs = net.main.append_backward(loss, None, &[]).unwrap();
    assert_eq!(pairs.len(), parameters.len(), "every parameter leads to the loss");

    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    for (name, value) in constants {
        executor.scope().set(&name, value).unwrap();
    }
    let names: Vec<String> = parameters.iter().map(|&p| net.main.variable(p).name.clone()).collect();
    let mut values: Vec<Vec<f32>> = dims
        .iter()
        .enumerate()
        .map(|(i, dims)| match options.values.get(i) {
            Some(given) => given.clone(),
            None => drawn(i as u64 + 1, dims.iter().product(), options.range),
        })
        .collect();
    let test = net.main.clone_for_test();
    let set = |executor: &Executor, i: usize, value: &[f32]| {
        executor.scope().set(&names[i], Tensor::from_f32(dims[i], value.to_vec()).unwrap()).unwrap();
    };
    for i in 0..dims.len() {
        set(&executor, i, &values[i]);
    }
    for &rows in &options.rows {
        let feed = || (options.feed)(rows).floats("weights", per_row, weights(99, rows * per_row)).unwrap();
        let gradients: Vec<Var> = parameters.iter().map(|&p| net.main.gradient_of(p).unwrap()).collect();
        let analytic = executor.run(&net.main, feed(), &gradients).unwrap();
        for i in 0..dims.len() {
            let analytic = analytic[i].f32s().unwrap();
            for j in 0..values[i].len() {
                let original = values[i][j];
                let mut loss_at = |value: f32| {
                    values[i][j] = value;
                    set(&executor, i, &values[i]);
                    total(&mut executor, &test, feed(), &parts)
                };
                let (high, low) = (original + options.epsilon, original - options.epsilon);
                let difference = (loss_at(high) - loss_at(low)) / f64::from(high - low);
                loss_at(original);
                let got = f64::from(analytic[j]);
                let allowed = options.tolerance * got.abs().max(difference.abs()) + options.floor;
                assert!(
                    (got - difference).abs() <= allowed,
                    "element {j} of parameter {i}, {rows} rows, other uses {others:?}: backward gives {got}, finite differences {difference}"
                );
            }
        }
    }
}

/// The loss, added up in double precision.
fn total(executor: &mut Executor, program: &Program, feed: Feed, parts: &[Var]) -> f64 {
    let parts = executor.run(program, feed, parts).unwrap();
    let mean = |part: &Tensor| {
        let values = part.f32s().unwrap();
        values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len().max(1) as f64
    };
    parts.iter().map(mean).sum()
}

/// A parameter that is not part of any layer.
fn free(net: &mut Net, dims: &[usize], frozen: bool) -> Var {
    let attr = ParamAttr { frozen, ..ParamAttr::default() };
    net.parameter(if frozen { "constant" } else { "p" }, dims, &attr, Initializer::Constant(0.0)).unwrap()
}

/// `x` times a weight for each of its elements.
fn weigh(net: &mut Net, x: Var, dims: &[usize], constants: &mut Vec<(String, Tensor)>) -> Var {
    let values = weights(100 + constants.len() as u64, dims.iter().product());
    times(net, x, dims, values, constants)
}

/// A variable with the values of `x` that is not a parameter.
fn copy(net: &mut Net, x: Var, dims: &[usize], constants: &mut Vec<(String, Tensor)>) -> Var {
    times(net, x, dims, vec![1.0; dims.iter().product()], constants)
}

fn times(net: &mut Net, x: Var, dims: &[usize], values: Vec<f32>, constants: &mut Vec<(String, Tensor)>) -> Var {
    let constant = free(net, dims, true);
    constants.push((net.main.variable(constant).name.clone(), Tensor::from_f32(dims, values).unwrap()));
    net.multiply(x, constant).unwrap()
}

/// Weights of the elements of a mean. They grow with the number of elements, so that no gradient becomes small, and are not near
/// zero: an element with a tiny weight would hardly be checked.
fn weights(seed: u64, count: usize) -> Vec<f32> {
    let signed = |w: f32| if w < 1.0 { w - 1.5 } else { w - 0.5 };
    drawn(seed, count, (0.0, 2.0)).into_iter().map(|w| signed(w) * count as f32).collect()
}

/// Pseudo-random numbers between two bounds, evenly spread, the same ones each time.
pub(crate) fn drawn(seed: u64, count: usize, (low, high): (f32, f32)) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            low + (high - low) * ((state >> 40) as f32 / (1u64 << 24) as f32)
        })
        .collect()
}

/// What `build` computes from fed data: the value of the variable it returns.
pub(crate) fn compute(build: impl FnOnce(&mut Net) -> Result<Var>, feed: Feed) -> Result<Tensor> {
    let mut net = Net::with_seed(7);
    let output = build(&mut net)?;
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup)?;
    Ok(executor.run(&net.main.clone_for_test(), feed, &[output])?.remove(0))
}

/// What `build` computes from parameters with these dimensions and values.
#[track_caller]
pub(crate) fn compute_of(
    build: impl FnOnce(&mut Net, &[Var]) -> Result<Var>,
    parameters: &[(&[usize], &[f32])],
) -> (Vec<usize>, Vec<f32>) {
    let (mut executor, net, _, output) = placed(build, parameters);
    let value = executor.run(&net.main.clone_for_test(), some_rows(), &[output]).unwrap().remove(0);
    (value.dims().to_vec(), value.f32s().unwrap().to_vec())
}

/// The gradients, with respect to these parameters, of the sum of what `build` computes. For kinks, where finite differences
/// cannot be used.
#[track_caller]
pub(crate) fn gradients_at(
    build: impl FnOnce(&mut Net, &[Var]) -> Result<Var>,
    parameters: &[(&[usize], &[f32])],
) -> Vec<Vec<f32>> {
    let (mut executor, mut net, vars, output) = placed(build, parameters);
    let count = net.shape(output).elements(SOME_ROWS);
    let loss = net.mean(output).unwrap();
    net.main.append_backward(loss, None, &[]).unwrap();
    let gradients: Vec<Var> = vars.iter().map(|&var| net.main.gradient_of(var).unwrap()).collect();
    let gradients = executor.run(&net.main, some_rows(), &gradients).unwrap();
    gradients.iter().map(|g| g.f32s().unwrap().iter().map(|g| g * count as f32).collect()).collect()
}

/// A net with parameters that are set to these values.
fn placed(
    build: impl FnOnce(&mut Net, &[Var]) -> Result<Var>,
    parameters: &[(&[usize], &[f32])],
) -> (Executor, Net, Vec<Var>, Var) {
    let mut net = Net::with_seed(7);
    let vars: Vec<Var> = parameters.iter().map(|(dims, _)| free(&mut net, dims, false)).collect();
    let output = build(&mut net, &vars).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    for (&var, (dims, values)) in vars.iter().zip(parameters) {
        let value = Tensor::from_f32(dims, values.to_vec()).unwrap();
        executor.scope().set(&net.main.variable(var).name, value).unwrap();
    }
    (executor, net, vars, output)
}

/// A batch that nothing reads.
fn some_rows() -> Feed {
    Feed::new().floats("rows", 1, vec![0.0; SOME_ROWS]).unwrap()
}

/// The error of `build` on float variables of these shapes, where a leading -1 is the batch.
#[track_caller]
pub(crate) fn build_error<T>(build: impl FnOnce(&mut Net, &[Var]) -> Result<T>, shapes: &[&[i64]]) -> String {
    let mut net = Net::new();
    let vars: Vec<Var> = shapes.iter().map(|shape| floats(&mut net, shape)).collect();
    match build(&mut net, &vars) {
        Ok(_) => panic!("shapes {shapes:?} were accepted"),
        Err(error @ Error::Input { .. }) => error.to_string(),
        Err(error) => panic!("not an error of a shape rule: {error}"),
    }
}

/// A float variable of any shape: data if it has a batch, else a parameter.
fn floats(net: &mut Net, shape: &[i64]) -> Var {
    if shape.first() == Some(&-1) {
        let name = net.unique_name("data");
        return net.data(&name, shape, DType::F32).unwrap();
    }
    let dims: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    free(net, &dims, false)
}
