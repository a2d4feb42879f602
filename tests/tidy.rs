//! The rules of the house, checked on the source.

use std::fs;
use std::path::{Path, PathBuf};

/// The floors: a module may use what is on a lower floor, and nothing that is above or beside it.
const FLOORS: &[&[&str]] = &[
    &["checker"],
    &["ids", "time"],
    &["error", "stats"],
    &["check", "config"],
    &["logic", "wire"],
    &["engine"],
    &["lock"],
    &["kinds"],
    &["manager"],
    &["builder"],
    &["guide"],
];

/// The obligations of a lock: the letter of each chapter, and how many it has.
const OBLIGATIONS: &[(char, usize)] =
    &[('A', 13), ('B', 9), ('C', 6), ('D', 12), ('E', 7), ('F', 8), ('G', 6), ('H', 16)];
/// Modules of test code, which may use whatever they test.
const TEST_MODULES: &[&str] = &["worlds", "checker", "checks"];

/// Longer files are split by concern.
const LINES_MAX: usize = 600;

#[test]
fn no_module_uses_what_is_above_or_beside_it() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        let Some(own) = module(&file) else { continue };
        let floor = floor(&own).unwrap_or_else(|| panic!("{}: {own} has no floor in this table", file.display()));
        for (number, line) in code_lines(&file) {
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect();
                if used != own && self::floor(&used).is_some_and(|it| floor <= it) {
                    wrong.push(format!("{}:{number}: {own} uses {used}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_wire_names_the_redis_crate() {
    assert_only_in("redis::", |file| module(file).as_deref() == Some("wire"));
}

#[test]
fn only_the_engine_has_threads_and_locks() {
    assert_only_in("parking_lot", |file| file.ends_with("src/engine/sync.rs"));
    assert_only_in("std::thread", |file| file.ends_with("src/engine/threads.rs"));
    assert_only_in("mio::", |file| module(file).as_deref() == Some("engine") || file.ends_with("src/wire/socket.rs"));
}

/// There it waits until nothing is locked.
#[test]
fn only_one_place_calls_the_logger() {
    assert_only_in("log::", |file| file.ends_with("src/engine/logging.rs"));
}

#[test]
fn only_time_reads_a_clock() {
    for clock in ["Instant::now", "SystemTime::now", "clock_gettime"] {
        assert_only_in(clock, |file| file.ends_with("src/time.rs"));
    }
}

#[test]
fn decisions_are_pure() {
    for effect in ["log::", "std::io", "std::net", "crossbeam", "fastrand", "Moment::now", "tick()"] {
        assert_only_in(effect, |file| module(file).as_deref() != Some("logic"));
    }
}

#[test]
fn files_are_short() {
    let folders = ["src", "tests", "examples", "benches"];
    for file in folders.iter().flat_map(|it| sources(it)) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", file.display());
    }
}

#[test]
fn every_option_states_its_default() {
    for file in ["src/builder.rs", "src/kinds/mutex.rs", "src/kinds/reentrant.rs"] {
        let source = fs::read_to_string(root().join(file)).unwrap();
        for (before, after) in source.match_indices("(mut self").map(|(at, _)| source.split_at(at)) {
            let doc = before.rsplit("\n\n").next().unwrap();
            let name = before.rsplit("fn ").next().unwrap();
            let takes_more = after.starts_with("(mut self,");
            assert!(!takes_more || doc.contains("/// Default:"), "{file}: {name} does not state its default");
        }
    }
}

#[test]
fn every_exception_from_a_lint_gives_its_reason() {
    for file in sources("src") {
        for (number, line) in code_lines(&file) {
            let exception = line.contains("#[allow(") || line.contains("#[expect(") || line.contains("#![allow(");
            let joined: String = fs::read_to_string(&file).unwrap().lines().skip(number - 1).take(6).collect();
            assert!(!exception || joined.contains("reason ="), "{}:{number}: {line}", file.display());
        }
    }
}

#[test]
fn every_obligation_has_a_row_in_the_guide_and_tests_that_exist() {
    let page = fs::read_to_string(root().join("src/guide/obligations.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|it| it.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|it| it.split(" | ").collect())
        .filter(|row: &Vec<_>| row[0] != "id" && row[0] != "---")
        .collect();
    let expected: Vec<_> =
        OBLIGATIONS.iter().flat_map(|(part, n)| (1..=*n).map(move |i| format!("{part}{i}"))).collect();
    assert_eq!(rows.iter().map(|it| it[0]).collect::<Vec<_>>(), expected);
    let tests = tests();
    for row in rows {
        let [id, what, how, names] = row[..] else { panic!("not four columns: {row:?}") };
        assert!(!what.is_empty() && ["enforced", "detected", "documented"].contains(&how), "{row:?}");
        let names: Vec<_> = names.split(", ").map(|it| it.trim_matches('`')).collect();
        let prefix = format!("{}_", id.to_lowercase());
        for name in names {
            assert!(name.starts_with(&prefix), "{id}: {name}");
            assert!(tests.iter().any(|it| it == name), "{id}: there is no test {name}");
        }
    }
}

/// The names of all tests, except those that are ignored. Of all functions, in truth: the tests of forks have a main of
/// their own, and a function that is no test and is not called is a warning.
fn tests() -> Vec<String> {
    let mut names = Vec::new();
    for file in ["src", "tests", "examples"].iter().flat_map(|it| sources(it)) {
        let mut ignored = false;
        for line in fs::read_to_string(file).unwrap().lines().map(str::trim) {
            ignored |= line.starts_with("#[ignore");
            if let Some(name) = line.strip_prefix("fn ").and_then(|it| it.split('(').next()) {
                names.extend((!std::mem::take(&mut ignored)).then(|| name.to_owned()));
            }
        }
    }
    names
}

#[test]
fn nothing_names_this_machine() {
    for folder in ["src", "tests", "examples", "benches", ".ci"] {
        for file in files(&root().join(folder)) {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            // Put together here, so that this file does not find itself.
            for word in [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat()] {
                assert!(!text.contains(&word), "{}: {word}", file.display());
            }
        }
    }
}

fn assert_only_in(what: &str, allowed: impl Fn(&Path) -> bool) {
    for file in sources("src").into_iter().filter(|it| !allowed(it)) {
        for (number, line) in code_lines(&file) {
            let at = line.find(what).filter(|at| !line[..*at].ends_with(|it: char| it.is_alphanumeric() || it == '_'));
            assert!(at.is_none(), "{}:{number}: {what} has another place", file.display());
        }
    }
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|it| it.contains(&module))
}

/// The top-level module that a file belongs to; none for the crate's root.
fn module(file: &Path) -> Option<String> {
    let inside = file.strip_prefix(root().join("src")).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib").then(|| name.to_owned())
}

/// Lines that are not comments, with their numbers; without the unit tests at the end of a file.
fn code_lines(file: &Path) -> Vec<(usize, String)> {
    let source = fs::read_to_string(file).unwrap();
    let tests = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let inside = file.strip_prefix(root()).unwrap_or(file).with_extension("");
    let in_tests = inside.components().any(|it| TEST_MODULES.iter().any(|name| it.as_os_str() == *name));
    let code = if in_tests { "" } else { &source[..tests] };
    let lines = code.lines().enumerate().map(|(i, line)| (i + 1, line.to_owned()));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
}

fn sources(folder: &str) -> Vec<PathBuf> {
    files(&root().join(folder)).into_iter().filter(|it| it.extension().is_some_and(|it| it == "rs")).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "node_modules" {
            found.extend(files(&path));
        } else if path.is_file() {
            found.push(path);
        }
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
