//! `quorlock doctor --to`: plans a change of servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use quorlock::BuildError;
use quorlock::error::{BuildProblem, NodeFailure};
use serde_json::json;

use crate::doctor::plan::{Step, steps};
use crate::exit::{Exit, Failed};
use crate::nodes::Given;
use crate::options::NodeArgs;
use crate::{nodes, show};

const GO_ON: &str = "Deploy to all programs. Then run `quorlock doctor --forget`. Go on when `quorlock doctor --sets` shows only \
    this set: another set that is back is still in use.";

/// A URL of one of the lists.
struct Listed {
    address: String,
    /// The same number for the same server, whatever its address.
    server: usize,
    /// Why it has no vote and will have none without a change.
    failure: Option<NodeFailure>,
}

pub(crate) fn run(args: &NodeArgs, file: &Path, json: bool) -> Result<ExitCode, Failed> {
    let (used, wanted) = (nodes::in_use(args)?, nodes::listed(file)?);
    let of_file = |exit, reason: &str| Failed::new(exit, format!("{}: {reason}", file.display()));
    nodes::at(args, wanted.clone())?.build()?;
    let all = look(args, &[&used[..], &wanted].concat())?;
    let (used, wanted) = all.split_at(used.len());
    distinct(used)
        .map_err(|reason| Failed::new(Exit::CONFIG, format!("servers in use: {reason}")))?;
    distinct(wanted).map_err(|reason| of_file(Exit::CONFIG, &reason))?;
    let unfit = wanted
        .iter()
        .filter_map(|it| Some(format!("{}: {}", it.address, it.failure.as_ref()?)));
    let unfit = unfit.collect::<Vec<_>>().join("; ");
    if !unfit.is_empty() {
        return Err(of_file(
            Exit::UNFIT,
            &format!("{unfit}; start it, correct it or remove it from the file"),
        ));
    }
    // A server in both lists has the address of the file.
    let address = |it: &Listed| {
        all.iter()
            .rev()
            .find(|its| its.server == it.server)
            .map(|it| it.address.as_str())
    };
    let (mut from, to): (Vec<_>, Vec<_>) = (
        used.iter().collect(),
        wanted.iter().filter_map(address).collect(),
    );
    // The last one is removed first, so servers without a vote come last.
    from.sort_by_key(|it| it.failure.is_some());
    let plan = steps(
        &from.into_iter().filter_map(address).collect::<Vec<_>>(),
        &to,
    );
    show::say(&if json { object(&plan) } else { text(&plan) })?;
    Ok(ExitCode::SUCCESS)
}

/// Checks all servers together, which finds a server with two addresses.
fn look(args: &NodeArgs, nodes: &[Given]) -> Result<Vec<Listed>, Failed> {
    let double = |it: &BuildProblem| match it {
        BuildProblem::DuplicateNode { first, second, .. } => Some((*second, *first)),
        _ => None,
    };
    let problems = nodes::at(args, nodes.to_vec())?.builder.build().err();
    let doubles: BTreeMap<_, _> = problems
        .iter()
        .flat_map(BuildError::problems)
        .filter_map(double)
        .collect();
    let kept: Vec<_> = nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| !doubles.contains_key(index))
        .collect();
    let rows = nodes::at(args, kept.iter().map(|(_, it)| (*it).clone()).collect())?
        .build()?
        .check_nodes();
    let listed = |index| {
        let first = doubles.get(&index).copied().unwrap_or(index);
        let row = rows.get(kept.iter().position(|it| it.0 == first)?)?;
        let server = match row.failure {
            Some(NodeFailure::SameServer { other }) => rows.get(other.index())?,
            _ => row,
        };
        let failure = server
            .failure
            .clone()
            .filter(|it| !matches!(it, NodeFailure::Quarantined { .. }));
        Some(Listed {
            address: row.address.to_string(),
            server: server.node.index(),
            failure,
        })
    };
    Ok((0..nodes.len()).filter_map(listed).collect())
}

/// Refuses a list with the same server twice.
fn distinct(list: &[Listed]) -> Result<(), String> {
    let mut rests = list
        .iter()
        .zip(1..)
        .filter_map(|(it, next)| Some((it, list.get(next..)?)));
    match rests.find_map(|(it, rest)| {
        Some((
            &it.address,
            &rest.iter().find(|its| its.server == it.server)?.address,
        ))
    }) {
        Some((one, other)) => Err(format!(
            "{one} and {other} are the same server: give each server once"
        )),
        None => Ok(()),
    }
}

fn object(plan: &[Step<&str>]) -> String {
    let step = |it: &Step<&str>| json!({ "nodes": it.nodes, "adds": it.adds.as_slice(), "removes": it.removes.as_slice() });
    json!({ "quorlock": 1, "steps": plan.iter().map(step).collect::<Vec<_>>() }).to_string()
}

fn text(plan: &[Step<&str>]) -> String {
    let change =
        |word: &str, it: Option<&str>| it.map(|it| format!("; {word} {it}")).unwrap_or_default();
    let step = |(it, number): (&Step<&str>, usize)| {
        let changes = change("adds", it.adds) + &change("removes", it.removes);
        format!("{number}. {}{changes}\n   {GO_ON}", it.nodes.join(", "))
    };
    let mut lines: Vec<_> = plan.iter().zip(1..).map(step).collect();
    let removed: Vec<_> = plan.iter().filter_map(|it| it.removes).collect();
    if plan.is_empty() {
        lines.push("These servers are in use already: nothing to change.".to_owned());
    } else if !removed.is_empty() {
        lines.push(format!(
            "Now stop {}. Before it is added again, empty it: FLUSHALL.",
            removed.join(", ")
        ));
    }
    lines.join("\n")
}
