//! What the server has done, in the text format of Prometheus.
//!
//! Counters only grow; rates and percentiles are the reader's to compute. The time of a request is that of the server:
//! reading its body, predicting, and writing the answer to memory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Upper ends of the buckets of a request's time, in seconds: a row takes tens of microseconds, a large batch a second.
const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Which protocol a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    /// Below `/v2`.
    OpenInference,
    /// Below `/v1`.
    TfServing,
    /// Neither.
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

/// Requests for predictions by how long they took.
#[derive(Debug, Default)]
struct Times {
    /// One more than there are ends: the last is for whatever took longer.
    buckets: [u64; SECONDS.len() + 1],
    seconds: f64,
}

impl Metrics {
    /// A request was answered.
    pub(crate) fn answered(&self, protocol: Protocol, status: u16) {
        *self.requests.lock().entry((protocol, status)).or_default() += 1;
    }

    /// It was one for predictions, and took so long.
    pub(crate) fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut times = self.times.lock();
        times.buckets[SECONDS.partition_point(|&end| end < seconds)] += 1;
        times.seconds += seconds;
    }

    /// So many rows were predicted.
    pub(crate) fn predicted(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Everything, for Prometheus.
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
