//! Critical sections of one lock: the job, what each worker reports, and whether two of them were ever inside at once.
//!
//! Times are nanoseconds of the [shared clock](super::stats::shared_clock), so that reports of several processes can
//! be laid over each other.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use super::line::field;

/// What every worker is to do: lock, stay inside for a while, release, and again until `end`.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) inside: Duration,
    pub(crate) name: String,
}

/// One turn of one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Just before the lock was asked for.
    pub(crate) called: u64,
    /// Just after it was there. Past the end of the job, the worker has left again at once.
    pub(crate) entered: u64,
    /// Just before it was released.
    pub(crate) left: u64,
}

/// What the workers of one process did.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The turns of each.
    pub(crate) workers: Vec<Vec<Section>>,
    pub(crate) errors: usize,
    /// What the first of them said, without spaces.
    pub(crate) first_error: String,
    /// Processor time of the process.
    pub(crate) cpu: Duration,
    /// What the client counted; only ours counts.
    pub(crate) counts: Option<Counts>,
}

/// From a manager's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    /// Rounds of acquisitions, however they ended.
    pub(crate) rounds: u64,
    pub(crate) won: u64,
}

impl Report {
    /// Takes in an error that is none of the sections.
    pub(crate) fn note(&mut self, err: &dyn fmt::Display) {
        if self.errors == 0 {
            self.first_error = err.to_string().replace(char::is_whitespace, "_");
        }
        self.errors += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        if self.errors == 0 {
            self.first_error = other.first_error;
        }
        self.workers.extend(other.workers);
        self.errors += other.errors;
    }
}

/// How often a worker entered before the one inside had left. Anything but zero is the end of a lock.
pub(crate) fn overlaps<'a>(reports: impl IntoIterator<Item = &'a Report>) -> usize {
    let workers = reports.into_iter().flat_map(|it| &it.workers);
    let mut sections: Vec<&Section> = workers.flatten().collect();
    sections.sort_unstable_by_key(|it| it.entered);
    let mut left = 0;
    let mut count = 0;
    for section in sections {
        count += usize::from(section.entered < left);
        left = left.max(section.left);
    }
    count
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sections errors={} first_error={}",
            self.errors, self.first_error
        )?;
        write!(f, " cpu_us={}", self.cpu.as_micros())?;
        if let Some(Counts {
            commands,
            rounds,
            won,
        }) = self.counts
        {
            write!(f, " commands={commands} rounds={rounds} won={won}")?;
        }
        f.write_str(" sections_ns=")?;
        for worker in &self.workers {
            for Section {
                called,
                entered,
                left,
            } in worker
            {
                write!(f, "{called}:{entered}:{left},")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

impl FromStr for Report {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        let sections: String = field(line, "sections_ns")?;
        let workers = sections
            .split_terminator(';')
            .map(|it| it.split_terminator(',').map(section).collect());
        let counts = |commands| -> io::Result<Counts> {
            Ok(Counts {
                commands,
                rounds: field(line, "rounds")?,
                won: field(line, "won")?,
            })
        };
        Ok(Self {
            workers: workers.collect::<io::Result<_>>()?,
            errors: field(line, "errors")?,
            first_error: field(line, "first_error")?,
            cpu: Duration::from_micros(field(line, "cpu_us")?),
            counts: field(line, "commands").ok().map(counts).transpose()?,
        })
    }
}

fn section(text: &str) -> io::Result<Section> {
    let times: Vec<u64> = text.split(':').map_while(|it| it.parse().ok()).collect();
    match times.as_slice() {
        [called, entered, left] => Ok(Section {
            called: *called,
            entered: *entered,
            left: *left,
        }),
        _ => Err(io::Error::other(format!("{text:?} is no section"))),
    }
}
