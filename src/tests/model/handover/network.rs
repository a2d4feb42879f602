//! Connections, and what happens next.

use super::servers::Stamp;
use super::*;

/// A client's connection to a server.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) is_open: bool,
    /// Of the record that the client connected with on this connection.
    pub(super) record_version: Option<u64>,
    /// The process that the server pushes to over it.
    listener: Option<u64>,
    pub(super) commands: VecDeque<Command>,
    messages: VecDeque<(Message, Stamp)>,
    /// Pushes that come in any order, also over a later connection.
    pushes: Vec<(Message, Stamp)>,
    /// What the server may still execute of an earlier connection, and for whom it publishes to that.
    late: VecDeque<Command>,
    late_listener: Option<u64>,
}

/// Whose command it is, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub(super) attempt: u64,
    pub(super) round: Round,
    pub(super) sent: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Round {
    Call(u32),
    Hold(u64),
}

/// A server has handed a lock over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    pub(super) owner: u64,
    /// 0: the server's counter is not below what was offered.
    pub(super) token: u64,
    /// The name or permit.
    pub(super) lock: usize,
    pub(super) reads: bool,
    pub(super) record_version: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Sync {
        listener: Option<u64>,
        max_ttl: u64,
    },
    Acquire {
        tag: Tag,
        me: Member<u64>,
        enters: bool,
        wants: Wants,
        proposal: u64,
        record_version: u64,
    },
    Raise {
        tag: Tag,
        caller: Caller<u64>,
        token: u64,
    },
    Extend {
        tag: Tag,
        caller: Caller<u64>,
        number: u64,
        life: u64,
        sets: bool,
        record_version: u64,
    },
    Release(Release<u64>),
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    /// The version of the record, and the record.
    Synced(u64, Record),
    Reply(Tag, Answer),
    Push(Push),
}

impl Line {
    /// Whether the server counts a listener here when it publishes to this process.
    pub(super) fn listens(&self, id: u64) -> bool {
        self.is_open && self.listener == Some(id) || self.late_listener == Some(id)
    }
}

impl World {
    pub(super) fn step(&mut self) {
        self.counts.add(Event::Step);
        let c = self.random.usize(..self.active);
        let s = self.random.usize(..self.servers.len());
        let is_stopped = self.now < self.clients[c].stopped_until;
        match self.random.u32(..100) {
            0..6 => self.pass_time(),
            6..10 => self.execute_late(c, s),
            10..38 => self.execute_next(),
            38..72 => self.read_next(),
            72..90 if !is_stopped => self.act(c),
            90..96 if !is_stopped => self.connect(c, s),
            96.. => self.mishap(c, s),
            _ => {}
        }
    }

    fn pass_time(&mut self) {
        if self.one_in(self.slowness) {
            let is_long = self.one_in(20);
            self.now += if is_long {
                self.random.u64(1..=self.ttl / 2)
            } else {
                1
            };
        }
    }

    fn connect(&mut self, c: usize, s: usize) {
        if !self.lines[c][s].is_open {
            self.lines[c][s].is_open = true;
            let sync_record = self.sync_command(c);
            self.lines[c][s].commands.push_front(sync_record);
        }
    }

    pub(super) fn sync_command(&self, c: usize) -> Command {
        let client = &self.clients[c];
        Command::Sync {
            listener: (!client.polls).then_some(client.id),
            max_ttl: client.max_ttl,
        }
    }

    /// Sends a command, or drops it where there is no connection.
    pub(super) fn send(&mut self, c: usize, s: usize, command: Command) -> bool {
        let line = &mut self.lines[c][s];
        if line.is_open {
            line.commands.push_back(command);
        }
        line.is_open
    }

    /// The version to send along, where the client has been synced.
    pub(super) fn record_version(&self, c: usize, s: usize) -> Option<u64> {
        self.lines[c][s]
            .record_version
            .filter(|_| self.lines[c][s].is_open)
    }

    fn execute_next(&mut self) {
        // Most lines are empty.
        for _ in 0..6 {
            let c = self.random.usize(..self.active);
            let s = self.random.usize(..self.servers.len());
            let line = &mut self.lines[c][s];
            if line.is_open
                && self.servers[s].hung_until <= self.now
                && let Some(command) = line.commands.pop_front()
            {
                return self.execute(c, s, command, false);
            }
        }
    }

    fn execute_late(&mut self, c: usize, s: usize) {
        if self.now < self.servers[s].hung_until {
            return;
        }
        match self.lines[c][s].late.pop_front() {
            Some(command) => self.execute(c, s, command, true),
            None if self.one_in(2) => self.lines[c][s].late_listener = None,
            None => {}
        }
    }

    /// A server executes a command; nobody reads the answer to a late one.
    fn execute(&mut self, c: usize, s: usize, command: Command, is_late: bool) {
        self.expire(s);
        self.show(format_args!("n{s} executes {command:?} of {c}"));
        let current = self.servers[s].record_version;
        let reply = match command {
            Command::Sync { listener, max_ttl } => {
                let (record_version, record) = self.sync_record(s, max_ttl);
                let line = &mut self.lines[c][s];
                if is_late {
                    line.late_listener = listener;
                } else {
                    line.listener = listener;
                }
                Message::Synced(record_version, record)
            }
            Command::Acquire {
                tag,
                record_version,
                ..
            }
            | Command::Extend {
                tag,
                record_version,
                ..
            } if record_version != current => Message::Reply(tag, Answer::Changed),
            Command::Acquire {
                tag,
                me,
                enters,
                wants,
                proposal,
                ..
            } => {
                let member = Some(me);
                let acquire = Acquire {
                    owner: me.owner,
                    wants,
                    proposal,
                    until: self.server_time(s) + self.ttl,
                    member,
                    enters,
                };
                Message::Reply(tag, self.acquire(s, me, acquire))
            }
            Command::Raise { tag, caller, token } => {
                Message::Reply(tag, self.raise(s, caller, token))
            }
            Command::Extend {
                tag,
                caller,
                number,
                life,
                sets,
                ..
            } => {
                if !is_late && self.servers[s].released.contains(&caller.owner) {
                    self.violate(Violation::Orphan);
                }
                Message::Reply(tag, self.extend(s, caller, number, life, sets))
            }
            Command::Release(release) => return self.release(s, release),
        };
        if !is_late {
            let stamp = self.servers[s].stamp(self.ttl);
            self.lines[c][s].messages.push_back((reply, stamp));
        }
    }

    fn sync_record(&mut self, s: usize, max_ttl: u64) -> (u64, Record) {
        let record_version = self.fresh();
        let server = &mut self.servers[s];
        let found = server.stored.record;
        let record = Record::synced(found, self.now, max_ttl, 0);
        if found != Some(record) {
            server.record_version = record_version;
        }
        server.stored.record = Some(record);
        (server.record_version, record)
    }

    /// Publishes what was handed over.
    pub(super) fn push(&mut self, s: usize, to: &Member<u64>, lock: usize, token: u64) {
        let message = Message::Push(Push {
            owner: to.owner,
            token,
            lock,
            reads: to.reads,
            record_version: self.servers[s].record_version,
        });
        let stamp = self.servers[s].stamp(self.ttl);
        let in_order = self.in_order;
        let line = &mut self.lines[to.client][s];
        if line.is_open && line.listener == Some(to.id) {
            if in_order {
                line.messages.push_back((message, stamp));
            } else {
                line.pushes.push((message, stamp));
            }
        }
    }

    fn read_next(&mut self) {
        for _ in 0..6 {
            let c = self.random.usize(..self.active);
            let s = self.random.usize(..self.servers.len());
            if !self.lines[c][s].is_open || self.now < self.clients[c].stopped_until {
                continue;
            }
            let pushes = self.lines[c][s].pushes.len();
            if pushes != 0 && self.one_in(self.disorder) {
                let place = self.random.usize(..pushes);
                let (message, stamp) = self.lines[c][s].pushes.remove(place);
                return self.read(c, s, message, stamp);
            }
            if let Some((message, stamp)) = self.lines[c][s].messages.pop_front() {
                return self.read(c, s, message, stamp);
            }
        }
    }

    fn mishap(&mut self, c: usize, s: usize) {
        let Faults {
            breaks,
            crashes,
            stops,
            hangs,
            restarts,
            empties,
            counters,
            clock_steps,
        } = self.faults;
        if self.one_in(breaks) {
            self.break_line(c, s);
        }
        if self.one_in(crashes) {
            self.crash(c);
        }
        if self.one_in(stops) {
            self.clients[c].stopped_until = self.now + self.random.u64(..3 * self.ttl);
        }
        if self.one_in(hangs) {
            self.servers[s].hung_until = self.now + self.random.u64(..self.ttl);
        }
        if self.one_in(restarts) {
            self.counts.add(Event::Restart);
            self.servers[s].lose_data();
            for client in 0..CLIENTS {
                self.break_line(client, s);
                self.lines[client][s].late.clear();
                self.lines[client][s].late_listener = None;
            }
        }
        if self.one_in(empties) {
            self.counts.add(Event::Emptied);
            self.servers[s].lose_data();
        }
        if self.one_in(empties) {
            let record_version = self.fresh();
            let longer = self.random.u64(1..=self.ttl);
            let server = &mut self.servers[s];
            if let Some(record) = &mut server.stored.record {
                server.record_version = record_version;
                record.max_ttl = (record.max_ttl + longer).min(2 * self.ttl);
            }
        }
        if self.one_in(counters) {
            self.counts.add(Event::LostCounter);
            self.servers[s].stored.locks[self.random.usize(..LOCKS)].counter = 0;
        }
        if self.one_in(self.vanishes) {
            self.show(format_args!("a key of n{s} vanishes"));
            self.servers[s].stored.vanish(self.random.usize(..LOCKS));
        }
        if self.one_in(clock_steps) {
            self.counts.add(Event::ClockStep);
            let by = self.random.u64(1..=self.ttl);
            self.servers[s].step_clock(self.now, by);
        }
    }

    /// A connection ends. The server may still execute a part of what was sent; releases are sent again on the next one.
    fn break_line(&mut self, c: usize, s: usize) {
        let part = self.random.usize(..=self.lines[c][s].commands.len());
        let line = &mut self.lines[c][s];
        let mut late = line.commands.clone();
        late.truncate(if line.is_open { part } else { 0 });
        let older = std::mem::replace(&mut line.late, late);
        let mut commands = std::mem::take(&mut line.commands);
        commands.retain(|command| matches!(command, Command::Release(_)));
        *line = Line {
            commands,
            pushes: std::mem::take(&mut line.pushes),
            late: std::mem::take(&mut line.late),
            late_listener: line.listener,
            ..Line::default()
        };
        if self.one_in(2) {
            // Of two earlier connections the first one is executed now or never.
            for command in older {
                self.execute(c, s, command, true);
            }
        }
        self.fail(c, s);
    }

    /// A client's process ends, and another one comes in its place.
    fn crash(&mut self, c: usize) {
        self.counts.add(Event::Crash);
        for s in 0..self.servers.len() {
            self.break_line(c, s);
            self.lines[c][s].commands.clear();
        }
        self.clients[c] = self.new_client();
    }
}
