//! `quorlock ls`, completions and manual pages.

use devnodes::{Servers, eventually};
use serde_json::Value;

use crate::support::*;

fn ls(servers: &Servers, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = quorlock(servers)
        .args(["ls", "--json"])
        .args(args)
        .output()
        .unwrap();
    let mut json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["complete"], output.stderr.is_empty());
    let locks = json["locks"].as_array_mut().map(std::mem::take);
    (output.status.code(), locks.unwrap())
}

#[test]
fn ls_lists_held_locks_and_marks_problems() -> TestResult {
    let servers = Servers::start(3)?;
    let none = quorlock(&servers).args(["ls"]).output()?;
    assert_eq!(
        (none.status.code(), stdout(&none).as_str()),
        (
            Some(0),
            "no lock found on 3 of 3 servers; locks of other clients: quorlock status NAME\n"
        )
    );
    let locks = patient(&servers.urls()).owner_label("night").build()?;
    eventually("all can be asked", || {
        locks.check_nodes().iter().all(|it| it.failure.is_none())
    });
    for name in ["free", "leaked", "minority"] {
        let guard = locks.mutex(name).lock()?;
        // Keys are found on a node that has counted the lock.
        eventually("it is on all nodes", || servers.holders(name) == 3);
        drop(guard);
        servers.wait_until_free(name)?;
    }
    let _held = (
        locks.mutex("order:7").lock()?,
        locks.semaphore("mail", 2).acquire()?,
    );
    for server in &servers {
        server.command(&["SET", "leaked", "x"])?;
    }
    servers[1].command(&["SET", "minority", "x", "PX", "600000"])?;

    let mut found = Vec::new();
    eventually("all is on all nodes", || {
        found = ls(&servers, &[]).1;
        let on_all = |it: &Value| {
            let mut nodes = it["nodes"].as_array().unwrap().iter();
            nodes.all(|it| it["lock"] == "held")
        };
        found
            .iter()
            .all(|it| it["name"] == "minority" || on_all(it))
    });
    let names: Vec<_> = found
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["leaked", "mail", "minority", "order:7"]);
    let marks: Vec<_> = found
        .iter()
        .map(|it| (it["without_expiry"] == true, it["minority"] == true))
        .collect();
    assert_eq!(
        marks,
        [(true, false), (false, false), (false, true), (false, false)]
    );
    assert!(found.iter().all(|it| it["quorlock"] == 1), "{found:?}");
    assert_eq!(ls(&servers, &["order:*"]).1.len(), 1);

    let text = stdout(&quorlock(&servers).args(["ls"]).output()?);
    let line = |name: &str| {
        text.lines()
            .find(|it| it.trim_start().starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(
        line("leaked").contains("WITHOUT EXPIRY") && line("minority").contains("ON A MINORITY"),
        "{text}"
    );
    assert!(
        line("mail (slot ").contains("/night") && line("order:7").contains("3 of 3"),
        "{text}"
    );
    assert!(
        !text.lines().any(|it| it.trim_start().starts_with("free")),
        "{text}"
    );
    Ok(())
}

#[test]
fn ls_reports_a_failed_minority_and_fails_without_a_majority() -> TestResult {
    let servers = Servers::start(3)?;
    servers[0].kill()?;
    let one = quorlock(&servers).args(["ls"]).output()?;
    assert_eq!(one.status.code(), Some(0));
    assert!(
        stderr(&one).contains("not scanned: n0 ("),
        "{}",
        stderr(&one)
    );
    servers[1].kill()?;
    assert_eq!(ls(&servers, &[]), (Some(69), Vec::new()));
    let output = quorlock(&servers).arg("ls").output()?;
    let (text, warnings) = (stdout(&output), stderr(&output));
    assert!(
        text.starts_with("no lock found on 1 of 3 servers; "),
        "{text}"
    );
    assert_eq!(warnings.matches("not scanned: ").count(), 2, "{warnings}");
    Ok(())
}

#[test]
fn a_million_keys_of_others_are_looked_through() -> TestResult {
    let servers = Servers::start(1)?;
    let is_long = std::env::var_os("QUORLOCK_LONG").is_some();
    let keys = if is_long { "1000000" } else { "20000" };
    let script = "for i = 1, ARGV[1] do redis.call('SET', 'foreign:' .. i, 'x') end";
    let mut client = servers[0].client()?;
    client.set_timeout(std::time::Duration::from_secs(120))?;
    client.command(&["EVAL", script, "0", keys])?;
    let locks = patient(&servers.urls()).build()?;
    let _guard = locks.mutex("report").lock()?;
    let (status, found) = ls(&servers, &[]);
    assert_eq!((status, found.len()), (Some(0), 1));
    assert_eq!(found[0]["name"], "report");
    Ok(())
}

#[test]
fn shells_complete_and_manual_pages_name_every_command() -> TestResult {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = stdout(&bare().args(["completions", shell]).output()?);
        assert!(
            text.contains("doctor") && text.contains("until-signal"),
            "{shell}"
        );
    }
    assert_eq!(
        bare()
            .args(["completions", "no-such-shell"])
            .output()?
            .status
            .code(),
        Some(64)
    );
    let folder = tempfile::tempdir()?;
    assert!(
        bare()
            .arg("man")
            .arg(folder.path())
            .output()?
            .status
            .success()
    );
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name));
    assert!(
        page("quorlock-run.1")?.contains("kill\\-after")
            && page("quorlock.1")?.contains("quorlock\\-run(1)")
    );
    assert_eq!(
        bare().args(["man", "/nowhere"]).output()?.status.code(),
        Some(70)
    );
    Ok(())
}
