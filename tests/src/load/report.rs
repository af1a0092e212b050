//! What came of the requests.

use std::{collections::BTreeMap, fmt, io::ErrorKind, net::SocketAddr};

use jiff::Timestamp;

/// Why a request was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// The Service had no endpoint to send it to.
    NoEndpoint,
    /// Nobody listened there.
    NotConnected(ErrorKind),
    /// The connection broke before the answer was complete.
    Broken,
    /// Answered with a status that is no success.
    Status(u16),
    /// Not answered in time.
    NotAnswered,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEndpoint => f.write_str("no endpoint"),
            Self::NotConnected(kind) => write!(f, "not connected: {kind}"),
            Self::Broken => f.write_str("connection broke"),
            Self::Status(code) => write!(f, "status {code}"),
            Self::NotAnswered => f.write_str("not answered"),
        }
    }
}

/// How many requests were served by which module, and how many were lost for which reason.
#[derive(Debug, Clone, Default)]
pub struct Report {
    served: BTreeMap<String, u64>,
    lost: BTreeMap<Lost, u64>,
    /// The first losses: when the request ended, and where it was sent.
    first: Vec<(Timestamp, Option<SocketAddr>, Lost)>,
}

impl Report {
    /// Losses that are told one by one.
    const TOLD: usize = 20;

    pub(super) fn count(&mut self, target: Option<SocketAddr>, answer: Result<String, Lost>) {
        match answer {
            Ok(module) => *self.served.entry(module).or_default() += 1,
            Err(lost) => {
                *self.lost.entry(lost).or_default() += 1;
                if self.first.len() < Self::TOLD {
                    self.first.push((Timestamp::now(), target, lost));
                }
            }
        }
    }

    /// Requests answered by a module (`name:version`).
    pub fn served_by(&self, module: &str) -> u64 {
        self.served.get(module).copied().unwrap_or_default()
    }

    /// Requests that were answered.
    pub fn served(&self) -> u64 {
        self.served.values().sum()
    }

    /// Requests that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Why requests were lost, and how many.
    pub fn reasons(&self) -> &BTreeMap<Lost, u64> {
        &self.lost
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} served, {} lost", self.served(), self.lost())?;
        for (module, count) in &self.served {
            write!(f, "\n  {count} by {module}")?;
        }
        for (lost, count) in &self.lost {
            write!(f, "\n  {count} lost: {lost}")?;
        }
        for (at, target, lost) in &self.first {
            let target = target.map_or_else(|| "nowhere".to_owned(), |target| target.to_string());
            write!(f, "\n    {at} to {target}: {lost}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_counted_and_the_first_losses_are_told() {
        let mut report = Report::default();
        for _ in 0..30 {
            report.count("10.0.0.1:8080".parse().ok(), Ok("shop:1.0.0".to_owned()));
            report.count(None, Err(Lost::NoEndpoint));
        }
        report.count("10.0.0.1:8080".parse().ok(), Err(Lost::NotConnected(ErrorKind::ConnectionRefused)));
        assert_eq!((report.served(), report.served_by("shop:1.0.0"), report.lost()), (30, 30, 31));
        assert_eq!(report.reasons()[&Lost::NoEndpoint], 30);
        let text = report.to_string();
        assert!(
            text.starts_with("30 served, 31 lost\n  30 by shop:1.0.0\n  30 lost: no endpoint\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1 + 1 + 2 + 20);
    }
}
