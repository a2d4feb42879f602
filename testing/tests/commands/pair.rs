//! A real server whose clock stands still, and a store beside it. Both get the same commands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use devnodes::client::{Client, Reply as Said};
use devnodes::{Clock, Server};
use quorlock_testing::store::{Reply, Store, Value};

use crate::{Command, TestResult, command, sources};

/// Where the clock stands at first, since 1970: always the same, so that each run compares the same.
const NOW: Duration = Duration::from_micros(47_725 * 86_400_000_000 + 345);

/// All keys of a server: key, value, time left. In place of a value of a type that scripts do not use: the type.
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

const KINDS: [&str; 3] = ["hash", "list", "set"];

/// Behind these the words of an error differ from server to server.
const TAILS: [&str; 4] = [
    " script: ",
    ", or a form of it",
    ": this is a stand-in",
    " in '",
];

/// What older servers write before an error that ended a script.
const WRAPPED: &str = "ERR Error running script";

/// How many differences are shown.
const SHOWN_MAX: usize = 10;

/// A key, what it holds, and for how many milliseconds.
type Dump = BTreeMap<Vec<u8>, (Value, i64)>;

type Message = (Vec<u8>, Vec<u8>);

pub(crate) struct Pair {
    server: Server,
    client: Client,
    store: Store,
    run_id: String,
    now: Duration,
    listeners: BTreeMap<u64, Listener>,
    /// The scripts that scan keys, by their hashes.
    scanning: BTreeSet<String>,
    differences: Vec<String>,
}

/// A connection that listens.
struct Listener {
    client: Client,
    channels: BTreeSet<Vec<u8>>,
    /// What the store has sent it and the server has not been asked for yet.
    expected: Vec<Message>,
}

impl Pair {
    /// None where clocks cannot be stopped: there is nothing to compare then.
    pub(crate) fn start() -> Result<Option<Pair>, Box<dyn std::error::Error>> {
        if !Clock::available() {
            eprintln!("left out: clocks of servers can be stopped on Linux only");
            return Ok(None);
        }
        let server = Server::builder().stepped_clock().start()?;
        let client = server.client()?;
        // Slower by a million of a million: it stands.
        server.set_clock_rate(-1_000_000)?;
        let run_id = server.info("run_id").unwrap_or_default();
        let (store, now, listeners) = (Store::new(&run_id), Duration::ZERO, BTreeMap::new());
        let scanning = sources::read()?
            .into_values()
            .filter(|source| source.contains("\"SCAN\""));
        let scanning = scanning.map(|source| sources::hash(&source)).collect();
        let mut pair = Pair {
            server,
            client,
            store,
            run_id,
            now,
            listeners,
            scanning,
            differences: Vec::new(),
        };
        pair.now = pair.time()?;
        pair.go_to(NOW)?;
        // Some servers count the time themselves from one look at the clock to the next.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            if pair.time()? != pair.now {
                eprintln!("left out: the clock of this server does not stand still");
                return Ok(None);
            }
        }
        Ok(Some(pair))
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    fn time(&mut self) -> Result<Duration, Box<dyn std::error::Error>> {
        let reply = self.client.command(&["TIME"])?;
        let parts = reply
            .as_array()
            .unwrap_or_default()
            .iter()
            .filter_map(|part| part.as_str()?.parse().ok());
        let [seconds, micros] = parts.collect::<Vec<u64>>()[..] else {
            return Err("no time".into());
        };
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    }

    /// Sets both clocks.
    pub(crate) fn go_to(&mut self, now: Duration) -> TestResult {
        match now.checked_sub(self.now) {
            Some(Duration::ZERO) => {}
            Some(by) => self.server.step_clock_forward(by)?,
            None => self.server.step_clock_back(self.now - now)?,
        }
        self.now = now;
        Ok(())
    }

    /// Compares a sequence of commands that begins with no keys.
    pub(crate) fn compare(&mut self, commands: impl IntoIterator<Item = Command>) -> TestResult {
        let commands: Vec<_> = [command(["FLUSHALL"])]
            .into_iter()
            .chain(commands)
            .collect();
        self.run(&commands)?;
        self.compare_messages()
    }

    /// Compares whether both refuse a command, in words of their own.
    pub(crate) fn compare_refusal(&mut self, command: &Command) -> TestResult {
        let theirs = self.client.request(command)?;
        let ours = self.store.execute(command, self.now).reply;
        if !matches!((&ours, &theirs), (Reply::Error(_), Said::Error(_))) {
            self.differences.push(format!(
                "{}\nserver {theirs:?}\nstore  {ours:?}",
                shown(command)
            ));
        }
        Ok(())
    }

    /// Compares the replies to these commands, and all keys after them.
    pub(crate) fn run(&mut self, commands: &[Command]) -> TestResult {
        commands
            .iter()
            .try_for_each(|command| self.client.send(command))?;
        self.client.send(&["EVAL", DUMP, "0"])?;
        for command in commands {
            let mut theirs = self.client.receive()?;
            let mut done = self.store.execute(command, self.now);
            if done
                .ran
                .as_ref()
                .is_some_and(|hash| self.scanning.contains(hash))
            {
                // Servers have their keys in an order of their own.
                sort(&mut done.reply, &mut theirs);
            }
            if !is_same(&done.reply, &theirs) {
                let (all, last) = (shown_all(commands), shown(command));
                self.differences.push(format!(
                    "{all}\n{last}\nserver {theirs:?}\nstore  {:?}",
                    done.reply
                ));
            }
            for notice in done.notices {
                let listening = self
                    .listeners
                    .values_mut()
                    .filter(|it| it.channels.contains(&notice.channel));
                listening.for_each(|it| {
                    it.expected
                        .push((notice.channel.clone(), notice.message.clone()))
                });
            }
        }
        let (theirs, ours) = (read_dump(&self.client.receive()?), self.dump());
        if ours != theirs {
            let (all, theirs, ours) = (shown_all(commands), show(&theirs), show(&ours));
            self.differences
                .push(format!("{all}\nserver {theirs}\nstore  {ours}"));
        }
        Ok(())
    }

    fn dump(&mut self) -> Dump {
        let value = |value: &Value| match value {
            Value::Other(kind, _) => Value::Other(kind, BTreeSet::new()),
            other => other.clone(),
        };
        let entries = self.store.contents(self.now);
        entries
            .map(|(key, it)| (key.to_vec(), (value(it.value), it.left.unwrap_or(-1))))
            .collect()
    }

    /// A connection of this number listens on one channel more.
    pub(crate) fn subscribe(&mut self, connection: u64, channel: &[u8]) -> TestResult {
        if !self.listeners.contains_key(&connection) {
            let (client, channels, expected) = (self.server.client()?, BTreeSet::new(), Vec::new());
            self.listeners.insert(
                connection,
                Listener {
                    client,
                    channels,
                    expected,
                },
            );
        }
        self.compare_messages()?;
        let listener = self.listeners.get_mut(&connection).ok_or("no listener")?;
        listener.client.command(&[b"SUBSCRIBE", channel])?;
        listener.channels.insert(channel.to_vec());
        self.count_listeners(channel);
        Ok(())
    }

    /// The connection is over.
    pub(crate) fn end(&mut self, connection: u64) -> TestResult {
        self.compare_messages()?;
        let Some(mut listener) = self.listeners.remove(&connection) else {
            return Ok(());
        };
        for channel in &listener.channels {
            listener.client.command(&[b"UNSUBSCRIBE", &channel[..]])?;
            self.count_listeners(channel);
        }
        Ok(())
    }

    fn count_listeners(&mut self, channel: &[u8]) {
        let count = self
            .listeners
            .values()
            .filter(|it| it.channels.contains(channel))
            .count();
        self.store.set_listeners(channel, count);
    }

    /// Compares the messages since the last time.
    pub(crate) fn compare_messages(&mut self) -> TestResult {
        for listener in self.listeners.values_mut() {
            // Its reply stands behind the messages.
            listener.client.send(&["PING"])?;
            let mut received = Vec::new();
            loop {
                let reply = listener.client.receive()?;
                let parts: Vec<_> = reply
                    .as_array()
                    .unwrap_or_default()
                    .iter()
                    .filter_map(Said::as_bytes)
                    .collect();
                let [b"message", channel, message] = parts[..] else {
                    break;
                };
                received.push((channel.to_vec(), message.to_vec()));
            }
            let expected = std::mem::take(&mut listener.expected);
            if received != expected {
                self.differences.push(format!(
                    "messages\nserver {received:?}\nstore  {expected:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Fails the test if anything differs.
impl Drop for Pair {
    fn drop(&mut self) {
        let first: Vec<_> = self
            .differences
            .iter()
            .map(String::as_str)
            .take(SHOWN_MAX)
            .collect();
        if !first.is_empty() && !std::thread::panicking() {
            panic!(
                "{} differences:\n\n{}",
                self.differences.len(),
                first.join("\n\n")
            );
        }
    }
}

fn sort(ours: &mut Reply, theirs: &mut Said) {
    if let (Reply::Array(ours), Said::Array(theirs)) = (ours, theirs) {
        ours.sort_by_key(|member| format!("{member:?}"));
        theirs.sort_by_key(|member| format!("{member:?}"));
    }
}

fn is_same(ours: &Reply, theirs: &Said) -> bool {
    match (ours, theirs) {
        (Reply::Status(ours), Said::Simple(theirs)) => ours == theirs,
        (Reply::Int(ours), Said::Int(theirs)) => ours == theirs,
        (Reply::Bulk(ours), Said::Bulk(theirs)) => ours == theirs,
        (Reply::Nil, Said::Nil) => true,
        (Reply::Array(ours), Said::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(ours, theirs)| is_same(ours, theirs))
        }
        (Reply::Error(ours), Said::Error(theirs)) => is_same_error(ours, theirs),
        _ => false,
    }
}

/// The code, and what is essential behind it.
fn is_same_error(ours: &str, theirs: &str) -> bool {
    let end = TAILS
        .iter()
        .filter_map(|tail| ours.find(tail))
        .min()
        .unwrap_or(ours.len());
    let (code, text) = ours[..end].split_once(' ').unwrap_or((ours, ""));
    let is_same_code = theirs.split(' ').next() == Some(code) || theirs.starts_with(WRAPPED);
    is_same_code && theirs.replace('`', "'").contains(text)
}

fn read_dump(said: &Said) -> Dump {
    let read = |entry: &Said| {
        let [key, value, left] = entry.as_array()? else {
            return None;
        };
        let value = match value {
            Said::Bulk(text) => Value::Text(text.clone()),
            Said::Simple(kind) => {
                Value::Other(KINDS.iter().find(|known| *known == kind)?, BTreeSet::new())
            }
            members => {
                let members = members.as_array()?.chunks(2);
                let member = |pair: &[Said]| {
                    Some((
                        pair[0].as_bytes()?.to_vec(),
                        pair[1].as_str()?.parse().ok()?,
                    ))
                };
                Value::Sorted(members.map(member).collect::<Option<_>>()?)
            }
        };
        Some((key.as_bytes()?.to_vec(), (value, left.as_int()?)))
    };
    let entries = said
        .as_array()
        .map(|entries| entries.iter().map(read).collect::<Option<Dump>>());
    entries
        .flatten()
        .unwrap_or_else(|| panic!("no dump: {said:?}"))
}

fn show(dump: &Dump) -> String {
    let member =
        |(member, score): (&Vec<u8>, &f64)| format!("{} at {score}", member.escape_ascii());
    let value = |value: &Value| match value {
        Value::Text(text) => text.escape_ascii().to_string(),
        Value::Sorted(members) => members.iter().map(member).collect::<Vec<_>>().join(", "),
        Value::Other(kind, _) => format!("a {kind}"),
    };
    let line = |(key, (of, left)): (&Vec<u8>, &(Value, i64))| {
        format!("\n  {}: {} ({left})", key.escape_ascii(), value(of))
    };
    dump.iter().map(line).collect()
}

fn shown_all(commands: &[Command]) -> String {
    commands
        .iter()
        .map(|command| shown(command) + "\n")
        .collect()
}

fn shown(command: &Command) -> String {
    command
        .iter()
        .map(|arg| format!("{:?}", String::from_utf8_lossy(arg)))
        .collect::<Vec<_>>()
        .join(" ")
}
