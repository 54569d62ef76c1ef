//! Ops, one per file: the layer, the shape rule, the forward, the backward and, if there is one, the ONNX form.
//!
//! An op is plain data (its attributes) plus the [`Operator`] trait. It reads its inputs and writes its outputs through the views
//! of [`memory`](crate::memory); it owns no memory and knows no thread and no other op. The list at the end of this file is
//! complete.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::Variable;
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// What the shape rule of an op knows about a variable.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Its shape.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
    /// Whether it is a slot with any number of ids per row.
    pub ragged: bool,
}

impl Signature {
    /// A float tensor of this shape.
    pub fn float(shape: Shape) -> Self {
        Signature { shape, dtype: DType::F32, ragged: false }
    }

    /// The signature of a variable.
    pub fn of(variable: &Variable) -> Self {
        Signature { shape: variable.shape.clone(), dtype: variable.dtype, ragged: variable.ragged }
    }
}

/// The interface of an op.
pub trait Operator {
    /// Its name in error messages and profiles.
    fn name(&self) -> &'static str;

    /// Checks the inputs and returns the signatures of the outputs.
    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>>;

    /// The signatures of the outputs when the program runs: every size is known, and so are the values of the inputs. Only for
    /// programs with dimensions that are unknown before.
    fn infer_at_run(&self, inputs: &[Signature], _values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.infer(inputs)
    }

    /// Whether sizes of the outputs depend on the values of an input, and not only on its shape.
    fn is_sized_by(&self, _input: usize) -> bool {
        false
    }

    /// Pairs of inputs: a sparse table, and the slot of ids that is looked up in it.
    fn lookups(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// The text that salts the ids of its lookups ([`key::salt`](openfleet_core::key::salt)), if any.
    fn salt(&self) -> Option<&str> {
        None
    }

    /// Whether an input is a state in the scope that the op changes.
    fn changes_state(&self, _input: usize) -> bool {
        false
    }

    /// Computes the outputs. The output buffers have the right length and arbitrary content.
    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()>;

    /// Whether a gradient can flow to an input.
    fn has_gradient(&self, _input: usize) -> bool {
        true
    }

    /// Adds to the gradients of the inputs, given the gradients of the outputs.
    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()>;

    /// Writes the ONNX nodes that compute what evaluation computes. By default an op has no ONNX form, which is an error.
    fn onnx(&self, _node: &mut OnnxNode<'_, '_>) -> Result<()> {
        no_onnx_form(self.name())
    }
}

/// The error of an op, or of a use of it, that has no ONNX form.
pub(crate) fn no_onnx_form<T>(op: &'static str) -> Result<T> {
    Err(Error::NoOnnxForm { op })
}

/// The error of a shape rule.
pub(crate) fn expected<T>(op: &'static str, expected: impl Into<String>, got: impl std::fmt::Display) -> Result<T> {
    Err(Error::Input { op, expected: expected.into(), got: got.to_string() })
}

/// Fails unless every input has floats.
pub(crate) fn expect_floats(op: &'static str, inputs: &[Signature]) -> Result<()> {
    match inputs.iter().position(|input| !input.dtype.is_float()) {
        Some(i) => expected(op, "floats", format!("integers as input {i}; `cast` them first")),
        None => Ok(()),
    }
}

/// The shapes of all inputs as text.
pub(crate) fn shapes(inputs: &[Signature]) -> String {
    inputs.iter().map(|input| input.shape.to_string()).collect::<Vec<_>>().join(" and ")
}

macro_rules! operators {
    ($($(#[$doc:meta])* $module:ident::$name:ident),* $(,)?) => {
        $(mod $module; pub use $module::$name;)*

        /// Any op, with its attributes.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum Op { $($(#[$doc])* $name($name)),* }

        impl Op {
            /// The op as a trait object.
            pub fn operator(&self) -> &dyn Operator {
                match self { $(Op::$name(op) => op),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*
    };
}

mod broadcast;
pub(crate) mod class_labels;
mod compare;
mod integers;
mod parameter;
mod recurrent;
mod reduce;
mod sequence;
mod size_inputs;
mod unary;
mod view;
mod windows;

pub use accuracy::AccuracyVars;
pub use auc::AucVars;
pub use batch_norm::BatchNormOptions;
pub use class_labels::ClassLabels;
pub use constant::ConstantValue;
pub use dropout::DropoutMode;
pub use embedding::{EmbeddingOptions, Pooling};
pub use fc::{Activation, FcOptions};
pub use layer_norm::LayerNormOptions;
pub use literal::LiteralValues;
pub use lookup::DenseEmbeddingOptions;
pub use pool2d::{Pool, PoolWindows};
pub use reduce::Axes;
pub use sequence_pool::SequencePooling;
pub use size_inputs::{Size, SizeInputs};
pub use skip_gram::SkipGramOptions;
pub use windows::Windows;

operators! {
    /// The absolute value.
    abs::Abs,
    /// The fraction of rows with the right class among the highest scores.
    accuracy::Accuracy,
    /// x + y.
    add::Add,
    /// x + y of integers.
    add_integers::AddIntegers,
    /// A copy.
    assign::Assign,
    /// Area under the curve, with its counters.
    auc::Auc,
    /// Normalises every channel over the batch.
    batch_norm::BatchNorm,
    /// Binary cross entropy on probabilities, with clamped logarithms.
    binary_cross_entropy::BinaryCrossEntropy,
    /// The bits that both x and y have.
    bitwise_and::BitwiseAnd,
    /// The bits that x or y have.
    bitwise_or::BitwiseOr,
    /// The bits that one of x and y has.
    bitwise_xor::BitwiseXor,
    /// One matrix product per row of the batch.
    bmm::Bmm,
    /// Integers to floats and back.
    cast::Cast,
    /// Rounds up.
    ceil::Ceil,
    /// x limited to an interval.
    clip::Clip,
    /// Joins tensors along an axis.
    concat::Concat,
    /// One number in every element.
    constant::Constant,
    /// Two-dimensional convolution.
    conv2d::Conv2d,
    /// cos(x).
    cos::Cos,
    /// A cross layer: x0 (x . w) + b + x.
    cross::Cross,
    /// Cross entropy of probabilities over classes.
    cross_entropy::CrossEntropy,
    /// The sums of the elements so far.
    cumsum::Cumsum,
    /// x / y.
    divide::Divide,
    /// Sets random elements to zero in training.
    dropout::Dropout,
    /// Rows of a sparse table, pooled.
    embedding::Embedding,
    /// x == y.
    equal::Equal,
    /// The error function.
    erf::Erf,
    /// e to the power of x.
    exp::Exp,
    /// Repeats dimensions of 1 up to a shape.
    expand::Expand,
    /// A dense layer with bias and activation.
    fc::Fc,
    /// Rounds down.
    floor::Floor,
    /// x / y of integers, rounded down.
    floor_divide::FloorDivide,
    /// Products of all pairs of fields.
    fm::Fm,
    /// Rows selected by index.
    gather::Gather,
    /// Parts of a tensor, selected by several indices each.
    gather_nd::GatherNd,
    /// x >= y.
    greater_equal::GreaterEqual,
    /// x > y.
    greater_than::GreaterThan,
    /// A gated recurrent unit.
    gru::Gru,
    /// First values of a parameter.
    initialize::Initialize,
    /// Scales vectors to length 1.
    l2_normalize::L2Normalize,
    /// Normalises every row.
    layer_norm::LayerNorm,
    /// x <= y.
    less_equal::LessEqual,
    /// x < y.
    less_than::LessThan,
    /// A constant tensor.
    literal::Literal,
    /// ln(x).
    log::Log,
    /// log(1 + x).
    log1p::Log1p,
    /// Binary cross entropy on probabilities.
    log_loss::LogLoss,
    /// x and y.
    logical_and::LogicalAnd,
    /// Not x.
    logical_not::LogicalNot,
    /// x or y.
    logical_or::LogicalOr,
    /// Rows of a dense parameter, by id.
    lookup::Lookup,
    /// A long short-term memory.
    lstm::Lstm,
    /// Elements where a mask is true.
    masked_select::MaskedSelect,
    /// Matrix products, one or a batch of them.
    matmul::Matmul,
    /// The larger of x and y.
    maximum::Maximum,
    /// The mean of all elements.
    mean::Mean,
    /// The smaller of x and y.
    minimum::Minimum,
    /// The remainder of x / y of integers.
    modulo::Modulo,
    /// Classes drawn at random, by weight.
    multinomial::Multinomial,
    /// x * y.
    multiply::Multiply,
    /// x y of integers.
    multiply_integers::MultiplyIntegers,
    /// Where a tensor is not 0.
    nonzero::Nonzero,
    /// x != y.
    not_equal::NotEqual,
    /// One-hot rows from integers.
    one_hot::OneHot,
    /// The maximum or the mean of each window.
    pool2d::Pool2d,
    /// x to the power of a constant.
    pow::Pow,
    /// Random floats, new ones in every step.
    random::Random,
    /// The value of a state.
    read_state::ReadState,
    /// The greatest element over some axes.
    reduce_max::ReduceMax,
    /// The mean over some axes.
    reduce_mean::ReduceMean,
    /// The product over some axes.
    reduce_prod::ReduceProd,
    /// The sum over some axes.
    reduce_sum::ReduceSum,
    /// max(x, 0).
    relu::Relu,
    /// The same elements in another shape.
    reshape::Reshape,
    /// Rounds to the nearest integer.
    round::Round,
    /// A constant times x plus a constant.
    scale::Scale,
    /// A tensor with some of its rows replaced.
    scatter::Scatter,
    /// Elements of x or y, selected by a condition.
    select::Select,
    /// 1 / (1 + exp(-x)).
    sigmoid::Sigmoid,
    /// Binary cross entropy on logits.
    sigmoid_cross_entropy::SigmoidCrossEntropy,
    /// -1, 0 or 1.
    sign::Sign,
    /// sin(x).
    sin::Sin,
    /// The sizes of a tensor's dimensions.
    sizes::Sizes,
    /// Skip-gram with negative sampling.
    skip_gram::SkipGram,
    /// Repeats one row per sequence for each row of the sequence.
    sequence_expand::SequenceExpand,
    /// Sequences of different lengths as one tensor.
    sequence_pad::SequencePad,
    /// One row for each sequence.
    sequence_pool::SequencePool,
    /// The rows of each sequence in reverse order.
    sequence_reverse::SequenceReverse,
    /// A softmax over the rows of each sequence.
    sequence_softmax::SequenceSoftmax,
    /// Joins the sequences of a padded tensor.
    sequence_unpad::SequenceUnpad,
    /// The rows around each row of a sequence.
    sequence_window::SequenceWindow,
    /// A range of some dimensions.
    slice::Slice,
    /// The ids of a slot as a tensor.
    slot_ids::SlotIds,
    /// The number of ids in each row of a slot.
    slot_lengths::SlotLengths,
    /// exp(x) / sum exp(x) along an axis.
    softmax::Softmax,
    /// Cross entropy on logits over classes.
    softmax_with_cross_entropy::SoftmaxWithCrossEntropy,
    /// The elements in order.
    sort::Sort,
    /// Splits into parts along an axis.
    split::Split,
    /// The square root.
    sqrt::Sqrt,
    /// x².
    square::Square,
    /// The squared difference.
    square_error_cost::SquareErrorCost,
    /// Removes dimensions of size 1.
    squeeze::Squeeze,
    /// Joins along a new axis.
    stack::Stack,
    /// x - y.
    subtract::Subtract,
    /// x - y of integers.
    subtract_integers::SubtractIntegers,
    /// tanh(x).
    tanh::Tanh,
    /// Repeats a tensor along its dimensions.
    tile::Tile,
    /// The k greatest or least elements of each row.
    topk::TopK,
    /// Permutes dimensions.
    transpose::Transpose,
    /// Inserts dimensions of size 1.
    unsqueeze::Unsqueeze,
    /// Sets a state.
    write_state::WriteState,
}
