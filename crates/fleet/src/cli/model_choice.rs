//! The options for the model, and what they resolve to.

use clap::{Args, ValueEnum};
use openfleet_engine::models;
use openfleet_table::RowStorage;

use crate::error::{Error, Result};
use crate::model::ModelShape;

/// The model and its sizes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelOptions {
    /// Kind of model.
    #[arg(long, value_enum)]
    pub(crate) model: ModelKind,
    #[command(flatten)]
    pub(crate) sizes: ModelSizes,
}

/// The sizes of a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelSizes {
    /// Floats per embedding or word vector [ctr_dnn: 10; wide_deep, deepfm, dcn: 9; word2vec: 100].
    #[arg(long)]
    pub(crate) dim: Option<usize>,
    /// Sizes of the dense layers [ctr_dnn: 400,400,400; wide_deep, deepfm, dcn: 512,256,128,32].
    #[arg(long, value_delimiter = ',', value_name = "N,N,...")]
    hidden: Option<Vec<usize>>,
    /// wide_deep: the wide part also has one weight per id.
    #[arg(long)]
    wide_ids: bool,
    /// Treat equal ids of different slots as one feature with one row. By default every slot has its own rows. (The hashes
    /// of criteo and csv files include the slot and never collide across slots.)
    #[arg(long)]
    pub(crate) share_ids: bool,
    /// How the weights of embedding rows are stored [float32]. bfloat16 takes half the memory: updates are computed in 32 bits
    /// and rounded stochastically.
    #[arg(long, value_enum)]
    storage: Option<StorageChoice>,
    /// dcn: cross layers [2].
    #[arg(long)]
    crosses: Option<usize>,
    /// word2vec: the most context words on either side [5].
    #[arg(long)]
    window: Option<usize>,
    /// word2vec: negative samples per word [5].
    #[arg(long, alias = "negatives")]
    negative: Option<usize>,
    /// counter: multiply the loss by this [1]. In sync it should be the number of training threads of all workers, in
    /// half_async of one worker, because these modes average the gradients of that many threads.
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
    /// The name on the command line.
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

/// The largest size of a layer or embedding. A larger number is a typing error that would only exhaust memory.
const MAX_SIZE: usize = 1_000_000;

/// How rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum StorageChoice {
    Float32,
    Bfloat16,
}

impl ModelOptions {
    /// The model with its sizes. Fails for an option that the model does not have.
    pub(crate) fn resolve(&self) -> Result<ModelShape> {
        self.sizes.resolve(self.model)
    }
}

impl ModelSizes {
    /// How the rows of a click model are stored.
    pub(crate) fn storage(&self) -> RowStorage {
        match self.storage {
            None | Some(StorageChoice::Float32) => RowStorage::Float32,
            Some(StorageChoice::Bfloat16) => RowStorage::Bfloat16,
        }
    }

    /// A model with these sizes. Fails for an option that the model does not have.
    pub(crate) fn resolve(&self, kind: ModelKind) -> Result<ModelShape> {
        use ModelKind::{Counter, CtrDnn, Dcn, Deepfm, FitALine, WideDeep, Word2vec};
        let only = |given: bool, option, takers, taken: &[ModelKind]| match given && !taken.contains(&kind) {
            true => Err(Error::MeaninglessOption { option, owner: kind.name().into(), takers }),
            false => Ok(()),
        };
        only(self.dim.is_some(), "--dim", "models with embeddings", &[CtrDnn, WideDeep, Deepfm, Dcn, Word2vec])?;
        only(self.hidden.is_some(), "--hidden", "models with dense layers", &[CtrDnn, WideDeep, Deepfm, Dcn])?;
        only(self.share_ids, "--share-ids", "click models", &[CtrDnn, WideDeep, Deepfm, Dcn])?;
        only(self.storage.is_some(), "--storage", "click models", &[CtrDnn, WideDeep, Deepfm, Dcn])?;
        only(self.wide_ids, "--wide-ids", "wide_deep", &[WideDeep])?;
        only(self.crosses.is_some(), "--crosses", "dcn", &[Dcn])?;
        only(self.window.is_some(), "--window", "word2vec", &[Word2vec])?;
        only(self.negative.is_some(), "--negative", "word2vec", &[Word2vec])?;
        only(self.scale.is_some(), "--scale", "counter", &[Counter])?;
        self.check_sizes()?;
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

    /// The first of these options that only models have and that was given, if any was.
    pub(crate) fn first_of_models(&self) -> Option<&'static str> {
        let given = [
            (self.hidden.is_some(), "--hidden"),
            (self.wide_ids, "--wide-ids"),
            (self.share_ids, "--share-ids"),
            (self.crosses.is_some(), "--crosses"),
            (self.window.is_some(), "--window"),
            (self.negative.is_some(), "--negative"),
            (self.scale.is_some(), "--scale"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    fn hidden_or(&self, default: Vec<usize>) -> Vec<usize> {
        self.hidden.clone().unwrap_or(default)
    }

    fn check_sizes(&self) -> Result<()> {
        let hidden = self.hidden.iter().flatten().map(|&size| ("--hidden", Some(size)));
        let sizes = [("--dim", self.dim), ("--window", self.window), ("--negative", self.negative)];
        let scale = self.scale.map(|scale| ("--scale", Some(scale as usize)));
        let mut sizes = sizes.into_iter().chain(hidden).chain(scale);
        match sizes.find(|(_, size)| size.is_some_and(|size| size == 0 || size > MAX_SIZE)) {
            Some((option, size)) => {
                let (expected, got) = ("from 1 to 1,000,000", size.unwrap_or_default().to_string());
                Err(Error::BadOption { option, expected, got })
            }
            None => Ok(()),
        }
    }
}
