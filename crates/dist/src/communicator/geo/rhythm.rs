//! When a GEO worker exchanges what: all rows of a window every k batches, and between them, more often, the dense parameters and
//! often used rows.
//!
//! Exchanges run while training goes on, but they need the link and a part of the cores. So early exchanges pause after each one, on
//! a slow link for long, and an adaptive k grows while exchanges take a large share of the time. Rows pause longer than dense parameters:
//! if most batches use most rows, as with words, early exchanges would send the whole table again and again.
//!
//! This file has no clock: times are passed in.

use std::time::{Duration, Instant};

use openfleet_core::strategy::GeoSettings;

/// After dense parameters were exchanged early, they wait for so many times the duration: they take at most a quarter of the time.
const DENSE_PAUSE: f64 = 3.0;
/// The same for often used rows, which take at most a twentieth of the time.
const ROW_PAUSE: f64 = 19.0;

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
    early_steps: u64,
    /// When dense parameters may be exchanged early again.
    dense_from: Option<Instant>,
    /// When rows may be.
    rows_from: Option<Instant>,
}

/// What an early exchange consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Early {
    /// The dense parameters.
    pub(super) dense: bool,
    /// The often used rows.
    pub(super) rows: bool,
}

impl Rhythm {
    pub(super) fn new(settings: &GeoSettings) -> Self {
        let GeoSettings { k_steps, is_adaptive, dense_steps: early_steps, .. } = *settings;
        Rhythm { row_steps: k_steps, is_adaptive, early_steps, dense_from: None, rows_from: None }
    }

    /// Whether rows have to be exchanged after this many batches.
    pub(super) fn is_window_full(&self, batches: u64) -> bool {
        batches >= self.row_steps
    }

    /// What should be exchanged this many batches after the last exchange, if anything.
    pub(super) fn early(&self, batches: u64, now: Instant) -> Option<Early> {
        let may = |from: Option<Instant>| from.is_none_or(|from| now >= from);
        let early = Early { dense: may(self.dense_from), rows: may(self.rows_from) };
        (self.early_steps > 0 && batches >= self.early_steps && (early.dense || early.rows)).then_some(early)
    }

    /// An early exchange has ended; rows were this share of it.
    pub(super) fn exchanged_early(&mut self, early: Early, took: Duration, row_share: f64, now: Instant) {
        if early.dense {
            self.dense_from = Some(now + took.mul_f64(DENSE_PAUSE * (1.0 - row_share)));
        }
        if early.rows {
            self.rows_from = Some(now + took.mul_f64(ROW_PAUSE * row_share));
        }
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

    const BOTH: Early = Early { dense: true, rows: true };

    #[test]
    fn early_exchanges_of_dense_parameters_take_at_most_a_quarter_of_the_time() {
        let (mut rhythm, start) = (rhythm(100, false), Instant::now());
        assert_eq!((rhythm.early(5, start), rhythm.early(4, start)), (Some(BOTH), None));
        rhythm.exchanged_early(BOTH, ms(200), 0.0, start);
        assert_eq!(rhythm.early(500, start + ms(599)), Some(Early { dense: false, rows: true }));
        assert_eq!(rhythm.early(5, start + ms(600)), Some(BOTH));
    }

    #[test]
    fn early_exchanges_of_rows_take_at_most_a_twentieth_of_the_time() {
        let (mut rhythm, start) = (rhythm(100, false), Instant::now());
        rhythm.exchanged_early(BOTH, ms(200), 0.5, start);
        assert_eq!(rhythm.early(500, start + ms(299)), None);
        assert_eq!(rhythm.early(500, start + ms(300)), Some(Early { dense: true, rows: false }));
        rhythm.exchanged_early(Early { dense: true, rows: false }, ms(100), 0.0, start + ms(300));
        assert_eq!(rhythm.early(5, start + ms(1899)), Some(Early { dense: true, rows: false }));
        assert_eq!(rhythm.early(5, start + ms(1900)), Some(BOTH));
    }
}
