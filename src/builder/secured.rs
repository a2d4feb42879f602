//! Which connections are secured, and with what.

use std::sync::Arc;

use crate::builder::node::Node;
use crate::engine::NodeAddress;
use crate::tls::{Setup, SystemRoots, Tls};
use crate::wire::{Endpoint, Security};

/// Secures the connections whose addresses ask for it, with their node's own options or with those `of_all`. Gives back
/// what is wrong, if something is.
pub(super) fn secure(
    addresses: &mut [NodeAddress],
    nodes: &[Node],
    of_all: Option<&Tls>,
) -> Option<String> {
    let mut system = SystemRoots::default();
    let default = Tls::system_roots();
    let mut is_any_secured = false;
    for (index, (address, node)) in addresses.iter_mut().zip(nodes).enumerate() {
        let of_servers = node.tls.as_ref().or(of_all).unwrap_or(&default);
        let of_sentinels = node.sentinel_tls.as_ref().unwrap_or(of_servers);
        let mut is_secured = false;
        let mut has_sentinels = false;
        for (connection, is_sentinel) in address.connections() {
            let Security::Wanted = connection.security else {
                continue;
            };
            is_secured = true;
            has_sentinels |= is_sentinel;
            let hosts = match &connection.place {
                Endpoint::Tcp { host, .. } => vec![&**host],
                Endpoint::Unix(_) => Vec::new(),
            };
            let tls = if is_sentinel {
                of_sentinels
            } else {
                of_servers
            };
            match Setup::new(tls, &hosts, &mut system) {
                Ok(setup) => connection.security = Security::Tls(Arc::new(setup)),
                Err(reason) => return Some(format!("node {index}: {reason}")),
            }
        }
        is_any_secured |= is_secured;
        if node.tls.is_some() && !is_secured {
            return Some(format!(
                "it is set up for node {index}, whose URL does not begin with rediss://"
            ));
        }
        if node.sentinel_tls.is_some() && !has_sentinels {
            return Some(format!(
                "it is set up for the Sentinels of node {index}, which has none that speak TLS: rediss+sentinel://"
            ));
        }
    }
    let is_useless = of_all.is_some() && !is_any_secured;
    is_useless.then(|| "it is set up, and no URL begins with rediss://".to_owned())
}
