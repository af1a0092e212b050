//! Durations: `500ms`, `10s`, `5m`, `1h30m`, `0`.

use std::time::Duration;

/// Longest duration: a year.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// `None` for what is no duration or longer than a year.
pub(super) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let (digits, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let count: u64 = digits.parse().ok()?;
        let part = match unit {
            "ms" => Duration::from_millis(count),
            "s" => Duration::from_secs(count),
            "m" => Duration::from_secs(count.checked_mul(60)?),
            "h" => Duration::from_secs(count.checked_mul(3600)?),
            _ => return None,
        };
        sum = sum.checked_add(part)?;
        rest = behind;
    }
    (!text.is_empty() && sum <= LONGEST).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("10s", Some(10_000)),
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("0", Some(0)),
        ] {
            assert_eq!(parse(text).map(|d| d.as_millis()), milliseconds, "{text}");
        }
        for text in ["", "10", "s", "-1s", "1.5s", "10 s", "1d", "99999999999999999999s", "9000h", "10s5"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
