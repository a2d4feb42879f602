//! What clients decide: the shipped decisions, each taken once. What a client knows is a number here, so that states are small.

use std::collections::HashMap;
use std::time::Duration;

use super::{BEGIN, Counts, Record};
use crate::answer::{GreetReply, Listed, StoredSet};
use crate::logic::sets::{Judgement, OwnServers};

/// The number of what a client knows.
pub(super) type Known = u16;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// The world takes less than an hour. This is when it began: milliseconds since 1970.
const START: u64 = 480_000 * HOUR;

pub(super) struct Decisions {
    clients: [Clients; 2],
    sets: Vec<Vec<StoredSet>>,
}

struct Clients {
    servers: &'static str,
    all: Vec<Knowledge>,
    by_text: HashMap<String, Known>,
    heard: HashMap<(Known, usize, Record, u8), Known>,
    forgotten: HashMap<(Known, usize), Known>,
}

/// One thing that a client may know, and what it makes of that.
struct Knowledge {
    /// How it came to know that.
    way: Vec<(usize, Option<GreetReply>)>,
    refused: u8,
    noted: u8,
    due: u8,
    shown: u8,
    servers: Vec<OfServer>,
}

struct OfServer {
    note: Option<u16>,
    member_for: u8,
    heard: u8,
}

impl Decisions {
    pub(super) fn new(sets: [&'static str; 2]) -> Decisions {
        let clients = sets.map(|servers| Clients {
            servers,
            all: vec![],
            by_text: HashMap::new(),
            heard: HashMap::new(),
            forgotten: HashMap::new(),
        });
        let mut decisions = Decisions {
            clients,
            sets: vec![vec![]],
        };
        for which in [0, 1] {
            let _ = decisions.number(which, vec![]);
        }
        decisions
    }

    pub(super) fn nothing(&self, which: usize) -> Known {
        debug_assert!(self.clients[which].all[0].way.is_empty());
        0
    }

    /// The number of what a client knows that has heard this.
    fn number(&mut self, which: usize, way: Vec<(usize, Option<GreetReply>)>) -> Known {
        let letters = self.clients[which]
            .servers
            .chars()
            .map(String::from)
            .collect::<Vec<_>>();
        let mut own = OwnServers::new("", letters.iter().map(|it| &**it));
        for (server, shown) in &way {
            match shown {
                Some(shown) => own.on_report(*server, shown.clone()),
                None => own.forget(*server),
            }
        }
        let text = format!("{own:?}");
        if let Some(known) = self.clients[which].by_text.get(&text) {
            return *known;
        }
        let bits = |is: &dyn Fn(usize) -> bool| {
            (0..own.len())
                .filter(|it| is(*it))
                .fold(0, |bits, it| bits | 1 << it)
        };
        let refused = bits(&|it| own.judge(it).is_refused);
        let is_noted = |it: usize| {
            let Judgement {
                note, is_refused, ..
            } = own.judge(it);
            note.is_none() && !is_refused && !own.without_others(it).is_empty()
        };
        let noted = bits(&is_noted);
        let (due, shown) = (
            bits(&|it| own.is_due(it, &own.judge(it))),
            bits(&|it| own.shown(it).is_some()),
        );
        let heard = |it: usize| {
            own.shown(it)
                .map_or(0, |it| (it.now / 1_000).saturating_sub(START) / MINUTE)
        };
        let judged = (0..own.len())
            .map(|it| (own.judge(it), heard(it)))
            .collect::<Vec<_>>();
        let servers = judged.into_iter().map(|(it, heard)| OfServer {
            note: it.note.map(|it| self.number_of_sets(it)),
            member_for: u8::try_from(it.member_for.as_secs() / 60).unwrap_or(u8::MAX),
            heard: u8::try_from(heard).unwrap(),
        });
        let knowledge = Knowledge {
            way,
            refused,
            noted,
            due,
            shown,
            servers: servers.collect(),
        };
        let clients = &mut self.clients[which];
        let known = Known::try_from(clients.all.len()).unwrap();
        clients.all.push(knowledge);
        clients.by_text.insert(text, known);
        known
    }

    fn number_of_sets(&mut self, mut sets: Vec<StoredSet>) -> u16 {
        sets.iter_mut()
            .for_each(|it| it.servers.sort_by_key(|it| (it.id, it.address)));
        let known = self.sets.iter().position(|it| *it == sets);
        let number = known.unwrap_or_else(|| {
            self.sets.push(sets);
            self.sets.len() - 1
        });
        u16::try_from(number).unwrap()
    }

    pub(super) fn hear(
        &mut self,
        which: usize,
        known: Known,
        server: usize,
        shown: Record,
        now: u8,
    ) -> Known {
        let key = (known, server, shown, now);
        if let Some(heard) = self.clients[which].heard.get(&key) {
            return *heard;
        }
        let served = Duration::from_millis(u64::from(now - shown.since) * MINUTE);
        let reply = GreetReply {
            id: Some(shown.id.into()),
            now: at(now) * 1_000,
            sets: self.sets[usize::from(shown.sets)].as_slice().into(),
            ..GreetReply::of(crate::answer::Record::Kept, served)
        };
        let way = [
            &self.clients[which].all[usize::from(known)].way[..],
            &[(server, Some(reply))],
        ]
        .concat();
        let heard = self.number(which, way);
        self.clients[which].heard.insert(key, heard);
        heard
    }

    pub(super) fn forget(&mut self, which: usize, known: Known, server: usize) -> Known {
        if let Some(forgotten) = self.clients[which].forgotten.get(&(known, server)) {
            return *forgotten;
        }
        let way = [
            &self.clients[which].all[usize::from(known)].way[..],
            &[(server, None)],
        ]
        .concat();
        let forgotten = self.number(which, way);
        self.clients[which]
            .forgotten
            .insert((known, server), forgotten);
        forgotten
    }

    fn of(&self, which: usize, known: Known) -> &Knowledge {
        &self.clients[which].all[usize::from(known)]
    }

    /// Of each server a bit.
    pub(super) fn refused(&self, which: usize, known: Known) -> u8 {
        self.of(which, known).refused
    }

    /// Whose grants count.
    pub(super) fn counting(&self, which: usize, known: Known, counts: Counts) -> u8 {
        match counts {
            Counts::All => u8::MAX,
            Counts::NotRefused | Counts::Strict => !self.refused(which, known),
            Counts::Noted => self.of(which, known).noted,
        }
    }

    /// Servers whose grants may be part of a majority.
    pub(super) fn in_the_end(&self, which: usize, known: Known) -> u8 {
        self.all_shown(which, known) & !self.refused(which, known)
    }

    pub(super) fn all_shown(&self, which: usize, known: Known) -> u8 {
        self.of(which, known).shown
    }

    pub(super) fn is_shown(&self, which: usize, known: Known, server: usize) -> bool {
        self.of(which, known).shown & 1 << server != 0
    }

    pub(super) fn is_due(&self, which: usize, known: Known, server: usize) -> bool {
        self.of(which, known).due & 1 << server != 0
    }

    pub(super) fn note(&self, which: usize, known: Known, server: usize) -> Option<u16> {
        self.of(which, known).servers[server].note
    }

    pub(super) fn member_for(&self, which: usize, known: Known, server: usize) -> u8 {
        self.of(which, known).servers[server].member_for
    }

    /// When the server's record was last shown.
    pub(super) fn heard(&self, which: usize, known: Known, server: usize) -> u8 {
        self.of(which, known).servers[server].heard
    }

    pub(super) fn no_sets(&mut self) -> u16 {
        self.number_of_sets(vec![])
    }

    /// The first set of a record that a client of so many servers made.
    pub(super) fn alone(&mut self, size: usize, id: u8, now: u8) -> u16 {
        self.one_set(size, &[id.into()], at(now), 0)
    }

    /// A set that this server was in with others, and that nobody uses any more.
    pub(super) fn unused(&mut self, id: u8) -> u16 {
        self.one_set(3, &[id.into(), 1_000, 1_001], at(0), 30)
    }

    fn one_set(&mut self, size: usize, ids: &[u64], since: u64, hours: u64) -> u16 {
        let servers = ids
            .iter()
            .map(|id| Listed {
                id: *id,
                address: 0,
            })
            .collect();
        let used = at(BEGIN) / HOUR - hours;
        let (joined, changed) = (since, since);
        self.number_of_sets(vec![StoredSet {
            size,
            used,
            joined,
            changed,
            label: "".into(),
            servers,
        }])
    }

    /// A record for who reads how something came about.
    pub(super) fn shown(&self, Record { id, since, sets }: Record) -> String {
        let minute = |millis: u64| {
            millis
                .checked_sub(START)
                .map_or(-1, |it| (it / MINUTE) as i64)
        };
        let sets = self.sets[usize::from(sets)].iter().map(|it| {
            let ids = it.servers.iter().map(|it| it.id).collect::<Vec<_>>();
            format!(
                "({} of {ids:?} joined {} changed {})",
                it.size,
                minute(it.joined),
                minute(it.changed)
            )
        });
        format!("id {id} since {since} {}", sets.collect::<String>())
    }
}

fn at(now: u8) -> u64 {
    START + u64::from(now) * MINUTE
}
