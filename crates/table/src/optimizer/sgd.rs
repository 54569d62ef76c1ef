//! `w -= rate * g`.

use serde::{Deserialize, Serialize};

use super::Rule;

/// Plain gradient descent; no state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    pub(crate) rate: f32,
}

impl Rule<0> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, _: [f32; 0], gradient: f32) -> (f32, [f32; 0]) {
        (weight - self.rate * gradient, [])
    }
}
