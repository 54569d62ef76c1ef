//! Stories through the public interface of the engine: programs are built, differentiated, trained, evaluated and read back.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod auc;
mod backward;
mod checkpoints;
mod executor;
mod models;
mod onnx;
mod optimizers;
mod outside;
mod predictor;
mod programs;
mod rows;
mod run_time_shapes;
mod sparse_gradients;

use std::path::PathBuf;
use std::sync::Arc;

use openfleet_core::{Key, Schema};
use openfleet_engine::dataset::{DatasetConfig, Format, InMemoryDataset, MultiSlot};
use openfleet_engine::{Executor, Net, ParamAttr, Scope, Var};
use openfleet_table::Initializer;
use tempfile::TempDir;

/// An executor on a new scope where the network's parameters have their first values.
fn started(net: &Net) -> Executor {
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    executor
}

/// A parameter without a layer, filled with one number.
fn constant(net: &mut Net, name: &str, dims: &[usize], value: f32) -> Var {
    net.create_parameter(dims, &ParamAttr { name: Some(name.into()), ..ParamAttr::init(Initializer::Constant(value)) })
        .unwrap()
}

/// The floats of a dense parameter.
fn dense(executor: &Executor, name: &str) -> Vec<f32> {
    executor.scope().get(name).unwrap().f32s().unwrap().to_vec()
}

/// The weights of a row of a sparse table.
fn row(executor: &Executor, table: &str, key: Key) -> Vec<f32> {
    let table = executor.scope().sparse(table).unwrap();
    table.read(key, |weights, _| weights.to_vec()).unwrap_or_else(|| panic!("no row {key}"))
}

/// Everything the scope holds, as bits: dense values by name, and rows with their optimizer state by table and key.
fn bits(executor: &Executor) -> Vec<(String, Vec<u32>)> {
    let mut all = Vec::new();
    let scope = executor.scope();
    for name in scope.names() {
        if let Some(table) = scope.sparse(&name) {
            table.for_each(|key, weights, state| {
                let row = weights.iter().chain(state).map(|v| v.to_bits()).collect();
                all.push((format!("{name} {key}"), row));
            });
        } else if let Some(values) = scope.get(&name).unwrap().f32s() {
            all.push((name, values.iter().map(|v| v.to_bits()).collect()));
        }
    }
    all.sort();
    all
}

/// A file with this text.
fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// MultiSlot files with the fields of a schema.
fn multislot(schema: &Schema, files: Vec<PathBuf>) -> DatasetConfig {
    DatasetConfig::new(schema.clone(), Format::MultiSlot(MultiSlot::default())).files(files)
}

fn loaded(config: DatasetConfig) -> InMemoryDataset {
    let mut dataset = InMemoryDataset::new(config).unwrap();
    dataset.load_into_memory().unwrap();
    dataset
}

/// Numbers that look random and are the same on every machine (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From 0 to 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}
