//! Several runs of the same contenders.
//!
//! What is compared is compared within a run, where everybody had the same machine, and then the median of the runs is
//! taken: a ratio of medians over all runs would mix a good minute of one with a bad minute of the other.

use super::stats::median;

/// What each contender did in each run.
pub(crate) struct Runs<T> {
    rows: Vec<(&'static str, Vec<T>)>,
}

impl<T> Runs<T> {
    pub(crate) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            rows: names.into_iter().map(|it| (it, Vec::new())).collect(),
        }
    }

    /// Enters what the contender with this number did in its next run.
    pub(crate) fn push(&mut self, who: usize, did: T) {
        self.rows[who].1.push(did);
    }

    /// The contenders' numbers and names.
    pub(crate) fn names(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.rows.iter().enumerate().map(|(who, row)| (who, row.0))
    }

    pub(crate) fn name(&self, who: usize) -> &'static str {
        self.rows[who].0
    }

    /// Who is called `name`, if they take part.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|it| it.0 == name)
    }

    /// All runs of one contender.
    pub(crate) fn of(&self, who: usize) -> &[T] {
        &self.rows[who].1
    }

    /// The median of a number of `who`.
    pub(crate) fn median(&self, who: usize, number: impl Fn(&T) -> f64) -> f64 {
        median(&self.of(who).iter().map(number).collect::<Vec<_>>())
    }

    /// The median of how many times as much it is as that of `base`, run by run.
    pub(crate) fn ratio(&self, who: usize, base: usize, number: impl Fn(&T) -> f64) -> f64 {
        self.compare(who, base, |own, others| number(own) / number(others))
    }

    /// The median of how much more it is than that of `base`, run by run.
    pub(crate) fn excess(&self, who: usize, base: usize, number: impl Fn(&T) -> f64) -> f64 {
        self.compare(who, base, |own, others| number(own) - number(others))
    }

    fn compare(&self, who: usize, base: usize, by: impl Fn(&T, &T) -> f64) -> f64 {
        let runs = self.of(who).iter().zip(self.of(base));
        median(
            &runs
                .map(|(own, others)| by(own, others))
                .collect::<Vec<_>>(),
        )
    }
}
