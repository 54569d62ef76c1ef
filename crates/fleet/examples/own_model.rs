//! Defines a model, trains it on a file with two threads and prints its AUC.
//!
//!     cargo run --release --example own_model
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use openfleet::dataset::{DatasetConfig, Format, InMemoryDataset, MultiSlot};
use openfleet::{
    Activation, Adam, DType, EmbeddingOptions, Executor, Field, FieldKind, Minimize, Net, Observation, Optimizer,
    RunOptions, Schema, Scope,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Clicks of 500 users: young users with an even number click. One row per line, each field as `count values...`.
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("clicks.txt");
    let lines: String = (0..20_000u64)
        .map(|i| {
            let (user, age) = (i * 7919 % 500, (i * 104_729 % 60) as f32 / 60.0);
            let clicked = u64::from(user % 2 == 0 && age < 0.5);
            format!("1 {clicked} 1 {age} 1 {user}\n")
        })
        .collect();
    std::fs::write(&file, lines)?;

    let mut net = Net::with_seed(1);
    let label = net.data("label", &[-1, 1], DType::I64)?; // -1 is the batch
    let age = net.data("age", &[-1, 1], DType::F32)?;
    let user = net.slot("user")?; // any number of 64-bit ids per row
    let user = net.embedding(user, 16, &EmbeddingOptions::default())?;
    let x = net.concat(&[user, age], 1)?;
    let x = net.fc(x, 64, Activation::Relu)?;
    let logit = net.fc(x, 1, Activation::Linear)?;
    let target = net.cast(label, DType::F32)?;
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target)?;
    let loss = net.mean(losses)?;
    let probability = net.sigmoid(logit)?;
    let auc = net.auc(probability, label)?;
    Minimize::new(Optimizer::Adam(Adam::default()), 1e-2).minimize(&mut net.main, loss)?;

    let schema = Schema::new(vec![
        Field::new("label", FieldKind::FixedIds { length: 1 }),
        Field::new("age", FieldKind::Floats { dim: 1 }),
        Field::new("user", FieldKind::Ids),
    ])?;
    let config = DatasetConfig::new(schema, Format::MultiSlot(MultiSlot::default())).files([file]).batch_size(64);
    let mut dataset = InMemoryDataset::new(config)?;
    dataset.load_into_memory()?;

    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup)?;
    for epoch in 0..3 {
        dataset.local_shuffle(epoch)?;
        let show = |seen: &Observation| {
            println!("step {:>4}  {} {:.4}", seen.step, seen.info[0], seen.values[0].scalar().unwrap_or(f64::NAN));
        };
        let options = RunOptions {
            threads: 2,
            fetch: &[auc.batch_auc],
            fetch_info: &["batch AUC"],
            print_period: 50,
            observer: Some(&show),
            ..RunOptions::default()
        };
        let report = executor.train_from_dataset(&net.main, &dataset, &options)?;
        println!("epoch {epoch}: {} samples, {:.0} per second", report.samples, report.samples_per_second());
    }
    Ok(())
}
