//! Names and numbers.

use std::fmt::{self, Write};
use std::sync::Arc;

use uuid::Uuid;

use crate::sys::fill_random;

/// The number as `u64`; the largest one if it does not fit.
pub(crate) fn wide(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

/// One configured node, by its place in the list given to the builder.
///
/// Shown as `n0`, `n1`, … in logs and errors.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(u8);

impl NodeId {
    pub(crate) fn new(index: u8) -> NodeId {
        NodeId(index)
    }

    /// The place of the node in the list given to
    /// [`LockManager::builder`](crate::LockManager::builder), from 0.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// Version of a server's record: see `wire/scripts/record.lua`. Fifteen digits, as text, because
/// every command has it as text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RecordVersion(pub(crate) [u8; RecordVersion::LEN]);

impl RecordVersion {
    pub(crate) const LEN: usize = 15;
    /// The version of no record.
    pub(crate) const NONE: RecordVersion = RecordVersion([b'0'; RecordVersion::LEN]);

    /// The last fifteen digits.
    pub(crate) fn new(number: u64) -> RecordVersion {
        let text = format!("{:015}", number % 1_000_000_000_000_000);
        let mut digits = [0; RecordVersion::LEN];
        digits.copy_from_slice(text.as_bytes());
        RecordVersion(digits)
    }

    /// A new version.
    pub(crate) fn draw() -> RecordVersion {
        let mut bytes = [0; 8];
        let number = if fill_random(&mut bytes).is_ok() {
            u64::from_ne_bytes(bytes)
        } else {
            fastrand::u64(..)
        };
        RecordVersion::new(number)
    }
}

/// A set of nodes, one bit each: at most [`NodeSet::MAX`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct NodeSet(u32);

impl NodeSet {
    /// Largest number of nodes of a manager.
    pub(crate) const MAX: u8 = 31;
    /// The same, for arrays.
    pub(crate) const PLACES: usize = 31;

    pub(crate) fn insert(&mut self, node: NodeId) {
        self.0 |= bit(node);
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.0 &= !bit(node);
    }

    pub(crate) fn contains(self, node: NodeId) -> bool {
        self.0 & bit(node) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        usize::try_from(self.0.count_ones()).unwrap_or(0)
    }

    pub(crate) fn union(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    pub(crate) fn both(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    pub(crate) fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        NodeSet(nodes.into_iter().fold(0, |set, it| set | bit(it)))
    }
}

fn bit(node: NodeId) -> u32 {
    1_u32.checked_shl(u32::from(node.0)).unwrap_or(0)
}

/// A number that grows with every holder of a lock.
///
/// Pass it to the storage that the lock protects, and let the storage reject smaller numbers than
/// the largest it has seen. A holder that was paused for too long then cannot overwrite its
/// successor's work. See [`guide::fencing`](crate::guide::fencing).
///
/// Numbers are not consecutive and stay below 2^53, for languages with floating-point numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FencingToken(pub(crate) u64);

impl FencingToken {
    /// The number itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number for a signed column, such as `bigint`. Tokens of this crate fit; a larger number
    /// becomes `i64::MAX`.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number read back from storage.
impl From<u64> for FencingToken {
    fn from(number: u64) -> FencingToken {
        FencingToken(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.0
    }
}

/// The secret that proves who holds a lock: the value of the lock key.
///
/// A fresh random value, never used again after a release of it was sent: a late command then
/// matches nothing. It is enough to release the lock, so `Debug` shows the first eight hex digits
/// only: enough to match two log lines, too little to forge a release.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub(crate) struct OwnerToken(Uuid);

impl OwnerToken {
    /// Draws a token from the operating system's generator.
    ///
    /// Never from a generator of this process: after a fork, parent and child would draw the same
    /// token. For the same reason the bytes are read here and not by `uuid`, whose generator
    /// another crate of the build may exchange.
    pub(crate) fn draw() -> Result<OwnerToken, getrandom::Error> {
        let mut bytes = [0; 16];
        fill_random(&mut bytes)?;
        Ok(OwnerToken(
            uuid::Builder::from_random_bytes(bytes).into_uuid(),
        ))
    }

    /// A token that is never drawn.
    #[cfg(test)]
    pub(crate) fn nobody() -> OwnerToken {
        OwnerToken(Uuid::nil())
    }

    /// The token in the value of a lock: its first 32 digits.
    pub(crate) fn of_value(value: &[u8]) -> Option<OwnerToken> {
        let digits = value.get(..32)?;
        Uuid::try_parse_ascii(digits).ok().map(OwnerToken)
    }

    /// A number as random as the token, and the same for all nodes.
    pub(crate) fn number(self) -> u64 {
        self.0.as_u64_pair().1
    }

    /// The token in a lock's value: 32 hex digits, which every client and tool can show.
    pub(crate) fn to_value(self) -> [u8; 32] {
        let mut value = [0; 32];
        self.0.simple().encode_lower(&mut value);
        value
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = *self.0.as_bytes();
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}..")
    }
}

/// Label of a manager, for people who look for the holder of a lock: `host/process[/label]`,
/// printable ASCII without spaces. May be empty.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct OwnerLabel(pub(crate) Arc<str>);

impl OwnerLabel {
    /// Longest label, in bytes: with an owner token and a space before it, a lock's value has at
    /// most 96.
    pub(crate) const MAX: usize = 63;
    /// Longest part of the program, in bytes.
    const OWN_MAX: usize = 32;

    /// Cut to fit: the process and the start of `own` always do.
    pub(crate) fn new(host: &str, process: u32, own: &str) -> OwnerLabel {
        let own = printable(own, Self::OWN_MAX);
        let behind = if own.is_empty() {
            format!("/{process}")
        } else {
            format!("/{process}/{own}")
        };
        let host = printable(host, Self::MAX.saturating_sub(behind.len()));
        OwnerLabel((host + &behind).into())
    }
}

/// The first `max` characters of `text`, with an underscore for each that is not printable ASCII,
/// or is a space.
fn printable(text: &str, max: usize) -> String {
    text.chars()
        .take(max)
        .map(|it| if it.is_ascii_graphic() { it } else { '_' })
        .collect()
}

/// One manager, in waiting lists and as a channel: 16 hex digits. Not a secret: it only allows to
/// wake the manager for nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct ClientId(pub(crate) [u8; 16]);

impl ClientId {
    /// Draws an id from the operating system's generator.
    pub(crate) fn draw() -> Result<ClientId, getrandom::Error> {
        let mut bytes = [0; 8];
        let mut digits = [0; 16];
        fill_random(&mut bytes)?;
        digits.copy_from_slice(format!("{:016x}", u64::from_ne_bytes(bytes)).as_bytes());
        Ok(ClientId(digits))
    }

    /// The manager's channel for releases.
    pub(crate) fn channel(self) -> String {
        format!("quorlock:wake:{}", self.0.escape_ascii())
    }
}

/// The name of a lock, without the manager's prefix: any bytes. Of a lock of several names: all of
/// them, joined by `", "`.
///
/// Text is shown as it is, up to 80 characters. Other bytes, characters that cannot be seen,
/// quotation marks and backslashes are escaped, so that a name never breaks a line.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LockName(Arc<[u8]>);

impl LockName {
    /// Number of shown characters; the rest is cut, so that a 64 KiB name does not become a 64 KiB
    /// log line.
    const SHOWN: usize = 80;

    /// For tests of your own: an error with this name.
    #[must_use]
    pub fn new(name: &[u8]) -> LockName {
        LockName(name.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = Self::SHOWN;
        for chunk in self.0.utf8_chunks() {
            let text = chunk.valid();
            let cut = text
                .char_indices()
                .nth(left)
                .and_then(|(at, _)| text.get(..at));
            write_text(f, cut.unwrap_or(text))?;
            if cut.is_some() {
                return f.write_char('…');
            }
            left = left.saturating_sub(text.chars().count());
            for byte in chunk.invalid() {
                let Some(less) = left.checked_sub(1) else {
                    return f.write_char('…');
                };
                write!(f, "\\x{byte:02x}")?;
                left = less;
            }
        }
        Ok(())
    }
}

/// Writes control and other unprintable characters as in Rust's literals.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    // An apostrophe needs no escape, and is common in names.
    for (i, part) in text.split('\'').enumerate() {
        if 0 < i {
            f.write_char('\'')?;
        }
        write!(f, "{}", part.escape_debug())?;
    }
    Ok(())
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_array_has_room_for_the_largest_node_set() {
        assert_eq!(usize::from(NodeSet::MAX), NodeSet::PLACES);
    }

    #[test]
    fn an_owner_token_shows_only_its_start() {
        let token = OwnerToken::draw().unwrap();
        let value = String::from_utf8(token.to_value().to_vec()).unwrap();

        assert_eq!(format!("{token:?}"), format!("{}..", &value[..8]));
    }

    #[test]
    fn owner_tokens_are_never_drawn_twice() {
        let drawn: std::collections::HashSet<_> =
            (0..10_000).map(|_| OwnerToken::draw().unwrap()).collect();

        assert_eq!(drawn.len(), 10_000);
    }

    #[test]
    fn an_owner_label_is_short_printable_and_has_no_spaces() {
        let label =
            |host: &str, process, own: &str| OwnerLabel::new(host, process, own).0.to_string();
        assert_eq!(label("web-3", 4711, ""), "web-3/4711");
        assert_eq!(label("web-3", 4711, "nightly"), "web-3/4711/nightly");
        assert_eq!(label("", 1, "a b\r\nSET x\0\u{202e}ü"), "/1/a_b__SET_x___");
        let longest = label(&"h".repeat(300), u32::MAX, &"ü".repeat(300));
        assert_eq!(
            longest,
            format!("{}/{}/{}", "h".repeat(19), u32::MAX, "_".repeat(32))
        );
        assert_eq!(longest.len(), OwnerLabel::MAX);
        assert_eq!(&*OwnerLabel::default().0, "");
    }

    #[test]
    fn a_name_is_shown_escaped_and_cut() {
        assert_eq!(LockName::new(b"a\n\xff").to_string(), r"a\n\xff");
        assert_eq!(LockName::new(&[b'x'; 100]).to_string().chars().count(), 81);
        assert_eq!(
            LockName::new("ü".repeat(100).as_bytes()).to_string(),
            format!("{}…", "ü".repeat(80))
        );
        assert_eq!(
            LockName::new(&[0xff; 100]).to_string(),
            format!("{}…", r"\xff".repeat(80))
        );
        let whole = [&[b'x'; 79][..], b"\xff"].concat();
        assert_eq!(
            LockName::new(&whole).to_string(),
            format!(r"{}\xff", "x".repeat(79))
        );
    }

    #[test]
    fn only_printable_names_are_shown_unescaped() {
        for name in [
            "",
            " ",
            "Bücher/Köln",
            "注文:7",
            "ann's report",
            "a+b=c {x}",
            "नमस्ते",
        ] {
            assert_eq!(LockName::new(name.as_bytes()).to_string(), name);
        }
        for (name, shown) in [
            ("a\r\nb\t\0", r"a\r\nb\t\0"),
            ("\x1b[31mred\x7f", r"\u{1b}[31mred\u{7f}"),
            ("\u{202e}gnp.exe", r"\u{202e}gnp.exe"),
            ("a\u{2028}b\u{85}", r"a\u{2028}b\u{85}"),
            (r#"say "x\n""#, r#"say \"x\\n\""#),
        ] {
            assert_eq!(LockName::new(name.as_bytes()).to_string(), shown);
        }
        assert_eq!(LockName::new(b"ok\xc3\x28ok").to_string(), r"ok\xc3(ok");
    }
}
