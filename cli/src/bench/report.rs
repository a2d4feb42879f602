//! What was measured, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::measure::{Node, Pairs};
use crate::bench::times::Times;
use crate::show;

/// A bar of this length is all of them.
const BAR: u64 = 40;

pub(crate) struct Measured {
    pub(crate) nodes: Vec<Node>,
    pub(crate) single: Pairs,
    pub(crate) several: Pairs,
    pub(crate) threads: usize,
    pub(crate) hand_over: Times,
}

impl Measured {
    pub(crate) fn text(&self) -> String {
        let mut table = show::table(&["WHAT", "TIMES", "PER SECOND", "HALF", "90 %", "99 %", "LONGEST"]);
        let mut row = |what: &str, per_second: Option<f64>, times: &Times| {
            let rate = per_second.map(|it| format!("{it:.0}")).unwrap_or_default();
            let mut cells = vec![what.to_owned(), times.count().to_string(), rate];
            cells.extend(lengths(times).map(|it| it.map_or_else(|| "?".to_owned(), short)));
            table.add_row(cells);
        };
        for it in &self.nodes {
            let failure = it.failure.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
            row(&format!("{} ({}){failure}", it.node, it.address), None, &it.times);
        }
        let several = format!("taken and given back, {} threads", self.threads);
        let locks = [
            ("taken and given back, 1 thread", Some(self.single.per_second), &self.single.times),
            (&several, Some(self.several.per_second), &self.several.times),
            ("from one client to another", None, &self.hand_over),
        ];
        locks.iter().for_each(|(what, per_second, times)| row(what, *per_second, times));
        let histograms = locks.map(|(what, _, times)| format!("\n\n{what}, up to\n{}", histogram(times)));
        table.trim_fmt() + &histograms.concat()
    }

    /// `left`: the servers on which something was left.
    pub(crate) fn object(&self, left: &[String]) -> Value {
        let node = |it: &Node| json!({ "node": it.node, "address": it.address, "failure": it.failure, "times": object(&it.times) });
        let pairs = |it: &Pairs, threads: usize| json!({ "threads": threads, "per_second": it.per_second, "times": object(&it.times) });
        json!({
            "quorlock": 1, "event": "measured", "round_trips": self.nodes.iter().map(node).collect::<Vec<_>>(),
            "pairs": [pairs(&self.single, 1), pairs(&self.several, self.threads)],
            "hand_over": object(&self.hand_over), "left_on": left,
        })
    }
}

fn lengths(times: &Times) -> [Option<Duration>; 4] {
    [times.percentile(50), times.percentile(90), times.percentile(99), times.longest()]
}

fn object(times: &Times) -> Value {
    let [half, ninety, ninety_nine, longest] = lengths(times).map(|it| it.map(|it| it.as_secs_f64()));
    json!({ "count": times.count(), "p50": half, "p90": ninety, "p99": ninety_nine, "max": longest })
}

/// A bar for each row of times.
fn histogram(times: &Times) -> String {
    let rows = times.rows().into_iter().map(|(end, count)| {
        let length = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(times.count().max(1)));
        let bar = "#".repeat(usize::try_from(length).unwrap_or_default());
        format!("  {:>8}  {bar:<width$}  {count}", short(end), width = BAR as usize)
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// Three digits and a unit.
fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (number, unit) = match seconds {
        ..0.001 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_bars_the_length_of_their_share() {
        for (nanos, text) in [(0, "0.00 µs"), (1_234, "1.23 µs"), (65_536, "65.5 µs"), (123_456_789, "123 ms")] {
            assert_eq!(short(Duration::from_nanos(nanos)), text);
        }
        assert_eq!(short(Duration::from_secs(90)), "90.0 s");
        let mut times = Times::default();
        (0..3).for_each(|_| times.add(Duration::from_nanos(1_000)));
        times.add(Duration::from_nanos(4_000));
        let text = histogram(&times);
        let bars: Vec<_> = text.lines().map(|it| it.matches('#').count()).collect();
        assert_eq!(bars, [30, 0, 10], "{text}");
        assert!(text.starts_with("   1.02 µs  ###") && text.ends_with("  1"), "{text}");
        assert_eq!(histogram(&Times::default()), "");
    }
}
