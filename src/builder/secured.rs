//! Which nodes are secured, and with what.

use std::sync::Arc;

use crate::builder::node::Node;
use crate::tls::{Setup, SystemRoots, Tls};
use crate::wire::{Address, Endpoint, Group, Security};

/// Secures the nodes whose addresses ask for it, with their own options or with those `of_all`. What is wrong, if something is.
pub(super) fn secure(
    addresses: &mut [Address],
    nodes: &[Node],
    of_all: Option<&Tls>,
) -> Option<String> {
    let (mut system, default) = (SystemRoots::default(), Tls::system_roots());
    let mut is_any_secured = false;
    for (index, (address, node)) in addresses.iter_mut().zip(nodes).enumerate() {
        let has_sentinels = matches!(address.place, Endpoint::Group(Group::Sentinel { .. }));
        let asks_by_tls = has_sentinels && !matches!(address.sentinel_security, Security::Plain);
        if !address.is_to_be_secured() {
            if node.tls.is_some() {
                return Some(format!(
                    "it is set up for node {index}, whose URL does not begin with rediss://"
                ));
            }
        } else {
            is_any_secured = true;
            let tls = node.tls.as_ref().or(of_all).unwrap_or(&default);
            let mut set_up = |tls: &Tls, hosts: &[&str]| {
                let setup = Setup::new(tls, hosts, &mut system)
                    .map_err(|reason| format!("node {index}: {reason}"))?;
                Ok(Security::Tls(Arc::new(setup)))
            };
            let hosts = address.hosts();
            let secured = if has_sentinels {
                set_up(tls, &[])
            } else {
                set_up(tls, &hosts)
            };
            let of_sentinels = asks_by_tls
                .then(|| set_up(node.sentinel_tls.as_ref().unwrap_or(tls), &hosts))
                .transpose();
            match (secured, of_sentinels) {
                (Err(reason), _) | (_, Err(reason)) => return Some(reason),
                (Ok(of_servers), Ok(of_sentinels)) => {
                    address.security = of_servers;
                    address.sentinel_security = of_sentinels.unwrap_or(Security::Plain);
                }
            }
        }
        if node.sentinel_tls.is_some() && !asks_by_tls {
            return Some(format!(
                "it is set up for the sentinels of node {index}, which has none that speak TLS: rediss+sentinel://"
            ));
        }
    }
    let is_useless = of_all.is_some() && !is_any_secured;
    is_useless.then(|| "it is set up, and no URL begins with rediss://".to_owned())
}
