//! Which keys get a row.
//!
//! A key that is not admitted pulls zeros, and its gradients are dropped and counted; the model trains as if the feature were
//! absent. It costs 16 bytes while it is being counted, and nothing otherwise. Whether a key is admitted never depends on its
//! neighbours in a request, on the number of shards, or on the order of requests for other keys, until more keys are being
//! counted than [`UNADMITTED_LIMIT`] and some of them are forgotten.
//!
//! A key that has a row keeps it until the row is evicted, and must then be admitted again. Counts of keys without a row are
//! not part of a checkpoint. Only training counts: a pull with [`Missing::Initial`](crate::Missing::Initial) admits no key.

use openfleet_core::Key;
use openfleet_core::key::mix;
use serde::{Deserialize, Serialize};

use crate::error::{Result, require};

/// The condition under which a key gets a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Admission {
    /// Every key gets a row as soon as it is seen.
    #[default]
    All,
    /// The key has been pulled this many times for training; the pull that reaches the count gets the new row. 0 and 1 admit at
    /// once. Pulls count and pushes do not, because every sample that pushes a key has pulled it.
    Count(u32),
    /// Drawn once per key with this probability, by a hash of the table's seed and the key: always the same keys, on any
    /// server, after any restart.
    Probability(f64),
    /// The key's pushes have brought this many shows and this many clicks. The push that reaches both creates the row; its own
    /// gradient was computed on zeros and is dropped like those before it.
    ShowClick {
        /// Number of samples with the key.
        show: f32,
        /// Number of those samples with a positive label.
        click: f32,
    },
}

/// Maximum number of keys without a row that a table counts: 64 MiB.
pub(crate) const UNADMITTED_LIMIT: usize = 1 << 22;

impl Admission {
    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Admission::All => Ok(()),
            // Counts are stored as floats, which cannot represent every integer above this.
            Admission::Count(count) => {
                require(count <= 1 << 24, "admission by count", "count", "at most 16777216", count)
            }
            Admission::Probability(p) => {
                require((0.0..=1.0).contains(&p), "admission by probability", "probability", "from 0 to 1", p)
            }
            Admission::ShowClick { show, click } => {
                let owner = "admission by show and click";
                require(show >= 0.0 && show.is_finite(), owner, "show", "a number not below 0", show)?;
                require(click >= 0.0 && click.is_finite(), owner, "click", "a number not below 0", click)
            }
        }
    }

    /// Whether a key that was never seen before is admitted at once.
    pub(crate) fn at_once(&self, seed: u64, key: Key) -> bool {
        match *self {
            Admission::All | Admission::Count(0 | 1) => true,
            Admission::Probability(p) => unit(seed, key) < p,
            Admission::Count(_) | Admission::ShowClick { .. } => false,
        }
    }
}

/// A number in `[0, 1)` derived from the key, independent of its first weights.
fn unit(seed: u64, key: Key) -> f64 {
    let hash = mix(mix(seed ^ 0xd6e8_feb8_6659_fd93) ^ mix(key));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_drawn_once_and_for_all_and_the_share_is_the_probability() {
        let admission = Admission::Probability(0.3);
        let admitted = (0..100_000).filter(|key| admission.at_once(7, *key)).count();
        // Four standard deviations of a binomial: 4 * sqrt(100000 * 0.3 * 0.7) = 580.
        assert!(admitted.abs_diff(30_000) < 580, "{admitted}");
        let again = (0..100_000).filter(|key| admission.at_once(7, *key)).count();
        assert_eq!(admitted, again);
        assert!(
            (0..100).any(|key| admission.at_once(7, key) != admission.at_once(8, key)),
            "another table admits other keys"
        );
        assert!(!(0..1000).any(|key| Admission::Probability(0.0).at_once(7, key)));
        assert!((0..1000).all(|key| Admission::Probability(1.0).at_once(7, key)));
    }

    #[test]
    fn numbers_outside_their_domain_are_named() {
        assert_eq!(
            Admission::Probability(1.5).validate().unwrap_err().to_string(),
            "`probability` of admission by probability must be from 0 to 1, got 1.5"
        );
        assert!(Admission::ShowClick { show: f32::NAN, click: 0.0 }.validate().is_err());
        assert!(Admission::Count(u32::MAX).validate().is_err());
    }
}
