//! A real server whose clock stands still, and a store to which everything is said that is said to the server.

use std::collections::BTreeMap;
use std::time::Duration;

use devnodes::client::{Client, Reply as Said};
use devnodes::{Clock, Server};

use crate::sources::Sources;
use crate::store::{Notice, Reply, Store, Value};
use crate::{Command, TestResult, command};

/// The clients that listen for releases, by their ids.
pub(crate) const LISTENING: [&str; 2] = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"];
/// A client that does not.
pub(crate) const GONE: &str = "cccccccccccccccc";

/// How many cases are sent before the first is answered.
const AT_ONCE: usize = 200;

/// Everything that a server stores: key, type, value, time left.
const DUMP: &str = "
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  end
  out[#out + 1] = { key, value, redis.call('PTTL', key) }
end
return out";

/// What is said to a node that has forgotten everything.
pub(crate) struct Case {
    pub(crate) before: Vec<Command>,
    pub(crate) script: Command,
}

pub(crate) struct Pair {
    server: Server,
    client: Client,
    listener: Client,
    sources: Sources,
    run_id: String,
    store: Store,
    now: Duration,
}

/// A key, what it holds, and for how many milliseconds.
type Dump = BTreeMap<Vec<u8>, (Value, i64)>;

impl Pair {
    /// None where clocks cannot be stopped, and then there is nothing to compare.
    pub(crate) fn start() -> Result<Option<Pair>, Box<dyn std::error::Error>> {
        if !Clock::available() {
            eprintln!("left out: clocks of servers can be stopped on Linux only");
            return Ok(None);
        }
        let server = Server::builder().stepped_clock().start()?;
        let (mut client, mut listener) = (server.client()?, server.client()?);
        // Slower by a million of a million: it stands.
        server.set_clock_rate(-1_000_000)?;
        let sources = Sources::read()?;
        for source in sources.all() {
            client.command(&["SCRIPT", "LOAD", source])?;
        }
        listener.send(&command(["SUBSCRIBE".to_owned()].into_iter().chain(LISTENING.map(channel))))?;
        for _ in LISTENING {
            listener.receive()?;
        }
        let run_id = server.info("run_id").unwrap_or_default();
        let mut store = Store::new(&run_id);
        store.learn_scripts();
        let now = time(&mut client)?;
        let mut pair = Pair { server, client, listener, sources, run_id, store, now };
        // Some servers count the time themselves from one look at the clock to the next.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            if time(&mut pair.client)? != now {
                eprintln!("left out: the clock of this server does not stand still");
                return Ok(None);
            }
        }
        Ok(Some(pair))
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The command that runs a script.
    pub(crate) fn script(&self, name: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Command {
        let count = keys.len().to_string().into_bytes();
        let head = ["EVALSHA".into(), self.sources.hash(name).into_bytes(), count];
        head.into_iter().chain(keys.iter().cloned()).chain(args.iter().cloned()).collect()
    }

    pub(crate) fn let_time_pass(&mut self, by: Duration) -> TestResult {
        self.server.step_clock_forward(by)?;
        self.now = time(&mut self.client)?;
        Ok(())
    }

    /// Compares what both say and store.
    ///
    /// # Panics
    ///
    /// They differ: shows the first case in which they do.
    pub(crate) fn compare(&mut self, what: &str, cases: &[Case]) -> TestResult {
        for cases in cases.chunks(AT_ONCE) {
            if self.difference(cases)?.is_none() {
                continue;
            }
            for case in cases {
                if let Some(difference) = self.difference(std::slice::from_ref(case))? {
                    let before: Vec<_> = case.before.iter().map(shown).collect();
                    panic!("{what}\n{}\n{}\n\n{difference}", before.join("\n"), shown(&case.script));
                }
            }
            panic!("{what}: they differ only one after the other");
        }
        Ok(())
    }

    /// How both differ, if they do.
    fn difference(&mut self, cases: &[Case]) -> Result<Option<String>, Box<dyn std::error::Error>> {
        for case in cases {
            self.client.send(&["FLUSHALL"])?;
            for it in case.before.iter().chain([&case.script]) {
                self.client.send(it)?;
            }
            self.client.send(&["EVAL", DUMP, "0"])?;
        }
        let mut notices = Vec::new();
        let mut difference = None;
        for case in cases {
            self.tell_store(&command(["FLUSHALL"]), &mut notices);
            let prepared: Vec<_> = case.before.iter().map(|it| self.tell_store(it, &mut notices)).collect();
            let replies = [vec![Reply::OK], prepared, vec![self.tell_store(&case.script, &mut notices)]].concat();
            for ours in replies {
                let theirs = self.client.receive()?;
                if !is_same(&ours, &theirs) && difference.is_none() {
                    difference = Some(format!("server {theirs:?}\nstore  {ours:?}"));
                }
            }
            let (theirs, ours) = (read_dump(&self.client.receive()?), self.dump());
            if ours != theirs && difference.is_none() {
                difference = Some(format!("server {}\nstore  {}", show(&theirs), show(&ours)));
            }
        }
        let heard = self.heard()?;
        if heard != notices && difference.is_none() {
            difference = Some(format!("server told {heard:?}\nstore told  {notices:?}"));
        }
        Ok(difference)
    }

    /// Says one command more to both.
    ///
    /// # Panics
    ///
    /// They say or store something else.
    pub(crate) fn both(&mut self, said: &Command, context: &dyn Fn() -> String) -> TestResult {
        self.client.send(said)?;
        self.client.send(&["EVAL", DUMP, "0"])?;
        let mut notices = Vec::new();
        let ours = self.tell_store(said, &mut notices);
        let theirs = self.client.receive()?;
        assert!(is_same(&ours, &theirs), "{}{}\nserver {theirs:?}\nstore  {ours:?}", context(), shown(said));
        let (theirs, ours) = (read_dump(&self.client.receive()?), self.dump());
        assert!(ours == theirs, "{}{}\nserver {}\nstore  {}", context(), shown(said), show(&theirs), show(&ours));
        assert_eq!(self.heard()?, notices, "{}{}", context(), shown(said));
        Ok(())
    }

    fn tell_store(&mut self, said: &Command, notices: &mut Vec<Notice>) -> Reply {
        let listeners = |it: &[u8]| LISTENING.iter().filter(|id| channel(id).as_bytes() == it).count();
        let done = self.store.execute(said, self.now, &listeners);
        assert_eq!(done.ran.is_some(), said[0] == b"EVALSHA", "{}: {:?}", shown(said), done.reply);
        notices.extend(done.notices.into_iter().filter(|it| listeners(&it.channel) != 0));
        done.reply
    }

    /// What the listener was told so far.
    fn heard(&mut self) -> Result<Vec<Notice>, Box<dyn std::error::Error>> {
        self.listener.send(&["PING", "end"])?;
        let mut heard = Vec::new();
        loop {
            let said = self.listener.receive()?;
            let parts: Vec<_> = said.as_array().unwrap_or_default().iter().filter_map(Said::as_bytes).collect();
            match parts[..] {
                [b"message", channel, message] => {
                    heard.push(Notice { channel: channel.to_vec(), message: message.to_vec() });
                }
                _ => return Ok(heard),
            }
        }
    }

    fn dump(&mut self) -> Dump {
        let left = |it: Option<f64>| it.map_or(-1, |it| it as i64);
        self.store.contents(self.now).map(|(key, it)| (key.to_vec(), (it.value.clone(), left(it.left)))).collect()
    }
}

fn channel(client: &str) -> String {
    format!("quorlock:wake:{client}")
}

fn time(client: &mut Client) -> Result<Duration, Box<dyn std::error::Error>> {
    let reply = client.command(&["TIME"])?;
    let parts: Vec<u64> =
        reply.as_array().unwrap_or_default().iter().filter_map(|it| it.as_str()?.parse().ok()).collect();
    let [seconds, micros] = parts[..] else { return Err("no time".into()) };
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

fn is_same(ours: &Reply, theirs: &Said) -> bool {
    match (ours, theirs) {
        (Reply::Status(a), Said::Simple(b)) => a == b,
        (Reply::Int(a), Said::Int(b)) => a == b,
        (Reply::Bulk(a), Said::Bulk(b)) => a == b,
        (Reply::Nil, Said::Nil) => true,
        (Reply::Array(a), Said::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        // Behind it, or before it, both name the script, and servers the line as well.
        (Reply::Error(a), Said::Error(b)) => b.contains(a.split(" script: ").next().unwrap_or(a)),
        _ => false,
    }
}

fn read_dump(said: &Said) -> Dump {
    let read = |entry: &Said| {
        let [key, value, left] = entry.as_array()? else { return None };
        let value = match value {
            Said::Bulk(text) => Value::Text(text.clone()),
            members => {
                let members = members.as_array()?.chunks(2);
                let member = |it: &[Said]| Some((it[0].as_bytes()?.to_vec(), it[1].as_str()?.parse().ok()?));
                Value::Sorted(members.map(member).collect::<Option<_>>()?)
            }
        };
        Some((key.as_bytes()?.to_vec(), (value, left.as_int()?)))
    };
    let entries = said.as_array().map(|it| it.iter().map(read).collect::<Option<Dump>>());
    entries.flatten().unwrap_or_else(|| panic!("no dump: {said:?}"))
}

fn show(dump: &Dump) -> String {
    let member = |(member, score): (&Vec<u8>, &f64)| format!("{} at {score}", member.escape_ascii());
    let value = |it: &Value| match it {
        Value::Text(text) => text.escape_ascii().to_string(),
        Value::Sorted(members) => members.iter().map(member).collect::<Vec<_>>().join(", "),
    };
    let line =
        |(key, (it, left)): (&Vec<u8>, &(Value, i64))| format!("  {}: {} ({left})", key.escape_ascii(), value(it));
    dump.iter().map(|it| format!("\n{}", line(it))).collect()
}

fn shown(command: &Command) -> String {
    command.iter().map(|it| format!("{:?}", String::from_utf8_lossy(it))).collect::<Vec<_>>().join(" ")
}
