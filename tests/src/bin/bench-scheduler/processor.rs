//! Processor time of a process.

use anyhow::Context;

/// Ticks per second in `/proc`: 100 on every architecture that we build for.
const TICKS: f64 = 100.0;

/// Seconds that a process has used so far, in user and kernel, all threads together.
pub(crate) fn seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    ticks(&text).map(|ticks| ticks / TICKS).with_context(|| format!("{path} is not as expected: {text}"))
}

/// `utime` and `stime`, the 14th and 15th field. The 2nd, the name, may contain blanks and parentheses.
fn ticks(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let (user, kernel): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_does_not_count() {
        assert_eq!(ticks("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 31 11 0 0 20 0 9"), Some(42.0));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn our_own_time_can_be_read() {
        assert!(seconds(std::process::id()).unwrap() >= 0.0);
    }
}
