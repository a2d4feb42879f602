//! The clients of a campaign. Their processes die with the thread that started them, so one thread has them all.

use devnodes::{ChildProcess, Clock};
use tempfile::TempDir;

use crate::client::Role;

pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    pub(crate) rng: fastrand::Rng,
    /// Of whoever comes next.
    pub(crate) role: Role,
    next_number: u64,
}

pub(crate) struct Member {
    pub(crate) number: u64,
    pub(crate) child: ChildProcess,
    pub(crate) clock: Option<Clock>,
    _folder: TempDir,
}

/// Of all clients: rounds won, rounds that others held, extensions, locks lost.
type Sums = [u64; 4];

impl Fleet {
    /// Blocks until all are ready.
    pub(crate) fn start(clients: u64, role: Role, rng: fastrand::Rng) -> Fleet {
        let mut fleet = Fleet {
            members: Vec::new(),
            rng,
            role,
            next_number: 0,
        };
        for _ in 0..clients {
            let member = fleet.recruit();
            fleet.members.push(member);
        }
        fleet.members.iter().for_each(Member::wait_until_ready);
        fleet
    }

    /// A new client, which gets to work at once.
    pub(crate) fn recruit(&mut self) -> Member {
        self.next_number += 1;
        let role = Role {
            number: self.next_number,
            seed: self.rng.u64(..),
            ..self.role.clone()
        };
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::available().then(|| Clock::create(folder.path()).unwrap());
        let environment = clock.iter().flat_map(Clock::environment);
        let mut child = ChildProcess::start("client::child_that_locks", environment);
        child.tell(&role.line());
        Member {
            number: role.number,
            child,
            clock,
            _folder: folder,
        }
    }

    /// Lets all come to an end.
    pub(crate) fn finish(&mut self) -> Sums {
        let mut sums = Sums::default();
        self.members.iter_mut().for_each(Member::tell_to_finish);
        self.members.drain(..).for_each(|it| it.finish(&mut sums));
        sums
    }
}

impl Member {
    #[track_caller]
    pub(crate) fn wait_until_ready(&self) {
        assert_eq!(self.child.hear(), "ready");
    }

    pub(crate) fn tell_to_finish(&mut self) {
        self.child.tell("finish");
    }

    /// It was told to. Blocks until its process has ended.
    pub(crate) fn finish(mut self, sums: &mut Sums) {
        let said = self.child.hear();
        let done = said
            .strip_prefix("done ")
            .unwrap_or_else(|| panic!("not done but {said}"));
        for (sum, number) in sums.iter_mut().zip(done.split(' ')) {
            *sum += number.parse::<u64>().unwrap();
        }
        assert!(self.child.wait().success());
    }
}
