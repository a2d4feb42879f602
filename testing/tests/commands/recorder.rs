//! A server of a store, which keeps a record of all that it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use quorlock_testing::resp::{parse, push};
use quorlock_testing::store::{Reply, Store, Value};

use crate::{Command, command};

/// The last digits of each time: a moment within a millisecond.
const MICROS: u64 = 345;

/// What a connection did at a time.
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) connection: u64,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// With the hash of the script that ran.
    Sent(Command, Option<String>),
    Ended,
}

pub(crate) struct Recorder {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    store: Store,
    /// The time of the last event. It does not go back.
    now: Duration,
    events: Vec<Event>,
    /// Connections by their numbers, and the channels on which they listen.
    connections: BTreeMap<u64, (TcpStream, BTreeSet<Vec<u8>>)>,
}

impl Recorder {
    /// `run_id`: that of the server that gets the same commands later.
    pub(crate) fn start(run_id: &str) -> Result<Recorder, std::io::Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (store, connections) = (Store::new(run_id), BTreeMap::new());
        let state = State {
            store,
            now: Duration::ZERO,
            events: Vec::new(),
            connections,
        };
        let recorder = Recorder {
            addr: listener.local_addr()?,
            state: Arc::new(Mutex::new(state)),
        };
        let state = Arc::clone(&recorder.state);
        // Its threads end with the test's process, or with their connections.
        thread::spawn(move || {
            for (number, stream) in (1..).zip(listener.incoming().flatten()) {
                let state = Arc::clone(&state);
                thread::spawn(move || serve(&state, number, stream));
            }
        });
        Ok(recorder)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A command of the test's own.
    pub(crate) fn send(&self, command: Command) -> Reply {
        self.state().execute(0, command)
    }

    /// What is stored under each key.
    pub(crate) fn contents(&self) -> Vec<(Vec<u8>, Value)> {
        let mut state = self.state();
        let now = state.now;
        state
            .store
            .contents(now)
            .map(|(key, stored)| (key.to_vec(), stored.value.clone()))
            .collect()
    }

    /// All so far, in order.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(state: &Mutex<State>, number: u64, mut stream: TcpStream) {
    let Ok(writer) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else {
        return;
    };
    lock(state)
        .connections
        .insert(number, (writer, BTreeSet::new()));
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    while let Some(read) = stream.read(&mut chunk).ok().filter(|len| *len != 0) {
        bytes.extend_from_slice(&chunk[..read]);
        let mut state = lock(state);
        while let Ok(Some((command, len))) = parse(&bytes) {
            bytes.drain(..len);
            state.answer(number, command);
        }
    }
    lock(state).end(number);
}

impl State {
    fn note(&mut self, connection: u64, what: What) {
        self.events.push(Event {
            at: self.now,
            connection,
            what,
        });
    }

    fn answer(&mut self, number: u64, command: Command) {
        let mut out = Vec::new();
        match &command[0].to_ascii_uppercase()[..] {
            b"HELLO" => out.extend_from_slice(b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
            b"SUBSCRIBE" => {
                let channel = command[1].clone();
                push(&mut out, true, [&b"subscribe"[..], &channel], Some(1));
                self.connections
                    .get_mut(&number)
                    .map(|(_, channels)| channels.insert(channel.clone()));
                self.count_listeners(&channel);
                self.note(number, What::Sent(command, None));
            }
            _ => self.execute(number, command).write_to(&mut out, true),
        }
        self.write(number, &out);
    }

    fn execute(&mut self, number: u64, command: Command) -> Reply {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = Duration::from_millis(u64::try_from(now.as_millis()).unwrap_or_default());
        self.now = self.now.max(now + Duration::from_micros(MICROS));
        let done = self.store.execute(&command, self.now);
        self.note(number, What::Sent(command, done.ran));
        for notice in done.notices {
            let listening = self
                .connections
                .iter()
                .filter(|(_, (_, channels))| channels.contains(&notice.channel));
            for number in listening.map(|(number, _)| *number).collect::<Vec<_>>() {
                let mut message = Vec::new();
                push(
                    &mut message,
                    true,
                    [&b"message"[..], &notice.channel, &notice.message],
                    None,
                );
                self.write(number, &message);
            }
        }
        done.reply
    }

    fn write(&mut self, number: u64, bytes: &[u8]) {
        if let Some((stream, _)) = self.connections.get_mut(&number) {
            let _ = stream.write_all(bytes);
        }
    }

    fn end(&mut self, number: u64) {
        let Some((_, channels)) = self.connections.remove(&number) else {
            return;
        };
        channels
            .iter()
            .for_each(|channel| self.count_listeners(channel));
        self.note(number, What::Ended);
    }

    fn count_listeners(&mut self, channel: &[u8]) {
        let count = self
            .connections
            .values()
            .filter(|(_, channels)| channels.contains(channel))
            .count();
        self.store.set_listeners(channel, count);
    }
}

/// Adds to each number that is stored: a client whose clock is ahead has raised the counters.
pub(crate) fn raise_numbers(recorder: &Recorder, by: u64) {
    for (key, value) in recorder.contents() {
        let Value::Text(text) = value else { continue };
        let Some(number) = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
        else {
            continue;
        };
        recorder.send(command([
            b"SET",
            &key[..],
            (number + by).to_string().as_bytes(),
            b"KEEPTTL",
        ]));
    }
}
