//! A real server whose clock stands still, and a store to which everything is said that is said to the server.

use std::collections::{BTreeMap, BTreeSet};
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

/// What tells the listener that a case is over.
const END: &str = "end";

/// The time at which the clock stands, since 1970: always the same, so that each run compares the same. A day has just begun.
const NOW: Duration = Duration::from_micros(47_725 * 86_400_000_000 + 345);

/// How many cases are sent before the first is answered.
pub(crate) const AT_ONCE: usize = 200;

/// Everything that a server stores: key, value, time left. Of a type that is none of ours, the type instead of a value.
const DUMP: &str = "
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local value = redis.pcall('GET', key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind ~= 'string' then
    value = redis.call('TYPE', key)
  end
  out[#out + 1] = { key, value, redis.call('PTTL', key) }
end
return out";

/// Types of keys that are none of ours.
const KINDS: [&str; 3] = ["hash", "list", "set"];

/// What is said to a node that has nothing stored.
pub(crate) struct Case {
    pub(crate) before: Vec<Command>,
    /// The script, or another command.
    pub(crate) last: Command,
}

/// What a server has said to one case, what it stores then, and whom it has told what.
pub(crate) struct Answer {
    replies: Vec<Said>,
    stored: Dump,
    notices: Vec<Notice>,
}

pub(crate) struct Pair {
    server: Server,
    client: Client,
    listener: Client,
    sources: Sources,
    run_id: String,
    twin: Twin,
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
        server.step_clock_forward(NOW - time(&mut client)?)?;
        let sources = Sources::read()?;
        for source in sources.all() {
            client.command(&["SCRIPT", "LOAD", source])?;
        }
        let channels = LISTENING.map(channel).into_iter().chain([END.to_owned()]);
        listener.send(&command(["SUBSCRIBE".to_owned()].into_iter().chain(channels)))?;
        for _ in 0..=LISTENING.len() {
            listener.receive()?;
        }
        let run_id = server.info("run_id").unwrap_or_default();
        let twin = Twin::new(&run_id, time(&mut client)?);
        let mut pair = Pair { server, client, listener, sources, run_id, twin };
        // Some servers count the time themselves from one look at the clock to the next.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            if time(&mut pair.client)? != pair.now() {
                eprintln!("left out: the clock of this server does not stand still");
                return Ok(None);
            }
        }
        Ok(Some(pair))
    }

    pub(crate) fn now(&self) -> Duration {
        self.twin.now
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
        self.twin.now = time(&mut self.client)?;
        Ok(())
    }

    /// Compares what both say and store.
    ///
    /// # Panics
    ///
    /// They differ: shows the first case in which they do.
    pub(crate) fn compare(&mut self, what: &str, cases: &[Case]) -> TestResult {
        for cases in cases.chunks(AT_ONCE) {
            for (case, answer) in cases.iter().zip(self.ask(cases)?) {
                if let Some(difference) = self.twin.difference(case, &answer) {
                    let before: Vec<_> = case.before.iter().map(shown).collect();
                    panic!("{what}\n{}\n{}\n\n{difference}", before.join("\n"), shown(&case.last));
                }
            }
        }
        Ok(())
    }

    /// What the server says to each of them. They are sent at once.
    pub(crate) fn ask(&mut self, cases: &[Case]) -> Result<Vec<Answer>, Box<dyn std::error::Error>> {
        for case in cases {
            case.commands().try_for_each(|it| self.client.send(&it))?;
            self.client.send(&["EVAL", DUMP, "0"])?;
            self.client.send(&["PUBLISH", END, ""])?;
        }
        cases.iter().map(|case| self.answer(case.commands().count())).collect()
    }

    /// The answer to so many commands.
    fn answer(&mut self, count: usize) -> Result<Answer, Box<dyn std::error::Error>> {
        let replies = (0..count).map(|_| self.client.receive()).collect::<Result<_, _>>()?;
        let stored = read_dump(&self.client.receive()?);
        self.client.receive()?;
        let mut notices = Vec::new();
        loop {
            let said = self.listener.receive()?;
            let parts: Vec<_> = said.as_array().unwrap_or_default().iter().filter_map(Said::as_bytes).collect();
            let [_, channel, message] = parts[..] else { return Err("no notice".into()) };
            if channel == END.as_bytes() {
                return Ok(Answer { replies, stored, notices });
            }
            notices.push(Notice { channel: channel.to_vec(), message: message.to_vec() });
        }
    }

    /// Says one command more to both, and compares. Returns what the server has answered.
    ///
    /// # Panics
    ///
    /// They say or store something else.
    pub(crate) fn both(&mut self, said: &Command, context: &str) -> Result<Answer, Box<dyn std::error::Error>> {
        self.client.send(said)?;
        self.client.send(&["EVAL", DUMP, "0"])?;
        self.client.send(&["PUBLISH", END, ""])?;
        let answer = self.answer(1)?;
        if let Some(difference) = self.twin.differs_at(self.twin.now, said, &answer) {
            panic!("{context}: {}\n\n{difference}", shown(said));
        }
        Ok(answer)
    }
}

impl Case {
    /// All that is said.
    fn commands(&self) -> impl Iterator<Item = Command> {
        [command(["FLUSHALL"])].into_iter().chain(self.before.iter().cloned()).chain([self.last.clone()])
    }
}

/// A store to which everything is said that is said to the server.
pub(crate) struct Twin {
    store: Store,
    now: Duration,
}

impl Twin {
    pub(crate) fn new(run_id: &str, now: Duration) -> Twin {
        let mut store = Store::new(run_id);
        store.learn_scripts();
        Twin { store, now }
    }

    /// How both differ, if they do.
    pub(crate) fn difference(&mut self, case: &Case, answer: &Answer) -> Option<String> {
        self.differs(case.commands(), answer)
    }

    /// The same for commands that follow what was said before, at this time.
    pub(crate) fn differs_at(&mut self, now: Duration, said: &Command, answer: &Answer) -> Option<String> {
        self.now = now;
        self.differs([said.clone()], answer)
    }

    fn differs(&mut self, said: impl IntoIterator<Item = Command>, answer: &Answer) -> Option<String> {
        let (mut notices, mut replies) = (Vec::new(), Vec::new());
        said.into_iter().for_each(|it| replies.push(self.tell(&it, &mut notices)));
        let differ = replies.iter().zip(&answer.replies).find(|(ours, theirs)| !is_same(ours, theirs));
        if let Some((ours, theirs)) = differ {
            return Some(format!("server {theirs:?}\nstore  {ours:?}"));
        }
        let stored = self.dump();
        if stored != answer.stored {
            return Some(format!("server {}\nstore  {}", show(&answer.stored), show(&stored)));
        }
        let told = &answer.notices;
        (*told != notices).then(|| format!("server told {told:?}\nstore told  {notices:?}"))
    }

    fn tell(&mut self, said: &Command, notices: &mut Vec<Notice>) -> Reply {
        let listeners = |it: &[u8]| LISTENING.iter().filter(|id| channel(id).as_bytes() == it).count();
        let done = self.store.execute(said, self.now, &listeners);
        assert_eq!(done.ran.is_some(), said[0] == b"EVALSHA", "{}: {:?}", shown(said), done.reply);
        notices.extend(done.notices.into_iter().filter(|it| listeners(&it.channel) != 0));
        done.reply
    }

    fn dump(&mut self) -> Dump {
        let left = |it: Option<f64>| it.map_or(-1, |it| it as i64);
        let value = |it: &Value| match it {
            Value::Other(kind, _) => Value::Other(kind, BTreeSet::new()),
            ours => ours.clone(),
        };
        self.store.contents(self.now).map(|(key, it)| (key.to_vec(), (value(it.value), left(it.left)))).collect()
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
            Said::Simple(kind) => Value::Other(KINDS.iter().find(|it| *it == kind)?, BTreeSet::new()),
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
        Value::Other(kind, _) => format!("a {kind}"),
    };
    let line =
        |(key, (it, left)): (&Vec<u8>, &(Value, i64))| format!("  {}: {} ({left})", key.escape_ascii(), value(it));
    dump.iter().map(|it| format!("\n{}", line(it))).collect()
}

fn shown(command: &Command) -> String {
    command.iter().map(|it| format!("{:?}", String::from_utf8_lossy(it))).collect::<Vec<_>>().join(" ")
}
