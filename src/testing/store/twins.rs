//! Which script has which twin.

use super::call::{Args, Outcome, Run, wrong_number};
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
        let (keys, args) = behind.zip(count).and_then(|(it, count)| it.split(count)).ok_or_else(wrong_number)?;
        (self.native)(run, keys, args)
    }
}

pub(crate) const TWINS: [Twin; 20] = [
    Twin { name: "acquire", hash: "1e7b9e943751c9effdd4a7b2ac8f6bd0234c8563", native: mutex::acquire },
    Twin { name: "raise", hash: "c1a2a1e5b385585093475f939af4056de72e75da", native: mutex::raise },
    Twin { name: "extend", hash: "1db40476167326619533a3fb786dde41dc2f39f3", native: mutex::extend },
    Twin { name: "release", hash: "9c2afcb7d600a22c66b28901865de8ef9f0781d4", native: mutex::release },
    Twin { name: "acquire_many", hash: "cf90271f6bd2cd35e249efee56040cd01953229c", native: many::acquire },
    Twin { name: "raise_many", hash: "877aa3907ebbf1121401ea2faa90a3d67fb3ae61", native: many::raise },
    Twin { name: "extend_many", hash: "4a15e8c21c8e2539692a0424802cbe5bca447e52", native: many::extend },
    Twin { name: "release_many", hash: "1d4f917bd72ca8eac467db9a34b368e7d8d6956e", native: many::release },
    Twin { name: "acquire_shared", hash: "c276c5a4226d91e678e71df90955aedc8ab9f684", native: shared::acquire },
    Twin { name: "raise_shared", hash: "5649a7234f53012f81077fb6caf987de0c4f7b44", native: shared::raise },
    Twin { name: "extend_shared", hash: "139ac5fedd6049f33914a8c2e9bbc3fb86ee51ca", native: shared::extend },
    Twin { name: "release_shared", hash: "5b50bf1db0945a9ada7cde759c929df8e51582c3", native: shared::release },
    Twin { name: "acquire_slot", hash: "996613a3c017d7d35c497b419317d42a5de1aab1", native: slots::acquire },
    Twin { name: "release_slots", hash: "6e862e9f784e42feda4d71fc85affc377e593300", native: slots::release },
    Twin { name: "greet", hash: "9b2993d8048869492cc87385167b187f5f26727c", native: node::greet },
    Twin { name: "meet", hash: "f4387eed315624ec6935c155785eee4d5480de4c", native: node::meet },
    Twin { name: "inspect", hash: "531ac5d50c03177fce5f16be89924711bc460d8a", native: inspect::inspect },
    Twin { name: "list", hash: "b2ea05f2e052b02a3ad9602c6e7c88221df4e12a", native: search::list },
    Twin { name: "present", hash: "2f43a0175c282d55ff497c4867291ee6032b5028", native: search::present },
    Twin { name: "probe", hash: "a7b4f823fdb257819c5fcceeb60f798dd6ab0009", native: search::probe },
];
