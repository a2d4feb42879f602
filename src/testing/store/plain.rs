//! Commands that are no scripts: those that a client of ours sends, and those by which a test looks and sets.

use super::call::{Args, Outcome, Refused, to_number, wrong_number};
use super::keyspace::Keyspace;
use super::number::of_len;
use super::reply::Reply;

/// Runs a command; `name` in capitals.
pub(super) fn execute(keys: &mut Keyspace, run_id: &str, now: f64, name: &[u8], args: Args<'_>) -> Outcome {
    let key = args.at(1);
    match (name, args.len()) {
        (b"PING", 0) => Ok(Reply::Status("PONG")),
        (b"TIME", 0) => {
            let seconds = (now / 1_000_000.0).floor();
            let micros = now - seconds * 1_000_000.0;
            Ok(Reply::Array([seconds, micros].map(|it| Reply::bulk(format!("{it:.0}"))).into()))
        }
        (b"GET", 1) => Ok(keys.get(key)?.map_or(Reply::Nil, Reply::Bulk)),
        (b"SET", 2) => {
            keys.set(key, args.at(2), None);
            Ok(Reply::OK)
        }
        (b"SET", 4) if args.at(3).eq_ignore_ascii_case(b"px") => {
            let life = args.number(4)?;
            if life == 0.0 {
                return Err(Refused("ERR invalid expire time in 'set' command".to_owned()));
            }
            keys.set(key, args.at(2), Some(life));
            Ok(Reply::OK)
        }
        (b"SET", 5) if args.at(3).eq_ignore_ascii_case(b"nx") && args.at(4).eq_ignore_ascii_case(b"px") => {
            let is_set = keys.set_new(key, args.at(2), args.number(5)?);
            Ok(if is_set { Reply::OK } else { Reply::Nil })
        }
        (b"DEL", 1..) => Ok(count(args.all().filter(|it| keys.del(it)).count())),
        (b"EXISTS", 1..) => Ok(count(args.all().filter(|it| keys.exists(it)).count())),
        (b"PTTL", 1) => Ok(Reply::number(keys.pttl(key))),
        (b"PEXPIRE", 2) => Ok(Reply::Int(i64::from(keys.expire(key, args.number(2)?)))),
        (b"ZADD", 3..) => {
            let (pairs, []) = args.rest(1).as_chunks() else { return Err(wrong_number()) };
            let scored = pairs.iter().map(|[score, member]| Ok((to_number(score)?, member)));
            let scored = scored.collect::<Result<Vec<_>, Refused>>()?;
            let added = scored.into_iter().map(|(score, member)| keys.zadd(key, score, member));
            Ok(count(added.collect::<Result<Vec<_>, _>>()?.into_iter().filter(|it| *it).count()))
        }
        (b"ZCARD", 1) => Ok(Reply::number(keys.zcard(key)?)),
        (b"ZSCORE", 2) => Ok(keys.zscore(key, args.at(2))?.map_or(Reply::Nil, score)),
        (b"ZRANGE", 3) if is_whole(args) => {
            Ok(Reply::Array(keys.zall(key)?.into_iter().map(|it| Reply::Bulk(it.0)).collect()))
        }
        (b"ZRANGE", 4) if is_whole(args) && args.at(4).eq_ignore_ascii_case(b"withscores") => {
            let members = keys.zall(key)?.into_iter();
            Ok(Reply::Array(members.flat_map(|(it, at)| [Reply::Bulk(it), score(at)]).collect()))
        }
        (b"TYPE", 1) => Ok(Reply::Status(keys.kind(key))),
        (b"HSET", 3) => Ok(count(usize::from(keys.put(key, "hash", args.at(2))?))),
        (b"SADD", 2) => Ok(count(usize::from(keys.put(key, "set", args.at(2))?))),
        // A second one would make a list longer.
        (b"LPUSH", 2) if !keys.exists(key) => Ok(count(usize::from(keys.put(key, "list", args.at(2))?))),
        (b"KEYS", 1) if prefix(key).is_some() => {
            let begin = prefix(key).unwrap_or_default();
            let found = keys.iter().map(|it| it.0).filter(|it| it.starts_with(begin));
            Ok(Reply::Array(found.map(Reply::bulk).collect()))
        }
        (b"DBSIZE", 0) => Ok(count(keys.iter().count())),
        (b"FLUSHALL", _) => {
            keys.clear();
            Ok(Reply::OK)
        }
        (b"INFO", _) => Ok(Reply::bulk(info(keys, run_id, now))),
        (b"ROLE", 0) => Ok(Reply::Array(vec![Reply::bulk("master"), Reply::Int(0), Reply::Array(Vec::new())])),
        (b"PING" | b"TIME" | b"GET" | b"SET" | b"DEL" | b"EXISTS" | b"PTTL" | b"PEXPIRE" | b"ZADD", _) => {
            Err(wrong_number())
        }
        _ => Err(unknown(name)),
    }
}

/// The places of all members.
fn is_whole(args: Args<'_>) -> bool {
    (args.at(2), args.at(3)) == (b"0", b"-1")
}

/// As servers write it in the older protocol.
fn score(score: f64) -> Reply {
    Reply::bulk(score.to_string())
}

/// What is in front of the star, if the pattern has no other sign.
fn prefix(pattern: &[u8]) -> Option<&[u8]> {
    pattern.strip_suffix(b"*").filter(|it| !it.iter().any(|it| b"*?[\\".contains(it)))
}

fn count(number: usize) -> Reply {
    Reply::number(of_len(number))
}

/// All sections at once: a client looks for the lines that it wants.
fn info(keys: &Keyspace, run_id: &str, now: f64) -> String {
    let uptime = (keys.age() / 1000.0).floor();
    [
        "# Server".to_owned(),
        "redis_version:7.4.0".to_owned(),
        "redis_mode:standalone".to_owned(),
        format!("run_id:{run_id}"),
        format!("server_time_usec:{now:.0}"),
        format!("uptime_in_seconds:{uptime:.0}"),
        "maxmemory:0".to_owned(),
        "maxmemory_policy:noeviction".to_owned(),
        "role:master".to_owned(),
        "connected_slaves:0".to_owned(),
    ]
    .map(|it| it + "\r\n")
    .concat()
}

pub(super) fn unknown(name: &[u8]) -> Refused {
    Refused(format!("ERR this is a stand-in for a server, and does not know {}", name.escape_ascii()))
}
