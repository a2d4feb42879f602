//! What one server of a cluster says of all of them.

use std::ops::RangeInclusive;

use crate::client::Reply;
use crate::{Error, Server};

/// A line of `CLUSTER NODES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: String,
    flags: Vec<String>,
    /// Of a replica.
    pub(crate) master: Option<String>,
    /// Of two servers that claim a slot the one with the larger number has it. A replica shows its master's.
    pub(crate) epoch: u64,
    is_linked: bool,
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

impl Member {
    pub(crate) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|it| it.contains(&slot))
    }

    /// Nothing is under way with it, as far as that server knows.
    pub(crate) fn is_well(&self) -> bool {
        let ill = ["handshake", "noaddr", "fail", "fail?"];
        self.is_linked && !self.flags.iter().any(|it| ill.contains(&&it[..]))
    }
}

pub(crate) fn members(server: &Server) -> Result<Vec<Member>, Error> {
    let reply = server.command(&["CLUSTER", "NODES"])?;
    let lines = reply.as_str().unwrap_or_default().lines();
    lines
        .map(|it| member(it).ok_or_else(|| Error::of("CLUSTER NODES", it)))
        .collect()
}

/// `ID ADDRESS FLAGS MASTER PINGED PONGED EPOCH LINK SLOTS…`
fn member(line: &str) -> Option<Member> {
    let fields: Vec<_> = line.split(' ').collect();
    let [id, _, flags, master, _, _, epoch, link, slots @ ..] = &fields[..] else {
        return None;
    };
    Some(Member {
        id: (*id).to_owned(),
        flags: flags.split(',').map(str::to_owned).collect(),
        master: Some(*master).filter(|it| *it != "-").map(str::to_owned),
        epoch: epoch.parse().ok()?,
        is_linked: flags.contains("myself") || *link == "connected",
        // In brackets are those that are being migrated.
        slots: slots
            .iter()
            .filter(|it| !it.starts_with('['))
            .map(|it| range(it))
            .collect::<Option<_>>()?,
    })
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Whether it serves its slots, and, if it is a replica, has its master's data.
pub(crate) fn is_ready(server: &Server) -> bool {
    let info = server.command(&["CLUSTER", "INFO"]).ok();
    let is_ok = info
        .as_ref()
        .and_then(Reply::as_str)
        .is_some_and(|it| it.contains("cluster_state:ok"));
    is_ok
        && server
            .info("master_link_status")
            .is_none_or(|it| it == "up")
}
