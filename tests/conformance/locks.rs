//! What may be stored under the keys of a lock.

use std::time::Duration;

use crate::pair::{GONE, LISTENING};
use crate::{Command, command};

/// Who runs the script: the value of its lock.
pub(crate) const OURS: &str = "0123456789abcdef0123456789abcdef backup 7";
/// The value of a lock that readers have.
pub(crate) const SHARED: &str = "quorlock:shared";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// Things that a key may hold; the first is the ordinary one.
pub(crate) type States = Vec<Vec<Command>>;

/// A time at which a server's clock stands.
#[derive(Clone, Copy)]
pub(crate) struct At(pub(crate) Duration);

impl At {
    pub(crate) fn micros(self) -> i128 {
        self.0.as_micros().cast_signed()
    }

    /// What counters are compared with.
    pub(crate) fn token(self) -> i128 {
        self.micros() - 1_000
    }

    /// The first proposal that is too far ahead.
    pub(crate) fn ahead(self) -> i128 {
        self.micros() + 3_600_000_001
    }

    /// So many milliseconds from now, in microseconds since 1970.
    pub(crate) fn in_ms(self, by: i128) -> String {
        (self.micros() + by * 1_000).to_string()
    }

    /// The same, in milliseconds since 1970.
    fn ms(self, by: i128) -> i128 {
        self.micros() / 1_000 + by
    }
}

fn none() -> Vec<Command> {
    Vec::new()
}

fn text(key: &str, value: &str) -> Vec<Command> {
    vec![command(["SET", key, value])]
}

fn text_for(key: &str, value: &str, ms: u64) -> Vec<Command> {
    vec![command(["SET", key, value, "PX", &ms.to_string()])]
}

fn sorted<S: AsRef<str>>(key: &str, members: &[(&str, S)], life: Option<u64>) -> Vec<Command> {
    let add = members.iter().map(|(member, score)| command(["ZADD", key, score.as_ref(), member]));
    add.chain(life.map(|it| command(["PEXPIRE", key, &it.to_string()]))).collect()
}

fn other_type(key: &str) -> Vec<Command> {
    sorted(key, &[("x", "1")], None)
}

/// A member of a waiting list that is a reader's call.
pub(crate) fn reader(client: &str, number: u8) -> String {
    format!("{client}r{number}")
}

pub(crate) fn for_several(client: &str) -> String {
    format!("{client}/quorlock:many:1")
}

pub(crate) fn lock(key: &str) -> States {
    let labelled = format!("{OTHER} worker 3");
    let longest = format!("{OTHER} {}", "x".repeat(63));
    let too_long = format!("{OTHER} {}", "x".repeat(64));
    vec![
        none(),
        text_for(key, OURS, 5_000),
        text_for(key, OTHER, 5_000),
        text_for(key, SHARED, 5_000),
        other_type(key),
        text(key, OURS),
        text(key, &labelled),
        text_for(key, &longest, 700_000),
        text_for(key, &too_long, 1),
        text_for(key, "somebody else", 20),
        text_for(key, &OTHER[1..], 20),
        text(key, SHARED),
        text_for(key, OURS, 1),
        text(key, ""),
        text_for(key, SHARED, 6_000),
        text_for(key, &format!("{} no digits", "z".repeat(32)), 5_000),
    ]
}

pub(crate) fn counter(key: &str, at: At) -> States {
    let (token, ahead) = (at.token(), at.ahead());
    let below = (token - 1).to_string();
    let equal = token.to_string();
    vec![
        text(key, &below),
        none(),
        text(key, &equal),
        text_for(key, &(token + 1).to_string(), 900_000),
        text_for(key, &equal, 900_000),
        text_for(key, "7", 20),
        text(key, "0"),
        text(key, "007"),
        text(key, "abc"),
        text(key, ""),
        text(key, &format!("{below}.5")),
        text(key, "9007199254740991"),
        text(key, "9007199254740992"),
        text(key, "99999999999999999"),
        text(key, &format!("{}x", &below[1..])),
        text(key, "00000000000000007"),
        text(key, "7.5"),
        text(key, &(ahead - 1).to_string()),
        text(key, &(ahead - 2).to_string()),
        other_type(key),
    ]
}

pub(crate) fn reservation(key: &str, at: At) -> States {
    let [a, b] = LISTENING;
    let until = |by: i128, whom: &str, began: &str| text_for(key, &format!("{} {whom} {began}", at.ms(by)), 30_000);
    let early = at.in_ms(-9_000);
    vec![
        none(),
        text_for(key, "0 ", 30_000),
        until(500, a, &at.in_ms(-5_000)),
        until(500, b, &early),
        until(500, b, &at.in_ms(-5_000)),
        until(500, b, &at.in_ms(-1)),
        until(500, b, ""),
        until(1_000, GONE, &early),
        until(0, b, &early),
        until(-1, b, &early),
        until(1, b, &early),
        until(500, &format!("{b}\u{b}"), "12"),
        until(1_001, b, &early),
        until(500, &for_several(a), &early),
        until(500, &for_several(b), &early),
        until(500, &format!("*{}", reader(a, 1)), &early),
        until(500, &format!("*{},{}", reader(a, 1), reader(b, 2)), &early),
        until(500, &format!("*{}", reader(b, 2)), "inf"),
        until(-500, &format!("*{},{}", reader(b, 2), b), &early),
        text(key, &format!("{} {b}", at.ms(500))),
        text_for(key, "no reservation", 30_000),
        text_for(key, &format!("{}  {b} 1", at.ms(500)), 1),
        text_for(key, &format!("{} {b} 1 2", at.ms(500)), 1),
        other_type(key),
    ]
}

pub(crate) fn list(key: &str, at: At) -> States {
    let [a, b] = LISTENING;
    let (long_ago, before, same, after) = (at.in_ms(-90_000), at.in_ms(-9_000), at.in_ms(-5_000), at.in_ms(-1));
    let polling = |it: &str| format!("{it}.5");
    let (ra, rb, rb2, rc) = (reader(a, 1), reader(b, 2), reader(b, 3), reader(GONE, 4));
    let many: Vec<_> = (0..40).map(|it| format!("dddddddddddddd{it:02}")).collect();
    let crowd = |last: &str| {
        let mut members: Vec<_> = many.iter().map(|it| (&it[..], long_ago.clone())).collect();
        members.push((last, before.clone()));
        sorted(key, &members, Some(30_000))
    };
    vec![
        none(),
        sorted(key, &[(a, &same)], Some(30_000)),
        sorted(key, &[(b, &before)], Some(30_000)),
        sorted(key, &[(b, &same)], Some(50)),
        sorted(key, &[(b, &after)], None),
        sorted(key, &[(GONE, &before)], Some(30_000)),
        sorted(key, &[(GONE, &polling(&before))], Some(30_000)),
        sorted(key, &[(b, &polling(&before)), (a, &same)], Some(30_000)),
        sorted(key, &[(GONE, &long_ago), (b, &before)], Some(30_000)),
        sorted(key, &[(&for_several(b), &before), (&ra, &same)], Some(30_000)),
        sorted(key, &[(&for_several(a), &same), (&for_several(GONE), &after)], Some(30_000)),
        sorted(key, &[(&ra, &same)], Some(30_000)),
        sorted(key, &[(&rb, &before), (&rb2, &after)], Some(30_000)),
        sorted(key, &[(&rb, &before), (b, &same), (&rc, &after)], Some(30_000)),
        sorted(key, &[(GONE, &long_ago), (&rb, &before), (&rc, &same), (&rb2, &after)], Some(30_000)),
        sorted(key, &[(b, &long_ago), (&rb, &before)], Some(30_000)),
        sorted(key, &[(&rc, &polling(&long_ago)), (b, &polling(&before))], Some(30_000)),
        sorted(key, &[(a, &before), (b, &same), (GONE, &after)], Some(30_000)),
        crowd(b),
        crowd(&rb),
        sorted(key, &[("", &before)], Some(30_000)),
        sorted(key, &[(b, "0")], Some(30_000)),
        sorted(key, &[(a, &at.in_ms(-1_000))], Some(30_000)),
        sorted(key, &[("1111111111111111", &after)], Some(30_000)),
        sorted(key, &[("r1", &long_ago), ("ar1", &before), (b, &same)], Some(30_000)),
        sorted(key, &[(&format!("{b}/"), &before)], Some(30_000)),
        sorted(
            key,
            &[(&rb, &long_ago), (b, &polling(&before)), (&for_several(b), &polling(&at.in_ms(-8_000)))],
            Some(30_000),
        ),
        text_for(key, "no list", 30_000),
    ]
}

pub(crate) fn readers(key: &str, at: At) -> States {
    let until = |by: i128| at.ms(by).to_string();
    vec![
        none(),
        sorted(key, &[(OURS, until(4_000))], Some(5_000)),
        sorted(key, &[(OTHER, until(4_000))], Some(5_000)),
        sorted(key, &[(OURS, until(4_000)), (OTHER, until(5_000))], Some(5_000)),
        sorted(key, &[(OURS, until(5_000)), (OTHER, until(3_000)), ("x", until(-1))], None),
        sorted(key, &[(OURS, until(0)), (OTHER, until(1))], Some(20)),
        sorted(key, &[(OURS, until(1)), (OTHER, until(0))], Some(20)),
        sorted(key, &[(OURS, until(-1))], Some(5_000)),
        text(key, "no readers"),
    ]
}

pub(crate) fn canary(key: &str, at: At, run_id: &str) -> States {
    let today = at.micros() / 86_400_000_000;
    let since = |by: i128| at.in_ms(by);
    let value = |since: &str, run: &str, day: i128, longest: u64, before: u64, more: &str| {
        text(key, &format!("1 {since} {run} {day} {longest} {before} {more}"))
    };
    let other = "0".repeat(40);
    let promoted = format!("{run_id}{other}");
    vec![
        value(&since(-90_000_000), run_id, today, 60_000, 0, "old"),
        none(),
        text(key, "0"),
        value(&since(-20_000), run_id, today, 30_000, 0, "new"),
        // With a quarantine of a minute: it ends now, has ended a little ago, and is about to end.
        value(&since(-60_000), run_id, today, 0, 0, "old"),
        value(&since(-60_500), run_id, today - 1, 0, 0, "old"),
        value(&since(-60_001), run_id, today, 0, 0, "old"),
        value(&since(-59_999), run_id, today, 0, 0, "old"),
        value(&since(-30_000), run_id, today, 30_000, 0, "new"),
        value(&since(-20_000), run_id, today - 1, 40_000, 0, "new"),
        value(&since(-20_000), run_id, today - 1, 0, 7_300_000, "vouched"),
        value(&since(-20_000), run_id, today - 2, 7_300_000, 7_300_000, "old"),
        value(&since(-20_000), &other, today, 7_300_000, 5, "old more of a later version"),
        value(&since(-20_000), &promoted, today, 40_000, 0, "old"),
        value(&since(-20_000), "?", today + 1, 70_000, 80_000, "new"),
        value("0", &other, today, 1, 1, "vouched"),
        value(&since(1), run_id, today, 1, 1, "old"),
        value(&since(-90_000_000), run_id, today, 12_345_678, 1, "old"),
        value("12345678901234567", run_id, today, 1, 1, "old"),
        // Of a master of a cluster.
        value(&since(-20_000), run_id, today, 1, 1, &format!("new {} 7 0-5460,7000-7001", since(-10_000))),
        value(&since(-20_000), run_id, today, 1, 1, "old 12 8 0-99,100-5460"),
        value(&since(-20_000), run_id, today, 1, 1, "vouched 0 7 5-"),
        value(&since(-20_000), run_id, today, 1, 1, "new 12 7 0-5460"),
        value(&since(-20_000), run_id, today, 1, 1, "new 12 7 0-5460,a-b"),
        value(&since(-20_000), run_id, today, 1, 1, "new 12 7f 0-5460"),
        value(&since(-20_000), run_id, today, 1, 1, "new 12 7 "),
        value(&since(-90_000_000), run_id, today, 1, 1, "OLD"),
        text(key, &format!("2 {} {run_id} {today} 1 1 new, and more", since(-5_000))),
        [value(&since(-90_000_000), run_id, today, 60_000, 0, "old"), vec![command(["PEXPIRE", key, "30000"])]]
            .concat(),
        value(&(at.micros() - 20_000_500).to_string(), run_id, today, 30_000, 0, "new"),
        value(&since(-20_000), run_id, today, 0, 7_300_000, "old"),
        value(&since(-90_000_000), run_id, today, 1, 12_345_678, "old"),
        value(&since(0), run_id, today, 1, 1, "new"),
        value("00000000000000001", run_id, today, 1, 1, "old"),
        text(key, &format!("1f {} {run_id} {today} 1 1 new", since(-5_000))),
        text(key, "no canary"),
        text(key, "00"),
        other_type(key),
    ]
}

/// What `meet.lua` notes.
pub(crate) fn set(key: &str, at: At) -> States {
    let hour = at.micros() / 3_600_000_000;
    let print = |it: u8| format!("{it:016x}");
    let one = |it: u8, nodes: u16, hour: i128| format!(" {} {nodes} {hour}", print(it));
    let (own, other) = (one(1, 3, hour - 1), one(2, 5, hour));
    let many: String = (1..9).map(|it| one(it, 5, hour - 3)).collect();
    vec![
        none(),
        text(key, &format!("1 77{own}")),
        text(key, &format!("1 77{other}")),
        text(key, &format!("1 77{own}{other}")),
        text(key, &format!("1 77{}{}", one(2, 5, hour - 24), one(3, 7, hour - 23))),
        text(key, &format!("1 77{}{own}", one(2, 5, hour + 9))),
        text(key, &format!("2 123456789012345{many}")),
        text(key, &format!("1 1234567890123456{other}")),
        text(key, &format!("1 77{}{}", one(2, 1_000, hour), one(3, 999, hour))),
        text(key, &format!("1 77 abc 3 {hour} and {other}")),
        text(key, "1 77"),
        text_for(key, &format!("1 77{}", one(1, 3, hour)), 30_000),
        text(key, "no set"),
        text(key, ""),
        other_type(key),
    ]
}
