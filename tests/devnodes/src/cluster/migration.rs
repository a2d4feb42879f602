//! A slot on its way from one master to another, step by step.

use crate::client::Reply;
use crate::{Cluster, Error};

/// What [`Cluster::begin_migration`] begins. A test may stop between any two steps.
#[derive(Debug)]
pub struct Migration<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) slot: u16,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Migration<'_> {
    /// From now on the old owner answers ASK for keys of the slot that it does not have; TRYAGAIN if it has some of several.
    pub(crate) fn begin(&self) -> Result<(), Error> {
        self.tell(self.to, &["IMPORTING", self.cluster.id(self.from)])?;
        self.tell(self.from, &["MIGRATING", self.cluster.id(self.to)])
    }

    /// The keys that the old owner still has.
    pub fn keys(&self) -> Result<Vec<String>, Error> {
        let command = ["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "1000"];
        let reply = self.cluster.servers[self.from].command(&command)?;
        let keys = reply.as_array().unwrap_or_default().iter();
        Ok(keys
            .filter_map(|it| Some(String::from_utf8_lossy(it.as_bytes()?).into_owned()))
            .collect())
    }

    /// Moves one key, which may be gone. A replica that was promoted may have an old one of the same name: it missed that its
    /// master had deleted it.
    pub fn move_key(&self, key: &str) -> Result<(), Error> {
        let port = self.cluster.servers[self.to]
            .addr_for_others()
            .port()
            .to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, key, "0", "10000", "REPLACE"];
        if let Some(password) = self.cluster.password.as_deref() {
            command.extend(["AUTH", password]);
        }
        self.cluster.servers[self.from].command(&command).map(drop)
    }

    /// Moves keys until the old owner has none.
    pub fn move_keys(&self) -> Result<(), Error> {
        loop {
            let keys = self.keys()?;
            if keys.is_empty() {
                return Ok(());
            }
            keys.iter().try_for_each(|it| self.move_key(it))?;
        }
    }

    /// Makes the slot the new owner's, and returns before the others know. What the old one still has of it is deleted when
    /// it hears of that, which it does at once, unless it is paused or cut off.
    pub fn settle(&self) -> Result<(), Error> {
        self.tell(self.to, &["NODE", self.cluster.id(self.to)])
    }

    /// Does what is left; blocks until all know.
    pub fn finish(self) -> Result<(), Error> {
        // New keys go to the new owner by now, but for those of scripts that find some of theirs here.
        self.move_keys()?;
        let _changing = self.cluster.changing();
        self.settle()?;
        self.cluster.wait_for_owner(self.slot, Some(self.to))
    }

    fn tell(&self, server: usize, what: &[&str]) -> Result<(), Error> {
        let slot = self.slot.to_string();
        let command: Vec<_> = ["CLUSTER", "SETSLOT", &slot]
            .into_iter()
            .chain(what.iter().copied())
            .collect();
        self.cluster.servers[server].command(&command).map(drop)
    }
}

impl Cluster {
    /// Ends every migration that a server believes to be under way. Who imports a slot does not hear that another one has it.
    pub fn end_migrations(&self) {
        for server in self.present().map(|it| &self.servers[it]) {
            let said = server.command(&["CLUSTER", "NODES"]).ok();
            let words = said
                .as_ref()
                .and_then(Reply::as_str)
                .unwrap_or_default()
                .split_whitespace();
            for slot in words.filter_map(|it| it.strip_prefix('[')?.split('-').next()) {
                // A replica has none of its own.
                let _ = server.command(&["CLUSTER", "SETSLOT", slot, "STABLE"]);
            }
        }
    }
}
