//! The answer of `prioritize`.

use std::collections::BTreeMap;

use serde::Serialize;

/// One line of it.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority<'a> {
    host: &'a str,
    /// An integer: kube-scheduler drops the whole answer for a fraction.
    score: i64,
}

/// Scores of nodes, in the order of the nodes, as a bare array of `{"Host": name, "Score": -10 to 10}`.
///
/// kube-scheduler adds each to its own score of the node, and takes a node with the greatest sum, so nothing but the
/// differences counts. They are counted from what most nodes are worth, and those are left out, which adds 0 to them: to
/// read a line costs kube-scheduler more than all that is done for it here.
///
/// # Errors
/// Practically never: names and numbers.
pub fn priorities(nodes: &[impl AsRef<str>], scores: &[i64]) -> Result<Vec<u8>, serde_json::Error> {
    const FRAME: usize = r#"{"Host":"","Score":-10},"#.len();
    let usual = most_common(scores);
    let others = nodes.iter().zip(scores).filter(|(_, score)| **score != usual);
    let lines: Vec<HostPriority<'_>> =
        others.map(|(node, score)| HostPriority { host: node.as_ref(), score: score - usual }).collect();
    let size: usize = lines.iter().map(|line| line.host.len() + FRAME).sum();
    let mut json = Vec::with_capacity(size + 2);
    serde_json::to_writer(&mut json, &lines)?;
    Ok(json)
}

/// The greatest of those that are equally common; 0 where there are none.
fn most_common(scores: &[i64]) -> i64 {
    let mut counts = BTreeMap::new();
    for score in scores {
        *counts.entry(*score).or_insert(0_usize) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(score, _)| score)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_told() {
        let told = |scores: &[i64]| {
            let json = priorities(&["a", "b", "c"], scores).expect("JSON");
            String::from_utf8(json).expect("text")
        };
        assert_eq!(told(&[3, 10, 3]), r#"[{"Host":"b","Score":7}]"#);
        assert_eq!(told(&[9, 2, 9]), r#"[{"Host":"b","Score":-7}]"#);
        assert_eq!(told(&[0, 1, 2]), r#"[{"Host":"a","Score":-2},{"Host":"b","Score":-1}]"#);
        assert_eq!((told(&[10, 10, 10]), told(&[])), ("[]".to_owned(), "[]".to_owned()));
    }
}
