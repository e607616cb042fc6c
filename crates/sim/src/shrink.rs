//! Making a failing workload small: delta debugging over CPUs and operations (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
//! Input", 2002).
//!
//! A workload is a list of operations for each CPU. A smaller one is kept if it still fails under one of the same seeds; since every step that is left out moves
//! all later choices of the schedule, several seeds are tried for each.

/// A workload that fails, as small as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk<Op> {
    /// The operations of each CPU; CPUs that have none are left out.
    pub workload: Vec<Vec<Op>>,
    /// A seed under which it fails.
    pub seed: u64,
    /// How it fails.
    pub failure: String,
    /// Runs that it took.
    pub runs: usize,
}

struct Search<'a, Op, F> {
    seeds: &'a [u64],
    fails: F,
    runs: usize,
    limit: usize,
    best: Shrunk<Op>,
}

impl<Op: Clone, F: FnMut(&[Vec<Op>], u64) -> Option<String>> Search<'_, Op, F> {
    /// Keeps `workload` if it fails under the seed of the best one, or under any other.
    fn keep(&mut self, workload: Vec<Vec<Op>>) -> bool {
        let first = self.best.seed;
        let others = self.seeds.iter().copied().filter(|seed| *seed != first);
        for seed in core::iter::once(first).chain(others) {
            if self.runs >= self.limit {
                return false;
            }
            self.runs += 1;
            if let Some(failure) = (self.fails)(&workload, seed) {
                self.best = Shrunk {
                    workload,
                    seed,
                    failure,
                    runs: self.runs,
                };
                return true;
            }
        }
        false
    }

    /// Without whole CPUs, then without pieces of the operations of each, halves first.
    fn pass(&mut self) -> bool {
        let mut smaller = false;
        let mut cpu = 0;
        while cpu < self.best.workload.len() && self.best.workload.len() > 1 {
            let mut workload = self.best.workload.clone();
            workload.remove(cpu);
            if self.keep(workload) {
                smaller = true;
            } else {
                cpu += 1;
            }
        }
        for cpu in 0..self.best.workload.len() {
            let mut piece = self.best.workload[cpu].len().div_ceil(2);
            while piece > 0 {
                let mut start = 0;
                while start < self.best.workload[cpu].len() {
                    let mut workload = self.best.workload.clone();
                    let end = (start + piece).min(workload[cpu].len());
                    workload[cpu].drain(start..end);
                    if self.keep(workload) {
                        smaller = true;
                    } else {
                        start += piece;
                    }
                }
                piece /= 2;
            }
        }
        smaller
    }
}

/// Reduces `workload` while it still fails. `fails` runs one under a seed and says how it failed; `None`: it did not. At most `limit` runs are made.
///
/// `None` if it does not fail under any of the seeds.
pub fn shrink<Op: Clone>(
    workload: Vec<Vec<Op>>,
    seeds: &[u64],
    limit: usize,
    mut fails: impl FnMut(&[Vec<Op>], u64) -> Option<String>,
) -> Option<Shrunk<Op>> {
    let mut runs = 0;
    let first = seeds.iter().find_map(|seed| {
        runs += 1;
        fails(&workload, *seed).map(|failure| (*seed, failure))
    });
    let (seed, failure) = first?;
    let mut search = Search {
        seeds,
        fails,
        runs,
        limit,
        best: Shrunk {
            workload,
            seed,
            failure,
            runs,
        },
    };
    while search.pass() && search.runs < limit {}
    let mut best = search.best;
    best.runs = search.runs;
    best.workload.retain(|ops| !ops.is_empty());
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_part_in_the_failure_goes() {
        let workload: Vec<Vec<u32>> = (0..6)
            .map(|cpu| (cpu * 40..cpu * 40 + 40).collect())
            .collect();
        // Fails if 17 comes before 20 on its CPU and 203 is anywhere; under odd seeds only.
        let fails = |w: &[Vec<u32>], seed: u64| {
            let at = |n| w.iter().flatten().position(|op| *op == n);
            let wrong = at(17).is_some() && at(17) < at(20) && at(203).is_some();
            (wrong && seed % 2 == 1).then(|| format!("seed {seed}"))
        };
        let shrunk = shrink(workload.clone(), &[2, 4, 5], 10_000, fails).unwrap();
        assert_eq!(shrunk.workload, [vec![17, 20], vec![203]]);
        assert_eq!((shrunk.seed, shrunk.failure.as_str()), (5, "seed 5"));
        assert!(shrunk.runs < 1_000, "{} runs", shrunk.runs);
        assert_eq!(shrink(workload, &[2, 4], 10_000, fails), None);
    }

    #[test]
    fn the_limit_of_runs_is_kept() {
        let workload = vec![(0..1_000).collect::<Vec<u32>>()];
        let mut runs = 0;
        let shrunk = shrink(workload, &[1], 50, |w, _| {
            runs += 1;
            w[0].contains(&999).then(String::new)
        })
        .unwrap();
        assert!(shrunk.runs <= 50 && shrunk.workload[0].len() < 1_000);
        assert!(runs <= 50);
    }
}
