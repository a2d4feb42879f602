//! `quorlock doctor --sets` and `--forget`: which sets of servers programs use.

use std::process::ExitCode;

use quorlock::error::{NodeCheck, NodeFailure, ServerSet};
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{ask, nodes, seen, show};

const RISK: &str = "\
A running program of one of these sets can hold a lock together with one of yours. Remove a set only when all its programs have
ended, or use your servers now. After this, a server that was in no set with your others has no vote for the longest ttl.";

/// A set, and the servers that have noted it.
struct Seen {
    set: ServerSet,
    on: Vec<String>,
}

pub(crate) fn show(args: &NodeArgs, json: bool) -> Result<ExitCode, Failed> {
    let rows = nodes::without_locks(args)?.build()?.check_nodes();
    say(&rows, json)?;
    let is_alone = of_all(&rows)
        .iter()
        .all(|it| it.set.is_ours || !it.set.is_in_use);
    Ok(if rows.iter().all(is_asked) {
        ExitCode::from(u8::from(!is_alone))
    } else {
        Exit::NO_QUORUM.code()
    })
}

pub(crate) fn forget(args: &NodeArgs, yes: bool, json: bool) -> Result<ExitCode, Failed> {
    ask::check(yes)?;
    let locks = nodes::without_locks(args)?.build()?;
    let others: Vec<_> = of_all(&locks.check_nodes())
        .into_iter()
        .filter(|it| !it.set.is_ours)
        .collect();
    if !others.is_empty() {
        ask::confirm(
            &format!("{}\n\n{RISK}", table(&others)),
            "Remove these sets?",
            yes,
        )?;
    }
    let rows = locks.admin().forget_sets()?;
    say(&rows, json)?;
    let is_done = |it: &NodeCheck| is_asked(it) && it.sets.iter().all(|it| it.is_ours);
    Ok(if rows.iter().all(is_done) {
        ExitCode::SUCCESS
    } else {
        Exit::NO_QUORUM.code()
    })
}

/// Whether the server has shown its sets.
fn is_asked(row: &NodeCheck) -> bool {
    row.failure
        .as_ref()
        .is_none_or(|it| matches!(it, NodeFailure::Quarantined { .. }))
}

/// Each set once.
fn of_all(rows: &[NodeCheck]) -> Vec<Seen> {
    let mut all: Vec<Seen> = Vec::new();
    for (row, set) in rows
        .iter()
        .flat_map(|row| row.sets.iter().map(move |it| (row, it)))
    {
        let is_same = |it: &&mut Seen| {
            it.set.size == set.size && it.set.nodes == set.nodes && it.set.is_ours == set.is_ours
        };
        match all.iter_mut().find(is_same) {
            Some(seen) => {
                if set.used < seen.set.used {
                    seen.set = set.clone();
                }
                seen.on.push(row.node.to_string());
            }
            None => all.push(Seen {
                set: set.clone(),
                on: vec![row.node.to_string()],
            }),
        }
    }
    all
}

fn say(rows: &[NodeCheck], json: bool) -> Result<(), Failed> {
    let sets = of_all(rows);
    if json {
        let nodes: Vec<_> = rows.iter().map(seen::check).collect();
        let sets: Vec<_> = sets.iter().map(object).collect();
        return show::say(&json!({ "quorlock": 1, "nodes": nodes, "sets": sets }).to_string());
    }
    let sets = if sets.is_empty() {
        "No program has noted a set of servers here.".to_owned()
    } else {
        table(&sets)
    };
    show::say(&format!("{}\n\n{sets}", seen::votes(rows)))
}

fn table(sets: &[Seen]) -> String {
    let row = |Seen { set, on }: &Seen| {
        let hours = set.used.as_secs() / 3_600;
        let beside = match (set.is_ours, set.is_in_use, set.is_safe) {
            (true, ..) => "this set",
            (_, false, _) => "not in use",
            (_, _, true) => "safe",
            _ => "NOT SAFE",
        };
        let noted = if hours == 0 {
            "this hour".to_owned()
        } else {
            format!("{hours} h ago")
        };
        let by = if set.label.is_empty() {
            "?"
        } else {
            &set.label
        };
        vec![
            name(set),
            on.join(", "),
            noted,
            by.to_owned(),
            beside.to_owned(),
        ]
    };
    show::table(
        &["SET", "NOTED ON", "LAST NOTED", "BY", "BESIDE THIS SET"],
        sets.iter().map(row),
    )
}

/// The known servers of a set, and the number of the others.
fn name(set: &ServerSet) -> String {
    let nodes: Vec<_> = set.nodes.iter().map(ToString::to_string).collect();
    let others = set.size.saturating_sub(nodes.len());
    match others {
        0 => nodes.join(", "),
        _ => format!("{} and {others} more", nodes.join(", ")),
    }
}

fn object(Seen { set, on }: &Seen) -> Value {
    json!({
        "size": set.size, "nodes": set.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(), "noted_on": on,
        "last_noted": set.used.as_secs(), "by": &*set.label, "ours": set.is_ours, "in_use": set.is_in_use, "safe": set.is_safe,
    })
}
