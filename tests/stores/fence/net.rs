//! As much of HTTP as the stores over it need: bodies with a length, and connections that stay open.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use devnodes::PATIENCE;

/// A request or a response.
#[derive(Debug, Default)]
pub(crate) struct Message {
    /// `GET /path HTTP/1.1`, or `HTTP/1.1 200 OK`.
    pub(crate) first: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Message {
    pub(crate) fn request(method: &str, path: &str) -> Message {
        Message {
            first: format!("{method} {path} HTTP/1.1"),
            ..Message::default()
        }
        .header("Host", "localhost")
    }

    pub(crate) fn response(status: u16) -> Message {
        Message {
            first: format!("HTTP/1.1 {status} Status"),
            ..Message::default()
        }
    }

    pub(crate) fn header(mut self, name: &str, value: impl ToString) -> Message {
        self.headers.push((name.to_lowercase(), value.to_string()));
        self
    }

    pub(crate) fn body(mut self, body: impl ToString) -> Message {
        self.body = body.to_string();
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|it| it.0 == name);
        found.map(|it| &*it.1)
    }

    /// The word of the first line at this place: of a request method and path, of a response the status.
    pub(crate) fn word(&self, at: usize) -> &str {
        self.first.split(' ').nth(at).unwrap_or_default()
    }

    fn read(from: &mut BufReader<TcpStream>, head: bool) -> io::Result<Option<Message>> {
        let mut message = Message::default();
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end().split_once(':') {
                _ if message.first.is_empty() => message.first = line.trim_end().to_owned(),
                Some((name, value)) => message = message.header(name, value.trim()),
                None => break,
            }
        }
        let length = message.get("content-length").and_then(|it| it.parse().ok());
        let mut body = vec![0; if head { 0 } else { length.unwrap_or(0) }];
        from.read_exact(&mut body)?;
        message.body = String::from_utf8_lossy(&body).into_owned();
        Ok(Some(message))
    }

    fn write(&self, to: &mut TcpStream, head: bool) -> io::Result<()> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n", self.body.len());
        text += if head { "" } else { &self.body };
        to.write_all(text.as_bytes())
    }
}

/// Answers requests on a port of its own, until this process ends.
pub(crate) fn serve(answer: impl Fn(Message) -> Message + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            thread::spawn(move || -> io::Result<()> {
                stream.set_nodelay(true)?;
                let mut output = stream.try_clone()?;
                let mut input = BufReader::new(stream);
                while let Some(request) = Message::read(&mut input, false)? {
                    let head = request.word(0) == "HEAD";
                    answer(request).write(&mut output, head)?;
                }
                Ok(())
            });
        }
    });
    addr
}

/// A connection to [`serve`].
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn new(addr: SocketAddr) -> Connection {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    pub(crate) fn ask(&mut self, request: &Message) -> Message {
        request.write(self.0.get_mut(), false).unwrap();
        let response = Message::read(&mut self.0, false).unwrap();
        response.expect("the server answers")
    }
}
