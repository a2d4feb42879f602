//! The rules of the house, checked on the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floors, from the ground up: a room may use what is on a lower floor, and nothing that is above or beside it.
///
/// A room is a file or a folder of `src`, with all that is in it and has no room of its own: the longest path that fits
/// counts. To add one, give its path a place here, above all that it uses and below all that use it.
const FLOORS: &[&[&str]] = &[
    &["sys", "ids", "testing/store"],
    &["time"],
    &["error", "stats"],
    &["inspection", "observer"],
    &["answer", "config", "tls"],
    &["logic", "wire"],
    &["engine/park", "engine/process"],
    &["engine/listeners", "engine/spec"],
    &["engine/nodes"],
    &["engine/round", "engine/schedule"],
    &["engine/wait"],
    &["engine/shared"],
    &["engine/hold", "engine/health", "engine/inspect"],
    &["engine"],
    &["lock"],
    &["kinds"],
    &["manager"],
    &["builder"],
    &["guide", "testing"],
];

/// The obligations of a lock: the letter of each chapter, and how many it has.
const OBLIGATIONS: &[(char, usize)] =
    &[('A', 15), ('B', 9), ('C', 6), ('D', 13), ('E', 7), ('F', 8), ('G', 6), ('H', 16), ('I', 9), ('J', 4), ('K', 7)];
/// Modules of test code, which may use whatever they test.
const TEST_MODULES: &[&str] = &["tests", "checked"];

/// Longer files are split by concern.
const LINES_MAX: usize = 600;

#[test]
fn no_room_uses_what_is_above_or_beside_it() {
    let mut wrong = Vec::new();
    for (file, uses) in imports() {
        let Some(own) = room(&file) else { panic!("{file} has no floor in this table") };
        for (number, used) in uses {
            if let Some(other) = room(&used).filter(|it| it.1 != own.1 && own.0 <= it.0) {
                wrong.push(format!("src/{file}.rs:{number}: {} uses {}", own.1, other.1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that declares modules may name what is in them. Those that are in them name each other by their own paths, and
/// not by what the file above gives on.
#[test]
fn no_files_use_each_other_in_a_circle() {
    let imports: BTreeMap<String, BTreeSet<String>> =
        imports().into_iter().map(|(file, uses)| (file, uses.into_iter().map(|it| it.1).collect())).collect();
    let mut wrong = Vec::new();
    for file in imports.keys() {
        // Everything that it uses, by whatever way.
        let (mut seen, mut next) = (BTreeSet::new(), vec![file]);
        while let Some(it) = next.pop() {
            next.extend(imports[it].iter().filter(|it| seen.insert(*it)));
        }
        if seen.contains(file) {
            wrong.push(format!("src/{file}.rs"));
        }
    }
    assert!(wrong.is_empty(), "these files use themselves, by way of others:\n{}", wrong.join("\n"));
}

#[test]
fn the_page_on_architecture_has_a_row_for_each_room_and_names_files_that_exist() {
    let page = fs::read_to_string(root().join("src/guide/architecture.md")).unwrap();
    for room in FLOORS.iter().flat_map(|it| it.iter()) {
        assert!(page.contains(&format!("| `{room}` |")), "there is no row for {room}");
    }
    let files = page.split('`').filter(|it| it.ends_with(".rs") || it.ends_with(".lua"));
    for file in files {
        let exists = ["", "src", "src/wire/scripts"].iter().any(|it| root().join(it).join(file).exists());
        assert!(exists, "{file} does not exist");
    }
}

/// Of each file of the crate, without its tests: which others it uses, and in which lines. Files are named as their modules
/// are, with slashes.
fn imports() -> BTreeMap<String, Vec<(usize, String)>> {
    let names: BTreeSet<String> = sources("src").iter().filter_map(|it| name(it)).collect();
    let mut imports = BTreeMap::new();
    for file in sources("src") {
        let Some(own) = name(&file).filter(|_| !code_lines(&file).is_empty()) else { continue };
        let mut uses = Vec::new();
        let mut lines = code_lines(&file).into_iter();
        while let Some((number, mut line)) = lines.next() {
            // A tree of names goes on to its last brace.
            while line.trim_start().trim_start_matches("pub(crate) ").starts_with("use ") && !line.contains(';') {
                line += &lines.next().map_or(";".to_owned(), |it| it.1);
            }
            for path in paths(&line, &own) {
                // The longest beginning of the path that is a file.
                let parts: Vec<_> = path.split("::").collect();
                let file = (1..=parts.len()).rev().map(|it| parts[..it].join("/")).find(|it| names.contains(it));
                uses.extend(file.filter(|it| *it != own).map(|it| (number, it)));
            }
        }
        imports.insert(own, uses);
    }
    imports
}

/// The paths that a line names, from the crate's root.
fn paths(line: &str, own: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let above = own.rsplit_once('/').map_or("", |it| it.0).replace('/', "::");
    let line = line.replace("super::", &format!("crate::{above}::"));
    for rest in line.split("crate::").skip(1) {
        let end = rest.find(|it: char| !it.is_alphanumeric() && !"_:{}, ".contains(it)).unwrap_or(rest.len());
        expand("", &rest[..end], &mut paths);
    }
    paths
}

/// Takes a tree of names apart: `a::{b, c::d}`.
fn expand(before: &str, tree: &str, into: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((stem, rest)) = tree.split_once('{') else {
        let end = tree.find([' ', ',', '}']).unwrap_or(tree.len());
        into.push(format!("{before}{}", &tree[..end]));
        return;
    };
    if stem.contains([' ', ',']) {
        // No tree: a path, and then something else in braces.
        return expand(before, stem.split([' ', ',']).next().unwrap(), into);
    }
    let (mut depth, mut begin) = (0, 0);
    for (at, it) in rest.char_indices() {
        match it {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                if !rest[begin..at].trim().is_empty() {
                    expand(&format!("{before}{stem}"), &rest[begin..at], into);
                }
                begin = at + 1;
                if it == '}' {
                    return;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// A file's floor and room.
fn room(file: &str) -> Option<(usize, &'static str)> {
    let rooms = FLOORS.iter().enumerate().flat_map(|(floor, rooms)| rooms.iter().map(move |it| (floor, *it)));
    let fits = |it: &str| file.strip_prefix(it).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    rooms.filter(|it| fits(it.1)).max_by_key(|it| it.1.len())
}

/// What a file of the crate is called as a module, with slashes; none for the crate's root.
fn name(file: &Path) -> Option<String> {
    let inside = file.strip_prefix(root().join("src")).ok()?.with_extension("");
    let name = inside.to_str()?.replace('\\', "/");
    (name != "lib").then_some(name)
}

#[test]
fn only_tls_names_the_crate_for_it() {
    assert_only_in("rustls", |file| is_in(file, "tls"));
}

#[test]
fn only_wire_names_the_redis_crate() {
    assert_only_in("redis::", |file| is_in(file, "wire"));
}

/// So one switch exchanges it for the checker of schedules.
#[test]
fn only_sys_names_the_system() {
    let system = ["parking_lot", "std::thread", "mio::", "Instant::now", "SystemTime::now", "clock_gettime"];
    for name in system {
        assert_only_in(name, |file| is_in(file, "sys"));
    }
}

/// There it waits until nothing is locked.
#[test]
fn only_one_place_calls_the_logger() {
    assert_only_in("log::", |file| file.ends_with("src/sys/logging.rs"));
}

#[test]
fn decisions_are_pure() {
    for effect in ["log::", "std::io", "std::net", "crossbeam", "fastrand", "Moment::now", "Now::read", "tick()"] {
        assert_only_in(effect, |file| !is_in(file, "logic"));
    }
}

/// See `include` in Cargo.toml: who runs the tests that the package has, has nothing that starts servers.
#[test]
fn what_the_package_contains_needs_no_servers() {
    for file in ["src", "tests/api"].iter().flat_map(|it| sources(it)) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("devnodes"), "{} uses what is not published", file.display());
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
    for file in ["src/builder.rs", "src/kinds/methods.rs"] {
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
fn the_links_of_the_readme_lead_to_files_and_headings_that_exist() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let links: Vec<_> = page.split("](").skip(1).map(|it| it.split(')').next().unwrap()).collect();
    assert!(10 < links.len(), "{links:?}");
    for link in links.into_iter().filter(|it| !it.starts_with("https://")) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|err| panic!("{link}: {err}"));
        let anchor = |it: &str| it.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-");
        let found = heading.is_empty() || text.lines().any(|it| it.starts_with('#') && anchor(it) == heading);
        assert!(found, "{link}: there is no such heading");
    }
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

/// See `tests/again`.
#[test]
fn tests_on_servers_run_on_stand_ins_too_or_say_what_they_need() {
    let read = |file: &str| fs::read_to_string(root().join("tests/again").join(file)).unwrap();
    let (here, only) = (read("again.rs"), read("on_servers_only.txt"));
    let only: Vec<_> = only.lines().filter_map(|it| it.split_once(": ")).collect();
    for file in files(&root().join("tests/redis")) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let source = fs::read_to_string(&file).unwrap();
        let marks: Vec<_> = source.lines().filter(|it| it.contains("stand_ins")).collect();
        let is_here = here.contains(&format!("\nmod {name};\n"));
        let is_only = only.iter().any(|it| it.0 == name && !it.1.is_empty());
        assert!(is_here != is_only || name == "main", "{name} is a module of again.rs or in on_servers_only.txt");
        assert!(is_here || marks.is_empty(), "{name} stays on servers as a whole: {marks:?}");
        for mark in marks {
            let why = mark.strip_prefix("#[cfg_attr(stand_ins, ignore = \"").and_then(|it| it.strip_suffix("\")]"));
            assert!(why.is_some_and(|it| !it.is_empty()), "{name}: {mark}");
        }
    }
    for (name, _) in only {
        assert!(root().join(format!("tests/redis/{name}.rs")).exists(), "{name} is gone");
    }
}

fn is_in(file: &Path, room: &str) -> bool {
    name(file).is_some_and(|it| it == room || it.starts_with(&format!("{room}/")))
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

/// Without the command, where `src` is meant: it is a crate of its own, which uses what all others can use.
fn sources(folder: &str) -> Vec<PathBuf> {
    let is_source = |it: &PathBuf| it.extension().is_some_and(|it| it == "rs");
    let of_the_command = |it: &PathBuf| folder == "src" && it.starts_with(root().join("src/cli"));
    files(&root().join(folder)).into_iter().filter(|it| is_source(it) && !of_the_command(it)).collect()
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
