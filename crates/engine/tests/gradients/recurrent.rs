//! Recurrent ops over sequences.
//!
//! The numbers are those of PyTorch's GRU and LSTM: `golden/torch_layers.py` prints them.

use openfleet_engine::{Net, Result, Var};

use crate::constants::assert_near;
use crate::harness::{Options, build_error, check, compute_of};

/// Three steps, two rows, states of two.
const STEPS: usize = 3;
const ROWS: usize = 2;
const STATE: usize = 2;

fn numbers(count: usize, factor: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * factor) % 13) as f32 / 8.0 - 0.75).collect()
}

/// The dimensions and values of the gates of x, the weights, the bias, and as many first states.
fn parameters(gates: usize, states: usize) -> Vec<(Vec<usize>, Vec<f32>)> {
    let mut parameters = vec![
        (vec![STEPS, ROWS, gates * STATE], numbers(STEPS * ROWS * gates * STATE, 5)),
        (vec![gates * STATE, STATE], numbers(gates * STATE * STATE, 7)),
        (vec![gates * STATE], numbers(gates * STATE, 3)),
    ];
    parameters.extend((0..states).map(|i| (vec![ROWS, STATE], numbers(ROWS * STATE, 4 + i))));
    parameters
}

fn lengths(net: &mut Net, with: bool) -> Result<Option<Var>> {
    // Constant, because the rows of these tests are not the batch.
    let one = net.fill_constant(&[1], 1i64)?;
    let three = net.fill_constant(&[1], 3i64)?;
    Ok(match with {
        true => Some(net.concat(&[one, three], 0)?),
        false => None,
    })
}

fn gru(net: &mut Net, p: &[Var], with_lengths: bool, reverse: bool) -> Result<Var> {
    let lengths = lengths(net, with_lengths)?;
    net.gru(p[0], p[1], p[2], p[3], lengths, reverse)
}

/// The states and the cells side by side.
fn lstm(net: &mut Net, p: &[Var], with_lengths: bool, reverse: bool) -> Result<Var> {
    let lengths = lengths(net, with_lengths)?;
    let (states, cells) = net.lstm(p[0], p[1], p[2], [p[3], p[4]], lengths, reverse)?;
    net.concat(&[states, cells], 2)
}

type Layer = fn(&mut Net, &[Var], bool, bool) -> Result<Var>;

#[test]
fn recurrent_layers_agree_with_pytorch() {
    for (layer, gates, states, cases) in [
        (gru as Layer, 3, 1, [(false, false, &GRU[..]), (false, true, &GRU_REVERSE), (true, false, &GRU_LENGTHS)]),
        (lstm, 4, 2, [(false, false, &LSTM[..]), (false, true, &LSTM_REVERSE), (true, false, &LSTM_LENGTHS)]),
    ] {
        let given = parameters(gates, states);
        let given: Vec<(&[usize], &[f32])> = given.iter().map(|(dims, values)| (&dims[..], &values[..])).collect();
        for (with_lengths, reverse, expected) in cases {
            let (dims, got) = compute_of(|net, p| layer(net, p, with_lengths, reverse), &given);
            assert_eq!(dims, [STEPS, ROWS, states * STATE]);
            assert_near(&got, expected);
        }
    }
}

#[test]
fn recurrent_layers_have_the_gradient_of_finite_differences() {
    for (layer, gates, states) in [(gru as Layer, 3, 1), (lstm, 4, 2)] {
        let given = parameters(gates, states);
        let dims: Vec<&[usize]> = given.iter().map(|(dims, _)| &dims[..]).collect();
        let values: Vec<&[f32]> = given.iter().map(|(_, values)| &values[..]).collect();
        for (with_lengths, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            check(|net, p| layer(net, p, with_lengths, reverse), &dims, Options::values(&values));
        }
    }
}

#[test]
fn recurrent_layers_refuse_what_does_not_fit() {
    let message =
        build_error(|net, v| net.gru(v[0], v[1], v[2], v[3], None, false), &[&[3, 2, 6], &[6, 3], &[6], &[2, 2]]);
    assert_eq!(
        message,
        "`gru` expects x [T, B, 3 H], weights [3 H, H], a bias [3 H] and first states [B, H], got [3, 2, 6] and [6, 3] \
         and [6] and [2, 2]"
    );
}

const GRU: [f32; 12] = [
    -0.411633,
    0.0875412,
    0.541293,
    0.376156,
    -0.258425,
    0.0677871,
    0.451125,
    0.442542,
    0.315148,
    -0.208639,
    -0.00939736,
    0.267461,
];
const GRU_REVERSE: [f32; 12] = [
    0.00216691,
    0.116944,
    0.512811,
    0.203624,
    -0.145701,
    -0.29424,
    0.179691,
    0.545533,
    0.112063,
    -0.423892,
    -0.00714631,
    0.557798,
];
const GRU_LENGTHS: [f32; 12] = [
    -0.411633,
    0.0875412,
    0.541293,
    0.376156,
    -0.411633,
    0.0875412,
    0.451125,
    0.442542,
    -0.411633,
    0.0875412,
    -0.00939736,
    0.267461,
];
const LSTM: [f32; 24] = [
    -0.138874,
    0.00691267,
    -0.316554,
    0.0103889,
    0.144179,
    -0.284943,
    0.508904,
    -0.54056,
    -0.00999262,
    -0.243781,
    -0.0213779,
    -0.362747,
    0.168448,
    -0.433277,
    0.314455,
    -0.639099,
    0.122264,
    -0.217998,
    0.215404,
    -0.585993,
    0.195337,
    -0.300467,
    0.315308,
    -0.736433,
];
const LSTM_REVERSE: [f32; 24] = [
    0.0927989, -0.193847, 0.194744, -0.280525, 0.146588, -0.3884, 0.294336, -0.588138, 0.0922145, -0.40677, 0.184925,
    -0.62854, 0.158845, -0.399092, 0.312515, -0.591802, 0.0173921, -0.189759, 0.0301256, -0.527755, 0.185375,
    -0.131947, 0.470685, -0.459032,
];
const LSTM_LENGTHS: [f32; 24] = [
    -0.138874, 0.00691267, -0.316554, 0.0103889, 0.144179, -0.284943, 0.508904, -0.54056, -0.138874, 0.00691267,
    -0.316554, 0.0103889, 0.168448, -0.433277, 0.314455, -0.639099, -0.138874, 0.00691267, -0.316554, 0.0103889,
    0.195337, -0.300467, 0.315308, -0.736433,
];
