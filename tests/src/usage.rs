//! What a process has used, as `/proc` tells.

use std::{fs, io};

/// `/proc` does not tell.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The file of this process cannot be read; most likely it has ended.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file has another form than expected.
    #[error("{path} is not as expected: {text}")]
    Form {
        /// The file.
        path: String,
        /// Its content.
        text: String,
    },
}

/// Ticks per second in `/proc`: 100 on every architecture that we build for.
const TICKS: f64 = 100.0;

/// Seconds of processor that a process has used so far, in user and kernel, all threads together.
///
/// # Errors
/// [`UsageError`] when the process is gone.
pub fn processor_seconds(pid: u32) -> Result<f64, UsageError> {
    ask(pid, "stat", |text| ticks(text).map(|ticks| ticks / TICKS))
}

/// MiB of memory that a process holds now (resident set).
///
/// # Errors
/// [`UsageError`] when the process is gone.
pub fn memory_mib(pid: u32) -> Result<f64, UsageError> {
    ask(pid, "status", |text| mib(text, "VmRSS:"))
}

/// MiB of memory that a process holds now and that no file stands behind: its heap and stacks, not its text.
///
/// # Errors
/// [`UsageError`] when the process is gone.
pub fn anonymous_mib(pid: u32) -> Result<f64, UsageError> {
    ask(pid, "status", |text| mib(text, "RssAnon:"))
}

/// MiB of memory that a process has held at most.
///
/// # Errors
/// [`UsageError`] when the process is gone.
pub fn peak_memory_mib(pid: u32) -> Result<f64, UsageError> {
    ask(pid, "status", |text| mib(text, "VmHWM:"))
}

fn ask(pid: u32, file: &str, read: impl FnOnce(&str) -> Option<f64>) -> Result<f64, UsageError> {
    let path = format!("/proc/{pid}/{file}");
    match fs::read_to_string(&path) {
        Ok(text) => read(&text).ok_or(UsageError::Form { path, text }),
        Err(source) => Err(UsageError::Read { path, source }),
    }
}

/// A line such as `VmRSS:     1024 kB`.
fn mib(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
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
    fn memory_is_read_by_its_name() {
        let status = "VmPeak:\t    9000 kB\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!((mib(status, "VmRSS:"), mib(status, "VmHWM:")), (Some(2.0), Some(4.0)));
        assert_eq!(mib("VmRSS: much", "VmRSS:"), None);
    }

    #[test]
    fn our_own_use_can_be_read() {
        let pid = std::process::id();
        assert!(processor_seconds(pid).unwrap() >= 0.0);
        assert!(peak_memory_mib(pid).unwrap() >= memory_mib(pid).unwrap() / 2.0);
        assert!(anonymous_mib(pid).unwrap() > 0.0);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(matches!(processor_seconds(u32::MAX), Err(UsageError::Read { .. })));
    }
}
