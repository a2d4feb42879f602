//! A service over HTTP that does what the page says.

use std::net::SocketAddr;
use std::sync::Mutex;

use quorlock::FencingToken;
use quorlock::fence::Stale;

use crate::cases::{Session, Store, cases};
use crate::net::{Connection, Message, serve};

/// The header of the page.
const HEADER: &str = "Fencing-Token";

struct Service(SocketAddr);

/// What the service stores: in one transaction, here a mutex.
#[derive(Default)]
struct State {
    largest: u64,
    number: i64,
}

impl Service {
    fn start() -> Service {
        let state = Mutex::new(State::default());
        Service(serve(move |request| {
            let mut state = state.lock().unwrap();
            if request.word(0) == "GET" {
                return Message::response(200).body(state.number);
            }
            let Some(token) = request.get("fencing-token").and_then(|it| it.parse().ok()) else {
                return Message::response(428);
            };
            if token < state.largest {
                return Message::response(409).body(state.largest);
            }
            state.largest = token;
            // Without a body: registers only.
            if let Ok(number) = request.body.parse() {
                state.number = number;
            }
            Message::response(200)
        }))
    }
}

impl Store for Service {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(Connection::new(self.0))
    }
}

impl Session for Connection {
    fn register(&mut self, token: FencingToken) -> Result<(), Stale> {
        post(self, token, String::new())
    }

    fn read(&mut self) -> i64 {
        let answer = self.ask(&Message::request("GET", "/tickets"));
        answer.body.parse().unwrap()
    }

    fn write(&mut self, token: FencingToken, number: i64) -> Result<(), Stale> {
        post(self, token, number.to_string())
    }
}

fn post(to: &mut Connection, ours: FencingToken, body: String) -> Result<(), Stale> {
    let request = Message::request("POST", "/tickets").header(HEADER, ours);
    let answer = to.ask(&request.body(body));
    match answer.word(1) {
        "200" => Ok(()),
        "409" => Err(Stale {
            ours,
            seen: answer.body.parse().ok(),
        }),
        _ => panic!("{answer:?}"),
    }
}

cases!(Some(Service::start()));

#[test]
fn f9_a_service_rejects_a_request_without_a_token() {
    let service = Service::start();
    let request = Message::request("POST", "/tickets").body(7);
    let answer = Connection::new(service.0).ask(&request);
    assert_eq!(answer.word(1), "428");
    assert_eq!(service.connect().read(), 0);
}
