//! What a script is given: keys, arguments, and what it sees of the server.

use super::keyspace::{Keyspace, WrongType};
use super::number::number;
use super::reply::Reply;

/// An error, with its code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Refused(pub(super) String);

pub(super) type Outcome = Result<Reply, Refused>;

impl From<WrongType> for Refused {
    fn from(_: WrongType) -> Refused {
        Refused("WRONGTYPE Operation against a key holding the wrong kind of value".to_owned())
    }
}

/// Something was published.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Notice {
    pub(crate) channel: Vec<u8>,
    pub(crate) message: Vec<u8>,
}

/// What a script sees of the server while it runs.
pub(super) struct Run<'a> {
    pub(super) keys: &'a mut Keyspace,
    /// Microseconds since 1970. It stands still while a script runs.
    pub(super) now: f64,
    pub(super) run_id: &'a str,
    pub(super) listeners: &'a dyn Fn(&[u8]) -> usize,
    pub(super) notices: Vec<Notice>,
}

impl Run<'_> {
    /// Milliseconds since 1970.
    pub(super) fn ms(&self) -> f64 {
        (self.now / 1000.0).floor()
    }

    /// How many connections listen for what is said to the client whose call `member` is.
    pub(super) fn listeners(&self, member: &[u8]) -> usize {
        (self.listeners)(&channel_of(member))
    }

    /// Tells that client `what`; how many connections heard it.
    pub(super) fn tell(&mut self, member: &[u8], what: &[u8]) -> usize {
        self.notices.push(Notice { channel: channel_of(member), message: what.to_vec() });
        self.listeners(member)
    }
}

/// The first sixteen digits of a member are the client's id.
fn channel_of(member: &[u8]) -> Vec<u8> {
    [b"quorlock:wake:", member.get(..16).unwrap_or(member)].concat()
}

/// Keys or arguments, numbered from 1 as in the scripts.
#[derive(Clone, Copy)]
pub(super) struct Args<'a>(&'a [Vec<u8>]);

impl<'a> Args<'a> {
    pub(super) fn new(args: &'a [Vec<u8>]) -> Args<'a> {
        Args(args)
    }

    pub(super) fn len(self) -> usize {
        self.0.len()
    }

    pub(super) fn get(self, at: usize) -> Option<&'a [u8]> {
        self.0.get(at.checked_sub(1)?).map(|it| &it[..])
    }

    /// Empty if it is absent.
    pub(super) fn at(self, at: usize) -> &'a [u8] {
        self.get(at).unwrap_or_default()
    }

    pub(super) fn all(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().map(|it| &it[..])
    }

    /// Those behind the first `count`.
    pub(super) fn rest(self, count: usize) -> &'a [Vec<u8>] {
        self.0.get(count..).unwrap_or_default()
    }

    /// The first `count`, and the others.
    pub(super) fn split(self, count: usize) -> Option<(Args<'a>, Args<'a>)> {
        self.0.split_at_checked(count).map(|(first, rest)| (Args(first), Args(rest)))
    }

    pub(super) fn number(self, at: usize) -> Result<f64, Refused> {
        to_number(self.at(at))
    }

    /// All of them.
    pub(super) fn array<const N: usize>(self) -> Result<[&'a [u8]; N], Refused> {
        let all: Vec<_> = self.all().collect();
        all.try_into().map_err(|_| wrong_number())
    }

    /// Keys in groups of the same length, kind by kind, and `more` behind them.
    pub(super) fn groups<const N: usize>(self, more: usize) -> Result<Groups<'a, N>, Refused> {
        let grouped = self.len().checked_sub(more).filter(|it| *it != 0 && it.is_multiple_of(N.max(1)));
        let size = grouped.and_then(|it| it.checked_div(N)).ok_or_else(wrong_number)?;
        let mut all = self.all();
        let groups = [(); N].map(|()| all.by_ref().take(size).collect());
        Ok((groups, all.collect()))
    }
}

/// Keys in groups, and those behind them.
type Groups<'a, const N: usize> = ([Vec<&'a [u8]>; N], Vec<&'a [u8]>);

pub(super) fn to_number(text: &[u8]) -> Result<f64, Refused> {
    number(text).ok_or_else(|| Refused(format!("ERR not a number: {}", text.escape_ascii())))
}

pub(super) fn wrong_number() -> Refused {
    Refused("ERR wrong number of keys or arguments".to_owned())
}

/// The first ten arguments of a script that acquires.
pub(super) struct Wish<'a> {
    pub(super) owner: &'a [u8],
    pub(super) ttl: f64,
    pub(super) proposal: f64,
    /// As it was sent.
    pub(super) proposed: &'a [u8],
    /// Of the counter.
    pub(super) life: &'a [u8],
    /// Milliseconds; 0 for none.
    pub(super) quarantine: f64,
    pub(super) is_unfair: bool,
    pub(super) since: f64,
    /// Who waits; empty if nobody does.
    pub(super) me: &'a [u8],
    /// How it enters a list if it is refused.
    pub(super) entry: Option<Entry<'a>>,
}

/// How a call enters a waiting list.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) member: &'a [u8],
    pub(super) since: f64,
    /// Of the list: milliseconds.
    pub(super) life: f64,
    pub(super) is_told: bool,
}

impl<'a> Entry<'a> {
    pub(super) fn new(member: &'a [u8], since: f64, life: &[u8], told: &[u8]) -> Result<Entry<'a>, Refused> {
        Ok(Entry { member, since, life: to_number(life)?, is_told: told == b"1" })
    }
}

/// How far a proposal may be ahead of the server's clock: microseconds.
const AHEAD: f64 = 3_600_000_000.0;
/// For how long an unfair call may take a lock before a client that waits: microseconds.
const UNFAIR_MAX: f64 = 1_000_000.0;

impl<'a> Wish<'a> {
    /// `told`: the number of the last argument.
    pub(super) fn of(args: Args<'a>, told: usize) -> Result<Wish<'a>, Refused> {
        if args.len() != told {
            return Err(wrong_number());
        }
        let (me, since, life) = (args.at(8), args.number(7)?, args.at(9));
        let entry = (!life.is_empty()).then(|| Entry::new(me, since, life, args.at(told))).transpose()?;
        Ok(Wish {
            owner: args.at(1),
            ttl: args.number(2)?,
            proposal: args.number(3)?,
            proposed: args.at(3),
            life: args.at(4),
            quarantine: args.number(5)?,
            is_unfair: args.at(6) == b"unfair",
            since,
            me,
            entry,
        })
    }

    pub(super) fn is_far_ahead(&self, now: f64) -> bool {
        self.proposal > now + AHEAD
    }

    /// Who began before that comes first.
    pub(super) fn limit(&self, now: f64) -> f64 {
        if self.is_unfair { self.since.min(now - UNFAIR_MAX) } else { self.since }
    }
}

/// The client's part of a release, behind `before` other arguments.
pub(super) struct Leaving<'a> {
    pub(super) me: &'a [u8],
    /// When the call began that goes on waiting.
    pub(super) since: Option<f64>,
    /// How that call enters the list.
    pub(super) entry: Option<Entry<'a>>,
}

impl<'a> Leaving<'a> {
    /// `told`: how many arguments are between the life and that.
    pub(super) fn of(args: Args<'a>, before: usize, told: usize) -> Result<Leaving<'a>, Refused> {
        let at = |it: usize| args.get(before.saturating_add(it));
        let me = at(1).unwrap_or_default();
        let since = at(2).map(to_number).transpose()?;
        let told = at(told.saturating_add(4)).unwrap_or_default();
        let entry = since.zip(at(3)).map(|(since, life)| Entry::new(me, since, life, told)).transpose()?;
        Ok(Leaving { me, since, entry })
    }

    /// Before whom the others wait.
    pub(super) fn limit(&self) -> f64 {
        self.since.unwrap_or(f64::INFINITY)
    }
}
