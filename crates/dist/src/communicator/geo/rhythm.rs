//! When a GEO worker exchanges what: all rows of a window every k batches, and between them, more often, the dense parameters and
//! often used rows.
//!
//! Exchanges run while training goes on, but they need the link and a part of the cores. So dense exchanges pause after each one, on
//! a slow link for long, and an adaptive k grows while exchanges take a large share of the time.
//!
//! This file has no clock: times are passed in.

use std::time::{Duration, Instant};

use openfleet_core::strategy::GeoSettings;

/// After a dense exchange, the next one waits for so many times its duration: dense exchanges take at most a quarter of the time.
const PAUSE: u32 = 3;

/// An adaptive k is doubled if the exchange of a window takes more than this share of the window's time.
const LARGE_SHARE: f64 = 0.1;
/// It is halved if the exchange takes less than this share. Far enough from the other bound that it settles.
const SMALL_SHARE: f64 = 0.02;
/// The bounds of an adaptive k.
const FEWEST: u64 = 25;
const MOST: u64 = 1600;

/// The intervals between exchanges.
#[derive(Debug)]
pub(super) struct Rhythm {
    row_steps: u64,
    is_adaptive: bool,
    dense_steps: u64,
    /// When the next dense exchange may begin.
    dense_from: Option<Instant>,
}

impl Rhythm {
    pub(super) fn new(settings: &GeoSettings) -> Self {
        let GeoSettings { k_steps, is_adaptive, dense_steps, .. } = *settings;
        Rhythm { row_steps: k_steps, is_adaptive, dense_steps, dense_from: None }
    }

    /// Whether rows have to be exchanged after this many batches.
    pub(super) fn is_window_full(&self, batches: u64) -> bool {
        batches >= self.row_steps
    }

    /// Whether dense parameters should be exchanged this many batches after they last were.
    pub(super) fn is_dense_due(&self, batches: u64, now: Instant) -> bool {
        self.dense_steps > 0 && batches >= self.dense_steps && self.dense_from.is_none_or(|from| now >= from)
    }

    /// A dense exchange has ended.
    pub(super) fn exchanged_dense(&mut self, took: Duration, now: Instant) {
        self.dense_from = Some(now + took * PAUSE);
    }

    /// The rows of a window have been exchanged. Returns the new k if that changes it.
    pub(super) fn exchanged_rows(&mut self, took: Duration, window: Duration) -> Option<u64> {
        let share = took.as_secs_f64() / window.as_secs_f64().max(1e-9);
        let steps = match share {
            _ if !self.is_adaptive => return None,
            share if share > LARGE_SHARE => (self.row_steps * 2).min(MOST.max(self.row_steps)),
            share if share < SMALL_SHARE => (self.row_steps / 2).max(FEWEST.min(self.row_steps)),
            _ => self.row_steps,
        };
        (std::mem::replace(&mut self.row_steps, steps) != steps).then_some(steps)
    }
}

#[cfg(test)]
mod tests {
    use openfleet_core::strategy::GeoScale;

    use super::*;

    fn rhythm(k_steps: u64, is_adaptive: bool) -> Rhythm {
        let scale = GeoScale::Average;
        Rhythm::new(&GeoSettings {
            k_steps,
            is_adaptive,
            dense_steps: 5,
            scale,
            flush_residual: true,
            send_queue_size: 4,
        })
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_adaptive_interval_follows_the_share_of_exchanges_within_bounds() {
        let mut rhythm = rhythm(100, true);
        assert_eq!(rhythm.exchanged_rows(ms(50), ms(1000)), None, "5 % is neither much nor little");
        assert_eq!(rhythm.exchanged_rows(ms(150), ms(1000)), Some(200));
        assert!(rhythm.is_window_full(200) && !rhythm.is_window_full(199));
        let slow: Vec<_> = (0..5).map(|_| rhythm.exchanged_rows(ms(900), ms(1000))).collect();
        assert_eq!(slow, [Some(400), Some(800), Some(1600), None, None]);
        let fast: Vec<_> = (0..8).filter_map(|_| rhythm.exchanged_rows(ms(1), ms(1000))).collect();
        assert_eq!(fast, [800, 400, 200, 100, 50, 25]);
    }

    #[test]
    fn a_given_interval_stays() {
        let mut rhythm = rhythm(7, false);
        assert_eq!((0..4).find_map(|_| rhythm.exchanged_rows(ms(900), ms(1000))), None);
        assert!(rhythm.is_window_full(7) && !rhythm.is_window_full(6));
    }

    #[test]
    fn dense_exchanges_take_at_most_a_quarter_of_the_time() {
        let (mut rhythm, start) = (rhythm(100, false), Instant::now());
        assert!(rhythm.is_dense_due(5, start) && !rhythm.is_dense_due(4, start));
        rhythm.exchanged_dense(ms(200), start);
        assert!(!rhythm.is_dense_due(500, start + ms(599)) && rhythm.is_dense_due(5, start + ms(600)));
    }
}
