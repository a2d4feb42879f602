//! What clients said and did, and the resources that their locks protect: a version number per resource, and a storage that
//! keeps the numbers of those who come.
//!
//! A resource is named after the [work](crate::workloads::Workload) that it is for, `registers/0`,
//! and so are locks. A hold of several names is one of several resources. Readers register too:
//! from then on a writer is refused whose token is not above the reader's number, for its lock is
//! over. What is begun between two resources by one hold is undone when another one registers, as
//! databases do.
//!
//! Every time is in nanoseconds on the clock of [`boot`](crate::support::boot).
//!
//! | a client asks | the answer |
//! | --- | --- |
//! | `lease CLIENT MODE NAMES TOKEN TTL EXTENDED ASKED ACQUIRED`: see [`Mode`]; commas between the names | the lease's number |
//! | `seen LEASE BEFORE AFTER REMAINING`: the guard was asked between these times, and said so | `ok` |
//! | `register LEASE`: its token comes before its first read | `ok VERSION` or `stale` |
//! | `read LEASE` | `ok VERSION` or `stale` |
//! | `write LEASE VERSION`: the version it was made from | `ok VERSION` or `stale` |
//! | `pay LEASE`: one half of a transfer between its resources, and when that is done the other | `ok VERSION` or `stale` |
//! | `releasing LEASE AT`: before the release begins | `ok` |
//! | `lost CLIENT`: the client's manager reports a loss at once, on a connection of its own | `ok` |
//! | `ended LEASE HOW`: `released`, `dropped`, `expired` or `lost` | `ok` |
//! | `failed WHY`: a call that did not get the lock | `ok` |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How long after a lock was won the library extends it for the first time, at the earliest: nanoseconds. It begins with what is due
/// a little later. The call may return any time after that, where its thread waits for a processor.
const FIRST_EXTENSION: u64 = 30_000_000;

/// One hold of a lock, as its client told it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) client: u64,
    pub(crate) mode: Mode,
    pub(crate) names: Vec<String>,
    /// Of a reader the number of the last writer.
    pub(crate) token: u64,
    pub(crate) ttl: u64,
    /// Whether anything may extend it.
    pub(crate) extended: bool,
    /// When the call began and when it had returned.
    pub(crate) asked: u64,
    pub(crate) acquired: u64,
    /// The first and the last time at which it was then found valid.
    pub(crate) valid: Option<(u64, u64)>,
    /// Until when it claimed to be valid, at least.
    pub(crate) use_until: u64,
    /// The same, at most; from the first look at it, or the first after its end moved.
    pub(crate) first_until: u64,
    /// When its end was seen to have moved without an extension by the client.
    pub(crate) moved: Option<u64>,
    /// When its release began.
    pub(crate) releasing: Option<u64>,
    pub(crate) end: End,
    /// The client's manager has reported a loss, and this was the client's last hold.
    pub(crate) lost: bool,
    /// It was found not to be valid.
    pub(crate) over: bool,
    /// When the resource refused it, and the lease whose token had been registered.
    pub(crate) refused: Option<(u64, usize)>,
    /// The version that it read first.
    first_read: Option<u64>,
    /// When it read what two have written, and the lease that had come in between.
    torn: Option<(u64, usize)>,
}

/// Whom a hold keeps out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// `exclusive`: everybody.
    Exclusive,
    /// `shared`: whoever is not a reader as well.
    Shared,
    /// `one-of-N`: everybody from one of N resources.
    OneOf(usize),
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Not yet, or its client was killed.
    Open,
    /// It was held to the beginning of the release.
    Released,
    /// Its guard was dropped, which does not say whether it was still valid.
    Dropped,
    /// Its time was over before.
    Expired,
    /// It was lost earlier than that.
    Lost,
}

/// What a fault does to locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Nothing that a majority of nodes cannot make up for.
    None,
    /// A node forgot what it had granted.
    Forgets,
    /// Keys of a node expired early.
    Hastens,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) effect: Effect,
    pub(crate) node: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// What the node's clock showed at time 0, in microseconds since 1970.
    pub(crate) epoch: u64,
}

/// What happened to a resource, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Registered {
        lease: usize,
    },
    /// Accepted.
    Wrote {
        lease: usize,
        base: u64,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Resource {
    /// The largest token that was registered, and by which lease.
    highest: Option<(u64, usize)>,
    /// The largest number of a reader that was registered, and by which lease.
    last_writer: Option<(u64, usize)>,
    version: u64,
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Accepts whatever comes, as storage does that knows no tokens.
    pub(crate) trusting: bool,
    pub(crate) leases: Vec<Lease>,
    pub(crate) resources: BTreeMap<String, Resource>,
    /// The lease that has paid half.
    pub(crate) half_paid: Option<usize>,
    pub(crate) faults: Vec<Fault>,
    /// Client, from, to.
    pub(crate) stops: Vec<(u64, u64, u64)>,
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) stale: u64,
    pub(crate) writes: u64,
    /// Claims that contradict the guard's own.
    pub(crate) dishonest: Vec<String>,
    /// Lease that had been registered, lease that was refused because of it and valid all the same, when.
    pub(crate) refused_while_valid: Vec<(usize, usize, u64)>,
    /// Lease that wrote, lease that read what two have written and was valid all the same, when.
    pub(crate) torn_while_valid: Vec<(usize, usize, u64)>,
}

impl History {
    /// Answers one line.
    pub(crate) fn answer(&mut self, line: &str, now: u64) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.try_answer(&words, now)
            .unwrap_or_else(|| panic!("{line:?} is no question"))
    }

    fn try_answer(&mut self, words: &[&str], now: u64) -> Option<String> {
        let number = |i: usize| words.get(i)?.parse::<u64>().ok();
        let index = |i: usize| usize::try_from(number(i)?).ok();
        match *words.first()? {
            "lease" => {
                self.leases.push(Lease {
                    client: number(1)?,
                    mode: Mode::named(words.get(2)?)?,
                    names: words.get(3)?.split(',').map(str::to_owned).collect(),
                    token: number(4)?,
                    ttl: number(5)?,
                    extended: words.get(6)?.parse().ok()?,
                    asked: number(7)?,
                    acquired: number(8)?,
                    valid: None,
                    use_until: 0,
                    first_until: 0,
                    moved: None,
                    releasing: None,
                    end: End::Open,
                    lost: false,
                    over: false,
                    refused: None,
                    first_read: None,
                    torn: None,
                });
                return Some((self.leases.len() - 1).to_string());
            }
            "seen" => self.see(index(1)?, number(2)?, number(3)?, number(4)?),
            "register" => return Some(self.access(index(1)?, now, Access::Register)),
            "read" => return Some(self.access(index(1)?, now, Access::Read)),
            "write" => {
                return Some(self.access(index(1)?, now, Access::Write { base: number(2)? }));
            }
            "pay" => return Some(self.access(index(1)?, now, Access::Pay)),
            "releasing" => self.leases.get_mut(index(1)?)?.releasing = Some(number(2)?),
            "lost" => {
                let client = number(1)?;
                if let Some(lease) = self.leases.iter_mut().rev().find(|it| it.client == client) {
                    lease.lost = true;
                }
            }
            "ended" => {
                self.leases.get_mut(index(1)?)?.end = match *words.get(2)? {
                    "released" => End::Released,
                    "dropped" => End::Dropped,
                    "expired" => End::Expired,
                    "lost" => End::Lost,
                    _ => return None,
                }
            }
            "failed" => *self.failed.entry((*words.get(1)?).to_owned()).or_default() += 1,
            _ => return None,
        }
        Some("ok".to_owned())
    }

    /// Clients and works.
    pub(crate) fn acquired_since(&self, since: u64) -> BTreeSet<String> {
        let leases = self.leases.iter().filter(|it| since <= it.acquired);
        leases
            .flat_map(|it| [it.client.to_string(), it.work().to_owned()])
            .collect()
    }

    fn see(&mut self, number: usize, before: u64, after: u64, remaining: u64) {
        let lease = &mut self.leases[number];
        if remaining == 0 {
            // Before the end that it claimed: it was lost or gave itself up, and nobody but it knows when.
            if let Some((_, last)) = lease.valid.filter(|_| before < lease.use_until) {
                lease.use_until = last;
            }
            lease.over = true;
            return;
        }
        // The round that it counts from was sent before now, and without extensions before the call returned.
        let margin = lease.ttl / 100 + 2_000_000;
        let at_most = |sent: u64| sent + lease.ttl - margin;
        // The library extends each lease once by itself: one that was handed over has a short life before.
        let moved = if lease.valid.is_some() {
            lease.first_until < before + remaining
        } else {
            at_most(lease.acquired) < before + remaining
        };
        let is_first = lease.moved.is_none() && lease.asked + FIRST_EXTENSION <= after;
        let moved_again = moved && !lease.extended && !is_first;
        let sent = if lease.extended || moved {
            after
        } else {
            lease.moved.unwrap_or(lease.acquired)
        };
        let too_long = at_most(sent) < before + remaining;
        if moved {
            lease.moved = Some(after);
        }
        let mut wrong = |what: &str| self.dishonest.push(format!("{what}, at {before}: {lease}"));
        if lease.over {
            wrong("valid again after it was not");
        }
        if moved_again {
            wrong("its end moved without an extension");
        }
        if too_long {
            wrong("claims more than a ttl less the margin");
        }
        if lease.valid.is_none() || moved {
            lease.first_until = after + remaining;
        }
        if let Some((at, by)) = lease.refused.filter(|(at, _)| *at < before) {
            self.refused_while_valid.push((by, number, at));
        }
        if let Some((at, by)) = lease.torn.take_if(|(at, _)| *at < before) {
            self.torn_while_valid.push((by, number, at));
        }
        lease.valid = Some((lease.valid.map_or(before, |(first, _)| first), before));
        lease.use_until = lease.use_until.max(before + remaining);
    }

    /// Lets a lease through to its resources, unless another that must come after it has been at one of them.
    fn access(&mut self, number: usize, now: u64, access: Access) -> String {
        if access == Access::Read {
            self.read(number, now);
        }
        let History {
            leases,
            resources,
            trusting,
            ..
        } = self;
        let lease = &mut leases[number];
        let later = lease
            .names
            .iter()
            .find_map(|it| resources.entry(it.clone()).or_default().later_than(lease));
        if let Some(by) = later.filter(|_| !*trusting) {
            lease.refused.get_or_insert((now, by));
            self.stale += 1;
            return "stale".to_owned();
        }
        for name in &lease.names {
            let resource = resources.entry(name.clone()).or_default();
            match access {
                Access::Register => resource.register(number, lease),
                Access::Read => {}
                Access::Write { base } => resource.write(number, base),
                Access::Pay => resource.write(number, resource.version),
            }
        }
        let others = self
            .half_paid
            .is_some_and(|it| it != number && leases[it].work() == leases[number].work());
        match access {
            Access::Register if others && !self.trusting => self.half_paid = None,
            Access::Pay => {
                self.half_paid = if self.half_paid == Some(number) {
                    None
                } else {
                    Some(number)
                }
            }
            _ => {}
        }
        self.writes += u64::from(matches!(access, Access::Write { .. } | Access::Pay));
        format!(
            "ok {}",
            self.resources[&self.leases[number].names[0]].version
        )
    }

    /// What it sees is that of one writer, or not. Whoever is refused has seen it already.
    fn read(&mut self, number: usize, now: u64) {
        let lease = &self.leases[number];
        let resource = self.resources.get(&lease.names[0]);
        let version = resource.map_or(0, |it| it.version);
        let first = lease.first_read.unwrap_or(version);
        let half = self
            .half_paid
            .filter(|it| *it != number && self.leases[*it].work() == lease.work());
        let changed = resource
            .filter(|_| lease.mode == Mode::Shared && first != version)
            .and_then(Resource::last_writer);
        let by = half.or(changed);
        let lease = &mut self.leases[number];
        lease.first_read = Some(first);
        lease.torn = lease.torn.or(by.map(|it| (now, it)));
    }
}

impl Resource {
    /// Who has registered and must come after this lease, if anybody has.
    fn later_than(&self, lease: &Lease) -> Option<usize> {
        let over = self
            .last_writer
            .filter(|(number, _)| lease.mode != Mode::Shared && lease.token <= *number);
        self.highest
            .filter(|(highest, _)| lease.token < *highest)
            .or(over)
            .map(|(_, by)| by)
    }

    fn register(&mut self, number: usize, lease: &Lease) {
        let largest = if lease.mode == Mode::Shared {
            &mut self.last_writer
        } else {
            &mut self.highest
        };
        if largest.is_none_or(|(largest, _)| largest < lease.token) {
            *largest = Some((lease.token, number));
        }
        self.events.push(Event::Registered { lease: number });
    }

    fn write(&mut self, lease: usize, base: u64) {
        self.version += 1;
        self.events.push(Event::Wrote { lease, base });
    }

    fn last_writer(&self) -> Option<usize> {
        self.events.iter().rev().find_map(|it| match it {
            Event::Wrote { lease, .. } => Some(*lease),
            Event::Registered { .. } => None,
        })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Access {
    Register,
    Read,
    Write { base: u64 },
    Pay,
}

impl Mode {
    fn named(name: &str) -> Option<Mode> {
        Some(match name {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            _ => Mode::OneOf(name.strip_prefix("one-of-")?.parse().ok()?),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::OneOf(permits) => write!(f, "one-of-{permits}"),
        }
    }
}

impl Lease {
    /// What it was for.
    pub(crate) fn work(&self) -> &str {
        self.names[0].split('/').next().unwrap_or_default()
    }

    /// Whether its token is right for a hold that came after `earlier`.
    pub(crate) fn comes_after(&self, earlier: &Lease) -> bool {
        earlier.token < self.token || self.mode == Mode::Shared && earlier.token == self.token
    }

    /// Whether both may have the same name at a time.
    pub(crate) fn bears(&self, other: &Lease) -> bool {
        self.mode == Mode::Shared && other.mode == Mode::Shared
    }

    /// The time in which its client could rely on the lock, to the best of the judge's knowledge and never too long.
    pub(crate) fn window(&self) -> Option<(u64, u64)> {
        let (first, last) = self.valid?;
        let given_back = self.releasing.unwrap_or(u64::MAX);
        let end = match self.end {
            End::Released => given_back,
            // RACE: the manager reports a loss and releases the rest; the client is killed before its next look at its guard.
            // Therefore its last look is the last time at which it certainly held the lock.
            End::Open if self.lost => last,
            End::Open => self.use_until.min(given_back),
            End::Expired if self.use_until < given_back => self.use_until,
            // It was looked at just before. From then on it may have ended at any time.
            End::Expired | End::Dropped | End::Lost => last,
        };
        Some((first, end.max(last)))
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lease {
            client,
            mode,
            names,
            token,
            asked,
            acquired,
            end,
            ..
        } = self;
        let names = names.join(" and ");
        write!(
            f,
            "client {client} had {names} {mode} with {token}, asked {asked}, acquired {acquired}, "
        )?;
        match self.window() {
            Some((from, to)) => write!(f, "valid {from} to {to}, {end:?}"),
            None => write!(f, "never valid, {end:?}"),
        }
    }
}
