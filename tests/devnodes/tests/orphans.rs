//! No server outlives the process that started it.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use devnodes::{Server, eventually};

const VARIABLE: &str = "DEVNODES_TEST_CHILD";

/// Not a test by itself: what the others start as a process of its own, and kill.
#[test]
fn child() {
    let Some(note) = env::var_os(VARIABLE) else {
        return;
    };
    let running = Server::builder().unix_socket().start().unwrap();
    let paused = Server::builder().unix_socket().start().unwrap();
    let replaced = Server::builder().unix_socket().start().unwrap();
    paused.pause().unwrap();
    replaced.restart().unwrap();
    let lines: Vec<String> = [running, paused, replaced]
        .map(|server| {
            let line = format!(
                "{} {}",
                server.addr(),
                server.unix_url().strip_prefix("redis+unix://").unwrap()
            );
            std::mem::forget(server); // its Drop must not be what ends it
            line
        })
        .into();
    let draft = Path::new(&note).with_extension("draft");
    fs::write(&draft, lines.join("\n")).unwrap();
    fs::rename(draft, note).unwrap(); // in one piece
    loop {
        thread::park();
    }
}

#[test]
fn servers_end_when_their_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("note");
    let mut child = start_child(&note);
    eventually("the child has its servers", || {
        note.exists() || child.try_wait().unwrap().is_some()
    });
    let servers: Vec<(SocketAddr, PathBuf)> = fs::read_to_string(&note)
        .expect("the child tells of its servers")
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(addr, socket)| {
            (
                addr.parse().unwrap(),
                Path::new(socket).parent().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(servers.len(), 3);
    for (addr, folder) in &servers {
        TcpStream::connect(addr).unwrap();
        assert!(folder.exists());
    }

    child.kill().unwrap();
    child.wait().unwrap();
    for (addr, folder) in &servers {
        // A paused server's port would still accept: nobody listens only if the process is gone.
        eventually("the server is gone", || TcpStream::connect(addr).is_err());
        eventually("its folder is gone", || !folder.exists());
    }
}

#[test]
fn servers_of_other_processes_do_not_keep_each_other() {
    // Started in between, a second process holds copies of nothing that the first one's watchdogs wait on.
    let server = Server::builder().unix_socket().start().unwrap();
    let url = server.unix_url();
    let folder = Path::new(url.strip_prefix("redis+unix://").unwrap())
        .parent()
        .unwrap()
        .to_owned();
    let notes = tempfile::tempdir().unwrap();
    let mut child = start_child(&notes.path().join("note"));
    drop(server); // waits for its watchdog: would hang here
    assert!(!folder.exists());
    child.kill().unwrap();
    child.wait().unwrap();
}

fn start_child(note: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, note)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
