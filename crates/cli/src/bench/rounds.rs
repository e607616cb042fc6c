//! Rounds: in each, every contestant has one turn at every part.
//!
//! What disturbs a machine for a while (another program, heat, a change of frequency) then disturbs all
//! contestants alike. Who begins changes with the round, so that no one always runs after the same other.

use super::contestants::Contestant;
use super::statistics::{median, minimum};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A part of an experiment: what one turn runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
}

/// One measured quantity in one turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) metric: String,
    pub(crate) value: f64,
}

/// A turn that did not end well. Its contestant has no further turns at that part.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Failure {
    pub(crate) part: String,
    pub(crate) contestant: String,
    pub(crate) reason: String,
}

/// All samples of an experiment.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Metrics in the order of their first appearance, each with the samples of every contestant.
    metrics: Vec<(String, Vec<Vec<f64>>)>,
    pub(crate) failures: Vec<Failure>,
}

impl Results {
    fn add(&mut self, contestants: usize, contestant: usize, sample: Sample) {
        let place = self
            .metrics
            .iter()
            .position(|(metric, _)| *metric == sample.metric)
            .unwrap_or_else(|| {
                self.metrics
                    .push((sample.metric, vec![Vec::new(); contestants]));
                self.metrics.len() - 1
            });
        self.metrics[place].1[contestant].push(sample.value);
    }

    /// Every metric with its samples by contestant.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[Vec<f64>])> {
        self.metrics
            .iter()
            .map(|(metric, samples)| (metric.as_str(), samples.as_slice()))
    }

    /// The samples of `metric` by contestant; empty if nobody has any.
    fn samples(&self, metric: &str) -> &[Vec<f64>] {
        self.metrics
            .iter()
            .find(|(name, _)| name == metric)
            .map_or(&[], |(_, samples)| samples)
    }

    /// The smallest sample.
    pub(crate) fn minimum(&self, metric: &str, contestant: usize) -> Option<f64> {
        self.samples(metric)
            .get(contestant)
            .and_then(|samples| minimum(samples))
    }

    /// The median over the rounds.
    pub(crate) fn median(&self, metric: &str, contestant: usize) -> Option<f64> {
        self.samples(metric)
            .get(contestant)
            .and_then(|samples| median(samples))
    }

    /// `contestant`'s median as a multiple of the best median among `others`.
    pub(crate) fn ratio_to_best(
        &self,
        metric: &str,
        contestant: usize,
        others: impl Iterator<Item = usize>,
    ) -> Option<f64> {
        let best = others
            .filter_map(|other| self.median(metric, other))
            .min_by(f64::total_cmp)?;
        Some(self.median(metric, contestant)? / best)
    }
}

/// Runs `turn` for every part and contestant, `rounds` times.
///
/// # Errors
/// None of a turn: those are kept in [`Results::failures`].
pub(crate) fn interleave(
    rounds: u32,
    parts: &[Part],
    contestants: &[Contestant],
    mut turn: impl FnMut(&Part, &Contestant) -> Result<Vec<Sample>>,
) -> Result<Results> {
    let mut results = Results::default();
    let count = contestants.len();
    let bar = ProgressBar::new(u64::from(rounds) * (parts.len() * count) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {wide_msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(500));
    for round in 0..rounds as usize {
        for part in parts {
            let name = part.name;
            for step in 0..count {
                let index = (round + step) % count;
                let contestant = &contestants[index];
                let out = results
                    .failures
                    .iter()
                    .any(|f| f.part == name && f.contestant == contestant.name);
                bar.set_message(format!("round {}: {name}, {}", round + 1, contestant.name));
                if !out {
                    match turn(part, contestant) {
                        Ok(samples) => samples
                            .into_iter()
                            .for_each(|sample| results.add(count, index, sample)),
                        Err(error) => results.failures.push(Failure {
                            part: name.into(),
                            contestant: contestant.name.clone(),
                            reason: format!("{error:#}"),
                        }),
                    }
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contestants() -> Vec<Contestant> {
        ["a", "b", "c"]
            .map(|name| Contestant {
                name: name.into(),
                library: None,
            })
            .to_vec()
    }

    #[test]
    fn every_round_gives_everyone_a_turn_and_begins_with_another() {
        let mut order = String::new();
        interleave(3, &[Part { name: "p" }], &contestants(), |_, contestant| {
            order.push_str(&contestant.name);
            Ok(Vec::new())
        })
        .unwrap();
        assert_eq!(order, "abcbcacab");
    }

    #[test]
    fn samples_are_kept_by_metric_and_contestant() {
        let mut value = 0.0;
        let results = interleave(5, &[Part { name: "p" }], &contestants(), |_, contestant| {
            value += 1.0;
            let base = if contestant.name == "c" { 100.0 } else { 200.0 };
            Ok(vec![Sample {
                metric: "m".into(),
                value: base + value,
            }])
        })
        .unwrap();
        assert_eq!(
            results
                .samples("m")
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>(),
            [5, 5, 5]
        );
        assert_eq!(results.minimum("m", 2), Some(103.0));
        let ratio = results.ratio_to_best("m", 2, 0..2).unwrap();
        assert!(ratio < 0.6, "{ratio}");
        assert_eq!(results.median("absent", 0), None);
        assert_eq!(results.ratio_to_best("absent", 0, 0..2), None);
    }

    #[test]
    fn who_fails_is_named_once_and_does_not_stop_the_others() {
        let mut turns = 0;
        let results = interleave(4, &[Part { name: "p" }], &contestants(), |_, contestant| {
            turns += 1;
            if contestant.name == "b" {
                anyhow::bail!("crashed");
            }
            Ok(vec![Sample {
                metric: "m".into(),
                value: 1.0,
            }])
        })
        .unwrap();
        assert_eq!(turns, 4 + 1 + 4);
        assert_eq!(results.failures.len(), 1);
        assert_eq!(results.median("m", 1), None);
    }
}
