//! Sets of servers, as they stand in a server's record: see `greet.lua`.

use std::fmt::Write;
use std::sync::Arc;

use crate::answer::{Listed, StoredSet};
use crate::ids::{NodeSet, OwnerLabel};
use crate::wire::refusal;

/// Of a longer list, which none of us writes, no more is read.
const READ_MAX: usize = 8;

/// Reads the sets of a record, without what is none; `None` if this is no text.
pub(crate) fn read(text: &[u8]) -> Option<Arc<[StoredSet]>> {
    let parts: Vec<_> = std::str::from_utf8(text)
        .ok()?
        .split_ascii_whitespace()
        .collect();
    let (sets, _) = parts.as_chunks::<6>();
    Some(
        sets.iter()
            .filter_map(|it| read_one(*it))
            .take(READ_MAX)
            .collect(),
    )
}

fn read_one([size, used, joined, changed, label, servers]: [&str; 6]) -> Option<StoredSet> {
    let listed = |it: &str| {
        let (id, address) = it.split_once(':')?;
        Some(Listed {
            id: id.parse().ok()?,
            address: u32::from_str_radix(address, 16).ok()?,
        })
    };
    let servers: Vec<_> = servers.split(',').map(listed).collect::<Option<_>>()?;
    let size = size
        .parse()
        .ok()
        .filter(|it| *it <= usize::from(NodeSet::MAX))?;
    let is_right = servers.len() <= size && label.len() <= OwnerLabel::MAX;
    is_right.then_some(StoredSet {
        size,
        used: used.parse().ok()?,
        joined: joined.parse().ok()?,
        changed: changed.parse().ok()?,
        label: if label == "-" {
            "".into()
        } else {
            refusal::shown_holder(label.as_bytes())?
        },
        servers,
    })
}

/// Writes them, each behind a blank.
pub(crate) fn write(sets: &[StoredSet]) -> String {
    let mut text = String::new();
    for StoredSet {
        size,
        used,
        joined,
        changed,
        label,
        servers,
    } in sets
    {
        // What stands behind an @ in a record is no set.
        let label = if label.is_empty() {
            "-".to_owned()
        } else {
            label.replace('@', "_")
        };
        let servers: Vec<_> = servers
            .iter()
            .map(|Listed { id, address }| format!("{id}:{address:08x}"))
            .collect();
        let _ = write!(
            text,
            " {size} {used} {joined} {changed} {label} {}",
            servers.join(",")
        );
    }
    text
}
