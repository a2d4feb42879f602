//! What keeps the resources and the history: one [`History`] behind a socket, for processes of
//! clients.
//!
//! A question is a line, and so is its answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::history::History;
use crate::support::boot;
use crate::verdict::{Report, verdict};

/// Answers clients until this process ends.
pub(crate) struct Judge {
    /// Where clients find it.
    pub(crate) address: String,
    history: Arc<Mutex<History>>,
}

impl Judge {
    /// `trusting`: it accepts stale tokens, as storage does that knows none.
    pub(crate) fn start(trusting: bool) -> Judge {
        let history = Arc::new(Mutex::new(History {
            trusting,
            ..History::default()
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heard = Arc::clone(&history);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let history = Arc::clone(&heard);
                thread::spawn(move || hear(stream, &history));
            }
        });
        Judge { address, history }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    pub(crate) fn report(&self) -> Report {
        verdict(&self.history())
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

fn hear(stream: TcpStream, history: &Mutex<History>) {
    stream.set_nodelay(true).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let (mut stream, mut line) = (BufReader::new(stream), String::new());
    // A client that was killed may have left half a line.
    while stream.read_line(&mut line).is_ok() && line.ends_with('\n') {
        let question = std::mem::take(&mut line);
        let question = question.trim_end();
        let mut history = history.lock().unwrap();
        let answer = history.answer(question, boot());
        drop(history);
        // A client may have been killed.
        if answers.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}
