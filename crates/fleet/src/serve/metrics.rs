//! Counters of the server, in the text format of Prometheus.
//!
//! Counters only grow; the reader computes rates and percentiles. The time of a request is that of the server: reading its
//! body, predicting, and serializing the response.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds of the histogram buckets of request time, in seconds: one row takes tens of microseconds, a large batch a
/// second.
const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    /// Paths below `/v2`.
    OpenInference,
    /// Paths below `/v1`.
    TfServing,
    /// Other paths.
    Other,
}

impl Protocol {
    pub(crate) fn of(path: &str) -> Self {
        match path.split('/').nth(1) {
            Some("v2") => Protocol::OpenInference,
            Some("v1") => Protocol::TfServing,
            _ => Protocol::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Protocol::OpenInference => "open_inference",
            Protocol::TfServing => "tf_serving",
            Protocol::Other => "other",
        }
    }
}

/// Counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(Protocol, u16), u64>>,
    rows: AtomicU64,
    times: Mutex<Times>,
}

/// Histogram of the time of prediction requests.
#[derive(Debug, Default)]
struct Times {
    /// One more than the bounds: the last bucket is for slower requests.
    buckets: [u64; SECONDS.len() + 1],
    seconds: f64,
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn answered(&self, protocol: Protocol, status: u16) {
        *self.requests.lock().entry((protocol, status)).or_default() += 1;
    }

    /// Counts a prediction request and its time.
    pub(crate) fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut times = self.times.lock();
        times.buckets[SECONDS.partition_point(|&end| end < seconds)] += 1;
        times.seconds += seconds;
    }

    /// Counts predicted rows.
    pub(crate) fn predicted(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// All metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).unwrap_or_default();
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "# HELP openfleet_requests_total Requests answered.\n# TYPE openfleet_requests_total counter")?;
        for ((protocol, status), count) in self.requests.lock().iter() {
            let protocol = protocol.name();
            writeln!(text, "openfleet_requests_total{{protocol=\"{protocol}\",status=\"{status}\"}} {count}")?;
        }
        writeln!(text, "# HELP openfleet_rows_total Rows predicted.\n# TYPE openfleet_rows_total counter")?;
        writeln!(text, "openfleet_rows_total {}", self.rows.load(Ordering::Relaxed))?;
        writeln!(text, "# HELP openfleet_request_seconds Time of requests for predictions.")?;
        writeln!(text, "# TYPE openfleet_request_seconds histogram")?;
        let times = self.times.lock();
        let mut up_to = 0;
        for (end, count) in SECONDS.iter().zip(times.buckets) {
            up_to += count;
            writeln!(text, "openfleet_request_seconds_bucket{{le=\"{end}\"}} {up_to}")?;
        }
        let all: u64 = times.buckets.iter().sum();
        writeln!(text, "openfleet_request_seconds_bucket{{le=\"+Inf\"}} {all}")?;
        writeln!(text, "openfleet_request_seconds_sum {}", times.seconds)?;
        writeln!(text, "openfleet_request_seconds_count {all}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_its_bucket_and_all_above() {
        let metrics = Metrics::default();
        metrics.answered(Protocol::of("/v2/models/m/infer"), 200);
        metrics.answered(Protocol::of("/v1/models/m:predict"), 400);
        for time in [Duration::from_micros(100), Duration::from_micros(600), Duration::from_secs(9)] {
            metrics.took(time);
        }
        metrics.predicted(7);
        let text = metrics.text();
        for line in [
            "openfleet_requests_total{protocol=\"open_inference\",status=\"200\"} 1",
            "openfleet_requests_total{protocol=\"tf_serving\",status=\"400\"} 1",
            "openfleet_rows_total 7",
            "openfleet_request_seconds_bucket{le=\"0.00005\"} 0",
            "openfleet_request_seconds_bucket{le=\"0.0001\"} 1",
            "openfleet_request_seconds_bucket{le=\"0.001\"} 2",
            "openfleet_request_seconds_bucket{le=\"5\"} 2",
            "openfleet_request_seconds_bucket{le=\"+Inf\"} 3",
            "openfleet_request_seconds_count 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }
}
