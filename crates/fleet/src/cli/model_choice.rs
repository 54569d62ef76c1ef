//! The options that choose a model, and what they resolve to.

use clap::{Args, ValueEnum};
use openfleet_engine::models;

use crate::error::{Error, Result};
use crate::model::ModelShape;

/// Which model, and its shape where it is not the default one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelOptions {
    /// The kind of model.
    #[arg(long, value_enum)]
    pub(crate) model: ModelKind,
    /// Floats in an embedding or a word vector [ctr_dnn: 10; wide_deep, deepfm, dcn: 9; word2vec: 100].
    #[arg(long)]
    dim: Option<usize>,
    /// Sizes of the dense layers [ctr_dnn: 400,400,400; wide_deep, deepfm, dcn: 512,256,128,32].
    #[arg(long, value_delimiter = ',', value_name = "N,N,...")]
    hidden: Option<Vec<usize>>,
    /// The wide part of wide_deep also has a weight for every id.
    #[arg(long)]
    wide_ids: bool,
    /// Equal ids of different slots are one feature, with one row; otherwise every slot has rows of its own. (Hashes of criteo
    /// and csv files are of their slot anyhow.)
    #[arg(long)]
    pub(crate) share_ids: bool,
    /// Cross layers of dcn [2].
    #[arg(long)]
    crosses: Option<usize>,
    /// Words to either side that word2vec looks at, at most [5].
    #[arg(long)]
    window: Option<usize>,
    /// Negative samples of word2vec for each word [5].
    #[arg(long, alias = "negatives")]
    negative: Option<usize>,
    /// counter multiplies its loss by this: in sync the number of training threads of all workers, in half_async that of one
    /// worker, because these modes average the gradients of so many [1].
    #[arg(long)]
    scale: Option<u32>,
}

/// The kinds of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ModelKind {
    /// Embeddings and floats through dense layers.
    #[value(alias = "ctr-dnn")]
    CtrDnn,
    /// A linear part beside a deep one.
    #[value(alias = "wide-deep")]
    WideDeep,
    /// Pairwise interactions beside a deep part.
    Deepfm,
    /// Explicit crosses beside a deep part.
    Dcn,
    /// Word vectors by skip-gram with negative sampling.
    Word2vec,
    /// Linear regression.
    #[value(alias = "fit-a-line")]
    FitALine,
    /// Counts how often each id occurs: a check that every row is trained exactly once.
    Counter,
}

impl ModelKind {
    /// As the user writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ModelKind::CtrDnn => "ctr_dnn",
            ModelKind::WideDeep => "wide_deep",
            ModelKind::Deepfm => "deepfm",
            ModelKind::Dcn => "dcn",
            ModelKind::Word2vec => "word2vec",
            ModelKind::FitALine => "fit_a_line",
            ModelKind::Counter => "counter",
        }
    }
}

/// What no size of a model exceeds: what is beyond was mistyped, and would only end for want of memory.
const MOST: usize = 1_000_000;

impl ModelOptions {
    /// The shape; an option that the model does not have is an error rather than ignored.
    pub(crate) fn resolve(&self) -> Result<ModelShape> {
        use ModelKind::{Counter, CtrDnn, Dcn, Deepfm, FitALine, WideDeep, Word2vec};
        let kind = self.model;
        let only = |given: bool, option, takers, taken: &[ModelKind]| match given && !taken.contains(&kind) {
            true => Err(Error::MeaninglessOption { option, owner: kind.name().into(), takers }),
            false => Ok(()),
        };
        only(self.dim.is_some(), "--dim", "models with embeddings", &[CtrDnn, WideDeep, Deepfm, Dcn, Word2vec])?;
        only(self.hidden.is_some(), "--hidden", "models with dense layers", &[CtrDnn, WideDeep, Deepfm, Dcn])?;
        only(self.share_ids, "--share-ids", "click models", &[CtrDnn, WideDeep, Deepfm, Dcn])?;
        only(self.wide_ids, "--wide-ids", "wide_deep", &[WideDeep])?;
        only(self.crosses.is_some(), "--crosses", "dcn", &[Dcn])?;
        only(self.window.is_some(), "--window", "word2vec", &[Word2vec])?;
        only(self.negative.is_some(), "--negative", "word2vec", &[Word2vec])?;
        only(self.scale.is_some(), "--scale", "counter", &[Counter])?;
        self.at_least_one()?;
        Ok(match kind {
            CtrDnn => {
                let default = models::CtrDnn::default();
                ModelShape::CtrDnn { dim: self.dim.unwrap_or(default.dim), hidden: self.hidden_or(default.hidden) }
            }
            WideDeep => {
                let default = models::WideDeep::default();
                ModelShape::WideDeep {
                    dim: self.dim.unwrap_or(default.dim),
                    hidden: self.hidden_or(default.hidden),
                    wide_ids: self.wide_ids || default.wide_ids,
                }
            }
            Deepfm => {
                let default = models::DeepFm::default();
                ModelShape::DeepFm { dim: self.dim.unwrap_or(default.dim), hidden: self.hidden_or(default.hidden) }
            }
            Dcn => {
                let default = models::Dcn::default();
                ModelShape::Dcn {
                    dim: self.dim.unwrap_or(default.dim),
                    hidden: self.hidden_or(default.hidden),
                    crosses: self.crosses.unwrap_or(default.crosses),
                }
            }
            Word2vec => {
                let default = models::Word2Vec::default();
                ModelShape::Word2vec {
                    dim: self.dim.unwrap_or(default.dim),
                    window: self.window.unwrap_or(default.window),
                    negatives: self.negative.unwrap_or(default.negatives),
                }
            }
            FitALine => ModelShape::FitALine,
            Counter => ModelShape::Counter { scale: self.scale.unwrap_or(models::Counter::default().scale) },
        })
    }

    fn hidden_or(&self, default: Vec<usize>) -> Vec<usize> {
        self.hidden.clone().unwrap_or(default)
    }

    fn at_least_one(&self) -> Result<()> {
        let hidden = self.hidden.iter().flatten().map(|&size| ("--hidden", Some(size)));
        let sizes = [("--dim", self.dim), ("--window", self.window), ("--negative", self.negative)];
        let scale = self.scale.map(|scale| ("--scale", Some(scale as usize)));
        let mut sizes = sizes.into_iter().chain(hidden).chain(scale);
        match sizes.find(|(_, size)| size.is_some_and(|size| size == 0 || size > MOST)) {
            Some((option, size)) => {
                let (expected, got) = ("from 1 to 1,000,000", size.unwrap_or_default().to_string());
                Err(Error::BadOption { option, expected, got })
            }
            None => Ok(()),
        }
    }
}
