//! The process that keeps the resources and the history: one [`History`] behind a socket.
//!
//! A question is a line, and so is its answer; but a report is several lines, up to one with a dot.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{process, thread};

use crate::child::{self, ChildProcess, orders, say};
use crate::history::{Effect, History};
use crate::support::boot;
use crate::verdict::{Report, verdict};

/// How a judge is to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Accepts stale tokens, as storage does that knows none.
    pub(crate) trusting: bool,
    /// Memory that nodes lose excuses nothing.
    pub(crate) quarantine: bool,
}

impl Manner {
    pub(crate) const TRUSTING: Manner = Manner {
        trusting: true,
        quarantine: false,
    };

    pub(crate) const WITH_QUARANTINE: Manner = Manner {
        trusting: false,
        quarantine: true,
    };
}

/// A judge, and a line to it. Killed when dropped.
pub(crate) struct Judge {
    /// Where clients find it.
    pub(crate) address: String,
    line: Mutex<Line>,
    _process: ChildProcess,
}

impl Judge {
    #[track_caller]
    pub(crate) fn start(manner: Manner) -> Judge {
        let mut process = child::start("judge::child_that_judges", []);
        process.tell(&format!("{} {}", manner.trusting, manner.quarantine));
        let address = process.hear();
        let line = Mutex::new(Line::connect(&address));
        Judge {
            address,
            line,
            _process: process,
        }
    }

    pub(crate) fn ask(&self, question: &str) -> String {
        self.line.lock().unwrap().ask(question)
    }

    /// Tells of something that was done to `node` between these times; since then its clock has shown `epoch` at time 0.
    pub(crate) fn hear_of_fault(
        &self,
        kind: &str,
        effect: Effect,
        node: &str,
        (from, to): (u64, u64),
        epoch: u64,
    ) {
        self.ask(&format!(
            "fault {kind} {} {node} {from} {to} {epoch}",
            effect.name()
        ));
    }

    pub(crate) fn report(&self) -> Report {
        let mut line = self.line.lock().unwrap();
        let mut said = vec![line.ask("report")];
        while said.last().is_some_and(|it| it != ".") {
            said.push(line.read());
        }
        Report::read(said.iter().map(String::as_str))
    }
}

/// A connection to a judge.
pub(crate) struct Line {
    stream: BufReader<TcpStream>,
}

impl Line {
    pub(crate) fn connect(address: &str) -> Line {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Line {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn ask(&mut self, question: &str) -> String {
        self.stream
            .get_mut()
            .write_all(format!("{question}\n").as_bytes())
            .unwrap();
        self.read()
    }

    fn read(&mut self) -> String {
        let mut answer = String::new();
        self.stream.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "the judge is gone");
        answer.trim_end().to_owned()
    }
}

#[test]
#[ignore = "a process of a campaign"]
fn child_that_judges() {
    let Some(mut orders) = orders() else { return };
    let Some(manner) = orders.next() else { return };
    let (trusting, quarantine) = manner.split_once(' ').unwrap();
    let (trusting, quarantine) = (trusting.parse().unwrap(), quarantine.parse().unwrap());
    let history = Arc::new(Mutex::new(History {
        trusting,
        quarantine,
        ..History::default()
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    say(listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let history = Arc::clone(&history);
            thread::spawn(move || hear(stream, &history));
        }
    });
    // Until the parent is gone.
    orders.for_each(drop);
    process::exit(0);
}

fn hear(stream: TcpStream, history: &Mutex<History>) {
    stream.set_nodelay(true).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let (mut stream, mut line) = (BufReader::new(stream), String::new());
    // A client that was killed may have left half a line.
    while stream.read_line(&mut line).is_ok() && line.ends_with('\n') {
        let question = std::mem::take(&mut line);
        let question = question.trim_end();
        let mut history = history.lock().unwrap();
        let answer = match question {
            "report" => format!("{}.", verdict(&history)),
            _ => history.answer(question, boot()),
        };
        drop(history);
        // A client may have been killed.
        if answers.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}
