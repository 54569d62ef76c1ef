//! Random numbers that are a function of where they are used: (seed, stream, index, draw).
//!
//! There is no generator state, so row 900,000 needs no row before it. Streams separate uses: the random numbers of labels are
//! independent of those of ids.

use openfleet_core::key::mix;

use super::portable::{exp, ln};

/// The draws of one (seed, stream, index).
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// The draws of `index` in a stream of a seed.
    pub(super) fn at(seed: u64, stream: u64, index: u64) -> Self {
        Random { state: mix(mix(mix(seed ^ 0x6f70_656e_666c_6565) ^ stream).wrapping_add(index)) }
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Uniform in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform among 0..n.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Four numbers uniform in (-1, 1) from a single draw, in steps of 2^-15.
    pub(super) fn four_uniform(&mut self) -> [f64; 4] {
        let bits = self.bits();
        std::array::from_fn(|part| ((bits >> (16 * part)) as u16 as f64 - 32767.5) / 32768.0)
    }

    /// Bell-shaped with mean 0 and variance 1: a sum of four uniforms, cut off at 3.5 unlike a normal distribution. It needs no
    /// logarithm and one draw.
    pub(super) fn bell(&mut self) -> f64 {
        // A uniform in (-1, 1) has variance 1/3.
        const SCALE: f64 = 0.866_025_403_784_438_6;
        self.four_uniform().iter().sum::<f64>() * SCALE
    }

    /// Shuffles a list.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Ranks 0..n by Zipf's law: the weight of rank r is the integral of (x + shift)^-exponent from r to r + 1. Unlike the sum, the
/// integral can be inverted in closed form, so no table of n entries is needed.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    count: u64,
    shift: f64,
    start: f64,
    width: f64,
    power: f64,
}

impl Zipf {
    /// `exponent` is any positive number but 1.
    pub(super) fn new(count: u64, exponent: f64, shift: f64) -> Self {
        let antiderivative = |x: f64| exp((1.0 - exponent) * ln(x));
        let start = antiderivative(shift);
        let width = antiderivative(count as f64 + shift) - start;
        Zipf { count, shift, start, width, power: 1.0 / (1.0 - exponent) }
    }

    /// A random rank.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let x = exp(self.power * ln(self.start + random.uniform() * self.width)) - self.shift;
        // Rounding may exceed either end.
        (x.max(0.0) as u64).min(self.count - 1)
    }
}

/// A fixed permutation of 0..n that is computed, not stored.
#[derive(Debug, Clone)]
pub(super) struct Permutation {
    count: u64,
    mask: u64,
    half: u32,
    odd: [u64; 3],
}

impl Permutation {
    /// The permutation of 0..`count` for a seed and a stream.
    pub(super) fn new(count: u64, seed: u64, stream: u64) -> Self {
        let bits = (64 - count.saturating_sub(1).leading_zeros()).max(2);
        let mut random = Random::at(seed, stream, 0);
        let odd = std::array::from_fn(|_| random.bits() | 1);
        Permutation { count, mask: u64::MAX >> (64 - bits), half: bits.div_ceil(2), odd }
    }

    /// The image of `index`. Each round permutes the numbers of `bits` bits (multiplying by an odd factor and a shifted xor are
    /// both invertible). A number at or above `count` goes through another round, until it is below: it must get there because it
    /// started there.
    pub(super) fn of(&self, index: u64) -> u64 {
        let mut number = index;
        loop {
            for odd in self.odd {
                number = number.wrapping_mul(odd).wrapping_add(odd >> 32) & self.mask;
                number ^= number >> self.half;
            }
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_seed_stream_and_index() {
        let first = |seed, stream, index| Random::at(seed, stream, index).bits();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let others = [first(2, 2, 3), first(1, 3, 3), first(1, 2, 4), first(0, 0, 0)];
        assert!(others.iter().all(|&other| other != first(1, 2, 3)));
    }

    #[test]
    fn uniform_and_bell_have_the_right_moments() {
        let mut random = Random::at(1, 1, 1);
        let n = 100_000;
        let moments = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / n as f64;
            (mean, values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n as f64)
        };
        let uniform: Vec<f64> = (0..n).map(|_| random.uniform()).collect();
        let (mean, variance) = moments(&uniform);
        assert!((mean - 0.5).abs() < 0.005 && (variance - 1.0 / 12.0).abs() < 0.002);
        let bell: Vec<f64> = (0..n).map(|_| random.bell()).collect();
        let (mean, variance) = moments(&bell);
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02);
    }

    #[test]
    fn zipf_ranks_have_the_weight_of_their_integral() {
        let zipf = Zipf::new(1000, 1.2, 1.0);
        let mut random = Random::at(3, 1, 4);
        let mut counts = [0_u32; 1000];
        for _ in 0..200_000 {
            counts[zipf.draw(&mut random) as usize] += 1;
        }
        let weight = |rank: f64| (rank + 1.0).powf(-0.2) - (rank + 2.0).powf(-0.2);
        let total = 1.0 - 1001_f64.powf(-0.2);
        for rank in [0, 1, 10, 100] {
            let expected = 200_000.0 * weight(f64::from(rank)) / total;
            let got = f64::from(counts[rank as usize]);
            assert!((got - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {got} of {expected}");
        }
    }

    #[test]
    fn a_permutation_reaches_every_number_once() {
        for count in [1, 2, 3, 104, 1000, 4096, 5000] {
            let permutation = Permutation::new(count, 7, 1);
            let mut reached: Vec<u64> = (0..count).map(|index| permutation.of(index)).collect();
            reached.sort_unstable();
            assert!(reached.into_iter().eq(0..count), "{count}");
        }
    }
}
