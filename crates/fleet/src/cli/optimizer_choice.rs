//! The options for the optimizer, and what they resolve to.

use clap::{Args, ValueEnum};
use openfleet_engine::Minimize;
use openfleet_table::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Clip, DecayedAdagrad, Ftrl, Lamb, Momentum, Optimizer, Regularizer,
    RmsProp, RowwiseAdagrad, Schedule, Sgd,
};

use super::model_choice::ModelKind;
use crate::error::{Error, Result};

/// The learning rate at which word2vec's linear decay ends, as in Mikolov's C program.
const WORD2VEC_LAST_RATE: f64 = 1e-4;

/// The optimizer, its learning rate, and what is done to gradients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Optimizer")]
pub(crate) struct OptimizerOptions {
    /// Optimizer [click models: adam; word2vec, fit_a_line, counter: sgd].
    #[arg(long, value_enum)]
    pub(crate) optimizer: Option<Rule>,
    /// Learning rate [adam, adamw, adamax, lamb, rmsprop: 0.001; sgd, momentum, adagrad, decayed_adagrad,
    /// rowwise_adagrad: 0.01; ftrl: 0.05; adadelta: 1; counter: 1; word2vec: 0.025, falling linearly to 0.0001 over the
    /// run].
    #[arg(long, alias = "lr", value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Decay of the learning rate, counted in batches of all threads: exponential:STEPS:FACTOR, staircase:STEPS:FACTOR,
    /// inverse_time:STEPS:RATE, linear:STEPS[:LAST], cosine:STEPS.
    #[arg(long, value_name = "KIND:...")]
    lr_decay: Option<String>,
    /// Batches over which the learning rate first rises from 0.
    #[arg(long, value_name = "STEPS")]
    lr_warmup: Option<u64>,
    /// L1 penalty on the weights.
    #[arg(long, value_name = "COEFFICIENT")]
    l1: Option<f64>,
    /// L2 penalty on the weights.
    #[arg(long, value_name = "COEFFICIENT")]
    l2: Option<f64>,
    /// Scale the gradients of a batch down to this global norm.
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Rule {
    Adam,
    Sgd,
    Momentum,
    Adagrad,
    /// One accumulator per embedding row; dense layers are trained by adagrad.
    #[value(name = "rowwise_adagrad", alias = "rowwise-adagrad")]
    RowwiseAdagrad,
    #[value(alias = "rms_prop")]
    RmsProp,
    Ftrl,
    AdamW,
    Adamax,
    Adadelta,
    #[value(name = "decayed_adagrad", alias = "decayed-adagrad")]
    DecayedAdagrad,
    /// Steps in proportion to the norm of each dense parameter, and of each embedding row.
    Lamb,
}

impl Rule {
    /// The optimizer of a model, if the user chooses none.
    pub(crate) fn default_for(model: ModelKind) -> Self {
        match model {
            ModelKind::Word2vec | ModelKind::FitALine | ModelKind::Counter => Rule::Sgd,
            _ => Rule::Adam,
        }
    }

    /// The optimizer with its default settings.
    pub(crate) fn optimizer(self) -> Optimizer {
        match self {
            Rule::Adam => Optimizer::Adam(Adam::default()),
            Rule::Sgd => Optimizer::Sgd(Sgd::default()),
            Rule::Momentum => Optimizer::Momentum(Momentum::default()),
            Rule::Adagrad => Optimizer::Adagrad(Adagrad::default()),
            Rule::RowwiseAdagrad => Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()),
            Rule::RmsProp => Optimizer::RmsProp(RmsProp::default()),
            Rule::Ftrl => Optimizer::Ftrl(Ftrl::default()),
            Rule::AdamW => Optimizer::AdamW(AdamW::default()),
            Rule::Adamax => Optimizer::Adamax(Adamax::default()),
            Rule::Adadelta => Optimizer::Adadelta(Adadelta::default()),
            Rule::DecayedAdagrad => Optimizer::DecayedAdagrad(DecayedAdagrad::default()),
            Rule::Lamb => Optimizer::Lamb(Lamb::default()),
        }
    }
}

impl OptimizerOptions {
    /// The optimizer with its schedule. `run_steps` is the number of updates of the whole run, if known.
    pub(crate) fn resolve(&self, model: ModelKind, run_steps: Option<u64>) -> Result<Minimize> {
        let rule = self.optimizer.unwrap_or(Rule::default_for(model));
        let (l1, l2) = (self.l1.unwrap_or(0.0), self.l2.unwrap_or(0.0));
        let default_rate = match rule {
            Rule::Adam | Rule::AdamW | Rule::Adamax | Rule::Lamb | Rule::RmsProp => 1e-3,
            Rule::Sgd if model == ModelKind::Word2vec => 0.025,
            Rule::Sgd if model == ModelKind::Counter => 1.0,
            Rule::Sgd | Rule::Momentum | Rule::Adagrad | Rule::DecayedAdagrad | Rule::RowwiseAdagrad => 0.01,
            Rule::Ftrl => 0.05,
            Rule::Adadelta => 1.0,
        };
        let optimizer = match rule {
            // FTRL applies its own penalties, which make weights exactly zero.
            Rule::Ftrl => Optimizer::Ftrl(Ftrl { l1, l2, ..Ftrl::default() }),
            _ => rule.optimizer(),
        };
        let base = self.learning_rate.unwrap_or(default_rate);
        if !(base.is_finite() && base > 0.0) {
            return Err(Error::BadOption {
                option: "--learning-rate",
                expected: "a number above 0",
                got: base.to_string(),
            });
        }
        let mut minimize = Minimize::new(optimizer, base);
        minimize = minimize.schedule(self.schedule(model, base, run_steps)?);
        minimize.regularizer = match (rule, self.l1, self.l2) {
            (Rule::Ftrl, ..) | (_, None, None) => None,
            (_, Some(l1), None) => Some(Regularizer::L1(l1 as f32)),
            (_, None, Some(l2)) => Some(Regularizer::L2(l2 as f32)),
            (_, Some(_), Some(_)) => {
                let remedy = "only ftrl takes both: choose one, or `--optimizer ftrl`";
                return Err(Error::Contradiction { first: "--l1", second: "--l2", remedy });
            }
        };
        minimize.clip = self.clip_norm.map(Clip::GlobalNorm);
        // Report a bad number before reading files, not when the tables are created.
        minimize.optimizer.validate()?;
        minimize.schedule.validate()?;
        minimize.regularizer.map_or(Ok(()), |regularizer| regularizer.validate())?;
        minimize.clip.map_or(Ok(()), |clip| clip.validate())?;
        Ok(minimize)
    }

    /// Steps after which the learning rate reaches its full value.
    pub(crate) fn warmup_steps(&self) -> u64 {
        self.lr_warmup.unwrap_or(0)
    }

    fn schedule(&self, model: ModelKind, base: f64, run_steps: Option<u64>) -> Result<Schedule> {
        let after = match (&self.lr_decay, model, run_steps) {
            (Some(text), ..) => decay(text, base)?,
            (None, ModelKind::Word2vec, Some(steps)) => Schedule::Polynomial {
                base,
                decay_steps: steps.max(1),
                end: WORD2VEC_LAST_RATE.min(base),
                power: 1.0,
                cycle: false,
            },
            (None, ..) => Schedule::Constant(base),
        };
        Ok(match self.lr_warmup {
            None | Some(0) => after,
            Some(warmup_steps) => Schedule::Warmup { warmup_steps, start: 0.0, end: base, after: Box::new(after) },
        })
    }
}

/// Parses `KIND:NUMBER[:NUMBER]` into a schedule that starts from `base`.
fn decay(text: &str, base: f64) -> Result<Schedule> {
    let bad = || Error::BadOption {
        option: "--lr-decay",
        expected: "exponential:STEPS:FACTOR, staircase:STEPS:FACTOR, inverse_time:STEPS:RATE, linear:STEPS[:LAST] or \
                   cosine:STEPS",
        got: text.to_owned(),
    };
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default();
    let decay_steps: u64 = parts.next().and_then(|steps| steps.parse().ok()).ok_or_else(bad)?;
    let number = parts.next().map(|number| number.parse::<f64>().map_err(|_| bad())).transpose()?;
    if parts.next().is_some() {
        return Err(bad());
    }
    let staircase = kind == "staircase";
    Ok(match (kind.replace('-', "_").as_str(), number) {
        ("exponential" | "staircase", Some(decay_rate)) => {
            Schedule::Exponential { base, decay_steps, decay_rate, staircase }
        }
        ("inverse_time", Some(decay_rate)) => Schedule::InverseTime { base, decay_steps, decay_rate, staircase },
        ("linear", last) => {
            Schedule::Polynomial { base, decay_steps, end: last.unwrap_or(0.0), power: 1.0, cycle: false }
        }
        ("cosine", None) => Schedule::Cosine { base, step_each_epoch: 1, epochs: decay_steps },
        _ => return Err(bad()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> OptimizerOptions {
        OptimizerOptions {
            optimizer: None,
            learning_rate: None,
            lr_decay: None,
            lr_warmup: None,
            l1: None,
            l2: None,
            clip_norm: None,
        }
    }

    #[test]
    fn each_rule_has_a_rate_of_its_own() {
        let rate = |model, optimizer| {
            let options = OptimizerOptions { optimizer, ..options() };
            options.resolve(model, Some(10)).unwrap().schedule.rate(0)
        };
        assert_eq!(rate(ModelKind::CtrDnn, None), 1e-3);
        assert_eq!(rate(ModelKind::CtrDnn, Some(Rule::Ftrl)), 0.05);
        assert_eq!(rate(ModelKind::CtrDnn, Some(Rule::Adadelta)), 1.0);
        assert_eq!(rate(ModelKind::FitALine, None), 0.01);
        assert_eq!(rate(ModelKind::Word2vec, None), 0.025);
        assert_eq!(rate(ModelKind::Counter, None), 1.0);
    }

    #[test]
    fn word2vec_falls_in_a_straight_line_over_the_run() {
        let schedule = options().resolve(ModelKind::Word2vec, Some(1000)).unwrap().schedule;
        assert!((schedule.rate(500) - (0.025 + 1e-4) / 2.0).abs() < 1e-12);
        assert!((schedule.rate(1000) - 1e-4).abs() < 1e-12);
    }

    #[test]
    fn decays_are_read_and_refused() {
        let at = |text: &str, step| decay(text, 1.0).map(|schedule| schedule.rate(step));
        assert_eq!(at("exponential:10:0.5", 10).unwrap(), 0.5);
        assert_eq!(at("staircase:10:0.5", 9).unwrap(), 1.0);
        assert_eq!(at("inverse-time:10:1", 10).unwrap(), 0.5);
        assert_eq!(at("linear:10:0.5", 5).unwrap(), 0.75);
        assert!(at("cosine:10", 10).unwrap().abs() < 1e-12);
        for bad in ["", "linear", "exponential:10", "exponential:x:0.5", "cosine:1:2", "linear:1:2:3", "sine:3"] {
            let error = at(bad, 0).unwrap_err();
            assert!(error.to_string().starts_with("`--lr-decay`: expected exponential:STEPS:FACTOR"), "{error}");
        }
    }

    #[test]
    fn two_penalties_need_ftrl() {
        let both = |optimizer| {
            OptimizerOptions { optimizer, l1: Some(0.1), l2: Some(0.2), ..options() }.resolve(ModelKind::Dcn, None)
        };
        assert_eq!(both(None).unwrap_err().to_string(), "`--l1` and `--l2` contradict each other");
        let ftrl = both(Some(Rule::Ftrl)).unwrap();
        assert_eq!(ftrl.optimizer, Optimizer::Ftrl(Ftrl { l1: 0.1, l2: 0.2, ..Ftrl::default() }));
        assert_eq!(ftrl.regularizer, None);
    }
}
