//! An object of S3 or a compatible store: a stand-in with ETags made of contents.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;

use quorlock::FencingToken;
use quorlock::fence::Stale;

use crate::cases::{Session, Store, assert_stale, cases, next_token};
use crate::machine::or_skip;
use crate::net::{Connection, Message, serve};
use crate::page;

const OBJECT: &str = "/bucket/tickets";
const METADATA: &str = "x-amz-meta-token";

/// What a store may do wrong.
#[derive(Clone, Copy, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// Sometimes 409, when nothing is wrong: others write at the same time.
    Conflicts,
    /// Headers with a condition are accepted and ignored.
    IgnoresNoneMatch,
    IgnoresMatch,
    /// Writes, and answers 500.
    LosesAnswers,
}

struct S3(SocketAddr);

impl S3 {
    fn start(fault: Fault) -> S3 {
        // By path: content and metadata.
        let objects = Mutex::new(HashMap::<String, (String, String)>::new());
        S3(serve(move |request| {
            let mut objects = objects.lock().unwrap();
            let (method, path) = (request.word(0), request.word(1).to_owned());
            let etag = objects.get(&path).map(|it| etag(&it.0));
            match method {
                "GET" | "HEAD" => match objects.get(&path) {
                    Some((content, metadata)) => Message::response(200)
                        .header("ETag", etag.unwrap())
                        .header(METADATA, metadata)
                        .body(content),
                    None => Message::response(404),
                },
                "DELETE" => {
                    objects.remove(&path);
                    Message::response(204)
                }
                "PUT" => {
                    let create = request.get("if-none-match").is_some();
                    let expected = request.get("if-match");
                    let exists = create && etag.is_some() && fault != Fault::IgnoresNoneMatch;
                    let differs = expected.is_some_and(|it| Some(it) != etag.as_deref());
                    if fault == Fault::Conflicts && fastrand::u8(..8) == 0 {
                        return Message::response(409);
                    }
                    if expected.is_some() && etag.is_none() {
                        return Message::response(404);
                    }
                    if exists || differs && fault != Fault::IgnoresMatch {
                        return Message::response(412);
                    }
                    let metadata = request.get(METADATA).unwrap_or_default().to_owned();
                    let status = if fault == Fault::LosesAnswers {
                        500
                    } else {
                        200
                    };
                    let etag = self::etag(&request.body);
                    objects.insert(path, (request.body, metadata));
                    Message::response(status).header("ETag", etag)
                }
                _ => Message::response(405),
            }
        }))
    }
}

/// As S3's: the content and nothing else.
fn etag(content: &str) -> String {
    let mut hash = DefaultHasher::new();
    content.hash(&mut hash);
    format!("\"{:032x}\"", hash.finish())
}

impl Store for S3 {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(Bucket(Connection::new(self.0)))
    }
}

struct Bucket(Connection);

/// An object as it was read: its ETag, the token in the content, and the number beside it.
type Object = (String, u64, i64);

impl Bucket {
    /// Step 1 of the page.
    fn get(&mut self) -> Option<Object> {
        let answer = self.0.ask(&Message::request("GET", OBJECT));
        if answer.word(1) == "404" {
            return None;
        }
        let (token, number) = answer.body.split_once('\n').expect("two lines");
        let etag = answer.get("etag").expect("an ETag").to_owned();
        Some((etag, token.parse().unwrap(), number.parse().unwrap()))
    }

    /// Steps 1 to 4: writes the token, and the number or what was there.
    fn put(&mut self, ours: FencingToken, number: Option<i64>) -> Result<(), Stale> {
        // Whether a write of ours may have been stored.
        let mut sent = false;
        loop {
            let object = self.get();
            let (seen, there) = object.as_ref().map_or((0, 0), |it| (it.1, it.2));
            if ours.get() < seen {
                let seen = Some(seen);
                return Err(Stale { ours, seen });
            }
            let number = number.unwrap_or(there);
            if sent && (seen, there) == (ours.get(), number) {
                return Ok(());
            }
            let request = Message::request("PUT", OBJECT).body(format!("{ours}\n{number}"));
            let request = match &object {
                Some((etag, ..)) => request.header("If-Match", etag),
                None => request.header("If-None-Match", "*"),
            };
            match self.0.ask(&request).word(1) {
                "200" => return Ok(()),
                "404" | "409" | "412" | "500" => sent = true,
                other => panic!("{other}"),
            }
        }
    }
}

impl Session for Bucket {
    fn register(&mut self, token: FencingToken) -> Result<(), Stale> {
        self.put(token, None)
    }

    fn read(&mut self) -> i64 {
        self.get().map_or(0, |it| it.2)
    }

    fn write(&mut self, token: FencingToken, number: i64) -> Result<(), Stale> {
        self.put(token, Some(number))
    }
}

mod without_faults {
    use super::*;
    cases!(Some(S3::start(Fault::None)));
}

mod with_conflicts {
    use super::*;
    cases!(Some(S3::start(Fault::Conflicts)));
}

#[test]
fn f9_a_write_to_s3_with_a_lost_answer_is_found_by_a_read() {
    let store = S3::start(Fault::LosesAnswers);
    let mut session = store.connect();
    let (ours, next) = (next_token(), next_token());
    session.register(ours).unwrap();
    session.write(ours, 7).unwrap();
    session.register(next).unwrap();
    assert_stale(session.write(ours, 8), ours, next);
    assert_eq!(session.read(), 7);
}

/// A holder that has read, and then sleeps until its successor has registered. The token is where `place` says.
fn put_by_a_stale_holder(in_content: bool) -> (String, Option<String>) {
    let mut s3 = Connection::new(S3::start(Fault::None).0);
    let put = |s3: &mut Connection, token: &str, data: &str, etag: Option<&str>| {
        let content = if in_content {
            format!("{token}\n{data}")
        } else {
            data.to_owned()
        };
        let request = Message::request("PUT", OBJECT).body(content);
        let request = request.header(METADATA, token);
        let answer = s3.ask(&match etag {
            Some(etag) => request.header("If-Match", etag),
            None => request.header("If-None-Match", "*"),
        });
        (
            answer.word(1).to_owned(),
            answer.get("etag").map(str::to_owned),
        )
    };
    let (_, read) = put(&mut s3, "33", "10 tickets", None);
    // The successor registers: its token, and the data as they were.
    let (status, _) = put(&mut s3, "34", "10 tickets", read.as_deref());
    assert_eq!(status, "200");
    let (status, _) = put(&mut s3, "33", "9 tickets", read.as_deref());
    let object = s3.ask(&Message::request("GET", OBJECT));
    (status, object.get(METADATA).map(str::to_owned))
}

#[test]
fn f9_a_token_in_the_content_of_an_object_stops_a_stale_holder() {
    let (status, token) = put_by_a_stale_holder(true);
    assert_eq!((&*status, token.as_deref()), ("412", Some("34")));
}

/// Must fail to protect: an ETag of the content is the same as before the successor registered.
#[test]
fn f9_a_token_in_object_metadata_rejects_no_stale_holder() {
    let (status, token) = put_by_a_stale_holder(false);
    assert_eq!((&*status, token.as_deref()), ("200", Some("33")));
}

/// The page's script, with the real curl.
#[test]
fn f9_the_probe_of_the_page_refuses_stores_that_ignore_conditions() {
    let curl = Command::new("curl").arg("--version").output();
    let curl = curl.map_err(|err| err.to_string());
    if or_skip("curl", curl).is_none() {
        return;
    }
    let probe = |fault| {
        let store = S3::start(fault);
        let output = Command::new("sh")
            .args(["-c", &page::code("curl")])
            .env("URL", format!("http://{}{OBJECT}", store.0))
            .envs([
                ("REGION", "eu-west-1"),
                ("KEY", "key"),
                ("SECRET", "secret"),
            ])
            .env("no_proxy", "127.0.0.1")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let left = Connection::new(store.0).ask(&Message::request("GET", OBJECT));
        (output.status.success(), errors, left.word(1).to_owned())
    };
    let (fit, errors, left) = probe(Fault::None);
    assert!(fit, "{errors}");
    assert_eq!(left, "404", "nothing is left behind");
    for (fault, step) in [
        (Fault::IgnoresNoneMatch, "create again"),
        (Fault::IgnoresMatch, "wrong ETag"),
        (Fault::LosesAnswers, "create"),
    ] {
        let (fit, errors, _) = probe(fault);
        assert!(!fit && errors.contains(step), "{step}: {errors}");
    }
}
