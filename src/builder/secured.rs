//! Which nodes are secured, and with what.

use std::sync::Arc;

use crate::tls::{Setup, SystemRoots, Tls};
use crate::wire::{Address, Group, Place, Security};

/// What was said about TLS.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsOptions {
    pub(super) all: Option<Tls>,
    pub(super) of_nodes: Vec<(usize, Tls)>,
    pub(super) sentinels: Option<Tls>,
}

impl TlsOptions {
    /// Secures the nodes whose addresses ask for it. What is wrong with that, if something is.
    pub(super) fn secure(&self, nodes: &mut [Address]) -> Option<String> {
        let (mut system, default) = (SystemRoots::default(), Tls::system_roots());
        let (mut servers, mut sentinels) = (0_usize, 0_usize);
        for (index, node) in nodes.iter_mut().enumerate().filter(|(_, it)| it.is_to_be_secured()) {
            let own = self.of_nodes.iter().rfind(|it| it.0 == index).map(|it| &it.1);
            let tls = own.or(self.all.as_ref()).unwrap_or(&default);
            let mut set_up = |tls: &Tls, hosts: &[&str]| {
                let setup = Setup::new(tls, hosts, &mut system).map_err(|reason| format!("node {index}: {reason}"))?;
                Ok(Security::Tls(Arc::new(setup)))
            };
            let hosts = node.hosts();
            let has_sentinels = matches!(node.place, Place::Group(Group::Sentinel { .. }));
            let secured = if has_sentinels { set_up(tls, &[]) } else { set_up(tls, &hosts) };
            let asks_by_tls = has_sentinels && !matches!(node.sentinel_security, Security::Plain);
            let of_sentinels = asks_by_tls.then(|| set_up(self.sentinels.as_ref().unwrap_or(tls), &hosts)).transpose();
            match (secured, of_sentinels) {
                (Err(reason), _) | (_, Err(reason)) => return Some(reason),
                (Ok(of_servers), Ok(of_sentinels)) => {
                    node.security = of_servers;
                    sentinels = sentinels.saturating_add(usize::from(of_sentinels.is_some()));
                    node.sentinel_security = of_sentinels.unwrap_or(Security::Plain);
                }
            }
            servers = servers.saturating_add(1);
        }
        if self.all.is_some() && servers == 0 {
            return Some("it is set up, and no node has an address that begins with rediss://".to_owned());
        }
        if self.sentinels.is_some() && sentinels == 0 {
            return Some(
                "it is set up for sentinels, and no node has any that speak it: rediss+sentinel://".to_owned(),
            );
        }
        let useless = self.of_nodes.iter().find(|it| !nodes.get(it.0).is_some_and(Address::is_to_be_secured))?.0;
        Some(format!("it is set up for node {useless}, which has no address that begins with rediss://"))
    }
}
