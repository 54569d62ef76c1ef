//! What is kept after the run: checkpoints, inference models, prediction from a saved model, ONNX export.

mod checkpoint;
mod inference;
pub mod onnx;
mod predictor;

pub use inference::InferenceModel;
pub use predictor::Predictor;
