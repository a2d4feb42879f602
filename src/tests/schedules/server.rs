//! A server for the checker: runs what the scripts say, as far as rounds depend on it, and keeps a log.
//!
//! A free lock is granted to whoever asks: it knows the waiting list, and no turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sys::checked::{self, OwnThread, Peer, Sleeper};
use crate::wire::{Kind, Script};

const FIRST_PORT: u16 = 7000;

/// What a server has run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Ran {
    pub(super) kind: Kind,
    pub(super) owner: Vec<u8>,
    /// What the script returned, or the first number of it.
    pub(super) status: i64,
}

#[derive(Default)]
struct Data {
    /// Owner, and when the key expires.
    locks: HashMap<Vec<u8>, (Vec<u8>, Duration)>,
    counters: HashMap<Vec<u8>, u64>,
    lists: HashMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>,
    /// Which connection has opened which channel.
    channels: HashMap<Vec<u8>, usize>,
    log: Vec<Ran>,
    /// Scripts that it does not know by their hash.
    forgotten: Vec<Script>,
    /// It answers nothing before then.
    unread_until: Duration,
    /// By how much its clock has been set forward.
    ahead: Duration,
    /// Commands whose answers it has written.
    answered: u64,
    hang_up: bool,
    babble: bool,
    stop: bool,
    sleeper: Arc<Sleeper>,
}

pub(super) struct Server {
    data: Arc<Mutex<Data>>,
    thread: OwnThread,
}

impl Server {
    /// Starts server number `index`. No more than `room` bytes are on their way to it on one connection, if not 0, once its
    /// client has logged in.
    pub(super) fn start(index: u16, room: usize) -> Server {
        let data: Arc<Mutex<Data>> = Arc::default();
        let port = FIRST_PORT + index;
        let peers = checked::accept(port, &Sleeper::new());
        assert!(peers.is_empty());
        let theirs = Arc::clone(&data);
        let thread = OwnThread::spawn(format!("server {index}"), move || serve(&theirs, port, room)).unwrap();
        Server { data, thread }
    }

    pub(super) fn url(index: u16) -> String {
        format!("redis://server:{}", FIRST_PORT + index)
    }

    /// Nobody holds a lock here, expired or not.
    pub(super) fn is_free(&self) -> bool {
        self.data.lock().unwrap().locks.is_empty()
    }

    /// Somebody is in a waiting list.
    pub(super) fn is_waited_for(&self) -> bool {
        self.data.lock().unwrap().lists.values().any(|it| !it.is_empty())
    }

    /// How many commands it has answered.
    pub(super) fn answered(&self) -> u64 {
        self.data.lock().unwrap().answered
    }

    /// Forgets these scripts, until they come with their source.
    pub(super) fn forget(&self, scripts: &[Script]) {
        checked::point();
        self.data.lock().unwrap().forgotten = scripts.to_vec();
    }

    /// Loses all locks, as if their keys had been deleted.
    pub(super) fn lose_locks(&self) {
        self.data.lock().unwrap().locks.clear();
    }

    /// Leaves everything unread until then.
    pub(super) fn read_nothing_until(&self, since_start: Duration) {
        checked::point();
        self.data.lock().unwrap().unread_until = since_start;
    }

    /// Sets its clock forward; true if a lock has expired by that.
    pub(super) fn step_forward(&self, by: Duration) -> bool {
        checked::point();
        let mut data = self.data.lock().unwrap();
        let (before, after) = (data.now(), data.now() + by);
        data.ahead += by;
        data.locks.values().any(|(_, until)| before < *until && *until <= after)
    }

    /// Says something on all connections that is no reply.
    pub(super) fn babble(&self) {
        checked::point();
        let mut data = self.data.lock().unwrap();
        data.babble = true;
        data.sleeper.wake();
    }

    /// Closes all connections.
    pub(super) fn hang_up(&self) {
        checked::point();
        let mut data = self.data.lock().unwrap();
        data.hang_up = true;
        data.sleeper.wake();
    }

    /// Ends it. What has come is run before.
    pub(super) fn stop(self) -> Seen {
        checked::point();
        {
            let mut data = self.data.lock().unwrap();
            data.stop = true;
            data.sleeper.wake();
        }
        self.thread.join();
        let data = self.data.lock().unwrap();
        let locks = data.locks.values().filter(|(_, until)| data.now() < *until).count();
        Seen { log: data.log.clone(), locks }
    }
}

/// What a server leaves behind.
pub(super) struct Seen {
    pub(super) log: Vec<Ran>,
    /// Keys that have not expired.
    pub(super) locks: usize,
}

/// A connection, and what has come on it and is no complete command yet.
struct Client {
    peer: Peer,
    bytes: Vec<u8>,
}

fn serve(data: &Mutex<Data>, port: u16, room: usize) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let sleeper = Sleeper::new();
        let stop = {
            let mut data = data.lock().unwrap();
            data.sleeper = Arc::clone(&sleeper);
            if data.hang_up || data.babble || data.stop {
                sleeper.wake();
            }
            data.stop
        };
        let new = checked::accept(port, &sleeper);
        clients.extend(new.into_iter().map(|peer| Client { peer, bytes: Vec::new() }));
        clients.iter().filter(|it| !it.peer.is_over()).for_each(|it| it.peer.wait(&sleeper));
        sleeper.sleep(None);
        let unread_until = data.lock().unwrap().unread_until;
        if checked::now() < unread_until {
            Sleeper::new().sleep(Some(unread_until));
        }
        if std::mem::take(&mut data.lock().unwrap().babble) {
            clients.iter().for_each(|it| it.peer.write(b"?\r\n"));
        }
        if std::mem::take(&mut data.lock().unwrap().hang_up) {
            clients.iter().for_each(|it| it.peer.close());
        }
        for number in 0..clients.len() {
            let client = &mut clients[number];
            if client.peer.is_over() {
                continue;
            }
            client.bytes.extend(client.peer.read());
            let mut replies = Vec::new();
            let mut commands = 0;
            while let Some((args, len)) = command(&client.bytes) {
                client.bytes.drain(..len);
                if let Some(reply) = login(port, &args) {
                    client.peer.set_room(room);
                    replies.push((number, reply));
                    continue;
                }
                commands += 1;
                let mut data = data.lock().unwrap();
                replies.extend(data.run(number, &args));
            }
            for (to, bytes) in together(replies) {
                clients[to].peer.write(&bytes);
            }
            data.lock().unwrap().answered += commands;
        }
        if stop {
            return;
        }
    }
}

/// What it says to a command of the login.
fn login(port: u16, args: &[Vec<u8>]) -> Option<Vec<u8>> {
    match &args[0][..] {
        b"HELLO" => Some(b"%1\r\n+server\r\n+redis\r\n".to_vec()),
        b"SCRIPT" => Some(format!("*{}\r\n{}", args.len() - 2, ":1\r\n".repeat(args.len() - 2)).into_bytes()),
        b"INFO" => Some(bulk(format!("run_id:{port}\r\n").as_bytes())),
        b"ROLE" => Some([b"*3\r\n", &bulk(b"master")[..], b":0\r\n*0\r\n"].concat()),
        _ => None,
    }
}

/// Neighbours for the same connection, in one write.
fn together(replies: Vec<(usize, Vec<u8>)>) -> Vec<(usize, Vec<u8>)> {
    let mut joined: Vec<(usize, Vec<u8>)> = Vec::new();
    for (to, bytes) in replies {
        match joined.last_mut() {
            Some((last, before)) if *last == to => before.extend(bytes),
            _ => joined.push((to, bytes)),
        }
    }
    joined
}

/// The first command in `bytes`, if it is complete, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let mut number = |sign: u8| -> Option<(usize, usize)> {
        let line = bytes[at..].iter().position(|it| *it == b'\n')?;
        assert_eq!(bytes[at], sign);
        let digits = std::str::from_utf8(&bytes[at + 1..at + line - 1]).unwrap();
        let number = digits.parse().unwrap();
        at += line + 1;
        if sign == b'$' {
            let from = at;
            at += number + 2;
            return (at <= bytes.len()).then_some((number, from));
        }
        Some((number, at))
    };
    let (count, _) = number(b'*')?;
    let args: Option<Vec<_>> =
        (0..count).map(|_| number(b'$').map(|(len, from)| bytes[from..from + len].to_vec())).collect();
    Some((args?, at))
}

impl Data {
    /// What its clock shows.
    fn now(&self) -> Duration {
        (crate::sys::boot_clock() - Duration::from_secs(1_000)) + self.ahead
    }

    /// Runs one command of connection `from`; what is to be written, and to which connection.
    fn run(&mut self, from: usize, args: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        let script = match &args[0][..] {
            b"SUBSCRIBE" => {
                self.channels.insert(args[1].clone(), from);
                let confirmed = [&b">3\r\n$9\r\nsubscribe\r\n"[..], &bulk(&args[1]), b":1\r\n"].concat();
                return vec![(from, confirmed)];
            }
            b"EVALSHA" => Script::ALL.into_iter().find(|it| it.hash().as_bytes() == args[1]).unwrap(),
            b"EVAL" => Script::ALL.into_iter().find(|it| it.source().as_bytes() == args[1]).unwrap(),
            other => panic!("{}", other.escape_ascii()),
        };
        if args[0] == b"EVAL" {
            self.forgotten.retain(|it| *it != script);
        } else if self.forgotten.contains(&script) {
            return vec![(from, b"-NOSCRIPT No matching script.\r\n".to_vec())];
        }
        let kind = script.kind();
        let keys: usize = text(&args[2]).parse().unwrap();
        let (all, args) = args[3..].split_at(keys);
        let key = &all[0];
        let owner = args[0].clone();
        let now = self.now();
        self.locks.retain(|_, (_, until)| now < *until);
        let mut replies = Vec::new();
        let numbers = match kind {
            Kind::Acquire if script == Script::AcquireSlot => self.acquire_slot(all, args, now),
            Kind::Acquire => self.acquire(key, key, args, now),
            Kind::Raise => {
                let counter = self.counters.entry(key.clone()).or_default();
                let token = number(&args[1]);
                if self.locks.get(key).is_none_or(|(it, _)| *it != owner) {
                    vec![0, *counter]
                } else if *counter < token {
                    *counter = token;
                    vec![1, token]
                } else {
                    vec![2, *counter]
                }
            }
            Kind::Extend => {
                let until = now + Duration::from_millis(number(&args[1]));
                let taken = self.locks.get(key).is_some_and(|(it, _)| *it != owner);
                match self.locks.get_mut(key).filter(|_| !taken) {
                    Some((_, old)) => {
                        *old = until.max(*old);
                        vec![micros(now)]
                    }
                    None if taken => vec![3, 0, micros(now), 0],
                    None if args.get(5).is_some_and(|it| it == b"heal") => {
                        self.locks.insert(key.clone(), (owner.clone(), until));
                        vec![4, 0, micros(now), 0]
                    }
                    None => vec![0, 0, micros(now), 0],
                }
            }
            Kind::Release if script == Script::ReleaseSlots => {
                let (slots, keep) = (&all[..(keys - 2) / 2], number(&args[1]) as usize);
                let theirs =
                    |it: &usize| *it + 1 != keep && self.locks.get(&slots[*it]).is_some_and(|it| it.0 == owner);
                let given: Vec<_> = (0..slots.len()).filter(theirs).collect();
                given.iter().for_each(|it| drop(self.locks.remove(&slots[*it])));
                let is_free = slots.iter().any(|it| !self.locks.contains_key(it));
                replies.extend(self.after_release(&all[keys - 1], is_free, &args[3..]));
                vec![u64::from(!given.is_empty())]
            }
            Kind::Release => {
                let deleted = self.locks.get(key).is_some_and(|(it, _)| *it == owner);
                let raised = if keys == 4 { 2 } else { 0 };
                if deleted {
                    self.locks.remove(key);
                    if raised != 0 {
                        let counter = self.counters.entry(key.clone()).or_default();
                        *counter = number(&args[1]).max(*counter);
                    }
                }
                let is_free = !self.locks.contains_key(key);
                replies.extend(self.after_release(key, is_free, &args[raised..]));
                vec![u64::from(deleted)]
            }
            Kind::Greet
            | Kind::Meet
            | Kind::Inspect
            | Kind::Probe
            | Kind::List
            | Kind::Present
            | Kind::Subscribe
            | Kind::Time => unreachable!(),
        };
        checked::trace(format_args!("ran {kind:?} of {}: {}", text(&owner[..4]), numbers[0]));
        // A grant without more to say is a time.
        let is_short = matches!(kind, Kind::Acquire | Kind::Extend) && numbers.len() == 1;
        let status = if is_short { 1 } else { numbers[0] };
        self.log.push(Ran { kind, owner, status: i64::try_from(status).unwrap() });
        let held = kind == Kind::Acquire && status == 0;
        let reply = match script {
            Script::AcquireSlot => with_free_slots(&numbers),
            _ if held => refusal(&numbers),
            _ => array(&numbers),
        };
        replies.push((from, reply));
        replies
    }

    /// Takes the first slot that is free, of four at most. The last number says which were, by bits.
    fn acquire_slot(&mut self, keys: &[Vec<u8>], args: &[Vec<u8>], now: Duration) -> Vec<u64> {
        let count = (keys.len() - 3) / 2;
        let (slots, list) = (&keys[..count], &keys[2 * count + 1]);
        let is_free = |it: &usize| !self.locks.contains_key(&slots[*it]);
        let free = (0..count).filter(is_free).fold(0, |free, it| free | 1 << it);
        let first = number(&args[9]) as usize - 1;
        let looks = if args[10] == b"1" { 1 } else { count };
        let slot = (first..first + looks).map(|it| it % count).find(is_free);
        let mut numbers = self.acquire(&slots[slot.unwrap_or(first)], list, args, now);
        if numbers.len() == 1 {
            numbers = vec![1, 0, 0, 0, numbers[0]];
        }
        numbers.extend([slot.map_or(0, |it| it as u64 + 1), count as u64, free]);
        numbers
    }

    fn acquire(&mut self, key: &[u8], list: &[u8], args: &[Vec<u8>], now: Duration) -> Vec<u64> {
        let (owner, ttl, proposal) = (&args[0], number(&args[1]), number(&args[2]));
        let client = args.get(7).filter(|it| !it.is_empty());
        let enters = args.get(8).is_some_and(|it| !it.is_empty());
        let counter = self.counters.entry(key.to_vec()).or_default();
        if let Some((other, until)) = self.locks.get(key)
            && other != owner
        {
            let left = u64::try_from((*until - now).as_millis()).unwrap();
            let Some(client) = client.filter(|_| enters) else { return vec![0, *counter, left, 0, micros(now)] };
            self.enter(list, client, number(&args[6]));
            return vec![0, self.counters[key], left, 1, micros(now)];
        }
        self.locks.insert(key.to_vec(), (owner.clone(), now + Duration::from_millis(ttl)));
        let behind = proposal <= *counter;
        let seen = std::mem::replace(counter, proposal.max(*counter));
        if let Some(client) = client {
            self.leave(list, client);
        }
        if behind { vec![2, seen, 0, 0, micros(now)] } else { vec![micros(now)] }
    }

    fn enter(&mut self, key: &[u8], client: &[u8], since: u64) {
        self.leave(key, client);
        let list = self.lists.entry(key.to_vec()).or_default();
        // Calls may begin at the same time here.
        let place = (since..).find(|it| !list.contains_key(it)).unwrap();
        list.insert(place, client.to_vec());
    }

    fn leave(&mut self, key: &[u8], client: &[u8]) {
        self.lists.entry(key.to_vec()).or_default().retain(|_, it| it != client);
    }

    /// Enters or strikes the client, and tells the first in the list `key` if the lock is free.
    fn after_release(&mut self, key: &[u8], is_free: bool, args: &[Vec<u8>]) -> Option<(usize, Vec<u8>)> {
        let (me, since) = (args.get(1), args.get(2).map(|it| number(it)));
        match (me, since, args.get(3)) {
            (Some(me), Some(since), Some(_)) => self.enter(key, me, since),
            (Some(me), None, _) => self.leave(key, me),
            _ => {}
        }
        if !is_free {
            return None;
        }
        let list = self.lists.get_mut(key)?;
        let (began, first) = list.first_key_value()?;
        if Some(first) == me || since.is_some_and(|it| it < *began) {
            return None;
        }
        let began = *began;
        let first = list.remove(&began)?;
        // A client's id has sixteen digits.
        let (client, what) = first.split_at(16);
        let channel = [b"quorlock:wake:", client].concat();
        let to = *self.channels.get(&channel)?;
        let what = what.strip_prefix(b"/").unwrap_or(key);
        Some((to, [&b">3\r\n$7\r\nmessage\r\n"[..], &bulk(&channel), &bulk(what)].concat()))
    }
}

/// A server's clock.
fn micros(now: Duration) -> u64 {
    1_800_000_000_000_000 + u64::try_from(now.as_micros()).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    text(bytes).parse().unwrap()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array(numbers: &[u64]) -> Vec<u8> {
    let members: String = numbers.iter().map(|it| format!(":{it}\r\n")).collect();
    if numbers.len() == 1 { members.into_bytes() } else { format!("*{}\r\n{members}", numbers.len()).into_bytes() }
}

/// Seven numbers, and the last as a digit.
fn with_free_slots(numbers: &[u64]) -> Vec<u8> {
    let members: String = numbers[..7].iter().map(|it| format!(":{it}\r\n")).collect();
    [format!("*8\r\n{members}").as_bytes(), &bulk(format!("{:x}", numbers[7]).as_bytes())].concat()
}

/// The numbers, and a holder that does not say who it is.
fn refusal(numbers: &[u64]) -> Vec<u8> {
    let members: String = numbers.iter().map(|it| format!(":{it}\r\n")).collect();
    [format!("*{}\r\n{members}", numbers.len() + 1).as_bytes(), &bulk(b"")].concat()
}
