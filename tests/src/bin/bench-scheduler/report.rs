//! The table for people and the lines for programs.

use serde::Serialize;

use crate::{Args, Mode, burst::Sample};

/// A line for programs; the fields in this order.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    vnodes: usize,
    pods: usize,
    mode: &'static str,
    ours_pods_per_s: Option<f64>,
    null_pods_per_s: Option<f64>,
    none_pods_per_s: Option<f64>,
    ratio_to_null: Option<f64>,
    ratio_to_none: Option<f64>,
    modules: usize,
    slots: usize,
}

/// Prints the medians over the rounds. A ratio is the median of the rounds' ratios: both of its sides ran within
/// seconds of each other.
pub(crate) fn print(args: &Args, samples: &[(Mode, Vec<Sample>)]) -> anyhow::Result<()> {
    let of = |mode: Mode| {
        samples.iter().find(|(candidate, _)| *candidate == mode).map_or(&[][..], |(_, samples)| samples)
    };
    let (none, null) = (of(Mode::None), of(Mode::Null));
    println!(
        "{} VNodes with {} slots, {} Pods of {} modules, medians of {} rounds",
        args.vnodes, args.slots, args.pods, args.modules, args.rounds
    );
    println!(
        "{:<10}{:>9}{:>14}{:>9}{:>9}{:>14}{:>14}{:>11}{:>15}{:>10}",
        "mode",
        "pods/s",
        "min-max",
        "/ null",
        "/ none",
        "scheduler s",
        "extender s",
        "filter ms",
        "prioritize ms",
        "reserved"
    );
    for (mode, samples) in samples {
        let rates: Vec<f64> = samples.iter().map(|sample| sample.pods_per_s).collect();
        let (least, most) =
            (rates.iter().copied().fold(f64::INFINITY, f64::min), rates.iter().copied().fold(0.0, f64::max));
        let handling = |pick: fn(&crate::burst::Handling) -> f64| {
            median(samples.iter().filter_map(|sample| sample.extender.as_ref().map(pick)))
        };
        println!(
            "{:<10}{:>9.0}{:>14}{:>9}{:>9}{:>14}{:>14}{:>11}{:>15}{:>10}",
            mode.name(),
            median(rates.iter().copied()).unwrap_or_default(),
            format!("{least:.0}-{most:.0}"),
            shown(ratio(samples, null), 2),
            shown(ratio(samples, none), 2),
            shown(median(samples.iter().map(|sample| sample.scheduler)), 2),
            shown(handling(|handling| handling.processor), 2),
            shown(handling(|handling| handling.filter), 2),
            shown(handling(|handling| handling.prioritize), 2),
            shown(handling(|handling| handling.reserved), 0),
        );
    }
    for mode in [Mode::Normal, Mode::Decisive] {
        let ours = of(mode);
        let rate = |samples: &[Sample]| median(samples.iter().map(|sample| sample.pods_per_s)).map(rounded);
        let line = Line {
            bench: "scheduler",
            vnodes: args.vnodes,
            pods: args.pods,
            mode: mode.name(),
            ours_pods_per_s: rate(ours),
            null_pods_per_s: rate(null),
            none_pods_per_s: rate(none),
            ratio_to_null: ratio(ours, null).map(rounded),
            ratio_to_none: ratio(ours, none).map(rounded),
            modules: args.modules,
            slots: args.slots,
        };
        if !ours.is_empty() {
            println!("{}", serde_json::to_string(&line)?);
        }
    }
    Ok(())
}

fn ratio(ours: &[Sample], theirs: &[Sample]) -> Option<f64> {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours.pods_per_s / theirs.pods_per_s))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = if values.len().is_multiple_of(2) { *values.get(values.len() / 2 - 1)? } else { upper };
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn a_ratio_compares_what_ran_in_the_same_round() {
        let samples = |rates: [f64; 3]| rates.map(|pods_per_s| Sample { pods_per_s, ..Sample::default() });
        assert_eq!(ratio(&samples([9.0, 90.0, 1.0]), &samples([10.0, 100.0, 1.0])), Some(0.9));
        assert_eq!(ratio(&samples([1.0; 3]), &[]), None);
    }
}
