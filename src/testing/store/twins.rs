//! Which script has which twin.

use super::call::{Args, Outcome, Refused, Run, wrong_number};
use super::{inspect, many, mutex, node, number, search, shared, slots};

/// A script, and the function that does the same.
#[derive(Debug)]
pub(crate) struct Twin {
    /// Of its file, without the ending.
    pub(crate) name: &'static str,
    /// The SHA-1 of the source, as servers know it, when the twin was last compared with it. A script that is changed has
    /// no twin until somebody has looked at both.
    pub(crate) hash: &'static str,
    native: fn(&mut Run<'_>, Args<'_>, Args<'_>) -> Outcome,
}

impl Twin {
    /// `args`: what follows the name of the command: the script, the number of keys, the keys, the arguments.
    pub(super) fn run(&self, run: &mut Run<'_>, args: Args<'_>) -> Outcome {
        let count = number::number(args.at(2)).and_then(|it| usize::try_from(number::int(it)).ok());
        let behind = args.split(2).map(|it| it.1);
        let split = behind.zip(count).and_then(|(it, count)| it.split(count)).ok_or_else(wrong_number);
        let reply = split.and_then(|(keys, args)| (self.native)(run, keys, args));
        reply.map_err(|Refused(text)| Refused(format!("{text} script: {}", self.name)))
    }
}

pub(crate) const TWINS: [Twin; 20] = [
    Twin { name: "acquire", hash: "45a494ec814d0fd6c398d053529f18850bd734e5", native: mutex::acquire },
    Twin { name: "raise", hash: "c1a2a1e5b385585093475f939af4056de72e75da", native: mutex::raise },
    Twin { name: "extend", hash: "11ca6c07603c2ff187dcc7b296ec25bc63b14b82", native: mutex::extend },
    Twin { name: "release", hash: "9c2afcb7d600a22c66b28901865de8ef9f0781d4", native: mutex::release },
    Twin { name: "acquire_many", hash: "3bd14bbf63677203df9ccb366bbc8b565b01669a", native: many::acquire },
    Twin { name: "raise_many", hash: "877aa3907ebbf1121401ea2faa90a3d67fb3ae61", native: many::raise },
    Twin { name: "extend_many", hash: "70b70edbd42d0725b168fc44117496c0e530dad4", native: many::extend },
    Twin { name: "release_many", hash: "1d4f917bd72ca8eac467db9a34b368e7d8d6956e", native: many::release },
    Twin { name: "acquire_shared", hash: "4a770aa9093d14f4fa32b1ea523c84ac3b9f631a", native: shared::acquire },
    Twin { name: "raise_shared", hash: "5649a7234f53012f81077fb6caf987de0c4f7b44", native: shared::raise },
    Twin { name: "extend_shared", hash: "883c799c649b12e843c2ff5b0a88b9678b643a6d", native: shared::extend },
    Twin { name: "release_shared", hash: "5b50bf1db0945a9ada7cde759c929df8e51582c3", native: shared::release },
    Twin { name: "acquire_slot", hash: "7c1ff52ed078615957f9010829d02427a9f2f596", native: slots::acquire },
    Twin { name: "release_slots", hash: "6e862e9f784e42feda4d71fc85affc377e593300", native: slots::release },
    Twin { name: "greet", hash: "64e8ef3b2360e7675d666f5e75972e00b955a0ff", native: node::greet },
    Twin { name: "meet", hash: "f4387eed315624ec6935c155785eee4d5480de4c", native: node::meet },
    Twin { name: "inspect", hash: "531ac5d50c03177fce5f16be89924711bc460d8a", native: inspect::inspect },
    Twin { name: "list", hash: "b2ea05f2e052b02a3ad9602c6e7c88221df4e12a", native: search::list },
    Twin { name: "present", hash: "2f43a0175c282d55ff497c4867291ee6032b5028", native: search::present },
    Twin { name: "probe", hash: "a7b4f823fdb257819c5fcceeb60f798dd6ab0009", native: search::probe },
];
