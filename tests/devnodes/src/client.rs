//! A tiny RESP2 client for the test's own questions, so that tests do not trust the crate they test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Error, PATIENCE};

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`, without the dash. [`Client::command`] turns it into an `Err`; it is still found inside arrays.
    Error(String),
    /// `:1`
    Int(i64),
    /// `$3 abc`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*2 …`
    Array(Vec<Reply>),
}

impl Reply {
    /// Turns an error reply to `args` into an error.
    pub(crate) fn or_error<A: AsRef<[u8]>>(self, args: &[A]) -> Result<Self, Error> {
        match self {
            Reply::Error(text) => Err(Error::of(
                format_args!("{} was answered", name_of(args)),
                text,
            )),
            reply => Ok(reply),
        }
    }

    /// The number, of an integer reply or of a text that is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Reply::Int(n) => Some(*n),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// The bytes of a bulk or simple reply.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bulk(bytes) => Some(bytes),
            Reply::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The text of a bulk or simple reply, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// The elements of an array.
    pub fn as_array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }
}

/// One connection. Every call blocks for its answer, for [`PATIENCE`] at most.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects, and authenticates if a password is given.
    pub fn connect(addr: SocketAddr, password: Option<&str>) -> Result<Self, Error> {
        let trying = || format!("connecting to {addr}");
        let stream =
            TcpStream::connect_timeout(&addr, PATIENCE).map_err(|e| Error::of(trying(), e))?;
        stream
            .set_nodelay(true)
            .map_err(|e| Error::of(trying(), e))?;
        let mut client = Self {
            stream: BufReader::new(stream),
        };
        client.set_timeout(PATIENCE)?;
        if let Some(password) = password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// What is returned when the server closed the connection instead of answering.
    pub(crate) fn closed() -> Error {
        Error::new("the server closed the connection")
    }

    /// Changes how long one read or write may take.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        let stream = self.stream.get_ref();
        stream
            .set_read_timeout(Some(timeout))
            .and_then(|()| stream.set_write_timeout(Some(timeout)))
            .map_err(|e| Error::of("setting a timeout", e))
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Errors
    ///
    /// The connection broke, or the server answered with an error: its text is then in the message.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Error> {
        self.request(args)?.or_error(args)
    }

    /// As [`command`](Self::command), but an error reply is an answer like any other.
    pub fn request<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Error> {
        self.send(args)?;
        self.receive()
    }

    /// Sends one command without waiting: for pipelines, or a command that is never answered.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<(), Error> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream
            .get_mut()
            .write_all(&bytes)
            .map_err(|e| Error::of(format_args!("sending {}", name_of(args)), e))
    }

    /// Waits for one answer.
    pub fn receive(&mut self) -> Result<Reply, Error> {
        let mut line = Vec::new();
        self.stream
            .read_until(b'\n', &mut line)
            .map_err(|e| Error::of("reading a reply", e))?;
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(Self::closed());
        };
        let line = String::from_utf8_lossy(line);
        let bad = || Error::new(format!("not a RESP2 reply: {line:?}"));
        let mut chars = line.chars();
        let kind = chars.next().ok_or_else(bad)?;
        let rest = chars.as_str();
        let number = || rest.parse::<i64>().map_err(|_| bad());
        Ok(match kind {
            '+' => Reply::Simple(rest.to_owned()),
            '-' => Reply::Error(rest.to_owned()),
            ':' => Reply::Int(number()?),
            '$' | '*' if number()? < 0 => Reply::Nil,
            '$' => {
                let mut bytes = vec![0; usize::try_from(number()?).map_err(|_| bad())?];
                self.stream
                    .read_exact(&mut bytes)
                    .map_err(|e| Error::of("reading a bulk reply", e))?;
                self.stream
                    .read_exact(&mut [0; 2])
                    .map_err(|e| Error::of("reading a bulk reply", e))?;
                Reply::Bulk(bytes)
            }
            '*' => Reply::Array(
                (0..number()?)
                    .map(|_| self.receive())
                    .collect::<Result<_, _>>()?,
            ),
            _ => return Err(bad()),
        })
    }
}

fn name_of<A: AsRef<[u8]>>(args: &[A]) -> String {
    args.first().map_or_else(
        || "nothing".into(),
        |a| String::from_utf8_lossy(a.as_ref()).into_owned(),
    )
}
