//! What the seeds of one kind of machine came to, as a row of the summary.

use super::plan::Work;
use flagstone_conformance::Tally;
use std::time::Duration;

/// Counts of seeds, and of what was done under them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Named cases that passed, and those that the machine has nothing for.
    passed: u64,
    skipped: u64,
    /// Seeds of random operations.
    schedules: u64,
    operations: u64,
    accesses: u64,
    faults: u64,
    /// Accesses and lookups whose outcome was known exactly.
    exact: u64,
    /// Seeds that ended, of either kind.
    ended: u64,
    none: u64,
    pub(super) elapsed: Duration,
    /// What random operations took.
    random: Duration,
}

impl Row {
    /// Adds a seed that ended well; nothing if the machine has not what it is about.
    pub(super) fn add(&mut self, tally: Option<Tally>) {
        self.ended += 1;
        match tally {
            None => self.none += 1,
            Some(tally) => {
                self.operations += tally.ops;
                self.accesses += tally.allowed;
                self.faults += tally.refused;
                self.exact += tally.exact;
            }
        }
    }

    /// Adds what another thread did.
    pub(super) fn merge(&mut self, other: &Self) {
        self.ended += other.ended;
        self.none += other.none;
        self.operations += other.operations;
        self.accesses += other.accesses;
        self.faults += other.faults;
        self.exact += other.exact;
    }

    /// Adds all seeds of one work.
    pub(super) fn append(&mut self, work: &Work, part: &Self) {
        match work {
            Work::Case(_) if part.ended == 0 => {}
            Work::Case(_) if part.none > 0 => self.skipped += 1,
            Work::Case(_) => self.passed += 1,
            Work::Random(_) => {
                self.schedules += part.ended;
                self.random += part.elapsed;
                self.merge(part);
            }
        }
    }

    pub(super) fn heads() -> impl Iterator<Item = String> {
        [
            "machine",
            "cases",
            "skipped",
            "schedules",
            "accesses",
            "faults",
            "exact",
            "per s",
        ]
        .map(str::to_owned)
        .into_iter()
    }

    pub(super) fn cells(&self, name: &str, good: bool) -> impl Iterator<Item = String> {
        let seconds = self.random.as_secs_f64();
        let rate = if self.schedules > 0 && seconds > 0.0 {
            format!("{:.0}", self.schedules as f64 / seconds)
        } else {
            "-".to_owned()
        };
        let name = if good {
            name.to_owned()
        } else {
            format!("{name} FAILED")
        };
        [
            name,
            self.passed.to_string(),
            self.skipped.to_string(),
            self.schedules.to_string(),
            self.accesses.to_string(),
            self.faults.to_string(),
            self.exact.to_string(),
            rate,
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_all_threads_are_in_the_row() {
        let (mut sum, mut part) = (Row::default(), Row::default());
        let tally = Tally {
            ops: 3,
            allowed: 2,
            refused: 1,
            exact: 2,
        };
        part.add(Some(tally));
        let mut all = part;
        all.merge(&part);
        all.elapsed = Duration::from_secs(2);
        sum.append(&Work::Random(flagstone_conformance::Mix::All), &all);
        let mut case = Row::default();
        case.add(None);
        sum.append(&Work::Case("halves"), &case);
        let cells: Vec<String> = sum.cells("x86_64", true).collect();
        assert_eq!(cells, ["x86_64", "0", "1", "2", "4", "2", "4", "1"]);
    }
}
