//! A model that `openfleet train` does not have, saved as `save_inference_model` saves it.

use std::sync::Arc;

use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Net, ParamAttr, Predictor, Scope};
use openfleet_table::Initializer;

use crate::data::Workspace;

/// Saves it in `own`: two slots and two floats; outputs two numbers between 0 and 1, and `exp` of the floats.
pub(crate) fn saved(workspace: &Workspace) -> Predictor {
    let mut net = Net::with_seed(3);
    let (user, item) = (net.slot("user").unwrap(), net.slot("item").unwrap());
    let dense = net.data("dense", &[-1, 2], DType::F32).unwrap();
    let table = || ParamAttr { name: Some("t".into()), ..ParamAttr::init(Initializer::Normal { mean: 0.0, std: 1.0 }) };
    let options = || EmbeddingOptions { table: table(), ..EmbeddingOptions::default() };
    let user = net.embedding(user, 3, &options()).unwrap();
    let item = net.embedding(item, 3, &options()).unwrap();
    let all = net.concat(&[user, item, dense], 1).unwrap();
    let p = net.fc(all, 2, Activation::Sigmoid).unwrap();
    let grown = net.exp(dense).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    let feeds = ["user", "item", "dense"].map(str::to_owned);
    executor.save_inference_model(&net.main, &feeds, &[p, grown], &workspace.at("own")).unwrap();
    Predictor::open(&workspace.at("own")).unwrap()
}
