//! Servers with clocks, connections and what is checked of their commands.

use super::*;
use crate::tests::model::servers;

type Simulated = servers::Server<u64, Vec<(u64, u64)>, [List<u64>; LOCKS], Option<Record>, LOCKS>;

#[derive(Debug)]
pub(super) struct Server {
    pub(super) stored: Simulated,
    /// 0 without a record.
    pub(super) record_version: u64,
    /// By how much its clock was set forward, when last, and how often.
    ahead: u64,
    stepped_at: u64,
    clock_steps: u32,
    pub(super) hung_until: u64,
    /// The last owner tokens whose release was executed here.
    pub(super) released: VecDeque<u64>,
}

/// What a message shows of the server's clock, and what no client sees: from when on grants may count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) clock_steps: u32,
    pub(super) counts_from: u64,
}

impl Server {
    fn with(record: Option<Record>) -> Server {
        Server {
            stored: servers::Server::new([0; LOCKS], Lists::empty(), record),
            record_version: u64::from(record.is_some()),
            ahead: 0,
            stepped_at: 0,
            clock_steps: 0,
            hung_until: 0,
            released: VecDeque::new(),
        }
    }

    /// A server that has kept everything for long.
    pub(super) fn old(max_ttl: u64) -> Server {
        Server::with(Some(Record::old(max_ttl)))
    }

    pub(super) fn lose_data(&mut self) {
        *self = Server {
            hung_until: self.hung_until,
            ..Server::with(None)
        };
    }

    pub(super) fn step_clock(&mut self, now: u64, by: u64) {
        self.ahead += by;
        self.stepped_at = now;
        self.clock_steps += 1;
    }

    pub(super) fn stamp(&self, quarantine: u64) -> Stamp {
        let step_end = match self.clock_steps {
            0 => 0,
            _ => self.stepped_at + quarantine,
        };
        Stamp {
            clock_steps: self.clock_steps,
            counts_from: self.stored.record.quarantine_end().max(step_end),
        }
    }
}

/// All of these run at one server, `s`.
impl World {
    pub(super) fn server_time(&self, s: usize) -> u64 {
        self.now + self.servers[s].ahead
    }

    fn mistake(&self) -> Mistake {
        match self.flaw {
            Flaw::Server(mistake) => mistake,
            _ => Mistake::None,
        }
    }

    pub(super) fn expire(&mut self, s: usize) {
        let time = self.server_time(s);
        self.servers[s].stored.expire(time);
    }

    /// A server executes a command, and publishes what it has handed over. Also answers the place of the first living writer
    /// that waits then.
    fn run<T>(
        &mut self,
        s: usize,
        command: impl FnOnce(&mut Simulated, &mut Turn<'_, u64>) -> T,
    ) -> (T, Option<(u64, u64)>) {
        let time = self.server_time(s);
        let mut turn = Turn {
            mistake: self.mistake(),
            time,
            latest: Some(FAR - 1),
            first_until: time + self.first_life,
            has_slots: self.kind == Kind::Permits,
            listens: &|member| self.lines[member.client][s].listens(member.id),
            handed: vec![],
        };
        let stored = &mut self.servers[s].stored;
        let result = command(stored, &mut turn);
        let list = &stored.lists[0];
        let writer = list
            .waiting
            .iter()
            .find(|it| !it.reads && turn.is_alive(list, it))
            .map(Member::place);
        let handed = turn.handed;
        let group = handed.iter().filter(|it| it.to.reads).count();
        if 1 < group {
            self.counts.add(Event::ReaderGroup);
        }
        for HandOver { to, lock, token } in handed {
            self.counts.add(Event::HandOver);
            self.push(s, &to, lock, token);
            if to.reads {
                self.check_order(to, writer);
            } else if FAR <= token {
                self.violate(Violation::FarAhead);
            }
        }
        (result, writer)
    }

    /// Checks that no living writer waits before a reader that comes in.
    fn check_order(&mut self, reader: Member<u64>, writer: Option<(u64, u64)>) {
        if writer.is_some_and(|it| it < reader.place()) {
            self.violate(Violation::ReaderBeforeWriter);
        }
    }

    pub(super) fn acquire(&mut self, s: usize, me: Member<u64>, acquire: Acquire<u64>) -> Answer {
        let stands = self.servers[s].stored.has(0, me.owner);
        let (reply, writer) = self.run(s, |stored, turn| stored.acquire(turn, acquire));
        if reply.is(LockStatus::Shared) && !stands {
            self.check_order(me, writer);
        }
        reply
    }

    pub(super) fn raise(&mut self, s: usize, caller: Caller<u64>, token: u64) -> Answer {
        let mistake = self.mistake();
        self.servers[s].stored.raise(mistake, caller, token)
    }

    /// Extends what is there, and sets what is missing.
    pub(super) fn extend(
        &mut self,
        s: usize,
        caller: Caller<u64>,
        number: u64,
        life: u64,
        sets: bool,
    ) -> Answer {
        let extend = Extend {
            number,
            until: self.server_time(s) + life,
            sets,
        };
        let mistake = self.mistake();
        self.servers[s].stored.extend(mistake, caller, extend)
    }

    pub(super) fn release(&mut self, s: usize, release: Release<u64>) {
        let Release {
            caller: Caller { owner, locks, .. },
            keep,
            stay,
            yields,
            ..
        } = release;
        let is_over = stay.is_none_or(|it| it.1.owner != owner);
        if keep.is_none() && is_over {
            let released = &mut self.servers[s].released;
            released.push_back(owner);
            released.drain(..released.len().saturating_sub(8));
        }
        let had = [0, 1].map(|it| self.servers[s].stored.has(it, owner));
        self.run(s, |stored, turn| stored.release(turn, release));
        let stored = &self.servers[s].stored;
        let is_handed_on = |it: usize| had[it] && !stored.is_free(it) && !stored.has(it, owner);
        let handed_on = (0..LOCKS).filter(|it| is_handed_on(*it)).count();
        let in_list = |list: &List<u64>| list.waiting.iter().any(|it| it.owner == owner);
        let left = (0..LOCKS).any(|lock| keep != Some(lock) && stored.has(lock, owner));
        let is_left = left || stored.lists.iter().any(in_list);
        if locks == ALL && self.kind == Kind::Names && yields {
            (0..handed_on).for_each(|_| self.counts.add(Event::NameHandedOn));
        }
        if is_left && is_over {
            self.violate(Violation::Orphan);
        }
    }
}
