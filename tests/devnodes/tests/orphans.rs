//! No server outlives the process that started it.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use devnodes::{ChildProcess, Server, eventually, is_child, say};

const CHILD: &str = "child_with_servers";

#[test]
#[ignore = "what the others start as a process of its own, and kill"]
fn child_with_servers() {
    if !is_child() {
        return;
    }
    let [running, paused, replaced] = [(); 3].map(|()| start());
    paused.pause().unwrap();
    replaced.restart().unwrap();
    for server in [running, paused, replaced] {
        say(format_args!(
            "{} {}",
            server.addr(),
            folder(&server).display()
        ));
        std::mem::forget(server); // its Drop must not be what ends it
    }
    loop {
        thread::park();
    }
}

fn start() -> Server {
    Server::builder().unix_socket().start().unwrap()
}

fn folder(server: &Server) -> PathBuf {
    let url = server.unix_url();
    let socket = Path::new(url.strip_prefix("redis+unix://").unwrap());
    socket.parent().unwrap().to_owned()
}

#[test]
fn servers_end_when_their_process_is_killed() {
    let child = ChildProcess::start(CHILD, []);
    let servers: Vec<(SocketAddr, PathBuf)> = (0..3)
        .map(|_| child.hear())
        .map(|said| {
            let (addr, folder) = said.split_once(' ').unwrap();
            (addr.parse().unwrap(), folder.into())
        })
        .collect();
    for (addr, folder) in &servers {
        TcpStream::connect(addr).unwrap();
        assert!(folder.exists());
    }

    drop(child); // kills it
    for (addr, folder) in &servers {
        // A paused server's port would still accept: nobody listens only if the process is gone.
        eventually("the server is gone", || TcpStream::connect(addr).is_err());
        eventually("its folder is gone", || !folder.exists());
    }
}

#[test]
fn servers_of_other_processes_do_not_keep_each_other() {
    // Started in between, a second process holds copies of nothing that the first one's watchdogs wait on.
    let server = start();
    let folder = folder(&server);
    let _child = ChildProcess::start(CHILD, []);
    drop(server); // waits for its watchdog: would hang here
    assert!(!folder.exists());
}
