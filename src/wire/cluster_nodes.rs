//! What a server of a cluster says about all of them, as `CLUSTER NODES` has it: a line for each.
//!
//! That and not `CLUSTER SLOTS`, because the number of each one's configuration is in it. Of two servers that claim a slot the
//! one with the higher number serves it.

use crate::answer::cluster_view::{ClusterServer, View};
use crate::wire::keys::SLOTS;

/// A cluster of more servers is none. Redis' own bound is a thousand.
const SERVERS_MAX: usize = 4_096;

/// Reads it; `None` if it is none, or says nothing of whoever says it. A line that cannot be read is passed over.
pub(crate) fn view(text: &str) -> Option<View> {
    let servers: Vec<_> = text.lines().filter_map(server).take(SERVERS_MAX).collect();
    let ranges = servers
        .iter()
        .map(|it| it.slots.len())
        .fold(0_usize, usize::saturating_add);
    let is_one = ranges <= usize::from(SLOTS) && servers.iter().any(|it| it.is_itself);
    is_one.then_some(View { servers })
}

/// `id host:port@bus,name flags master ping pong epoch link slot…`
fn server(line: &str) -> Option<ClusterServer> {
    let mut words = line.split_whitespace();
    let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
    let epoch = words.by_ref().nth(3)?.parse().ok()?;
    let _link = words.next()?;
    let has = |flag| flags.split(',').any(|it| it == flag);
    let (address, more) = address.split_once(',').unwrap_or((address, ""));
    let (host, port) = address
        .split_once('@')
        .map_or(address, |it| it.0)
        .rsplit_once(':')?;
    // Behind it may stand what else is known, as `shard-id=…`.
    let name = more
        .split(',')
        .next()
        .filter(|it| !it.contains('='))
        .unwrap_or_default();
    let host = if host.is_empty() || host == "?" {
        name
    } else {
        host
    };
    let port = if has("noaddr") { 0 } else { port.parse().ok()? };
    let is_fine = |it: &str| it.len() <= 255 && it.bytes().all(|it| it.is_ascii_graphic());
    if ![id, host, name].into_iter().all(is_fine) {
        return None;
    }
    // What is being moved stands in brackets.
    let slots = words
        .filter(|it| !it.starts_with('['))
        .map(range)
        .collect::<Option<Vec<_>>>()?;
    Some(ClusterServer {
        id: id.to_owned(),
        host: host.to_ascii_lowercase(),
        name: name.to_ascii_lowercase(),
        port,
        epoch,
        is_itself: has("myself"),
        is_master: has("master"),
        slots,
    })
}

fn range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Option<ClusterServer> {
        view(line).map(|it| it.servers[0].clone())
    }

    #[test]
    fn a_line_of_every_version_is_read() {
        let expected = |host: &str, name: &str, slots: &[(u16, u16)]| ClusterServer {
            id: "aa".to_owned(),
            host: host.to_owned(),
            name: name.to_owned(),
            port: 7000,
            epoch: 3,
            is_itself: true,
            is_master: true,
            slots: slots.to_vec(),
        };
        for (address, host, name) in [
            ("10.0.0.1:7000", "10.0.0.1", ""),
            ("10.0.0.1:7000@17000", "10.0.0.1", ""),
            (
                "10.0.0.1:7000@17000,Name.example",
                "10.0.0.1",
                "name.example",
            ),
            ("10.0.0.1:7000@17000,,shard-id=bb", "10.0.0.1", ""),
            (
                ":7000@17000,Name.example,shard-id=bb",
                "name.example",
                "name.example",
            ),
            ("?:7000@17000,shard-id=bb", "", ""),
            (":7000@17000", "", ""),
            ("::1:7000@17000", "::1", ""),
        ] {
            let line = format!(
                "aa {address} myself,master - 0 0 3 connected 0-5460 7000 [7001->-bb] [7002-<-cc]"
            );
            assert_eq!(
                one(&line),
                Some(expected(host, name, &[(0, 5_460), (7_000, 7_000)])),
                "{line}"
            );
        }
        let replica = view(
            "aa a:1@2 myself,slave bb 0 0 3 connected\nbb b:2@3 master,fail? - 0 1 9 disconnected 5\n",
        );
        let replica = replica.unwrap().servers;
        assert!(
            !replica[0].is_master
                && replica[0].slots.is_empty()
                && replica[1].is_master
                && !replica[1].is_itself
        );
        assert_eq!(
            (replica[1].epoch, &replica[1].slots[..]),
            (9, &[(5, 5)][..])
        );
        let gone = view(
            "aa a:1@2 myself,master - 0 0 3 connected\nbb :0@0 master,noaddr - 0 1 9 disconnected 5\n",
        );
        assert_eq!(gone.unwrap().servers[1].port, 0);
    }

    #[test]
    fn what_is_none_is_none() {
        for text in [
            "",
            "nonsense",
            "aa a:1@2 master - 0 0 3 connected 0-5",
            "aa a:1@2 myself,master - 0 0 x connected",
            "aa a:1@2 myself,master - 0 0 3 connected 5-4",
            "aa a:1@2 myself,master - 0 0 3 connected 16384",
            "aa a:99999@2 myself,master - 0 0 3 connected",
            "aa a\u{7}:1@2 myself,master - 0 0 3 connected",
            &format!(
                "aa a:1@2 myself,master - 0 0 3 connected{}",
                " 7".repeat(16_385)
            ),
            "aa a:1@2,b\u{7} myself,master - 0 0 3 connected",
        ] {
            assert_eq!(view(text), None, "{text}");
        }
    }
}
