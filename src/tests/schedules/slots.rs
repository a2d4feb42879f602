//! Who serves which slots, as each server of a cluster sees it.

use std::sync::{Arc, Mutex};

use crate::wire::slot_of;

const SLOTS: u16 = 1 << 14;

/// The views of all servers of a cluster. Each begins with an equal share of the slots.
pub(super) struct Slots {
    first_port: u16,
    views: Mutex<Vec<View>>,
}

/// What one of them believes.
#[derive(Clone)]
struct View {
    /// By server.
    epochs: Vec<u64>,
    /// By slot.
    owners: Vec<usize>,
}

impl Slots {
    pub(super) fn shared(servers: u16, first_port: u16) -> Arc<Slots> {
        let count = usize::from(servers);
        let owners = (0..usize::from(SLOTS))
            .map(|it| it * count / usize::from(SLOTS))
            .collect();
        let view = View {
            epochs: (1..).take(count).collect(),
            owners,
        };
        Arc::new(Slots {
            first_port,
            views: Mutex::new(vec![view; count]),
        })
    }

    fn place(&self, server: usize) -> String {
        format!("server:{}", usize::from(self.first_port) + server)
    }

    /// The server that serves the slot of this key, if all agree.
    pub(super) fn owner_of(&self, key: &[u8]) -> Option<usize> {
        let views = self.views.lock().unwrap();
        let mut owners = views.iter().map(|it| it.owners[usize::from(slot_of(key))]);
        let first = owners.next().unwrap();
        owners.all(|it| it == first).then_some(first)
    }

    /// The slots of `from` that are `moved` go to `to`, by a newer configuration. All know at once.
    pub(super) fn give(&self, from: usize, to: usize, moved: &dyn Fn(u16) -> bool) {
        let mut views = self.views.lock().unwrap();
        let epoch = views.iter().flat_map(|it| &it.epochs).max().unwrap() + 1;
        for view in &mut *views {
            view.epochs[to] = epoch;
            let owned = (0..SLOTS)
                .zip(&mut view.owners)
                .filter(|(slot, owner)| **owner == from && moved(*slot));
            owned.for_each(|(_, owner)| *owner = to);
        }
    }

    /// What `server` answers to this command, if that is about slots or it does not serve the keys.
    pub(super) fn answer(&self, server: usize, args: &[Vec<u8>]) -> Option<Vec<u8>> {
        let views = self.views.lock().unwrap();
        let view = &views[server];
        match &args[0][..] {
            b"CLUSTER" => {
                let nodes = self.nodes(server, view);
                Some(format!("${}\r\n{nodes}\r\n", nodes.len()).into_bytes())
            }
            b"CLIENT" => Some(b"+OK\r\n".to_vec()),
            b"EVAL" | b"EVALSHA" if args[2] != b"0" => {
                let slot = slot_of(&args[3]);
                let owner = view.owners[usize::from(slot)];
                (owner != server)
                    .then(|| format!("-MOVED {slot} {}\r\n", self.place(owner)).into_bytes())
            }
            _ => None,
        }
    }

    fn nodes(&self, server: usize, view: &View) -> String {
        let line = |it: usize| {
            let (place, epoch) = (self.place(it), view.epochs[it]);
            let itself = if it == server { "myself," } else { "" };
            format!(
                "id{it} {place}@1 {itself}master - 0 0 {epoch} connected{}\n",
                view.ranges(it)
            )
        };
        (0..view.epochs.len()).map(line).collect()
    }
}

impl View {
    /// ` 0-5 7-9`
    fn ranges(&self, of: usize) -> String {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in (0..SLOTS).filter(|it| self.owners[usize::from(*it)] == of) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
            .into_iter()
            .map(|(first, last)| format!(" {first}-{last}"))
            .collect()
    }
}
