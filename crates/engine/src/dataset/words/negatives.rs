//! Draws negative samples for Word2Vec.

use openfleet_core::key::mix;

/// A random generator; each span starts a new one.
pub(super) struct SpanRandom(pub(super) u64);

impl SpanRandom {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() >> 32) * bound) >> 32
    }
}

/// Draws words with probability proportional to count to the power 0.75 (Walker's alias method: one lookup per draw).
pub(super) struct NegativeSampler {
    /// Per word: keep it if 32 random bits are below the first number, else take the second.
    entries: Vec<(u32, u32)>,
}

impl NegativeSampler {
    pub(super) fn new(counts: &[u64]) -> Self {
        let weights: Vec<f64> = counts.iter().map(|&c| (c as f64).powf(0.75)).collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut shares: Vec<f64> = weights.iter().map(|w| w / mean).collect();
        let mut entries: Vec<(u32, u32)> = (0..counts.len() as u32).map(|i| (u32::MAX, i)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..shares.len()).partition(|&i| shares[i] < 1.0);
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            entries[less] = ((shares[less] * f64::from(u32::MAX)) as u32, more as u32);
            shares[more] -= 1.0 - shares[less];
            if shares[more] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        NegativeSampler { entries }
    }

    /// Draws a word other than `not`, unless there is no other.
    pub(super) fn draw(&self, not: u32, random: &mut SpanRandom) -> u32 {
        loop {
            let bits = random.bits();
            let word = (((bits >> 32) * self.entries.len() as u64) >> 32) as u32;
            let (stay_below, other) = self.entries[word as usize];
            let drawn = if (bits as u32) < stay_below { word } else { other };
            if drawn != not || self.entries.len() == 1 {
                return drawn;
            }
        }
    }
}
