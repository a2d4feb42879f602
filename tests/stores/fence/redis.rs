//! Redis, as a store: a server that is none of those of a lock.

use devnodes::{Client, Reply, Server};
use quorlock::FencingToken;
use quorlock::fence::{REDIS, Stale};

use crate::cases::{Session, Store, assert_stale, cases, next_token};

const FENCE: &str = "{tickets}:fence";
const DATA: &str = "{tickets}:left";

struct Redis(Server);

impl Redis {
    fn start() -> Redis {
        let server = Server::start().unwrap();
        server.command(&["SET", DATA, "10"]).unwrap();
        Redis(server)
    }
}

impl Store for Redis {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(self.0.client().unwrap())
    }
}

/// The script with a command, which is empty to register only.
fn run(client: &mut Client, ours: FencingToken, command: &[&str]) -> Result<Reply, Stale> {
    let token = ours.to_string();
    let args = [&["EVAL", REDIS, "2", FENCE, DATA, &token], command].concat();
    let reply = client.command(&args).unwrap();
    match reply.as_array() {
        Some([Reply::Int(1), reply @ ..]) => Ok(reply.first().cloned().unwrap_or(Reply::Int(0))),
        Some([Reply::Int(0), seen]) => Err(Stale {
            ours,
            seen: seen.as_int().and_then(|it| it.try_into().ok()),
        }),
        _ => panic!("{reply:?}"),
    }
}

impl Session for Client {
    fn register(&mut self, token: FencingToken) -> Result<(), Stale> {
        run(self, token, &[]).map(drop)
    }

    fn read(&mut self) -> i64 {
        self.command(&["GET", DATA]).unwrap().as_int().unwrap()
    }

    fn write(&mut self, token: FencingToken, number: i64) -> Result<(), Stale> {
        run(self, token, &["SET", DATA, &number.to_string()]).map(drop)
    }
}

cases!(Some(Redis::start()));

#[test]
fn f9_one_redis_script_registers_and_reads_or_returns_the_larger_token() {
    let redis = Redis::start();
    let mut client = redis.0.client().unwrap();
    let (ours, next) = (next_token(), next_token());
    let read = run(&mut client, ours, &["GET", DATA]).unwrap();
    assert_eq!(read.as_int(), Some(10));
    run(&mut client, next, &["DECR", DATA]).unwrap();
    let stale = run(&mut client, ours, &["GET", DATA]).map(drop);
    assert_eq!(stale.unwrap_err().seen, Some(next.get()));
    // Nothing to read is no refusal.
    let nothing = run(&mut client, next, &["GET", "{tickets}:nothing"]);
    assert!(matches!(nothing, Ok(Reply::Nil)), "{nothing:?}");
}

#[test]
fn f9_a_key_without_a_number_accepts_no_token() {
    let redis = Redis::start();
    let mut client = redis.0.client().unwrap();
    for nonsense in ["", "soon", "nan", "12 13"] {
        client.command(&["SET", FENCE, nonsense]).unwrap();
        let token = next_token().to_string();
        let args = ["EVAL", REDIS, "2", FENCE, DATA, &token, "SET", DATA, "7"];
        let reply = client.request(&args).unwrap();
        let is_error = matches!(reply, Reply::Error(_));
        let is_refusal = reply.as_array().is_some_and(|it| it[0].as_int() == Some(0));
        assert!(is_error || is_refusal, "{nonsense:?}: {reply:?}");
        assert_eq!(client.read(), 10, "{nonsense:?}");
    }
}

/// The largest token is as safe as the data beside it.
#[test]
fn f9_a_failed_command_of_the_redis_script_leaves_the_token_registered() {
    let redis = Redis::start();
    let mut client = redis.0.client().unwrap();
    let (ours, next) = (next_token(), next_token());
    let token = next.to_string();
    let wrong = ["EVAL", REDIS, "2", FENCE, DATA, &token, "LPUSH", DATA, "7"];
    let reply = client.request(&wrong).unwrap();
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    assert_stale(client.write(ours, 7), ours, next);
    assert_eq!(client.read(), 10);
}
