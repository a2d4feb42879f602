//! Each form of a command that scripts, connections and tests use, on each kind of key.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::pair::Pair;
use crate::{TestResult, command, sources, words};

/// What is under `key` at first. The commands of a state are separated by semicolons.
const STATES: [&str; 14] = [
    "PING",
    "SET key value",
    "SET key value PX 700",
    "SET key ",
    "SET key 41",
    "SET key 41 PX 5000",
    "SET other value",
    "ZADD key 3 x",
    "ZADD key 1 a 2 c 2 b 2.5 d 7 e",
    "ZADD key 1700000000000000 a 1700000000000000.5 b 1700000000000001 c -3 d;PEXPIRE key 700",
    "ZADD key inf a -inf b 0.25 c;PEXPIRE key 700",
    "HSET key f v",
    "SADD key m;PEXPIRE key 700",
    "LPUSH key e",
];

/// Commands. Of an argument in capitals a script or a connection has the same.
const FORMS: [&str; 128] = [
    "GET key",
    "GET",
    "MGET key",
    "MGET key other key",
    "MGET",
    "SET key new",
    "SET key ",
    "SET key new PX 300",
    "SET key new NX PX 300",
    "SET key new NX",
    "SET key new XX",
    "SET key  XX",
    "SET key new XX KEEPTTL",
    "SET key new KEEPTTL",
    "SET key new GET",
    "SET key new PX 300 GET",
    "SET key new xx px 300",
    "SET key new PX 0",
    "SET key new PX -5",
    "SET key new PX 1.5",
    "SET key new PX x GET",
    "SET key new PX",
    "SET key new PX 9223372036854775807",
    "SET key new other",
    "SET key new NX XX",
    "SET key",
    "DEL key",
    "DEL other key key",
    "DEL",
    "EXISTS key",
    "EXISTS key other key",
    "EXISTS",
    "PTTL key",
    "PTTL",
    "PEXPIRE key 300",
    "PEXPIRE key 1",
    "PEXPIRE key 0",
    "PEXPIRE key -1",
    "PEXPIRE key 1.5",
    "PEXPIRE key x",
    "PEXPIRE key",
    "TYPE key",
    "ZADD key GT 9 a",
    "ZADD key GT 0 a",
    "ZADD key GT 9 new",
    "ZPOPMIN key",
    "ZPOPMIN",
    "ZADD key 5 a",
    "ZADD key 5.5 a",
    "ZADD key 1700000000000000.5 new",
    "ZADD key 9007199254740993 new",
    "ZADD key -inf a +inf new",
    "ZADD key 1e3 new",
    "ZADD key 1 a 2 new 3 new",
    "ZADD key XX 5 a",
    "ZADD key NX 5 a 5 new",
    "ZADD key x a",
    "ZADD key nan a",
    "ZADD key  a",
    "ZADD key 1 a x b",
    "ZADD key 5",
    "ZADD key 5 a 6",
    "ZADD key XX",
    "ZREM key a",
    "ZREM key a b c d e x",
    "ZREM key none a",
    "ZREM key",
    "ZCARD key",
    "ZCARD",
    "ZSCORE key a",
    "ZSCORE key b",
    "ZSCORE key c",
    "ZSCORE key d",
    "ZSCORE key",
    "ZCOUNT key 0 0",
    "ZCOUNT key 2 7",
    "ZCOUNT key (2 +inf",
    "ZCOUNT key -inf (2.5",
    "ZCOUNT key 7 2",
    "ZCOUNT key x 2",
    "PEXPIRE key 9223372036854775807",
    "ZCOUNT key 2",
    "ZREMRANGEBYSCORE key 0 0",
    "ZREMRANGEBYSCORE key -inf 2",
    "ZREMRANGEBYSCORE key (2 +inf",
    "ZREMRANGEBYSCORE key -inf +inf",
    "ZREMRANGEBYSCORE key 1 x",
    "ZREMRANGEBYSCORE key 1",
    "ZRANGE key 0 0",
    "ZRANGE key 0 -1",
    "ZRANGE key 0 0 WITHSCORES",
    "ZRANGE key 1 8 WITHSCORES",
    "ZRANGE key -1 -1 WITHSCORES",
    "ZRANGE key -3 -2 withscores",
    "ZRANGE key -100 1",
    "ZRANGE key 2 1",
    "ZRANGE key 7 9",
    "ZRANGE key 0 -9",
    "ZRANGE key x 1",
    "ZRANGE key 0 1.5",
    "ZRANGE key 0 -1 other",
    "ZRANGE key 0",
    "ZRANGEBYSCORE key 0 0",
    "ZRANGEBYSCORE key -inf +inf WITHSCORES LIMIT 0 2",
    "ZRANGEBYSCORE key (2 +inf WITHSCORES LIMIT 1 100",
    "ZRANGEBYSCORE key 2 (2.5 LIMIT 1 -1",
    "ZRANGEBYSCORE key 2 7 limit 0 0",
    "ZRANGEBYSCORE key 2 7 LIMIT -1 2",
    "ZRANGEBYSCORE key 2 7 LIMIT x 2",
    "ZRANGEBYSCORE key 2 7 LIMIT 0",
    "ZRANGEBYSCORE key y 7",
    "ZRANGEBYSCORE key 2",
    "SCAN 0 COUNT 1000",
    "SCAN 0 MATCH ke* COUNT 1000",
    "SCAN 0 MATCH *",
    "SCAN 0 MATCH none* COUNT 1000",
    "SCAN x",
    "SCAN 0 COUNT 0",
    "SCAN 0 COUNT",
    "KEYS ke*",
    "HSET key f w",
    "SADD key n",
    "PUBLISH heard message",
    "PUBLISH nobody message",
    "PUBLISH heard",
    "PUBSUB NUMSUB heard nobody",
    "PUBSUB NUMSUB",
    "PUBSUB CHANNELS h*",
];

/// Commands that do not depend on keys.
const OTHERS: [&str; 8] = [
    "TIME",
    "PING",
    "DBSIZE",
    "ROLE",
    "SELECT 0",
    "CLIENT SETNAME me",
    "UNKNOWN key",
    "FLUSHALL",
];

#[test]
fn each_form_of_a_command_does_the_same_on_each_kind_of_key() -> TestResult {
    let Some(mut pair) = Pair::start()? else {
        return Ok(());
    };
    pair.subscribe(0, b"heard")?;
    for state in STATES {
        for form in FORMS.iter().chain(&OTHERS) {
            pair.compare(state.split(';').chain([*form]).map(words))?;
        }
    }
    Ok(())
}

#[test]
fn a_key_expires_in_the_same_microsecond() -> TestResult {
    let Some(mut pair) = Pair::start()? else {
        return Ok(());
    };
    for set in ["SET key value PX 20", "ZADD key 1 a;PEXPIRE key 20"] {
        for micros in [
            19_000, 19_655, 20_000, 20_654, 20_655, 21_000, 22_000, 5_000_000,
        ] {
            pair.compare(set.split(';').map(words))?;
            pair.go_to(pair.now() + Duration::from_micros(micros))?;
            for form in [
                "PTTL key",
                "EXISTS key",
                "TYPE key",
                "DEL key",
                "SET key new KEEPTTL GET",
            ] {
                pair.run(&[words(form)])?;
            }
        }
    }
    Ok(())
}

/// Sections of `INFO`, and what clients and scripts look for there.
const LINES: [(&str, &str); 8] = [
    ("server", "run_id:(%w+)"),
    ("server", "server_time_usec:(%d+)"),
    ("replication", "second_repl_offset:(%d+)"),
    ("replication", "role:(%w+)"),
    ("replication", "connected_slaves:(%d+)"),
    ("persistence", "aof_enabled:([01])"),
    ("memory", "maxmemory_policy:(%w+)"),
    ("memory", "maxmemory:(%d+)"),
];

#[test]
fn info_has_the_same_lines_for_clients_and_scripts() -> TestResult {
    let Some(mut pair) = Pair::start()? else {
        return Ok(());
    };
    for (section, line) in LINES {
        let source = "return string.match(redis.call('INFO', ARGV[1]), '[\\r\\n]' .. ARGV[2])";
        pair.compare([command(["EVAL", source, "0", section, line])])?;
    }
    Ok(())
}

/// Words in capitals: the name of a command, and its options in the order of the alphabet.
fn signature<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let is_word =
        |text: &&str| text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let mut words: Vec<_> = words.filter(is_word).collect();
    words.get_mut(1..).unwrap_or_default().sort_unstable();
    words
}

/// The commands that a script calls.
fn calls(source: &str) -> impl Iterator<Item = Vec<&str>> {
    let starts = ["call(", "try("]
        .into_iter()
        .flat_map(|name| source.match_indices(name).map(|(at, name)| at + name.len()));
    let calls = starts.map(|start| {
        let mut depth = 1;
        let end = source[start..].find(|letter| {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            depth == 0
        });
        // What stands in quotes.
        signature(
            source[start..start + end.unwrap_or_default()]
                .split('"')
                .skip(1)
                .step_by(2),
        )
    });
    calls.filter(|words| !words.is_empty())
}

#[test]
fn each_form_of_a_command_in_a_script_is_compared() -> TestResult {
    let compared = FORMS
        .iter()
        .chain(&OTHERS)
        .map(|form| signature(form.split(' ')));
    let compared: BTreeSet<_> = compared.chain([vec!["INFO"]]).collect();
    let mut count = 0;
    for (name, source) in sources::read()? {
        for words in calls(&source) {
            assert!(
                compared.contains(&words),
                "{name}.lua: {words:?} has no form"
            );
            count += 1;
        }
    }
    assert!(count > 100, "{count} calls found");
    Ok(())
}
