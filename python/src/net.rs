//! Layers: each adds ops to the main and startup programs of a `Net` and returns the names of its outputs.
//!
//! A `Net` here is a pair of programs and a name generator, both shared. The guards of the Python package create another `Net` with
//! other programs or a fresh generator, and leave this one as it is. The methods are one list, because pyo3 allows one
//! `#[pymethods]` block per class.

use std::sync::Arc;

use openfleet_engine::models::{self, CtrInputs, CtrOutputs};
use openfleet_engine::op::{
    Activation, BatchNormOptions, ClassLabels, DenseEmbeddingOptions, Dropout, DropoutMode, EmbeddingOptions,
    FcOptions, Initialize, LayerNormOptions, LiteralValues, Pool, PoolWindows, Pooling, SequencePooling, Size,
    SkipGramOptions, Windows,
};
use openfleet_engine::{DType, Net as Builder, ParamAttr, Result, RowLife, Var};
use openfleet_table::{Initializer, Regularizer, RowStorage};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::error::raise;
use crate::program::{Program, parse_dtype};

/// The programs and names that layers are added to.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Net {
    /// Used for its names only: its own programs stay empty.
    names: Arc<Mutex<Builder>>,
    main: Program,
    startup: Program,
}

/// The names of the AUC, the batch AUC and the four counters.
type AucNames = (String, String, [String; 4]);

/// A layer of two inputs that broadcasts the second along an axis of the first.
type Along = fn(&mut Builder, Var, Var, i64) -> Result<Var>;

/// The names of the loss, the probability and the AUC.
type ClickNames = (String, String, AucNames);

/// A size as Python gives it: a number, or the name of the variable that has it as its value.
#[derive(FromPyObject)]
pub(crate) enum SizeArgument {
    Known(i64),
    Of(String),
}

/// Windows along one dimension: size, stride, padding before and after, dilation.
type WindowsArgument = [usize; 5];

fn windows_of([size, stride, before, after, dilation]: WindowsArgument) -> Windows {
    Windows { size, stride, before, after, dilation }
}

fn parse_pool(kind: &str) -> PyResult<Pool> {
    match kind {
        "max" => Ok(Pool::Max),
        "mean" => Ok(Pool::Mean { count_padding: false }),
        "mean_with_padding" => Ok(Pool::Mean { count_padding: true }),
        _ => Err(unknown(kind)),
    }
}

fn sizes(net: &Builder, arguments: &[SizeArgument]) -> Result<Vec<Size>> {
    let size = |argument: &SizeArgument| match argument {
        SizeArgument::Known(size) => Ok(Size::Known(*size)),
        SizeArgument::Of(name) => Ok(Size::Of(net.main.find(name)?)),
    };
    arguments.iter().map(size).collect()
}

impl Net {
    fn build<T>(&self, layer: impl FnOnce(&mut Builder) -> Result<T>) -> PyResult<T> {
        let mut builder = self.names.lock();
        let (mut main, mut startup) = (self.main.0.lock(), self.startup.0.lock());
        builder.program_guard(&mut main, &mut startup, layer).map_err(raise)
    }

    /// Adds a layer with one output. Returns the name of the output.
    fn one(&self, layer: impl FnOnce(&mut Builder) -> Result<Var>) -> PyResult<String> {
        self.build(|net| {
            let var = layer(net)?;
            Ok(name(net, var))
        })
    }

    fn click(
        &self,
        slots: &[String],
        dense: Option<&str>,
        label: &str,
        share_ids: bool,
        storage: &str,
        model: impl FnOnce(&mut Builder, &CtrInputs) -> Result<CtrOutputs>,
    ) -> PyResult<ClickNames> {
        let storage = parse_storage(storage)?;
        self.build(|net| {
            let inputs = CtrInputs {
                slots: all(net, slots)?,
                dense: dense.map(|dense| net.main.find(dense)).transpose()?,
                label: net.main.find(label)?,
                share_ids,
                storage,
            };
            let CtrOutputs { loss, probability, auc } = model(net, &inputs)?;
            let auc = (name(net, auc.auc), name(net, auc.batch_auc), auc.counters.map(|counter| name(net, counter)));
            Ok((name(net, loss), name(net, probability), auc))
        })
    }
}

#[pymethods]
impl Net {
    #[new]
    fn new(main: &Program, startup: &Program) -> PyResult<Self> {
        Net { names: Arc::default(), main: main.clone(), startup: startup.clone() }.checked()
    }

    /// Returns a net with the same names and other programs.
    fn with_programs(&self, main: &Program, startup: &Program) -> PyResult<Self> {
        Net { names: self.names.clone(), main: main.clone(), startup: startup.clone() }.checked()
    }

    /// Returns a net with the same programs and names that count from 0.
    fn with_fresh_names(&self) -> Self {
        Net { names: Arc::default(), main: self.main.clone(), startup: self.startup.clone() }
    }

    fn unique_name(&self, word: &str) -> String {
        self.names.lock().unique_name(word)
    }

    // Inputs and parameters.

    fn data(&self, name: &str, shape: Vec<i64>, dtype: &str) -> PyResult<String> {
        let dtype = parse_dtype(dtype)?;
        self.one(|net| net.data(name, &shape, dtype))
    }

    /// Says which line of the script adds the next layers, for messages about them.
    fn set_line(&self, line: String) {
        self.names.lock().line = Some(line);
    }

    fn slot(&self, name: &str) -> PyResult<String> {
        self.one(|net| net.slot(name))
    }

    fn create_parameter(&self, dims: Vec<usize>, attr: &str, is_bias: bool) -> PyResult<String> {
        let attr = parse_attr(attr)?;
        self.one(|net| match is_bias {
            true => net.create_bias(&dims, &attr),
            false => net.create_parameter(&dims, &attr),
        })
    }

    /// A value in the scope that `write_state` sets; an integer if `integers`.
    fn global_variable(&self, name: &str, dims: Vec<usize>, value: f64, integers: bool) -> PyResult<String> {
        let (dtype, first) = match integers {
            true => (DType::I64, Initialize::Integer(value as i64)),
            false => (DType::F32, Initialize::Random(Initializer::Constant(value as f32))),
        };
        self.one(|net| net.state(name, &dims, dtype, first))
    }

    fn fill_constant(&self, dims: Vec<SizeArgument>, value: f64, integers: bool) -> PyResult<String> {
        self.one(|net| {
            let dims = sizes(net, &dims)?;
            match integers {
                true => net.fill_sizes(&dims, value as i64),
                false => net.fill_sizes(&dims, value as f32),
            }
        })
    }

    fn fill_like(&self, x: &str, value: f64, integers: bool) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            match integers {
                true => net.fill_like(x, value as i64),
                false => net.fill_like(x, value as f32),
            }
        })
    }

    /// Adds given numbers, in row-major order.
    fn literal(&self, dims: Vec<usize>, floats: Vec<f32>) -> PyResult<String> {
        self.one(|net| net.literal(&dims, LiteralValues::F32(floats)))
    }

    fn literal_integers(&self, dims: Vec<usize>, integers: Vec<i64>) -> PyResult<String> {
        self.one(|net| net.literal(&dims, LiteralValues::I64(integers)))
    }

    fn literal_truth(&self, dims: Vec<usize>, truth: Vec<bool>) -> PyResult<String> {
        self.one(|net| net.literal(&dims, LiteralValues::Bool(truth)))
    }

    /// Adds random floats from a distribution described in JSON.
    fn random(&self, dims: Vec<SizeArgument>, from: &str, seed: Option<u64>) -> PyResult<String> {
        let from = serde_json::from_str(from)
            .map_err(|error| PyValueError::new_err(format!("not a distribution: {error}")))?;
        self.one(|net| {
            let dims = sizes(net, &dims)?;
            net.random_of_sizes(&dims, from, seed)
        })
    }

    fn stop_gradient(&self, x: &str) -> PyResult<()> {
        self.build(|net| {
            let x = net.main.find(x)?;
            net.stop_gradient(x);
            Ok(())
        })
    }

    // Layers with parameters.

    #[pyo3(signature = (x, size, activation, weight, bias, row_axes, name))]
    fn fc(
        &self,
        x: &str,
        size: usize,
        activation: &str,
        weight: &str,
        bias: Option<&str>,
        row_axes: usize,
        name: Option<String>,
    ) -> PyResult<String> {
        let activation = match activation {
            "linear" => Activation::Linear,
            "relu" => Activation::Relu,
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            _ => return Err(PyValueError::new_err(format!("no activation is named `{activation}`"))),
        };
        let (weight, bias) = (parse_attr(weight)?, bias.map(parse_attr).transpose()?);
        self.one(|net| {
            let x = net.main.find(x)?;
            net.fc_with(x, size, FcOptions { activation, weight, bias, row_axes, name })
        })
    }

    fn embedding(
        &self,
        slot: &str,
        dim: usize,
        table: &str,
        pooling: &str,
        vocabulary: Option<u64>,
        rows: Option<&str>,
        storage: &str,
        padding_idx: Option<i64>,
    ) -> PyResult<String> {
        let rows = rows.map_or(Ok(RowLife::default()), serde_json::from_str);
        let rows = rows.map_err(|error| PyValueError::new_err(format!("not the rules of rows: {error}")))?;
        let options = EmbeddingOptions {
            table: parse_attr(table)?,
            pooling: parse_pooling(pooling)?,
            vocabulary,
            rows: RowLife { storage: parse_storage(storage)?, ..rows },
            padding_idx,
            // The script decides whether slots share a table.
            salt: None,
        };
        options.rows.admission.validate().map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.one(|net| {
            let slot = net.main.find(slot)?;
            net.embedding(slot, dim, &options)
        })
    }

    fn dense_embedding(
        &self,
        ids: &str,
        size: [usize; 2],
        table: &str,
        pooling: &str,
        padding_idx: Option<i64>,
    ) -> PyResult<String> {
        let (table, pooling) = (parse_attr(table)?, parse_pooling(pooling)?);
        self.one(|net| {
            let ids = net.main.find(ids)?;
            net.dense_embedding(ids, size, &DenseEmbeddingOptions { table, pooling, padding_idx })
        })
    }

    fn batch_norm(
        &self,
        x: &str,
        momentum: f32,
        epsilon: f32,
        scale: &str,
        bias: &str,
        channels_last: bool,
        moving_mean_name: Option<String>,
        moving_variance_name: Option<String>,
        use_global_stats: bool,
    ) -> PyResult<String> {
        let options = BatchNormOptions {
            momentum,
            epsilon,
            scale: parse_attr(scale)?,
            bias: parse_attr(bias)?,
            channels_last,
            moving_mean_name,
            moving_variance_name,
            use_global_stats,
        };
        self.one(|net| {
            let x = net.main.find(x)?;
            net.batch_norm(x, &options)
        })
    }

    fn layer_norm(
        &self,
        x: &str,
        begin_norm_axis: usize,
        epsilon: f32,
        scale: Option<&str>,
        shift: Option<&str>,
    ) -> PyResult<String> {
        let (scale, shift) = (scale.map(parse_attr).transpose()?, shift.map(parse_attr).transpose()?);
        self.one(|net| {
            let x = net.main.find(x)?;
            net.layer_norm(x, &LayerNormOptions { begin_norm_axis, epsilon, scale, shift })
        })
    }

    fn cross(&self, x0: &str, x: &str, weight: &str, bias: &str) -> PyResult<String> {
        let (weight, bias) = (parse_attr(weight)?, parse_attr(bias)?);
        self.one(|net| {
            let (x0, x) = (net.main.find(x0)?, net.main.find(x)?);
            net.cross_with(x0, x, &weight, &bias)
        })
    }

    fn skip_gram(
        &self,
        contexts: &str,
        targets: &str,
        dim: usize,
        most_contexts: usize,
        input: &str,
        output: &str,
    ) -> PyResult<String> {
        let options = SkipGramOptions { dim, most_contexts, input: parse_attr(input)?, output: parse_attr(output)? };
        self.one(|net| {
            let (contexts, targets) = (net.main.find(contexts)?, net.main.find(targets)?);
            net.skip_gram(contexts, targets, &options)
        })
    }

    // Layers of one input, by name.

    fn unary(&self, op: &str, x: &str) -> PyResult<String> {
        let layer: fn(&mut Builder, Var) -> Result<Var> = match op {
            "abs" => Builder::abs,
            "assign" => Builder::assign,
            "ceil" => Builder::ceil,
            "cos" => Builder::cos,
            "erf" => Builder::erf,
            "exp" => Builder::exp,
            "floor" => Builder::floor,
            "fm" => Builder::fm,
            "log" => Builder::log,
            "log1p" => Builder::log1p,
            "logical_not" => Builder::logical_not,
            "mean" => Builder::mean,
            "nonzero" => Builder::nonzero,
            "relu" => Builder::relu,
            "round" => Builder::round,
            "sequence_reverse" => Builder::sequence_reverse,
            "sequence_softmax" => Builder::sequence_softmax,
            "shape" => Builder::sizes,
            "sigmoid" => Builder::sigmoid,
            "sign" => Builder::sign,
            "sin" => Builder::sin,
            "slot_ids" => Builder::slot_ids,
            "sqrt" => Builder::sqrt,
            "square" => Builder::square,
            "tanh" => Builder::tanh,
            _ => return Err(unknown(op)),
        };
        self.one(|net| {
            let x = net.main.find(x)?;
            layer(net, x)
        })
    }

    fn cast(&self, x: &str, dtype: &str) -> PyResult<String> {
        let dtype = parse_dtype(dtype)?;
        self.one(|net| {
            let x = net.main.find(x)?;
            net.cast(x, dtype)
        })
    }

    fn clip(&self, x: &str, min: f32, max: f32) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.clip(x, min, max)
        })
    }

    fn dropout(&self, x: &str, probability: f32, upscale_in_train: bool, seed: Option<u64>) -> PyResult<String> {
        let mode = if upscale_in_train { DropoutMode::UpscaleInTrain } else { DropoutMode::DowngradeInInfer };
        self.one(|net| {
            let x = net.main.find(x)?;
            net.dropout_with(x, Dropout { probability, mode, seed })
        })
    }

    fn expand(&self, x: &str, shape: Vec<SizeArgument>) -> PyResult<String> {
        self.one(|net| {
            let (x, shape) = (net.main.find(x)?, sizes(net, &shape)?);
            net.expand_to_sizes(x, &shape)
        })
    }

    fn fm_of(&self, x: &str, fields: usize) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.fm_of(x, fields)
        })
    }

    fn l2_normalize(&self, x: &str, axis: i64, epsilon: f32) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.l2_normalize_with(x, axis, epsilon)
        })
    }

    fn one_hot(&self, x: &str, depth: usize, allow_out_of_range: bool) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            if allow_out_of_range { net.one_hot_or_zeros(x, depth) } else { net.one_hot(x, depth) }
        })
    }

    fn pow(&self, x: &str, factor: f32) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.pow(x, factor)
        })
    }

    fn reduce(&self, op: &str, x: &str, axes: Vec<i64>, keep_dim: bool) -> PyResult<String> {
        let layer: fn(&mut Builder, Var, &[i64], bool) -> Result<Var> = match op {
            "max" => Builder::reduce_max,
            "mean" => Builder::reduce_mean,
            "prod" => Builder::reduce_prod,
            "sum" => Builder::reduce_sum,
            _ => return Err(unknown(op)),
        };
        self.one(|net| {
            let x = net.main.find(x)?;
            layer(net, x, &axes, keep_dim)
        })
    }

    fn reshape(&self, x: &str, shape: Vec<SizeArgument>) -> PyResult<String> {
        self.one(|net| {
            let (x, shape) = (net.main.find(x)?, sizes(net, &shape)?);
            net.reshape_to(x, &shape)
        })
    }

    fn scale(&self, x: &str, scale: f32, bias: f32, bias_after_scale: bool) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.scale_with(x, scale, bias, bias_after_scale)
        })
    }

    fn slice(&self, x: &str, axes: Vec<i64>, starts: Vec<SizeArgument>, ends: Vec<SizeArgument>) -> PyResult<String> {
        self.one(|net| {
            let (x, starts, ends) = (net.main.find(x)?, sizes(net, &starts)?, sizes(net, &ends)?);
            net.slice_at(x, &axes, &starts, &ends)
        })
    }

    fn softmax(&self, x: &str, axis: i64) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.softmax_along(x, axis)
        })
    }

    fn squeeze(&self, x: &str, axes: Vec<i64>) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.squeeze(x, &axes)
        })
    }

    fn unsqueeze(&self, x: &str, axes: Vec<i64>) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.unsqueeze(x, &axes)
        })
    }

    /// Returns the values and their positions.
    fn topk(&self, x: &str, k: usize, largest: bool) -> PyResult<(String, String)> {
        self.build(|net| {
            let x = net.main.find(x)?;
            let (values, positions) = net.topk(x, k, largest)?;
            Ok((name(net, values), name(net, positions)))
        })
    }

    fn tile(&self, x: &str, times: Vec<SizeArgument>) -> PyResult<String> {
        self.one(|net| {
            let (x, times) = (net.main.find(x)?, sizes(net, &times)?);
            net.tile_by(x, &times)
        })
    }

    fn transpose(&self, x: &str, perm: Vec<usize>) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.transpose(x, &perm)
        })
    }

    fn split(&self, x: &str, sections: Vec<i64>, axis: i64) -> PyResult<Vec<String>> {
        self.build(|net| {
            let x = net.main.find(x)?;
            let parts = net.split_sections(x, &sections, axis)?;
            Ok(parts.into_iter().map(|part| name(net, part)).collect())
        })
    }

    fn split_evenly(&self, x: &str, parts: usize, axis: i64) -> PyResult<Vec<String>> {
        self.build(|net| {
            let x = net.main.find(x)?;
            let parts = net.split(x, parts, axis)?;
            Ok(parts.into_iter().map(|part| name(net, part)).collect())
        })
    }

    // Layers of several inputs.

    /// Broadcasts `y` along `axis` of `x` if the op has an axis.
    fn binary(&self, op: &str, x: &str, y: &str, axis: i64) -> PyResult<String> {
        let along: Option<Along> = match op {
            "add" => Some(Builder::add_at),
            "subtract" => Some(Builder::subtract_at),
            "multiply" => Some(Builder::multiply_at),
            "divide" => Some(Builder::divide_at),
            "maximum" => Some(Builder::maximum_at),
            "minimum" => Some(Builder::minimum_at),
            _ => None,
        };
        if let Some(layer) = along {
            return self.one(|net| {
                let (x, y) = (net.main.find(x)?, net.main.find(y)?);
                layer(net, x, y, axis)
            });
        }
        let layer: fn(&mut Builder, Var, Var) -> Result<Var> = match op {
            "add_integers" => Builder::add_integers,
            "binary_cross_entropy" => Builder::binary_cross_entropy,
            "bitwise_and" => Builder::bitwise_and,
            "bitwise_or" => Builder::bitwise_or,
            "bitwise_xor" => Builder::bitwise_xor,
            "bmm" => Builder::bmm,
            "equal" => Builder::equal,
            "expand_as" => Builder::expand_as,
            "floor_divide" => Builder::floor_divide,
            "gather" => Builder::gather,
            "gather_nd" => Builder::gather_nd,
            "greater_equal" => Builder::greater_equal,
            "greater_than" => Builder::greater_than,
            "less_equal" => Builder::less_equal,
            "less_than" => Builder::less_than,
            "logical_and" => Builder::logical_and,
            "logical_or" => Builder::logical_or,
            "masked_select" => Builder::masked_select,
            "modulo" => Builder::modulo,
            "multiply_integers" => Builder::multiply_integers,
            "not_equal" => Builder::not_equal,
            "sigmoid_cross_entropy_with_logits" => Builder::sigmoid_cross_entropy_with_logits,
            "square_error_cost" => Builder::square_error_cost,
            "subtract_integers" => Builder::subtract_integers,
            "write_state" => Builder::write_state,
            _ => return Err(unknown(op)),
        };
        self.one(|net| {
            let (x, y) = (net.main.find(x)?, net.main.find(y)?);
            layer(net, x, y)
        })
    }

    fn conv2d(&self, x: &str, filters: &str, windows: [WindowsArgument; 2], groups: usize) -> PyResult<String> {
        self.one(|net| {
            let (x, filters) = (net.main.find(x)?, net.main.find(filters)?);
            net.conv2d(x, filters, windows.map(windows_of), groups)
        })
    }

    /// `kind` is `max`, `mean`, or `mean_with_padding`.
    fn pool2d(&self, x: &str, kind: &str, windows: [WindowsArgument; 2], ceil: bool) -> PyResult<String> {
        let (pool, windows) = (parse_pool(kind)?, windows.map(windows_of));
        self.one(|net| {
            let x = net.main.find(x)?;
            net.pool2d(x, pool, PoolWindows::Sliding { windows, ceil })
        })
    }

    fn adaptive_pool2d(&self, x: &str, kind: &str, counts: [usize; 2]) -> PyResult<String> {
        let pool = parse_pool(kind)?;
        self.one(|net| {
            let x = net.main.find(x)?;
            net.pool2d(x, pool, PoolWindows::Adaptive(counts))
        })
    }

    fn sequence_expand(&self, x: &str, like: &str) -> PyResult<String> {
        self.one(|net| {
            let (x, like) = (net.main.find(x)?, net.main.find(like)?);
            net.sequence_expand(x, like)
        })
    }

    /// Returns the padded sequences and their lengths.
    fn sequence_pad(&self, x: &str, padding: &str, length: Option<usize>) -> PyResult<(String, String)> {
        self.build(|net| {
            let (x, padding) = (net.main.find(x)?, net.main.find(padding)?);
            let (padded, lengths) = net.sequence_pad(x, padding, length)?;
            Ok((name(net, padded), name(net, lengths)))
        })
    }

    fn sequence_pool(&self, x: &str, pooling: &str, empty: f32) -> PyResult<String> {
        let pooling = parse_sequence_pooling(pooling)?;
        self.one(|net| {
            let x = net.main.find(x)?;
            net.sequence_pool(x, pooling, empty)
        })
    }

    fn sequence_unpad(&self, x: &str, lengths: &str) -> PyResult<String> {
        self.one(|net| {
            let (x, lengths) = (net.main.find(x)?, net.main.find(lengths)?);
            net.sequence_unpad(x, lengths)
        })
    }

    fn sequence_window(&self, x: &str, start: i64, length: usize) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.sequence_window(x, start, length)
        })
    }

    /// Returns the states of every step.
    fn gru(
        &self,
        gates: &str,
        weights: &str,
        bias: &str,
        first: &str,
        lengths: Option<&str>,
        reverse: bool,
    ) -> PyResult<String> {
        self.one(|net| {
            let lengths = lengths.map(|lengths| net.main.find(lengths)).transpose()?;
            let (gates, weights) = (net.main.find(gates)?, net.main.find(weights)?);
            let (bias, first) = (net.main.find(bias)?, net.main.find(first)?);
            net.gru(gates, weights, bias, first, lengths, reverse)
        })
    }

    /// Returns the states and the cells of every step.
    fn lstm(
        &self,
        gates: &str,
        weights: &str,
        bias: &str,
        first: [String; 2],
        lengths: Option<&str>,
        reverse: bool,
    ) -> PyResult<(String, String)> {
        self.build(|net| {
            let lengths = lengths.map(|lengths| net.main.find(lengths)).transpose()?;
            let (gates, weights, bias) = (net.main.find(gates)?, net.main.find(weights)?, net.main.find(bias)?);
            let first = [net.main.find(&first[0])?, net.main.find(&first[1])?];
            let (states, cells) = net.lstm(gates, weights, bias, first, lengths, reverse)?;
            Ok((name(net, states), name(net, cells)))
        })
    }

    fn cumsum(&self, x: &str, axis: i64) -> PyResult<String> {
        self.one(|net| {
            let x = net.main.find(x)?;
            net.cumsum(x, axis)
        })
    }

    /// Returns the elements along the last axis in order, and their positions.
    fn sort(&self, x: &str, descending: bool) -> PyResult<(String, String)> {
        self.build(|net| {
            let x = net.main.find(x)?;
            let (values, positions) = net.sort(x, descending)?;
            Ok((name(net, values), name(net, positions)))
        })
    }

    /// `mode` is `overwrite`, `sum` (of the updates of a row), or `add` (to the row).
    fn scatter(&self, x: &str, index: &str, updates: &str, mode: &str) -> PyResult<String> {
        self.one(|net| {
            let (x, index, updates) = (net.main.find(x)?, net.main.find(index)?, net.main.find(updates)?);
            match mode {
                "add" => net.scatter_add(x, index, updates),
                mode => net.scatter(x, index, updates, mode == "overwrite"),
            }
        })
    }

    fn multinomial(&self, weights: &str, count: usize, replacement: bool) -> PyResult<String> {
        self.one(|net| {
            let weights = net.main.find(weights)?;
            net.multinomial(weights, count, replacement)
        })
    }

    fn concat(&self, inputs: Vec<String>, axis: i64) -> PyResult<String> {
        self.one(|net| {
            let inputs = all(net, &inputs)?;
            net.concat(&inputs, axis)
        })
    }

    fn stack(&self, inputs: Vec<String>, axis: i64) -> PyResult<String> {
        self.one(|net| {
            let inputs = all(net, &inputs)?;
            net.stack(&inputs, axis)
        })
    }

    fn matmul(&self, x: &str, y: &str, transpose_x: bool, transpose_y: bool, alpha: f32) -> PyResult<String> {
        self.one(|net| {
            let (x, y) = (net.main.find(x)?, net.main.find(y)?);
            net.matmul_with(x, y, transpose_x, transpose_y, alpha)
        })
    }

    fn select(&self, condition: &str, x: &str, y: &str) -> PyResult<String> {
        self.one(|net| {
            let (condition, x, y) = (net.main.find(condition)?, net.main.find(x)?, net.main.find(y)?);
            net.select(condition, x, y)
        })
    }

    fn log_loss(&self, probabilities: &str, labels: &str, epsilon: f32) -> PyResult<String> {
        self.one(|net| {
            let (probabilities, labels) = (net.main.find(probabilities)?, net.main.find(labels)?);
            net.log_loss_with(probabilities, labels, epsilon)
        })
    }

    fn cross_entropy(&self, probabilities: &str, labels: &str, soft: bool, ignore_index: i64) -> PyResult<String> {
        self.one(|net| {
            let (probabilities, labels) = (net.main.find(probabilities)?, net.main.find(labels)?);
            net.cross_entropy_with(probabilities, labels, ClassLabels { soft, ignore_index })
        })
    }

    /// Returns the loss and the softmax.
    fn softmax_with_cross_entropy(
        &self,
        logits: &str,
        labels: &str,
        soft: bool,
        ignore_index: i64,
    ) -> PyResult<(String, String)> {
        self.build(|net| {
            let (logits, labels) = (net.main.find(logits)?, net.main.find(labels)?);
            let kind = ClassLabels { soft, ignore_index };
            let (loss, softmax) = net.softmax_with_cross_entropy_of(logits, labels, kind)?;
            Ok((name(net, loss), name(net, softmax)))
        })
    }

    fn auc(&self, predictions: &str, labels: &str, num_thresholds: usize, slide_steps: usize) -> PyResult<AucNames> {
        self.build(|net| {
            let (predictions, labels) = (net.main.find(predictions)?, net.main.find(labels)?);
            let auc = net.auc_with(predictions, labels, num_thresholds, slide_steps)?;
            Ok((name(net, auc.auc), name(net, auc.batch_auc), auc.counters.map(|counter| name(net, counter))))
        })
    }

    /// Returns the share of correct rows, their number, and the number of rows.
    fn accuracy(&self, scores: &str, labels: &str, k: usize) -> PyResult<(String, String, String)> {
        self.build(|net| {
            let (scores, labels) = (net.main.find(scores)?, net.main.find(labels)?);
            let vars = net.accuracy(scores, labels, k)?;
            Ok((name(net, vars.accuracy), name(net, vars.correct), name(net, vars.total)))
        })
    }

    // Models.

    fn ctr_dnn(
        &self,
        slots: Vec<String>,
        dense: Option<&str>,
        label: &str,
        dim: usize,
        hidden: Vec<usize>,
        share_ids: bool,
        storage: &str,
    ) -> PyResult<ClickNames> {
        self.click(&slots, dense, label, share_ids, storage, |net, inputs| {
            models::ctr_dnn(net, inputs, &models::CtrDnn { dim, hidden })
        })
    }

    fn wide_deep(
        &self,
        slots: Vec<String>,
        dense: Option<&str>,
        label: &str,
        dim: usize,
        hidden: Vec<usize>,
        wide_ids: bool,
        share_ids: bool,
        storage: &str,
    ) -> PyResult<ClickNames> {
        let shape = models::WideDeep { dim, hidden, wide_ids };
        self.click(&slots, dense, label, share_ids, storage, |net, inputs| models::wide_deep(net, inputs, &shape))
    }

    fn deepfm(
        &self,
        slots: Vec<String>,
        dense: Option<&str>,
        label: &str,
        dim: usize,
        hidden: Vec<usize>,
        share_ids: bool,
        storage: &str,
    ) -> PyResult<ClickNames> {
        self.click(&slots, dense, label, share_ids, storage, |net, inputs| {
            models::deepfm(net, inputs, &models::DeepFm { dim, hidden })
        })
    }

    fn dcn(
        &self,
        slots: Vec<String>,
        dense: Option<&str>,
        label: &str,
        dim: usize,
        crosses: usize,
        hidden: Vec<usize>,
        share_ids: bool,
        storage: &str,
    ) -> PyResult<ClickNames> {
        let shape = models::Dcn { dim, crosses, hidden };
        self.click(&slots, dense, label, share_ids, storage, |net, inputs| models::dcn(net, inputs, &shape))
    }

    /// Declares the fields `context` and `target`. Returns the loss.
    fn word2vec(&self, dim: usize, window: usize, negatives: usize) -> PyResult<String> {
        self.one(|net| Ok(models::word2vec(net, &models::Word2Vec { dim, window, negatives })?.loss))
    }
}

impl Net {
    /// Fails if both programs are the same: locking one program twice would deadlock.
    fn checked(self) -> PyResult<Self> {
        match Arc::ptr_eq(&self.main.0, &self.startup.0) {
            true => Err(PyValueError::new_err("the main and the startup program must be two programs, got one")),
            false => Ok(self),
        }
    }
}

fn all(net: &Builder, names: &[String]) -> Result<Vec<Var>> {
    names.iter().map(|name| net.main.find(name)).collect()
}

fn name(net: &Builder, var: Var) -> String {
    net.main.variable(var).name.clone()
}

fn unknown(op: &str) -> PyErr {
    PyValueError::new_err(format!("no layer is named `{op}`"))
}

fn parse_pooling(name: &str) -> PyResult<Pooling> {
    match name {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        "sqrtn" => Ok(Pooling::Sqrtn),
        "each" => Ok(Pooling::Each),
        _ => Err(PyValueError::new_err(format!(
            "`pooling` cannot be `{name}`\n\nhint: choose `sum`, `mean`, `sqrtn` or `each`"
        ))),
    }
}

fn parse_sequence_pooling(name: &str) -> PyResult<SequencePooling> {
    match name {
        "sum" => Ok(SequencePooling::Sum),
        "mean" => Ok(SequencePooling::Mean),
        "sqrtn" => Ok(SequencePooling::Sqrtn),
        "max" => Ok(SequencePooling::Max),
        "first" => Ok(SequencePooling::First),
        "last" => Ok(SequencePooling::Last),
        _ => Err(PyValueError::new_err(format!("no pooling of sequences is named `{name}`"))),
    }
}

fn parse_storage(name: &str) -> PyResult<RowStorage> {
    name.parse().map_err(|error: openfleet_table::Error| PyValueError::new_err(error.to_string()))
}

/// `ParamAttr` as the Python package writes it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Attributes {
    name: Option<String>,
    initializer: Option<Initializer>,
    learning_rate: Option<f32>,
    regularizer: Option<Regularizer>,
    frozen: bool,
    #[serde(default)]
    values: Option<Vec<f32>>,
}

fn parse_attr(json: &str) -> PyResult<ParamAttr> {
    let attributes: Attributes =
        serde_json::from_str(json).map_err(|error| PyValueError::new_err(format!("not a ParamAttr: {error}")))?;
    let Attributes { name, initializer, learning_rate, regularizer, frozen, values } = attributes;
    Ok(ParamAttr { name, initializer, learning_rate, regularizer, frozen, values })
}
