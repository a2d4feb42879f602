//! The connections among the servers of a cluster, so that a test can cut them.
//!
//! Each server is reached by the others through a proxy, and connects to them from an address of its own, by which the proxies
//! tell who it is. Clients, and replicas that copy their master, go past this.

use crate::{Error, Proxy, Servers};

/// A proxy for each server, in order.
#[derive(Debug)]
pub(crate) struct Bus {
    proxies: Vec<Proxy>,
}

impl Bus {
    /// Has to be there before the servers meet.
    pub(crate) fn start(servers: &Servers) -> Result<Bus, Error> {
        let proxy = |it: &crate::Server| {
            let proxy = Proxy::start(
                it.bus()
                    .ok_or_else(|| Error::new("a server outside of a cluster"))?,
            )?;
            it.command(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"])?;
            it.command(&[
                "CONFIG",
                "SET",
                "cluster-announce-bus-port",
                &proxy.addr().port().to_string(),
            ])?;
            Ok(proxy)
        };
        Ok(Bus {
            proxies: servers.iter().map(proxy).collect::<Result<_, Error>>()?,
        })
    }

    /// The port by which the others reach a server.
    pub(crate) fn port(&self, server: usize) -> String {
        self.proxies[server].addr().port().to_string()
    }

    /// Nothing comes from this server to the others any more, nor from them to it.
    pub(crate) fn cut(&self, servers: &Servers, server: usize) {
        for (index, proxy) in self.proxies.iter().enumerate() {
            if index == server {
                proxy.black_hole(true);
            } else {
                proxy.shut_out(Some(servers[server].source()));
            }
        }
    }
}
