//! The question to each member of a group, and the answers.

use redis::{Value, cmd};

use crate::answer::cluster_view::View;
use crate::error::{MemberAnswer, NodeFailure};
use crate::wire::address::Group;
use crate::wire::cluster_nodes;
use crate::wire::command::Command;
use crate::wire::conn::ConnEvent;
use crate::wire::refusal::{self, Refusal};
use crate::wire::script::Kind;

/// The question to one member, sent again in each probe.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    about: QuestionKind,
    /// A sentinel's answer to the first of its two commands.
    place: Option<Value>,
    /// The servers in the last answer of a server of a cluster.
    view: Option<View>,
}

#[derive(Clone, Debug)]
enum QuestionKind {
    /// A server: its role.
    Role,
    /// A sentinel: the place of the master of that name.
    Place(String),
    /// A server of a cluster: the servers of all slots.
    Nodes,
}

impl Question {
    /// The question to each member of `group`.
    pub(crate) fn to(group: &Group) -> Question {
        let about = match group {
            Group::Replicated(_) => QuestionKind::Role,
            Group::Sentinel { master, .. } => QuestionKind::Place(master.clone()),
            Group::Cluster(_) => QuestionKind::Nodes,
        };
        Question {
            about,
            place: None,
            view: None,
        }
    }

    /// The commands to send. Answers to earlier ones must not follow.
    pub(crate) fn begin(&mut self) -> Vec<Command> {
        (self.place, self.view) = (None, None);
        match &self.about {
            QuestionKind::Role => vec![Command::of_question(Kind::Member, &cmd("ROLE"))],
            QuestionKind::Place(master) => {
                [["GET-MASTER-ADDR-BY-NAME", master], ["MASTER", master]]
                    .map(|it| Command::of_question(Kind::Member, cmd("SENTINEL").arg(&it)))
                    .into()
            }
            QuestionKind::Nodes => vec![Command::of_question(
                Kind::Nodes,
                cmd("CLUSTER").arg("NODES"),
            )],
        }
    }

    /// Takes the next answer. `None`: one more follows. After an error the connection is of no use.
    pub(crate) fn take<T>(
        &mut self,
        event: ConnEvent<T>,
    ) -> Result<Option<MemberAnswer>, NodeFailure> {
        let ConnEvent::Member(value) = event else {
            return Err(nonsense());
        };
        let answer = match (&self.about, self.place.take(), value) {
            (QuestionKind::Place(_), Some(_), Value::ServerError(error))
                if error
                    .details()
                    .is_some_and(|it| it.contains("No such master")) =>
            {
                Some(MemberAnswer::UnknownMaster)
            }
            (_, _, Value::ServerError(error)) => match refusal::of(&error) {
                Refusal::Failure(failure) => return Err(failure),
                Refusal::NoScript => None,
            },
            (QuestionKind::Role, _, Value::Array(members)) => match members.first() {
                Some(Value::BulkString(role)) if role == b"master" => Some(MemberAnswer::Master),
                Some(Value::BulkString(role)) if role == b"slave" => Some(MemberAnswer::Replica),
                Some(Value::BulkString(role)) if role == b"sentinel" => {
                    return Err(NodeFailure::SENTINEL);
                }
                _ => None,
            },
            (QuestionKind::Nodes, _, Value::BulkString(text)) => {
                self.take_view(&String::from_utf8_lossy(&text))
            }
            (QuestionKind::Place(_), None, place)
                if place == Value::Nil || place_of(&place).is_some() =>
            {
                self.place = Some(place);
                return Ok(None);
            }
            (QuestionKind::Place(_), Some(place), Value::Array(fields)) => {
                let named = place_of(&place).zip(epoch_of(&fields));
                named.map(|((host, port), epoch)| MemberAnswer::Named { host, port, epoch })
            }
            _ => None,
        };
        answer.map(Some).ok_or_else(nonsense)
    }

    fn take_view(&mut self, text: &str) -> Option<MemberAnswer> {
        let view = cluster_nodes::view(text)?;
        let is_master = view.servers.iter().any(|it| it.is_itself && it.is_master);
        self.view = Some(view);
        Some(if is_master {
            MemberAnswer::Master
        } else {
            MemberAnswer::Replica
        })
    }

    /// The servers in the last answer of a server of a cluster, once.
    pub(crate) fn view(&mut self) -> Option<View> {
        self.view.take()
    }

    /// The failure of a refused login or command. Sentinels have a password of their own.
    pub(crate) fn failure(&self, failure: NodeFailure) -> NodeFailure {
        match (&self.about, failure) {
            (QuestionKind::Place(_), it)
                if it == NodeFailure::WRONG_PASSWORD || it == NodeFailure::NO_PASSWORD =>
            {
                NodeFailure::access(SENTINEL_PASSWORD)
            }
            (QuestionKind::Place(_), NodeFailure::Refused { .. }) => NodeFailure::Protocol {
                reason: "not a Sentinel".to_owned(),
            },
            (_, failure) => failure,
        }
    }
}

const SENTINEL_PASSWORD: &str = "login refused by its sentinels; check their user and password, such as sentinel_password in the node's URL";

fn nonsense() -> NodeFailure {
    NodeFailure::Protocol {
        reason: "an answer that makes no sense".to_owned(),
    }
}

fn text(value: &Value) -> Option<&str> {
    if let Value::BulkString(bytes) = value {
        std::str::from_utf8(bytes).ok()
    } else {
        None
    }
}

fn place_of(value: &Value) -> Option<(String, u16)> {
    let Value::Array(members) = value else {
        return None;
    };
    let [host, port] = &members[..] else {
        return None;
    };
    let host =
        text(host).filter(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_graphic()))?;
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
    use crate::time::Now;
    use crate::wire::address::{Address, Endpoint};
    use crate::wire::conn::Conn;
    use crate::wire::group_url;

    const OF_SENTINEL: &str = "redis+sentinel://s/m";

    /// A member of a group, once it has logged in.
    struct Member {
        conn: Conn<std::sync::Arc<Command>>,
        question: Question,
    }

    impl Member {
        fn begin(url: &str) -> Member {
            let address: Address = group_url::parse_url(url).unwrap();
            let Endpoint::Group(group) = &address.place else {
                panic!("{url}")
            };
            let member = address.of_member(group.members()[0].clone(), None);
            Member {
                conn: Conn::begin(&member, None, None),
                question: Question::to(group),
            }
        }

        fn asked(url: &str) -> Member {
            let mut member = Member::begin(url);
            let has_password = member.write().contains("AUTH");
            member.read(if has_password {
                b"+OK\r\n+OK\r\n"
            } else {
                b"+OK\r\n"
            });
            assert!(matches!(
                member.conn.poll_event(),
                Ok(Some(ConnEvent::Ready(_)))
            ));
            member.ask();
            member
        }

        fn ask(&mut self) -> String {
            for command in self.question.begin() {
                self.conn.enqueue(command.into(), Now::read());
            }
            self.write()
        }

        fn write(&mut self) -> String {
            let bytes = self.conn.poll_write().to_vec();
            self.conn.wrote(bytes.len());
            String::from_utf8(bytes).unwrap()
        }

        fn read(&mut self, bytes: &[u8]) {
            self.conn.space()[..bytes.len()].copy_from_slice(bytes);
            self.conn.filled(bytes.len());
        }

        /// What it has said by now.
        fn said(&mut self) -> Option<MemberAnswer> {
            let mut next = || -> Result<_, NodeFailure> {
                while let Some(event) = self.conn.poll_event()? {
                    if let Some(said) = self.question.take(event)? {
                        return Ok(Some(said));
                    }
                }
                Ok(None)
            };
            next().unwrap_or_else(|failure| {
                Some(MemberAnswer::Failed(self.question.failure(failure)))
            })
        }
    }

    /// What it says in the end, if the bytes come in two parts.
    fn said(mut member: Member, bytes: &[u8], cut: usize) -> Option<MemberAnswer> {
        for part in [&bytes[..cut], &bytes[cut..]] {
            member.read(part);
            if let Some(said) = member.said() {
                assert!(member.conn.in_flight() == 0 || matches!(said, MemberAnswer::Failed(_)));
                return Some(said);
            }
        }
        None
    }

    fn says(url: &str, bytes: &str) -> MemberAnswer {
        let mut all: Vec<_> = (0..=bytes.len())
            .map(|cut| said(Member::asked(url), bytes.as_bytes(), cut))
            .collect();
        all.dedup();
        assert_eq!(all.len(), 1, "however the bytes are cut: {all:?}");
        all.remove(0).unwrap()
    }

    #[test]
    fn members_are_logged_in_to_with_the_login_of_their_own_kind() {
        let url = "redis+replicated://ann:one@s/5";
        let server = Member::begin(url).write();
        assert!(
            server.contains("AUTH\r\n$3\r\nann\r\n$3\r\none") && !server.contains("SELECT"),
            "{server}"
        );
        let url = "redis+sentinel://ann:one@s/m?sentinel_user=bob&sentinel_password=two";
        let sentinel = Member::begin(url).write();
        assert!(
            sentinel.contains("AUTH\r\n$3\r\nbob\r\n$3\r\ntwo") && !sentinel.contains("ann"),
            "{sentinel}"
        );
        let plain = Member::begin("redis+sentinel://:one@s/m").write();
        assert_eq!(
            plain, "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\nquorlock\r\n",
            "the servers' login is not for sentinels"
        );
    }

    #[test]
    fn a_server_says_what_it_is() {
        let says = |bytes: &str| says("redis+replicated://a", bytes);
        assert_eq!(
            says("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
            MemberAnswer::Master
        );
        assert_eq!(
            says("*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:1\r\n"),
            MemberAnswer::Replica
        );
        assert_eq!(
            says("*2\r\n$8\r\nsentinel\r\n*0\r\n"),
            MemberAnswer::Failed(NodeFailure::SENTINEL)
        );
        assert_eq!(
            says("-NOAUTH Authentication required.\r\n"),
            MemberAnswer::Failed(NodeFailure::NO_PASSWORD)
        );
        assert!(matches!(
            says("-NOPERM no\r\n"),
            MemberAnswer::Failed(NodeFailure::Access { .. })
        ));
        let push = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n";
        for nonsense in [
            "+master\r\n",
            "*0\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n$4\r\nking\r\n",
            "*999\r\n",
            "x\r\n",
            push,
        ] {
            assert!(
                matches!(
                    says(nonsense),
                    MemberAnswer::Failed(NodeFailure::Protocol { .. })
                ),
                "{nonsense}"
            );
        }
    }

    #[test]
    fn a_sentinel_says_where_the_master_is_and_since_which_configuration() {
        let says = |bytes: &str| says(OF_SENTINEL, bytes);
        let place = "*2\r\n$9\r\nRedis.One\r\n$4\r\n6380\r\n";
        let epoch =
            "*4\r\n$4\r\nname\r\n$12\r\nconfig-epoch\r\n$12\r\nconfig-epoch\r\n$2\r\n12\r\n";
        let named = MemberAnswer::Named {
            host: "redis.one".to_owned(),
            port: 6380,
            epoch: 12,
        };
        assert_eq!(says(&format!("{place}{epoch}")), named);
        assert_eq!(
            says("*-1\r\n-ERR No such master with that name\r\n"),
            MemberAnswer::UnknownMaster
        );
        assert_eq!(
            says("-NOAUTH Authentication required.\r\n"),
            MemberAnswer::Failed(NodeFailure::access(SENTINEL_PASSWORD))
        );
        let no_sentinel = MemberAnswer::Failed(NodeFailure::Protocol {
            reason: "not a Sentinel".to_owned(),
        });
        assert_eq!(says("-ERR unknown command 'SENTINEL'\r\n"), no_sentinel);
        for nonsense in [
            "*1\r\n$1\r\na\r\n",
            "*2\r\n$1\r\na\r\n$1\r\n0\r\n",
            "*2\r\n$1\r\na\r\n$5\r\n99999\r\n",
            "*2\r\n$1\r\n \r\n$1\r\n1\r\n",
            &format!("{place}*2\r\n$4\r\nname\r\n$1\r\nm\r\n"),
            &format!("*-1\r\n{epoch}"),
        ] {
            assert!(
                matches!(
                    says(nonsense),
                    MemberAnswer::Failed(NodeFailure::Protocol { .. })
                ),
                "{nonsense}"
            );
        }
    }

    #[test]
    fn a_server_of_a_cluster_says_who_serves_what() {
        let url = "redis+cluster://:pw@a";
        let line = "aa :7000@17000 myself,master - 0 0 3 connected 0-5460\n";
        let answer = format!("${}\r\n{line}\r\n", line.len());
        assert_eq!(says(url, &answer), MemberAnswer::Master);
        let no_cluster = says(url, "-ERR This instance has cluster support disabled\r\n");
        assert_eq!(no_cluster, MemberAnswer::Failed(NodeFailure::NO_CLUSTER));
        let refused = says(url, "-NOAUTH Authentication required.\r\n");
        assert_eq!(refused, MemberAnswer::Failed(NodeFailure::NO_PASSWORD));
        assert!(matches!(
            says(url, "$2\r\nhi\r\n"),
            MemberAnswer::Failed(NodeFailure::Protocol { .. })
        ));

        let mut member = Member::asked("redis+cluster://a");
        member.read(answer.as_bytes());
        assert_eq!(member.said(), Some(MemberAnswer::Master));
        let view = member.question.view().unwrap();
        assert_eq!(
            (view.servers.len(), &view.servers[0].slots[..]),
            (1, &[(0, 5_460)][..])
        );
        assert_eq!(member.question.view(), None);
    }

    #[test]
    fn only_the_servers_of_a_cluster_give_long_answers() {
        let line = "aa :7000@17000 myself,master - 0 0 3 connected 0-5460\n";
        let answer = line.repeat(2_000);
        let answer = format!("${}\r\n{answer}\r\n", answer.len());
        for (url, may) in [
            ("redis+cluster://a", true),
            ("redis+replicated://a", false),
            (OF_SENTINEL, false),
        ] {
            let mut member = Member::asked(url);
            let said = answer.as_bytes().chunks(16_000).find_map(|part| {
                member.read(part);
                member.said()
            });
            match said {
                Some(MemberAnswer::Failed(NodeFailure::Protocol { .. })) => assert!(!may, "{url}"),
                said => assert!(may && said == Some(MemberAnswer::Master), "{url}: {said:?}"),
            }
            assert!(!member.conn.is_long(), "{url}");
        }
        let mut member = Member::asked("redis+cluster://a");
        member.read(b"$4194305\r\n");
        assert!(matches!(
            member.said(),
            Some(MemberAnswer::Failed(NodeFailure::Protocol { .. }))
        ));
    }

    #[test]
    fn a_login_that_is_refused_says_whose_it_was() {
        let refused = |url: &str| {
            let mut member = Member::begin(url);
            member
                .read(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n");
            member.said()
        };
        let server = refused("redis+replicated://:one@a");
        assert_eq!(
            server,
            Some(MemberAnswer::Failed(NodeFailure::WRONG_PASSWORD))
        );
        let sentinel = refused("redis+sentinel://a/m?sentinel_password=x");
        assert_eq!(
            sentinel,
            Some(MemberAnswer::Failed(NodeFailure::access(SENTINEL_PASSWORD)))
        );
    }

    #[test]
    fn it_is_asked_again_on_the_same_connection_whether_or_not_it_takes_a_name() {
        let mut member = Member::begin("redis+replicated://a");
        member.write();
        member.read(b"-ERR no names\r\n");
        assert!(matches!(
            member.conn.poll_event(),
            Ok(Some(ConnEvent::Ready(_)))
        ));
        for _ in 0..2 {
            assert_eq!(member.ask(), "*1\r\n$4\r\nROLE\r\n");
            member.read(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
            assert_eq!(
                (member.said(), member.said()),
                (Some(MemberAnswer::Master), None)
            );
        }
    }
}
