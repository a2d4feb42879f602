//! Decisions that depend on more than two things: some of what may be stored and asked, in all combinations.

use std::time::Duration;

use crate::locks::{self, At, OURS, States, reader};
use crate::pair::{Case, GONE, LISTENING};
use crate::shapes::{Args, Shape, each, groups};
use crate::{Command, command};

pub(crate) fn all(now: Duration) -> Vec<Shape> {
    let at = At(now);
    [quarantines(at), extensions(at), cuts(at), queues(at), readers_in_turn(at), crowds(at), greetings(at)]
        .into_iter()
        .flatten()
        .collect()
}

fn some(states: &States, which: &[usize]) -> States {
    which.iter().map(|it| states[*it].clone()).collect()
}

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|it| (*it).to_owned()).collect()
}

/// A counter is gone, on a node whose canary may say anything.
fn quarantines(at: At) -> Vec<Shape> {
    let shape = |name: &'static str, of: &'static [&'static str], args| {
        let states = move |run: &str| -> Vec<States> {
            let state = |it: &&str| match *it {
                "canary" => locks::canary("canary", at, run),
                "fence1" | "fence2" => some(&locks::counter(it, at), &[1, 0]),
                "readers1" if name == "extend_shared" => vec![locks::readers(it, at)[1].clone()],
                "lock1" if name == "extend_shared" => vec![locks::lock(it)[3].clone()],
                "lock1" | "lock2" if name.starts_with("extend") => vec![locks::lock(it)[1].clone()],
                _ => vec![Vec::new()],
            };
            of.iter().map(state).collect()
        };
        Shape { name, keys: keys(of), states: Box::new(states), args }
    };
    let quarantine = || each(["60000", "0", "1"]);
    let proposal = each([&at.token().to_string(), "1", "9007199254740991"]);
    let wish = |more: Vec<Vec<Args>>| {
        let first = vec![each([OURS]), each(["10000"]), proposal.clone(), each(["0"]), quarantine()];
        let last = [&["fair"][..], &[&at.in_ms(0)], &[""], &[""]].map(|it| vec![command(it)]);
        [first, last.into(), more].concat()
    };
    let extension = || vec![each([OURS]), each(["10000"]), each([&at.token().to_string()]), each(["0"]), quarantine()];
    vec![
        shape("acquire", &["lock1", "fence1", "list1", "turn1", "canary"], wish(vec![each(["1"])])),
        shape("acquire_shared", &["lock1", "fence1", "list1", "turn1", "canary", "readers1"], wish(vec![each(["1"])])),
        shape(
            "acquire_many",
            &["lock1", "lock2", "fence1", "fence2", "turn1", "turn2", "list1", "list2", "canary"],
            wish(vec![each(["1"])]),
        ),
        shape(
            "acquire_slot",
            &["slot1", "slot2", "fence1", "fence2", "turn1", "list1", "canary"],
            wish(vec![each(["1"]), each(["0"]), each(["1"])]),
        ),
        shape("extend", &["lock1", "fence1", "canary"], extension()),
        shape("extend_shared", &["lock1", "fence1", "canary", "readers1", "list1", "turn1"], extension()),
        shape("extend_many", &["lock1", "lock2", "fence1", "fence2", "canary"], extension()),
    ]
}

/// A lock is extended, or two of which each may be gone or somebody else's, with any counter.
fn extensions(at: At) -> Vec<Shape> {
    let states = move |_: &str| {
        let lock = |key| some(&locks::lock(key), &[0, 1, 2, 4]);
        let counter = |key| some(&locks::counter(key, at), &[0, 1, 2, 3]);
        vec![lock("lock1"), lock("lock2"), counter("fence1"), counter("fence2"), vec![Vec::new()]]
    };
    let token = at.token().to_string();
    let args = vec![
        each([OURS]),
        each(["10000"]),
        each([&token]),
        each(["90000"]),
        each(["0"]),
        groups([&[], &["keep"], &["heal"]]),
    ];
    let keys = keys(&["lock1", "lock2", "fence1", "fence2", "canary"]);
    let raised = vec![each([OURS]), each([&token]), each(["0"])];
    vec![
        Shape {
            name: "raise_many",
            keys: keys[..4].to_vec(),
            states: Box::new(move |it| states(it)[..4].to_vec()),
            args: raised,
        },
        Shape { name: "extend_many", keys, states: Box::new(states), args },
    ]
}

/// A reader leaves others behind, whose lives are shorter than the lock's.
fn cuts(at: At) -> Vec<Shape> {
    let states = move |_: &str| {
        let turn = some(&locks::reservation("turn1", at), &[0, 1]);
        vec![some(&locks::lock("lock1"), &[3, 14]), locks::list("list1", at), turn, locks::readers("readers1", at)]
    };
    let args = vec![each([OURS]), groups([&[], &[LISTENING[0]]])];
    vec![Shape {
        name: "release_shared",
        keys: keys(&["lock1", "list1", "turn1", "readers1"]),
        states: Box::new(states),
        args,
    }]
}

/// The arguments of an acquire that may wait: fair or not, since when, and as whom.
fn attempt(at: At, fair: Vec<Args>, since: Vec<Args>, client: Vec<Args>) -> Vec<Vec<Args>> {
    let token = each([&at.token().to_string()]);
    let first = vec![each([OURS]), each(["10000"]), token, each(["0"]), each(["0"])];
    [first, vec![fair, since, client, each(["30000"]), each(["1"])]].concat()
}

/// Any others wait, and the lock, or a permit, is reserved for one of them or for nobody.
fn queues(at: At) -> Vec<Shape> {
    let [a, b] = LISTENING;
    let reserved = move || some(&locks::reservation("turn1", at), &[1, 3, 15, 17]);
    let lock = |name, of: &[&str]| {
        let more = of.len() - 4;
        let states = move |_: &str| {
            let first = vec![vec![Vec::new()], vec![Vec::new()], locks::list("list1", at), reserved()];
            [first, vec![vec![Vec::new()]; more]].concat()
        };
        let args = attempt(at, each(["fair", "unfair"]), each([&at.in_ms(-5_000), &at.in_ms(0)]), each([a, b]));
        Shape { name, keys: keys(of), states: Box::new(states), args }
    };
    let locks = [
        lock("acquire", &["lock1", "fence1", "list1", "turn1", "canary"]),
        lock("acquire_shared", &["lock1", "fence1", "list1", "turn1", "canary", "readers1"]),
    ];
    locks.into_iter().chain([permits(at)]).collect()
}

/// A reader is refused, or let in, while the lock is reserved for it, for others as well, or for others alone.
fn readers_in_turn(at: At) -> Vec<Shape> {
    let states = move |_: &str| {
        let none = || vec![Vec::new()];
        let lock = some(&locks::lock("lock1"), &[0, 2, 3]);
        let list = some(&locks::list("list1", at), &[0, 1, 2, 11]);
        vec![lock, none(), list, locks::reservation("turn1", at), none(), none()]
    };
    let [a, _] = LISTENING;
    let args = attempt(at, each(["fair", "unfair"]), each([&at.in_ms(-5_000)]), each([a, &reader(a, 1)]));
    let keys = keys(&["lock1", "fence1", "list1", "turn1", "canary", "readers1"]);
    vec![Shape { name: "acquire_shared", keys, states: Box::new(states), args }]
}

/// What a master of a cluster is told of its slots, and what it has noted of them.
fn greetings(at: At) -> Vec<Shape> {
    let today = (at.micros() / 86_400_000_000).to_string();
    let old = at.in_ms(-20_000);
    let words = groups([
        &["slot", "7", "5-9"],
        &["slot", "7", "5-9,9000-9001"],
        &["slot", "7", ""],
        &["slot", "7f", "5-9"],
        &["slot", &old, "5-9"],
        &["vouch", "7"],
        &["settle", "1", "12"],
        &["settle", &old, "12", "new"],
        &["settle", &old, "12", "old"],
        &["settle", &old, "0", "vouched"],
    ]);
    let states = move |run: &str| vec![locks::canary("canary", at, run)];
    let args = vec![each(["60000"]), each(["0"]), each([&today]), words];
    vec![Shape { name: "greet", keys: keys(&["canary"]), states: Box::new(states), args }]
}

fn permits(at: At) -> Shape {
    let states = move |_: &str| {
        let slot = |key| some(&locks::lock(key), &[0, 2]);
        let turn = some(&locks::reservation("turn1", at), &[1, 3, 4, 5]);
        let none = || vec![Vec::new()];
        vec![slot("slot1"), slot("slot2"), none(), none(), none(), turn, locks::list("list1", at), none()]
    };
    let [a, b] = LISTENING;
    let args = [
        attempt(at, each(["fair", "unfair"]), each([&at.in_ms(-5_000)]), each([a, b])),
        vec![each(["0"]), each(["1"])],
    ]
    .concat();
    let keys = keys(&["slot1", "slot2", "slot3", "fence1", "fence2", "fence3", "turn1", "list1", "canary"]);
    Shape { name: "acquire_slot", keys, states: Box::new(states), args }
}

/// More clients are in the list than a script looks at.
fn crowds(at: At) -> Vec<Shape> {
    let crowd = move |count: usize, what: &str, last: &str| {
        let mut add = command(["ZADD", "list1"]);
        let members = (0..count).map(|it| (at.in_ms(-90_000), format!("dddddddddddd{it:04}{what}")));
        for (score, member) in members.chain([(at.in_ms(-9_000), last.to_owned())]) {
            add.extend(command([score, member]));
        }
        vec![add]
    };
    let [a, b] = LISTENING;
    let lists = move || -> States {
        let sizes = [585, 999, 1_000, 1_001];
        sizes.iter().flat_map(|it| [crowd(*it, "", b), crowd(*it, "r1", b), crowd(*it, "r1", GONE)]).collect()
    };
    let turn = move || some(&locks::reservation("turn1", at), &[1]);
    let acquire = |name, of: &[&str], lock: usize| {
        let last = of.len() - 4;
        let states = move |_: &str| {
            let rest = std::iter::repeat_n(vec![Vec::new()], last);
            [vec![some(&locks::lock("lock1"), &[lock]), vec![Vec::new()], lists(), turn()], rest.collect()].concat()
        };
        let args = attempt(at, each(["fair"]), each([&at.in_ms(-5_000)]), each([a]));
        Shape { name, keys: keys(of), states: Box::new(states), args }
    };
    let release = move |_: &str| vec![some(&locks::lock("lock1"), &[1]), lists(), turn()];
    vec![
        acquire("acquire", &["lock1", "fence1", "list1", "turn1", "canary"], 0),
        acquire("acquire_shared", &["lock1", "fence1", "list1", "turn1", "canary", "readers1"], 0),
        acquire("acquire_shared", &["lock1", "fence1", "list1", "turn1", "canary", "readers1"], 3),
        Shape {
            name: "release",
            keys: keys(&["lock1", "list1", "turn1"]),
            states: Box::new(release),
            args: vec![each([OURS])],
        },
    ]
}

/// Commands that are no scripts, on a key that may hold anything.
pub(crate) fn commands(now: Duration) -> Vec<Case> {
    let at = At(now);
    let said: Vec<Command> = [
        &["GET", "key"][..],
        &["SET", "key", "value"],
        &["SET", "key", "value", "PX", "700"],
        &["SET", "key", "value", "px", "0"],
        &["SET", "key", "value", "NX", "PX", "700"],
        &["SET", "other", "value", "nx", "px", "700"],
        &["DEL", "key", "key", "other"],
        &["EXISTS", "key", "key", "other"],
        &["PTTL", "key"],
        &["PEXPIRE", "key", "700"],
        &["PEXPIRE", "key", "0"],
        &["ZADD", "key", "5", "a", "7", "b"],
        &["ZADD", "key", "0.5", "a"],
        &["ZCARD", "key"],
        &["ZSCORE", "key", "x"],
        &["ZSCORE", "key", "y"],
        &["ZRANGE", "key", "0", "-1"],
        &["ZRANGE", "key", "0", "-1", "withscores"],
        &["TYPE", "key"],
        &["HSET", "key", "x", "v"],
        &["SADD", "key", "x"],
        &["LPUSH", "other", "x"],
        &["PUBLISH", "quorlock:wake:aaaaaaaaaaaaaaaa", "key"],
        &["PUBLISH", "nobody", "key"],
        &["KEYS", "*"],
        &["KEYS", "k*"],
        &["KEYS", "ke*"],
        &["KEYS", "l*"],
        &["DBSIZE"],
        &["FLUSHALL"],
        &["TIME"],
        &["PING"],
    ]
    .map(command)
    .into();
    let others = [&["HSET", "key", "x", "v"][..], &["SADD", "key", "x"], &["LPUSH", "key", "x"]];
    let others = others.map(|it| vec![command(it)]).into();
    let states = [locks::lock("key"), locks::list("key", at), others].concat();
    let case = |(before, said): (&Vec<Command>, &Command)| Case { before: before.clone(), last: said.clone() };
    states.iter().flat_map(|it| said.iter().map(move |said| (it, said))).map(case).collect()
}
