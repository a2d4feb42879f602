//! A server for the checker: a store behind the checker's sockets. It keeps a log of what it has run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use quorlock_testing::resp::{parse, push};
use quorlock_testing::store::{Notice, Reply, Store, Value};

use crate::sys::checked::{self, OwnThread, Peer, Sleeper};
use crate::wire::{Kind, Script};

pub(super) const FIRST_PORT: u16 = 7000;

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
    store: Store,
    /// Which connection has opened which channel.
    channels: HashMap<Vec<u8>, usize>,
    log: Vec<Ran>,
    /// It answers nothing before then.
    unread_until: Duration,
    /// By how much its clock has been set forward.
    ahead: Duration,
    /// Commands whose answers it has written.
    answered: u64,
    /// How many have a connection to it.
    clients: usize,
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
        data.lock().unwrap().load(&Script::ALL);
        let port = FIRST_PORT + index;
        let peers = checked::accept(port, &Sleeper::new());
        assert!(peers.is_empty());
        let theirs = Arc::clone(&data);
        let thread = OwnThread::spawn(format!("server {index}"), move || {
            serve(&theirs, port, room)
        })
        .unwrap();
        Server { data, thread }
    }

    pub(super) fn url(index: u16) -> String {
        format!("redis://server:{}", FIRST_PORT + index)
    }

    /// Nobody holds a lock here.
    pub(super) fn is_free(&self) -> bool {
        self.data.lock().unwrap().locks().is_empty()
    }

    /// Somebody is in a waiting list.
    pub(super) fn is_waited_for(&self) -> bool {
        self.data.lock().unwrap().is_waited_for()
    }

    /// How many commands of this kind it has run.
    pub(super) fn count(&self, kind: Kind) -> usize {
        let data = self.data.lock().unwrap();
        data.log.iter().filter(|ran| ran.kind == kind).count()
    }

    /// How long the lock of this name lasts there.
    pub(super) fn left(&self, name: &str) -> Option<Duration> {
        let mut data = self.data.lock().unwrap();
        match data.execute(&[b"PTTL", name.as_bytes()]) {
            Reply::Int(millis) => u64::try_from(millis).ok().map(Duration::from_millis),
            other => panic!("{other:?}"),
        }
    }

    /// Somebody who is no client of this run holds the lock of this name there for so long.
    pub(super) fn occupy(&self, name: &str, life: Duration) {
        let mut data = self.data.lock().unwrap();
        let millis = life.as_millis().to_string();
        data.execute(&[b"SET", name.as_bytes(), b"other", b"PX", millis.as_bytes()]);
    }

    /// How many have a connection to it.
    pub(super) fn clients(&self) -> usize {
        self.data.lock().unwrap().clients
    }

    /// How many commands it has answered.
    pub(super) fn answered(&self) -> u64 {
        self.data.lock().unwrap().answered
    }

    /// Forgets these scripts, until they come with their source.
    pub(super) fn forget(&self, scripts: &[Script]) {
        checked::point();
        let mut data = self.data.lock().unwrap();
        data.execute(&[b"SCRIPT", b"FLUSH"]);
        let others: Vec<_> = Script::ALL
            .into_iter()
            .filter(|it| !scripts.contains(it))
            .collect();
        data.load(&others);
    }

    /// Loses all locks, as if their keys had been deleted.
    pub(super) fn lose_locks(&self) {
        let mut data = self.data.lock().unwrap();
        let locks = data.locks();
        locks
            .iter()
            .for_each(|it| drop(data.execute(&[b"DEL", it])));
    }

    /// Loses its record, as if somebody had deleted the key.
    pub(super) fn lose_record(&self) {
        checked::point();
        self.data
            .lock()
            .unwrap()
            .execute(&[b"DEL", b"quorlock:record"]);
    }

    /// A command has found another record than its client connected with.
    pub(super) fn has_answered_changed(&self) -> bool {
        let of_record = |it: &Ran| !matches!(it.kind, Kind::Release) && it.status == -3;
        self.data.lock().unwrap().log.iter().any(of_record)
    }

    /// Loses all keys.
    pub(super) fn lose_all(&self) {
        checked::point();
        self.data.lock().unwrap().execute(&[b"FLUSHALL"]);
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
        let before = data.locks().len();
        data.ahead += by;
        data.locks().len() < before
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
        let mut data = self.data.lock().unwrap();
        let locks = data.locks().len();
        Seen {
            log: data.log.clone(),
            locks,
        }
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
        clients.extend(new.into_iter().map(|peer| Client {
            peer,
            bytes: Vec::new(),
        }));
        data.lock().unwrap().clients = clients.iter().filter(|it| !it.peer.is_over()).count();
        clients
            .iter()
            .filter(|it| !it.peer.is_over())
            .for_each(|it| it.peer.wait(&sleeper));
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
                data.lock().unwrap().leave(number);
                continue;
            }
            client.bytes.extend(client.peer.read());
            let mut replies = Vec::new();
            let mut commands = 0;
            while let Some((args, len)) = parse(&client.bytes).unwrap() {
                client.bytes.drain(..len);
                if let Some(reply) = login(port, &args) {
                    client.peer.set_room(room);
                    replies.push((number, reply));
                    continue;
                }
                let mut data = data.lock().unwrap();
                replies.extend(data.run(number, &args));
                // A connection sends its syncs by itself.
                commands += u64::from(data.log.last().is_none_or(|it| it.kind != Kind::SyncRecord));
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

impl Data {
    /// What its clock shows, since 1970.
    fn now(&self) -> Duration {
        checked::wall_clock() + self.ahead
    }

    /// The keys of locks that have not expired.
    fn locks(&mut self) -> Vec<Vec<u8>> {
        let is_slot = |key: &[u8]| {
            key.strip_prefix(b"quorlock:slot-")
                .is_some_and(|it| it[0].is_ascii_digit())
        };
        let now = self.now();
        let keys = self.store.contents(now).map(|it| it.0.to_vec());
        keys.filter(|it| !it.starts_with(b"quorlock:") || is_slot(it))
            .collect()
    }

    /// This connection is over.
    fn leave(&mut self, number: usize) {
        let left = self.channels.extract_if(|_, it| *it == number);
        left.for_each(|(channel, _)| self.store.set_listeners(&channel, 0));
    }

    fn is_waited_for(&mut self) -> bool {
        let now = self.now();
        self.store
            .contents(now)
            .any(|(_, it)| matches!(it.value, Value::Sorted(_)))
    }

    /// The server is sent these scripts.
    fn load(&mut self, scripts: &[Script]) {
        static SOURCES: OnceLock<Vec<String>> = OnceLock::new();
        let sources = SOURCES.get_or_init(|| Script::ALL.iter().map(|it| it.source()).collect());
        for (script, source) in Script::ALL
            .iter()
            .zip(sources)
            .filter(|it| scripts.contains(it.0))
        {
            assert_eq!(
                self.execute(&[b"SCRIPT", b"LOAD", source.as_bytes()]),
                Reply::Bulk(script.hash().into())
            );
        }
    }

    /// As somebody who is not on one of its connections.
    fn execute(&mut self, command: &[&[u8]]) -> Reply {
        let now = self.now();
        self.store.execute(command, now).reply
    }

    /// Runs one command of connection `from`; what is to be written, and to which connection.
    fn run(&mut self, from: usize, args: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        if args[0] == b"SUBSCRIBE" {
            self.channels.insert(args[1].clone(), from);
            self.store.set_listeners(&args[1], 1);
            let mut confirmed = Vec::new();
            push(&mut confirmed, true, [b"subscribe", &args[1]], Some(1));
            return vec![(from, confirmed)];
        }
        let now = self.now();
        let channels = &self.channels;
        let done = self.store.execute(args, now);
        if let Some(sha) = done.ran {
            let kind = Script::ALL
                .into_iter()
                .find(|it| it.hash() == sha)
                .unwrap()
                .row()
                .kind;
            let kind = match args.last() {
                Some(mode) if mode == b"raise" => Kind::Raise,
                _ => kind,
            };
            let keys: usize = std::str::from_utf8(&args[2]).unwrap().parse().unwrap();
            let owner = args[3 + keys].clone();
            let status = match &done.reply {
                // A grant without more to say is a time, and a record that has changed a negative number.
                Reply::Int(1..) if matches!(kind, Kind::Acquire | Kind::Raise | Kind::Extend) => 1,
                Reply::Int(status) => *status,
                Reply::Array(members) => match members[0] {
                    Reply::Int(status) => status,
                    _ => unreachable!(),
                },
                other => panic!("{other:?}"),
            };
            checked::trace(format_args!(
                "ran {kind:?} of {}: {status}",
                owner[..4].escape_ascii()
            ));
            self.log.push(Ran {
                kind,
                owner,
                status,
            });
        }
        let notice = |Notice { channel, message }: &Notice| {
            let mut told = Vec::new();
            push(&mut told, true, [b"message", channel, message], None);
            Some((*channels.get(channel)?, told))
        };
        let mut replies: Vec<_> = done.notices.iter().filter_map(notice).collect();
        let mut reply = Vec::new();
        done.reply.write_to(&mut reply, true);
        replies.push((from, reply));
        replies
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
