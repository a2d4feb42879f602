//! One connection to a member of a group, which is asked again and again where the master is. It has no socket, no thread
//! and no clock.

use std::collections::VecDeque;

use redis::{Cmd, Value, cmd};

use crate::answer::group::Said;
use crate::error::NodeFailure;
use crate::wire::address::{Address, Group};
use crate::wire::inbox::Inbox;
use crate::wire::{refusal, value};

/// What a member is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// A server: what it is.
    Role,
    /// A sentinel: where the master of that name is.
    Where(String),
}

/// What a reply is to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expect {
    Login,
    /// A name for people: whatever the answer is.
    Name,
    Role,
    Place,
    Epoch,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Probe {
    question: Question,
    inbox: Inbox,
    unsent: Vec<u8>,
    open: VecDeque<Expect>,
    refused: Option<NodeFailure>,
    /// What a sentinel has said, before it says since which configuration.
    named: Option<(String, u16)>,
}

impl Question {
    pub(crate) fn to(group: &Group) -> Question {
        match group {
            Group::Replicated(_) => Question::Role,
            Group::Sentinel { master, .. } => Question::Where(master.clone()),
        }
    }
}

impl Probe {
    /// Begins with the login; nothing is asked yet. `address`: how to log in.
    pub(crate) fn begin(address: &Address, question: &Question) -> Probe {
        let (user, password) = match question {
            Question::Role => (&address.user, address.password.as_ref()),
            Question::Where(_) => match &address.sentinel_login {
                Some(login) => (&login.user, Some(&login.password)),
                None => (&None, None),
            },
        };
        let mut probe = Probe {
            question: question.clone(),
            inbox: Inbox::default(),
            unsent: Vec::new(),
            open: VecDeque::new(),
            refused: None,
            named: None,
        };
        if let Some(password) = password {
            let mut auth = cmd("AUTH");
            if let Some(user) = user {
                auth.arg(user);
            }
            probe.send(Expect::Login, auth.arg(password));
        }
        probe.send(Expect::Name, cmd("CLIENT").arg("SETNAME").arg(&address.client_name));
        probe
    }

    /// Asks, unless an answer is owed.
    pub(crate) fn ask(&mut self) {
        if self.owes() {
            return;
        }
        match self.question.clone() {
            Question::Role => self.send(Expect::Role, &cmd("ROLE")),
            Question::Where(master) => {
                self.send(Expect::Place, cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&master));
                self.send(Expect::Epoch, cmd("SENTINEL").arg("MASTER").arg(&master));
            }
        }
    }

    fn send(&mut self, expect: Expect, command: &Cmd) {
        command.write_packed_command(&mut self.unsent);
        self.open.push_back(expect);
    }

    /// Whether it was asked and has not answered.
    pub(crate) fn owes(&self) -> bool {
        self.open.back().is_some_and(|it| !matches!(it, Expect::Login | Expect::Name))
    }

    /// What is to be written now.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// So many bytes of that were written.
    pub(crate) fn wrote(&mut self, len: usize) {
        self.unsent.drain(..len.min(self.unsent.len()));
    }

    /// Room for what is read next.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// So many bytes were read into the space.
    pub(crate) fn filled(&mut self, len: usize) {
        self.inbox.filled(len);
    }

    /// What it has said, once it has. After [`Said::Failed`] the connection is of no use any more.
    pub(crate) fn poll_said(&mut self) -> Option<Said> {
        loop {
            let reply = match self.inbox.take_reply() {
                Ok(reply) => reply?,
                Err(reason) => return Some(Said::Failed(NodeFailure::Protocol { reason })),
            };
            let value = value::read(self.inbox.get(reply));
            let (Some(value), Some(expect)) = (value, self.open.pop_front()) else {
                return Some(nonsense());
            };
            let said = self.take(expect, &value);
            if said.is_some() {
                return said;
            }
        }
    }

    fn take(&mut self, expect: Expect, value: &Value) -> Option<Said> {
        match (expect, value) {
            (Expect::Login, Value::ServerError(error)) => {
                let failure = refusal::of_login(error);
                self.refused = Some(match (failure, &self.question) {
                    (NodeFailure::WrongPassword, Question::Where(_)) => NodeFailure::SentinelPassword,
                    (failure, _) => failure,
                });
                None
            }
            (Expect::Login | Expect::Name, _) => None,
            // The first failure counts: those after it are its consequences.
            _ if self.refused.is_some() => self.refused.clone().map(Said::Failed),
            (Expect::Role, Value::Array(members)) => Some(match members.first() {
                Some(Value::BulkString(role)) => match &role[..] {
                    b"master" => Said::Master,
                    b"slave" => Said::Replica,
                    b"sentinel" => Said::Failed(NodeFailure::Sentinel),
                    _ => nonsense(),
                },
                _ => nonsense(),
            }),
            (Expect::Place, Value::Nil) => None,
            (Expect::Place, Value::Array(members)) => {
                self.named = place_of(members);
                self.named.is_none().then(nonsense)
            }
            (Expect::Epoch, Value::ServerError(error))
                if error.details().is_some_and(|it| it.contains("No such master")) =>
            {
                Some(Said::UnknownMaster)
            }
            (Expect::Epoch, Value::Array(fields)) => match (self.named.take(), epoch_of(fields)) {
                (Some((host, port)), Some(epoch)) => Some(Said::Named { host, port, epoch }),
                _ => Some(nonsense()),
            },
            (_, Value::ServerError(error)) => Some(Said::Failed(match refusal::of(error) {
                refusal::Refusal::Failure(NodeFailure::WrongPassword) if expect != Expect::Role => {
                    NodeFailure::SentinelPassword
                }
                refusal::Refusal::Failure(NodeFailure::Refused { .. }) if expect != Expect::Role => {
                    NodeFailure::Protocol { reason: "not a Sentinel".to_owned() }
                }
                refusal::Refusal::Failure(failure) => failure,
                refusal::Refusal::NoScript => return Some(nonsense()),
            })),
            _ => Some(nonsense()),
        }
    }
}

fn nonsense() -> Said {
    Said::Failed(NodeFailure::Protocol { reason: "an answer that makes no sense".to_owned() })
}

fn text(value: &Value) -> Option<&str> {
    if let Value::BulkString(bytes) = value { std::str::from_utf8(bytes).ok() } else { None }
}

fn place_of(members: &[Value]) -> Option<(String, u16)> {
    let [host, port] = members else { return None };
    let host = text(host).filter(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_graphic()))?;
    let port = text(port)?.parse().ok().filter(|it| *it != 0)?;
    Some((host.to_ascii_lowercase(), port))
}

fn epoch_of(fields: &[Value]) -> Option<u64> {
    fields.chunks(2).find_map(|it| match it {
        [name, value] if text(name) == Some("config-epoch") => text(value)?.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::group;

    fn where_is() -> Question {
        Question::Where("m".to_owned())
    }

    fn asked(url: &str, question: &Question) -> Probe {
        let mut probe = Probe::begin(&group::parse_url(url).unwrap(), question);
        probe.ask();
        probe
    }

    /// What it says in the end, if the bytes come in two parts.
    fn said(mut probe: Probe, bytes: &[u8], cut: usize) -> Option<Said> {
        for part in [&bytes[..cut], &bytes[cut..]] {
            probe.space()[..part.len()].copy_from_slice(part);
            probe.filled(part.len());
            if let Some(said) = probe.poll_said() {
                assert!(!probe.owes() || matches!(said, Said::Failed(_)));
                return Some(said);
            }
        }
        None
    }

    fn says(url: &str, question: &Question, bytes: &str) -> Said {
        let mut all: Vec<_> = (0..=bytes.len()).map(|cut| said(asked(url, question), bytes.as_bytes(), cut)).collect();
        all.dedup();
        assert_eq!(all.len(), 1, "however the bytes are cut: {all:?}");
        all.remove(0).unwrap()
    }

    #[test]
    fn members_are_logged_in_to_with_the_login_of_their_own_kind() {
        let url = "redis+sentinel://ann:one@s/m?sentinel_user=bob&sentinel_password=two";
        let text = |question| String::from_utf8(asked(url, &question).unsent().to_vec()).unwrap();
        let (server, sentinel) = (text(Question::Role), text(where_is()));
        assert!(server.contains("AUTH\r\n$3\r\nann\r\n$3\r\none") && server.ends_with("ROLE\r\n"), "{server}");
        assert!(sentinel.contains("AUTH\r\n$3\r\nbob\r\n$3\r\ntwo") && !sentinel.contains("ann"), "{sentinel}");
        let plain = asked("redis+sentinel://:one@s/m", &where_is());
        assert!(!String::from_utf8_lossy(plain.unsent()).contains("AUTH"), "the servers' login is not for sentinels");
    }

    #[test]
    fn a_server_says_what_it_is() {
        let says = |bytes: &str| says("redis+replicated://a", &Question::Role, &format!("+OK\r\n{bytes}"));
        assert_eq!(says("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"), Said::Master);
        assert_eq!(says("*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:1\r\n"), Said::Replica);
        assert_eq!(says("*2\r\n$8\r\nsentinel\r\n*0\r\n"), Said::Failed(NodeFailure::Sentinel));
        assert_eq!(says("-NOAUTH Authentication required.\r\n"), Said::Failed(NodeFailure::WrongPassword));
        assert!(matches!(says("-NOPERM no\r\n"), Said::Failed(NodeFailure::NoPermission { .. })));
        for nonsense in ["+master\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n$4\r\nking\r\n", "*999\r\n", "x\r\n"] {
            assert!(matches!(says(nonsense), Said::Failed(NodeFailure::Protocol { .. })), "{nonsense}");
        }
    }

    #[test]
    fn a_sentinel_says_where_the_master_is_and_since_which_configuration() {
        let says = |bytes: &str| says("redis+sentinel://s/m", &where_is(), &format!("+OK\r\n{bytes}"));
        let place = "*2\r\n$9\r\nRedis.One\r\n$4\r\n6380\r\n";
        let epoch = "*4\r\n$4\r\nname\r\n$12\r\nconfig-epoch\r\n$12\r\nconfig-epoch\r\n$2\r\n12\r\n";
        let named = Said::Named { host: "redis.one".to_owned(), port: 6380, epoch: 12 };
        assert_eq!(says(&format!("{place}{epoch}")), named);
        assert_eq!(says("*-1\r\n-ERR No such master with that name\r\n"), Said::UnknownMaster);
        assert_eq!(says("-NOAUTH Authentication required.\r\n"), Said::Failed(NodeFailure::SentinelPassword));
        let no_sentinel = Said::Failed(NodeFailure::Protocol { reason: "not a Sentinel".to_owned() });
        assert_eq!(says("-ERR unknown command 'SENTINEL'\r\n"), no_sentinel);
        for nonsense in [
            "*1\r\n$1\r\na\r\n",
            "*2\r\n$1\r\na\r\n$1\r\n0\r\n",
            "*2\r\n$1\r\na\r\n$5\r\n99999\r\n",
            "*2\r\n$1\r\n \r\n$1\r\n1\r\n",
            &format!("{place}*2\r\n$4\r\nname\r\n$1\r\nm\r\n"),
            &format!("*-1\r\n{epoch}"),
        ] {
            assert!(matches!(says(nonsense), Said::Failed(NodeFailure::Protocol { .. })), "{nonsense}");
        }
    }

    #[test]
    fn a_login_that_is_refused_says_whose_it_was() {
        let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n-NOAUTH no\r\n";
        let server = says("redis+replicated://:one@a", &Question::Role, refused);
        assert_eq!(server, Said::Failed(NodeFailure::WrongPassword));
        let sentinel = says("redis+sentinel://a/m?sentinel_password=x", &where_is(), refused);
        assert_eq!(sentinel, Said::Failed(NodeFailure::SentinelPassword));
    }

    #[test]
    fn it_is_asked_again_on_the_same_connection_and_not_before_it_has_answered() {
        let mut probe = asked("redis+replicated://a", &Question::Role);
        let len = probe.unsent().len();
        probe.ask();
        assert_eq!(probe.unsent().len(), len);
        probe.wrote(len);
        let answer = b"-ERR no names\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
        probe.space()[..answer.len()].copy_from_slice(answer);
        probe.filled(answer.len());
        assert_eq!((probe.poll_said(), probe.poll_said()), (Some(Said::Master), None));
        probe.ask();
        assert_eq!(probe.unsent(), b"*1\r\n$4\r\nROLE\r\n");
    }
}
