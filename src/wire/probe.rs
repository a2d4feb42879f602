//! One connection to a member of a group, which is asked again and again where the master is. It has no socket, no thread
//! and no clock.

use std::collections::VecDeque;

use redis::{Cmd, Value, cmd};

use crate::answer::cluster::View;
use crate::error::{MemberAnswer, NodeFailure, TlsFailure};
use crate::tls::Session;
use crate::wire::address::{Address, Group};
use crate::wire::frame::BULK_MAX;
use crate::wire::inbox::Inbox;
use crate::wire::{cluster, refusal, value};

/// The longest answer to `CLUSTER NODES`: 16,384 slots that stand alone are 90 kB, and each server is 200 bytes.
const NODES_MAX: usize = 4 * 1024 * 1024;

/// What a member is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// A server: what it is.
    Role,
    /// A sentinel: where the master of that name is.
    Where(String),
    /// A server of a cluster: who serves which slots.
    Nodes,
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
    Nodes,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Probe {
    question: Question,
    /// What stands between these bytes and those of the wire, if that is so.
    tls: Option<Session>,
    inbox: Inbox,
    /// A reply has come.
    heard: bool,
    unsent: Vec<u8>,
    open: VecDeque<Expect>,
    refused: Option<NodeFailure>,
    /// What a sentinel has said, before it says since which configuration.
    named: Option<(String, u16)>,
    /// What a server of a cluster has said last.
    view: Option<View>,
}

impl Question {
    pub(crate) fn to(group: &Group) -> Question {
        match group {
            Group::Replicated(_) => Question::Role,
            Group::Sentinel { master, .. } => Question::Where(master.clone()),
            Group::Cluster(_) => Question::Nodes,
        }
    }
}

impl Probe {
    /// Begins with the login, once the connection is secured by `tls` if that is some; nothing is asked yet. `address`: how to
    /// log in.
    pub(crate) fn begin(address: &Address, question: &Question, tls: Option<Session>) -> Probe {
        let (user, password) = match question {
            Question::Role | Question::Nodes => (&address.user, address.password.as_ref()),
            Question::Where(_) => match &address.sentinel_login {
                Some(login) => (&login.user, Some(&login.password)),
                None => (&None, None),
            },
        };
        let mut probe = Probe {
            question: question.clone(),
            tls,
            inbox: Inbox::default(),
            heard: false,
            unsent: Vec::new(),
            open: VecDeque::new(),
            refused: None,
            named: None,
            view: None,
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
            Question::Nodes => self.send(Expect::Nodes, cmd("CLUSTER").arg("NODES")),
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

    /// Whether the handshake of TLS is not over.
    pub(crate) fn is_securing(&self) -> bool {
        self.tls.as_ref().is_some_and(Session::is_securing)
    }

    /// Whether more has come of an answer than is kept of those of all members at a time.
    pub(crate) fn is_long(&self) -> bool {
        BULK_MAX < self.inbox.len()
    }

    /// Why the login was refused, if that is known: the better reason if the connection is closed after it.
    pub(crate) fn refused(&self) -> Option<NodeFailure> {
        self.refused.clone()
    }

    /// What a server of a cluster has said, once.
    pub(crate) fn view(&mut self) -> Option<View> {
        self.view.take()
    }

    /// What is to be written now.
    pub(crate) fn poll_write(&mut self) -> &[u8] {
        let Some(tls) = &mut self.tls else { return &self.unsent };
        if !self.unsent.is_empty() && tls.seal(&self.unsent) {
            self.unsent.clear();
        }
        tls.unsent()
    }

    /// So many bytes of that were written.
    pub(crate) fn wrote(&mut self, len: usize) {
        match &mut self.tls {
            Some(tls) => drop(tls.wrote(len)),
            None => drop(self.unsent.drain(..len.min(self.unsent.len()))),
        }
    }

    /// Room for what is read next.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        match &mut self.tls {
            Some(tls) => tls.space(),
            None => self.inbox.space(),
        }
    }

    /// So many bytes were read into the space.
    pub(crate) fn filled(&mut self, len: usize) {
        match &mut self.tls {
            Some(tls) => tls.filled(len),
            None => self.inbox.filled(len),
        }
    }

    /// What it has said, once it has. After [`MemberAnswer::Failed`] the connection is of no use any more.
    pub(crate) fn poll_said(&mut self) -> Option<MemberAnswer> {
        loop {
            let is_of_nodes = self.open.front() == Some(&Expect::Nodes);
            let reply = match self.inbox.take_reply_within(if is_of_nodes { NODES_MAX } else { BULK_MAX }) {
                Ok(Some(reply)) => reply,
                Ok(None) => match self.open() {
                    Ok(true) => continue,
                    Ok(false) => return None,
                    Err(failure) => return Some(MemberAnswer::Failed(failure)),
                },
                Err(reason) => return Some(MemberAnswer::Failed(self.nonsense(reason))),
            };
            self.heard = true;
            let value = value::read(self.inbox.get(reply));
            let (Some(value), Some(expect)) = (value, self.open.pop_front()) else {
                return Some(nonsense());
            };
            self.inbox.shrink();
            let said = self.take(expect, &value);
            if said.is_some() {
                return said;
            }
        }
    }

    /// Decrypts some of what has come. False if nothing is left.
    fn open(&mut self) -> Result<bool, NodeFailure> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let len = tls.open(self.inbox.space())?;
        self.inbox.filled(len);
        Ok(len != 0)
    }

    /// What came is no reply, for this reason.
    fn nonsense(&self, reason: String) -> NodeFailure {
        if !self.heard && self.tls.is_none() && self.inbox.is_of_tls() {
            return NodeFailure::Tls(TlsFailure::SpeaksTls);
        }
        NodeFailure::Protocol { reason }
    }

    fn take(&mut self, expect: Expect, value: &Value) -> Option<MemberAnswer> {
        let is_sentinel = matches!(expect, Expect::Place | Expect::Epoch);
        match (expect, value) {
            (Expect::Login, Value::ServerError(error)) => {
                let failure = refusal::of_login(error);
                self.refused = Some(match (failure, &self.question) {
                    (NodeFailure::WrongPassword | NodeFailure::NoPassword, Question::Where(_)) => {
                        NodeFailure::SentinelPassword
                    }
                    (failure, _) => failure,
                });
                None
            }
            (Expect::Login | Expect::Name, _) => None,
            // The first failure counts: those after it are its consequences.
            _ if self.refused.is_some() => self.refused.clone().map(MemberAnswer::Failed),
            (Expect::Role, Value::Array(members)) => Some(match members.first() {
                Some(Value::BulkString(role)) => match &role[..] {
                    b"master" => MemberAnswer::Master,
                    b"slave" => MemberAnswer::Replica,
                    b"sentinel" => MemberAnswer::Failed(NodeFailure::Sentinel),
                    _ => nonsense(),
                },
                _ => nonsense(),
            }),
            (Expect::Nodes, Value::BulkString(text)) => Some(self.take_view(&String::from_utf8_lossy(text))),
            (Expect::Nodes, Value::VerbatimString { text, .. }) => Some(self.take_view(text)),
            (Expect::Place, Value::Nil) => None,
            (Expect::Place, Value::Array(members)) => {
                self.named = place_of(members);
                self.named.is_none().then(nonsense)
            }
            (Expect::Epoch, Value::ServerError(error))
                if error.details().is_some_and(|it| it.contains("No such master")) =>
            {
                Some(MemberAnswer::UnknownMaster)
            }
            (Expect::Epoch, Value::Array(fields)) => match (self.named.take(), epoch_of(fields)) {
                (Some((host, port)), Some(epoch)) => Some(MemberAnswer::Named { host, port, epoch }),
                _ => Some(nonsense()),
            },
            (_, Value::ServerError(error)) => Some(MemberAnswer::Failed(match refusal::of(error) {
                refusal::Refusal::Failure(NodeFailure::WrongPassword | NodeFailure::NoPassword) if is_sentinel => {
                    NodeFailure::SentinelPassword
                }
                refusal::Refusal::Failure(NodeFailure::Refused { .. }) if is_sentinel => {
                    NodeFailure::Protocol { reason: "not a Sentinel".to_owned() }
                }
                refusal::Refusal::Failure(failure) => failure,
                refusal::Refusal::NoScript => return Some(nonsense()),
            })),
            _ => Some(nonsense()),
        }
    }
}

impl Probe {
    fn take_view(&mut self, text: &str) -> MemberAnswer {
        let Some(view) = cluster::view(text) else { return nonsense() };
        let is_master = view.servers.iter().any(|it| it.is_itself && it.is_master);
        self.view = Some(view);
        if is_master { MemberAnswer::Master } else { MemberAnswer::Replica }
    }
}

fn nonsense() -> MemberAnswer {
    MemberAnswer::Failed(NodeFailure::Protocol { reason: "an answer that makes no sense".to_owned() })
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
        let mut probe = Probe::begin(&group::parse_url(url).unwrap(), question, None);
        probe.ask();
        probe
    }

    /// What it says in the end, if the bytes come in two parts.
    fn said(mut probe: Probe, bytes: &[u8], cut: usize) -> Option<MemberAnswer> {
        for part in [&bytes[..cut], &bytes[cut..]] {
            probe.space()[..part.len()].copy_from_slice(part);
            probe.filled(part.len());
            if let Some(said) = probe.poll_said() {
                assert!(!probe.owes() || matches!(said, MemberAnswer::Failed(_)));
                return Some(said);
            }
        }
        None
    }

    fn says(url: &str, question: &Question, bytes: &str) -> MemberAnswer {
        let mut all: Vec<_> = (0..=bytes.len()).map(|cut| said(asked(url, question), bytes.as_bytes(), cut)).collect();
        all.dedup();
        assert_eq!(all.len(), 1, "however the bytes are cut: {all:?}");
        all.remove(0).unwrap()
    }

    #[test]
    fn members_are_logged_in_to_with_the_login_of_their_own_kind() {
        let url = "redis+sentinel://ann:one@s/m?sentinel_user=bob&sentinel_password=two";
        let text = |question| String::from_utf8(asked(url, &question).poll_write().to_vec()).unwrap();
        let (server, sentinel) = (text(Question::Role), text(where_is()));
        assert!(server.contains("AUTH\r\n$3\r\nann\r\n$3\r\none") && server.ends_with("ROLE\r\n"), "{server}");
        assert!(sentinel.contains("AUTH\r\n$3\r\nbob\r\n$3\r\ntwo") && !sentinel.contains("ann"), "{sentinel}");
        let mut plain = asked("redis+sentinel://:one@s/m", &where_is());
        assert!(
            !String::from_utf8_lossy(plain.poll_write()).contains("AUTH"),
            "the servers' login is not for sentinels"
        );
    }

    #[test]
    fn a_server_says_what_it_is() {
        let says = |bytes: &str| says("redis+replicated://a", &Question::Role, &format!("+OK\r\n{bytes}"));
        assert_eq!(says("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"), MemberAnswer::Master);
        assert_eq!(says("*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:1\r\n"), MemberAnswer::Replica);
        assert_eq!(says("*2\r\n$8\r\nsentinel\r\n*0\r\n"), MemberAnswer::Failed(NodeFailure::Sentinel));
        assert_eq!(says("-NOAUTH Authentication required.\r\n"), MemberAnswer::Failed(NodeFailure::NoPassword));
        assert!(matches!(says("-NOPERM no\r\n"), MemberAnswer::Failed(NodeFailure::NoPermission { .. })));
        for nonsense in ["+master\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n$4\r\nking\r\n", "*999\r\n", "x\r\n"] {
            assert!(matches!(says(nonsense), MemberAnswer::Failed(NodeFailure::Protocol { .. })), "{nonsense}");
        }
    }

    #[test]
    fn a_sentinel_says_where_the_master_is_and_since_which_configuration() {
        let says = |bytes: &str| says("redis+sentinel://s/m", &where_is(), &format!("+OK\r\n{bytes}"));
        let place = "*2\r\n$9\r\nRedis.One\r\n$4\r\n6380\r\n";
        let epoch = "*4\r\n$4\r\nname\r\n$12\r\nconfig-epoch\r\n$12\r\nconfig-epoch\r\n$2\r\n12\r\n";
        let named = MemberAnswer::Named { host: "redis.one".to_owned(), port: 6380, epoch: 12 };
        assert_eq!(says(&format!("{place}{epoch}")), named);
        assert_eq!(says("*-1\r\n-ERR No such master with that name\r\n"), MemberAnswer::UnknownMaster);
        assert_eq!(says("-NOAUTH Authentication required.\r\n"), MemberAnswer::Failed(NodeFailure::SentinelPassword));
        let no_sentinel = MemberAnswer::Failed(NodeFailure::Protocol { reason: "not a Sentinel".to_owned() });
        assert_eq!(says("-ERR unknown command 'SENTINEL'\r\n"), no_sentinel);
        for nonsense in [
            "*1\r\n$1\r\na\r\n",
            "*2\r\n$1\r\na\r\n$1\r\n0\r\n",
            "*2\r\n$1\r\na\r\n$5\r\n99999\r\n",
            "*2\r\n$1\r\n \r\n$1\r\n1\r\n",
            &format!("{place}*2\r\n$4\r\nname\r\n$1\r\nm\r\n"),
            &format!("*-1\r\n{epoch}"),
        ] {
            assert!(matches!(says(nonsense), MemberAnswer::Failed(NodeFailure::Protocol { .. })), "{nonsense}");
        }
    }

    #[test]
    fn a_server_of_a_cluster_says_who_serves_what() {
        let says = |bytes: &str| says("redis+cluster://:pw@a", &Question::Nodes, &format!("+OK\r\n+OK\r\n{bytes}"));
        let line = "aa :7000@17000 myself,master - 0 0 3 connected 0-5460\n";
        assert_eq!(says(&format!("${}\r\n{line}\r\n", line.len())), MemberAnswer::Master);
        let no_cluster = says("-ERR This instance has cluster support disabled\r\n");
        assert_eq!(no_cluster, MemberAnswer::Failed(NodeFailure::NoCluster));
        let refused = says("-NOAUTH Authentication required.\r\n");
        assert_eq!(refused, MemberAnswer::Failed(NodeFailure::NoPassword));
        assert!(matches!(says("$2\r\nhi\r\n"), MemberAnswer::Failed(NodeFailure::Protocol { .. })));

        let mut probe = asked("redis+cluster://a", &Question::Nodes);
        let answer = format!("+OK\r\n${}\r\n{line}\r\n", line.len());
        probe.space()[..answer.len()].copy_from_slice(answer.as_bytes());
        probe.filled(answer.len());
        assert_eq!(probe.poll_said(), Some(MemberAnswer::Master));
        let view = probe.view().unwrap();
        assert_eq!((view.servers.len(), &view.servers[0].slots[..]), (1, &[(0, 5_460)][..]));
        assert_eq!(probe.view(), None);
    }

    #[test]
    fn a_login_that_is_refused_says_whose_it_was() {
        let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n-NOAUTH no\r\n";
        let server = says("redis+replicated://:one@a", &Question::Role, refused);
        assert_eq!(server, MemberAnswer::Failed(NodeFailure::WrongPassword));
        let sentinel = says("redis+sentinel://a/m?sentinel_password=x", &where_is(), refused);
        assert_eq!(sentinel, MemberAnswer::Failed(NodeFailure::SentinelPassword));
    }

    #[test]
    fn it_is_asked_again_on_the_same_connection_and_not_before_it_has_answered() {
        let mut probe = asked("redis+replicated://a", &Question::Role);
        let len = probe.poll_write().len();
        probe.ask();
        assert_eq!(probe.poll_write().len(), len);
        probe.wrote(len);
        let answer = b"-ERR no names\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
        probe.space()[..answer.len()].copy_from_slice(answer);
        probe.filled(answer.len());
        assert_eq!((probe.poll_said(), probe.poll_said()), (Some(MemberAnswer::Master), None));
        probe.ask();
        assert_eq!(probe.poll_write(), b"*1\r\n$4\r\nROLE\r\n");
    }
}
