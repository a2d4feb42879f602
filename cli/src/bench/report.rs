//! The results, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::measure::{Node, Pairs};
use crate::bench::times::Times;
use crate::{screen, show};

/// The length of a bar for all times.
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
        let row = |(what, per_second, times): (String, Option<f64>, &Times)| {
            let rate = per_second.map(|it| format!("{it:.0}")).unwrap_or_default();
            let mut cells = vec![what, times.count().to_string(), rate];
            cells.extend(lengths(times).map(|it| it.map_or_else(|| "?".to_owned(), show::time)));
            cells
        };
        let locks = [
            (
                "lock and release, 1 thread".to_owned(),
                Some(self.single.per_second),
                &self.single.times,
            ),
            (
                format!("lock and release, {} threads", self.threads),
                Some(self.several.per_second),
                &self.several.times,
            ),
            (
                "hand-over to a waiting client".to_owned(),
                None,
                &self.hand_over,
            ),
        ];
        let nodes = self.nodes.iter().map(|it| {
            let failure = it
                .failure
                .as_ref()
                .map(|it| format!(": {it}"))
                .unwrap_or_default();
            (
                format!("round trip to {} ({}){failure}", it.node, it.address),
                None,
                &it.times,
            )
        });
        let header = [
            "WHAT",
            "TIMES",
            "PER SECOND",
            "MEDIAN",
            "90 %",
            "99 %",
            "LONGEST",
        ];
        let histogram = |(what, _, times): &(String, Option<f64>, &Times)| {
            format!(
                "\n\n{}\n{}",
                screen::styled(screen::BOLD, &format!("{what}, up to")),
                histogram(times)
            )
        };
        show::table(&header, locks.iter().cloned().chain(nodes).map(row))
            + &locks.iter().map(histogram).collect::<String>()
    }

    /// `left`: the servers with keys that are left.
    pub(crate) fn object(&self, left: &[String]) -> Value {
        let node = |it: &Node| json!({ "node": it.node, "address": it.address, "failure": it.failure, "times": object(&it.times) });
        let pairs = |it: &Pairs, threads: usize| json!({ "threads": threads, "per_second": it.per_second, "times": object(&it.times) });
        json!({
            "quorlock": 1, "event": "measured", "round_trips": self.nodes.iter().map(node).collect::<Value>(),
            "pairs": [pairs(&self.single, 1), pairs(&self.several, self.threads)],
            "hand_over": object(&self.hand_over), "left_on": left,
        })
    }
}

fn lengths(times: &Times) -> [Option<Duration>; 4] {
    [50.0, 90.0, 99.0, 100.0].map(|it| times.percentile(it))
}

fn object(times: &Times) -> Value {
    let [half, ninety, ninety_nine, longest] =
        lengths(times).map(|it| it.map(|it| it.as_secs_f64()));
    json!({ "count": times.count(), "p50": half, "p90": ninety, "p99": ninety_nine, "max": longest })
}

/// A bar for each range of times.
fn histogram(times: &Times) -> String {
    let rows = times.rows().map(|(end, count)| {
        let length =
            (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(times.count().max(1)));
        let bar = "#".repeat(usize::try_from(length).unwrap_or_default());
        format!(
            "  {:>8}  {bar:<width$}  {count}",
            show::time(end),
            width = BAR as usize
        )
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_length_of_their_share() {
        let mut times = Times::default();
        (0..3).for_each(|_| times.add(Duration::from_nanos(1_000)));
        times.add(Duration::from_nanos(4_000));
        let text = histogram(&times);
        let bars: Vec<_> = text.lines().map(|it| it.matches('#').count()).collect();
        assert_eq!(bars, [30, 0, 10], "{text}");
        assert!(
            text.starts_with("   1.02 µs  ###") && text.ends_with("  1"),
            "{text}"
        );
        assert_eq!(histogram(&Times::default()), "");
    }
}
