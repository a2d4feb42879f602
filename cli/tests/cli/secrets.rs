//! What is never said: passwords, and what proves who holds a lock.

use std::fs;

use devnodes::{Server, eventually};

use crate::support::*;

const COMMANDS: [&[&str]; 10] = [
    &["status", "report"],
    &["status", "--json", "report"],
    &["ls"],
    &["ls", "--json"],
    &["doctor", "--looks", "1"],
    &["doctor", "--looks", "1", "--json"],
    &["doctor", "--wait=0"],
    &["vouch", "--yes"],
    &["hold", "-n", "--until-signal", "report"],
    &["release", "--force", "--yes", "report"],
];

/// Everything that a command says.
fn said(command: &mut std::process::Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (
        output.status.code(),
        format!("{}{}", stdout(&output), stderr(&output)),
    )
}

#[test]
fn no_command_prints_an_owner_token_or_a_password() -> TestResult {
    let server = Server::builder().password("hunter2").start()?;
    let url = format!("redis://:hunter2@{}", server.addr());
    let locks = patient(std::slice::from_ref(&url)).build()?;
    let _guard = locks.mutex("report").lock()?;
    eventually("it is there", || server.exists("report"));
    let secret = String::from_utf8(server.get("report").unwrap())?;
    for args in COMMANDS {
        let (status, text) = said(quorlock_at(std::slice::from_ref(&url)).args(args));
        assert!(status.is_some() && !text.is_empty(), "{args:?}");
        assert!(
            !text.contains("hunter2") && !text.contains(&secret[..8]),
            "{args:?}: {text}"
        );
    }
    Ok(())
}

#[test]
fn a_wrong_password_has_its_own_status_and_is_never_printed() -> TestResult {
    let server = Server::builder().password("right").start()?;
    let folder = tempfile::tempdir()?;
    let (password, nodes) = (folder.path().join("password"), folder.path().join("nodes"));
    fs::write(&password, "hunter2\n")?;
    fs::write(
        &nodes,
        format!("# ours\n\nredis://user:hunter2@{}\n", server.addr()),
    )?;
    for args in COMMANDS {
        let commands = [
            quorlock_at(&[format!("redis://:hunter2@{}", server.addr())]),
            {
                let mut command =
                    quorlock_at(&[server.addr().to_string()].map(|it| format!("redis://{it}")));
                command.arg("--password-file").arg(&password);
                command
            },
            {
                let mut command = quorlock_at(&[]);
                command
                    .env_remove("QUORLOCK_NODES")
                    .arg("--nodes-file")
                    .arg(&nodes);
                command
            },
            {
                let mut command = quorlock_at(&[format!("redis://{}", server.addr())]);
                command.env("QUORLOCK_PASSWORD", "hunter2");
                command
            },
        ];
        for mut command in commands {
            let (status, text) = said(command.args(args));
            assert!(
                status != Some(0) && text.contains("login refused"),
                "{args:?}: {status:?} {text}"
            );
            assert!(!text.contains("hunter2"), "{args:?}: {text}");
            if args[0] == "hold" {
                assert_eq!(status, Some(77), "{text}");
            }
        }
    }
    Ok(())
}
