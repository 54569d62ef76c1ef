//! Output: results go to standard output, everything else to standard error. Also formats numbers.

use std::io::Write;
use std::time::Duration;

/// Prints a line of the result. A closed pipe is not an error.
pub(crate) fn result(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a line that is not part of the result.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// `1234567` as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate without decimals.
pub(crate) fn rate(per_second: f64) -> String {
    count(per_second.round().max(0.0) as u64)
}

/// `18.4 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `17 kB`, `3.2 MB`, `1.5 GB`.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e3 => format!("{bytes} bytes"),
        b if b < 1e6 => format!("{:.0} kB", b / 1e3),
        b if b < 1e9 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn plural(number: usize, word: &str) -> String {
    format!("{} {word}{}", count(number as u64), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let seconds = |s| duration(Duration::from_secs_f64(s));
        assert_eq!([18.44, 200.0, 7500.0].map(seconds), ["18.4 s", "3 min 20 s", "2 h 5 min"]);
        assert_eq!([12, 17_400, 3_150_000, 1_500_000_000].map(bytes), ["12 bytes", "17 kB", "3.1 MB", "1.5 GB"]);
    }
}
