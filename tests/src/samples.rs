//! What a program shows at `/metrics`, read line by line.

/// The values of a metric, of those samples whose line contains all of `labels` (`code="x"`).
pub fn samples<'a>(page: &'a str, name: &'a str, labels: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let named = move |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let labelled = move |line: &&str| labels.iter().all(|label| line.contains(label));
    page.lines().filter(named).filter(labelled).filter_map(|line| line.rsplit(' ').next())
}

/// Their sum; 0 if there is none.
pub fn sum(page: &str, name: &str, labels: &[&str]) -> f64 {
    samples(page, name, labels).filter_map(|value| value.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_added_by_label() {
        let text =
            "# HELP a b\na_sum{verb=\"x\",o=\"1\"} 1.5\na_sum{o=\"2\",verb=\"x\"} 2\na_sum{verb=\"y\"} 7\n";
        assert!((sum(text, "a_sum", &["verb=\"x\""]) - 3.5).abs() < 1e-9);
    }
}
