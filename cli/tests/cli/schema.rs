//! What is said in JSON is what the guide's page on the command says.

use std::collections::BTreeMap;
use std::process::Command;

use devnodes::{Servers, eventually};
use serde_json::Value;

use crate::stalls::on_a_machine_that_runs;
use crate::support::*;

/// The examples of the page, by what stands behind the word `json`.
fn examples() -> BTreeMap<String, Vec<Value>> {
    let page = include_str!("../../../src/guide/command.md");
    let mut examples = BTreeMap::new();
    for block in page.split("```json ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let (text, _) = rest.split_once("```").unwrap();
        let objects: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text)
            .into_iter()
            .collect();
        examples.insert(
            name.to_owned(),
            objects.unwrap_or_else(|err| panic!("{name}: {err}")),
        );
    }
    examples
}

/// Whether a value has the form of an example: the same fields, with values of the same kinds. What is null may be anything.
/// In place of an object, a text is the name of another example.
fn has_form(value: &Value, example: &Value) -> Result<(), String> {
    match (value, example) {
        (Value::Null, _) | (_, Value::Null) => Ok(()),
        (Value::Object(value), Value::Object(example)) => {
            let names =
                |it: &serde_json::Map<String, Value>| it.keys().cloned().collect::<Vec<_>>();
            if names(value) != names(example) {
                return Err(format!("{:?} and not {:?}", names(value), names(example)));
            }
            if value.get("what").is_some_and(|it| *it == example["what"]) {
                let differs = |said: &&str| value[*said] != example[*said];
                if let Some(said) = ["level", "why", "do"].into_iter().find(differs) {
                    return Err(format!("{said}: {} and not {}", value[said], example[said]));
                }
            }
            value.iter().try_for_each(|(name, it)| {
                has_form(it, &example[name]).map_err(|err| format!("{name}: {err}"))
            })
        }
        (Value::Array(values), Value::Array(examples)) => values.iter().try_for_each(|it| {
            let fits =
                examples.is_empty() || examples.iter().any(|example| has_form(it, example).is_ok());
            if fits {
                Ok(())
            } else {
                Err(format!("{it} is like none of the examples"))
            }
        }),
        (Value::Object(_), Value::String(name)) => {
            let examples = examples()
                .remove(name)
                .ok_or_else(|| format!("no example is called {name}"))?;
            let fits = examples
                .iter()
                .any(|example| has_form(value, example).is_ok());
            if fits {
                Ok(())
            } else {
                Err(format!("{value} is no {name}"))
            }
        }
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => Ok(()),
        _ => Err(format!("{value} in place of {example}")),
    }
}

#[track_caller]
pub(crate) fn assert_form(value: &Value, name: &str) {
    let all = examples();
    let reasons: Vec<_> = all[name].iter().map(|it| has_form(value, it)).collect();
    assert!(
        reasons.iter().any(Result::is_ok),
        "{name}: {value}: {reasons:?}"
    );
}

#[test]
fn the_form_check_of_this_test_detects_differences() {
    let example = serde_json::json!({ "a": 1, "b": [{ "c": "x" }] });
    let wrong = [
        serde_json::json!({ "a": 1 }),
        serde_json::json!({ "a": "1", "b": [] }),
        serde_json::json!({ "a": 1, "b": [{ "c": 1 }] }),
        serde_json::json!({ "a": 1, "b": [{ "d": "x" }] }),
        serde_json::json!({ "a": 1, "b": [{ "c": {} }] }),
    ];
    assert!(wrong.iter().all(|it| has_form(it, &example).is_err()));
    assert!(
        has_form(
            &serde_json::json!({ "a": null, "b": [{ "c": "y" }, { "c": "z" }] }),
            &example
        )
        .is_ok()
    );
    let (named, error) = (
        serde_json::json!({ "seen": "error" }),
        &examples()["error"][0],
    );
    assert!(has_form(&serde_json::json!({ "seen": error }), &named).is_ok());
    assert!(has_form(&serde_json::json!({ "seen": { "error": 1 } }), &named).is_err());
}

#[test]
fn every_printed_object_has_its_documented_form() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let locks = patient(&servers.urls()).build()?;
        let _held = (
            locks.mutex("report").lock()?,
            locks.semaphore("mail", 2).acquire()?,
            locks.rw_lock("book").read()?,
        );
        eventually("it is on all nodes", || servers.holders("report") == 3);
        servers[2].kill()?;
        let said = |command: &mut Command| -> Value {
            let output = command.output().unwrap();
            serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|_| panic!("{command:?}: {}", stderr(&output)))
        };
        for (name, args) in [
            ("status", &["status", "--json", "report"][..]),
            ("status", &["status", "--json", "book"]),
            ("status", &["status", "--json", "free"]),
            ("permits", &["status", "--json", "--permits", "2", "mail"]),
            ("once", &["status", "--json", "--once", "report"]),
            ("ls", &["ls", "--json", "report"]),
            ("doctor", &["doctor", "--json", "--looks", "1"]),
        ] {
            assert_form(&said(quorlock(&servers).args(args)), name);
        }
        let error = bare().args(["hold", "--json", "report"]).output()?;
        assert_form(&serde_json::from_slice(&error.stderr)?, "error");

        let args = ["hold", "--json", "--ttl", "6", "--response-timeout", "1"];
        for more in [&["one"][..], &["-s", "two"], &["--permits", "2", "three"]] {
            let mut hold = Running::start(quorlock(&servers).args(args).args(more));
            let held: Value = serde_json::from_str(&hold.line().unwrap())?;
            assert_form(&held, "hold");
            hold.close_stdin();
            assert_form(&serde_json::from_str(&hold.line().unwrap())?, "hold");
            assert_eq!(hold.status(), Some(0));
        }
        Ok(())
    })
}
