//! The rules of the house, checked on the source.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/pages.rs"]
mod pages;

/// The crates of users: the folder of each, the name of its root, and its layers.
const CRATES: &[(&str, &str, Layers)] = &[
    ("src", "lib", LAYERS),
    ("cli/src", "main", LAYERS_OF_CLI),
    ("testing/src", "lib", LAYERS_OF_TESTING),
];

/// All folders with source of ours.
const FOLDERS: &[&str] = &["src", "cli", "testing", "tests", "examples", "benches"];

/// The layers of a crate, from the ground up: a module may use what is in a lower layer, and nothing that is above or beside it.
///
/// A module is a file or a folder, with all that is in it and has no module of its own: the longest path that fits counts. To add
/// one, give its path a place here, above all that it uses and below all that use it.
type Layers = &'static [&'static [&'static str]];

const LAYERS: Layers = &[
    &["sys"],
    &["ids"],
    &["time"],
    &["error", "fence", "stats"],
    &["inspection", "observer"],
    &["answer", "config", "tls"],
    &["logic", "wire"],
    &["call", "hold", "session"],
    &["engine/park", "engine/process"],
    &["engine/admission", "engine/listeners", "engine/spec"],
    &["engine/nodes"],
    &["engine/round", "engine/schedule"],
    &["engine/call"],
    &["engine/queue"],
    &["engine/shared"],
    &[
        "engine/held",
        "engine/renewal",
        "engine/health",
        "engine/inspect",
    ],
    &["engine"],
    &["lock"],
    &["manager"],
    &["kinds"],
    &["once"],
    &["builder"],
    &["guide"],
];

const LAYERS_OF_CLI: Layers = &[
    &["screen"],
    &["clock", "exit", "options", "signals", "stderr"],
    &["ask", "lease", "show", "taking"],
    &["holding", "nested", "nodes", "pages", "report"],
    &[
        "bench", "doctor", "ls", "release", "status", "vouch", "waiting",
    ],
    &["args", "hold", "run"],
];

const LAYERS_OF_TESTING: Layers = &[
    &["refusal", "store"],
    &["resp"],
    &["server"],
    &["node"],
    &["nodes"],
];

/// The obligations of a lock: the letter of each chapter, and how many it has.
const OBLIGATIONS: &[(char, usize)] = &[
    ('A', 15),
    ('B', 11),
    ('C', 6),
    ('D', 13),
    ('E', 8),
    ('F', 9),
    ('G', 6),
    ('H', 28),
    ('I', 8),
    ('J', 4),
    ('K', 7),
    ('M', 6),
];
/// Modules of test code, which may use whatever they test.
const TEST_MODULES: &[&str] = &["tests", "checked"];

/// Longer files are split by concern.
const LINES_MAX: usize = 1_000;

/// Comments and texts of products are no wider than code.
const COLUMNS_MAX: usize = 100;

/// More than folders are nested.
const DEPTH_MAX: usize = 6;

#[test]
fn a_module_uses_only_modules_on_lower_layers() {
    let mut wrong = Vec::new();
    for (folder, _, layers) in CRATES {
        for (file, uses) in imports(folder) {
            let Some(own) = module(layers, &file) else {
                panic!("{folder}/{file} has no layer in this table")
            };
            for (number, used) in uses {
                let other = module(layers, &used);
                if let Some(other) = other.filter(|it| it.1 != own.1 && own.0 <= it.0) {
                    let (own, other) = (own.1, other.1);
                    wrong.push(format!("{folder}/{file}.rs:{number}: {own} uses {other}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that declares modules may name their contents. Those modules name each other by their own paths, and nothing of the
/// files above them.
#[test]
fn no_file_uses_its_parent_module() {
    let mut wrong = Vec::new();
    for (folder, crate_root, _) in CRATES {
        // Pages of the guide link to what users see, which the crate's root declares.
        let mut imports = imports(folder);
        imports.remove("guide");
        for (file, uses) in imports {
            for (number, used) in uses {
                if used == *crate_root || file.starts_with(&format!("{used}/")) {
                    wrong.push(format!("{folder}/{file}.rs:{number} uses {used}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_or_folders_use_each_other_in_a_circle() {
    let mut wrong = BTreeSet::new();
    for (folder, ..) in CRATES {
        let uses = |uses: Vec<(usize, String)>| uses.into_iter().map(|(_, used)| used).collect();
        let files = imports(folder)
            .into_iter()
            .map(|(file, used)| (file, uses(used)))
            .collect();
        for depth in 1..=DEPTH_MAX {
            let folders = whole_folders(&files, depth);
            wrong.extend(in_circles(&folders).map(|file| format!("{folder}/{file}")));
        }
    }
    assert!(
        wrong.is_empty(),
        "these use themselves, by way of others: {wrong:#?}"
    );
}

/// Of each file, or folder, which others it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// All that use themselves.
fn in_circles(uses: &Uses) -> impl Iterator<Item = &String> {
    uses.keys().filter(|file| {
        // Everything that it uses, by whatever way.
        let (mut seen, mut next) = (BTreeSet::new(), vec![*file]);
        while let Some(file) = next.pop() {
            let used = uses.get(file).into_iter().flatten();
            next.extend(used.filter(|used| seen.insert(*used)));
        }
        seen.contains(file)
    })
}

/// The same for the folders of a crate that are so deep, each taken as a whole with the file of its name.
fn whole_folders(files: &Uses, depth: usize) -> Uses {
    let folder = |file: &str| file.split('/').take(depth).collect::<Vec<_>>().join("/");
    let mut folders = Uses::new();
    for (file, uses) in files {
        let own = folder(file);
        let mut others: BTreeSet<_> = uses.iter().map(|used| folder(used)).collect();
        others.remove(&own);
        folders.entry(own).or_default().extend(others);
    }
    folders
}

#[test]
fn the_page_on_architecture_has_a_row_for_each_module_and_names_files_that_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for module in LAYERS.iter().flat_map(|it| it.iter()) {
        let has_row = page.contains(&format!("| `{module}` |"));
        assert!(has_row, "there is no row for {module}");
    }
    let is_file = |name: &str| [".rs", ".lua", ".md"].iter().any(|end| name.ends_with(end));
    let is_folder = |name: &str| name.contains('/') && name.ends_with('/');
    for file in page.split('`').filter(|it| is_file(it) || is_folder(it)) {
        let folders = ["", "src", "src/wire/scripts"].map(|it| root().join(it));
        let exists = folders.iter().any(|it| it.join(file).exists());
        assert!(exists, "{file} does not exist");
    }
}

/// Of each file of a crate, without its tests: which others it uses, and in which lines. Files are named as their modules
/// are, with slashes.
fn imports(folder: &str) -> BTreeMap<String, Vec<(usize, String)>> {
    let (_, crate_root, _) = CRATES.iter().find(|it| it.0 == folder).unwrap();
    let names: BTreeSet<String> = sources(folder)
        .iter()
        .filter_map(|file| name(folder, file))
        .collect();
    let mut imports = BTreeMap::new();
    for file in sources(folder) {
        let Some(own) = name(folder, &file).filter(|_| !code_lines(&file).is_empty()) else {
            continue;
        };
        let mut uses = Vec::new();
        let mut lines = code_lines(&file).into_iter();
        while let Some((number, mut line)) = lines.next() {
            // A tree of names goes on to its last brace.
            let begin = line.trim_start().trim_start_matches("pub(crate) ");
            let is_use = begin.starts_with("use ");
            while is_use && !line.contains(';') {
                line += &lines.next().map_or(";".to_owned(), |it| it.1);
            }
            for path in paths(&line, &own) {
                // The longest beginning of the path that is a file.
                let parts: Vec<_> = path.split("::").collect();
                let file = (1..=parts.len())
                    .rev()
                    .map(|it| parts[..it].join("/"))
                    .find(|it| names.contains(it));
                let file = file.unwrap_or_else(|| (*crate_root).to_owned());
                uses.extend(Some((number, file)).filter(|(_, file)| *file != own));
            }
        }
        imports.insert(own, uses);
    }
    imports
}

/// The paths that a line names, from the crate's root.
fn paths(line: &str, own: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let above = own
        .rsplit_once('/')
        .map_or("", |it| it.0)
        .replace('/', "::");
    let line = line.replace("super::", &format!("crate::{above}::"));
    for rest in line.split("crate::").skip(1) {
        let end = rest
            .find(|it: char| !it.is_alphanumeric() && !"_:{}, ".contains(it))
            .unwrap_or(rest.len());
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

/// A file's layer and module.
fn module(layers: Layers, file: &str) -> Option<(usize, &'static str)> {
    let modules = layers
        .iter()
        .enumerate()
        .flat_map(|(layer, modules)| modules.iter().map(move |it| (layer, *it)));
    let fits = |it: &str| {
        file.strip_prefix(it)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    modules.filter(|it| fits(it.1)).max_by_key(|it| it.1.len())
}

/// What a file of a crate is called as a module, with slashes; none for the crate's root.
fn name(folder: &str, file: &Path) -> Option<String> {
    let inside = file
        .strip_prefix(root().join(folder))
        .ok()?
        .with_extension("");
    let name = inside.to_str()?.replace('\\', "/");
    (!CRATES.iter().any(|it| (it.0, it.1) == (folder, &name))).then_some(name)
}

/// Names with the module that they belong to.
const OWNED: &[(&str, &[&str])] = &[
    ("tls", &["rustls"]),
    ("wire", &["redis::"]),
    // So one switch exchanges it for the checker of schedules.
    (
        "sys",
        &[
            "parking_lot",
            "std::thread",
            "mio::",
            "Instant::now",
            "SystemTime::now",
            "clock_gettime",
            "getrandom::fill",
        ],
    ),
    // There it waits until nothing is locked.
    ("sys/logging", &["log::"]),
];

#[test]
fn no_module_names_the_property_of_another() {
    for (module, names) in OWNED {
        let mut others = sources("src");
        others.retain(|file| !is_in(file, module));
        names.iter().for_each(|name| assert_not_in(&others, name));
    }
}

#[test]
fn decisions_are_pure() {
    let mut logic = sources("src");
    logic.retain(|file| is_in(file, "logic"));
    for effect in [
        "log::",
        "std::io",
        "std::net",
        "crossbeam",
        "fastrand",
        "Moment::now",
        "Now::read",
        "tick()",
    ] {
        assert_not_in(&logic, effect);
    }
}

/// Its time and its bytes are arguments: the checker of schedules has its servers run it.
#[test]
fn the_store_of_stand_ins_is_pure() {
    let mut store = sources("testing/src/store");
    store.push(root().join("testing/src/store.rs"));
    for effect in [
        "std::thread",
        "std::net",
        "std::io",
        "Instant",
        "SystemTime",
        "quorlock",
    ] {
        assert_not_in(&store, effect);
    }
}

#[test]
fn files_are_short_and_product_lines_narrow() {
    for file in FOLDERS.iter().flat_map(|it| sources(it)) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines", file.display());
    }
    for (folder, ..) in CRATES {
        for file in files(&root().join(folder)) {
            let source = fs::read_to_string(&file).unwrap_or_default();
            let is_page = file.extension().is_some_and(|it| it == "md");
            for line in product(&file, &source).lines().filter(|_| !is_page) {
                let columns = line.chars().count();
                assert!(columns <= COLUMNS_MAX, "{}: {line}", file.display());
            }
        }
    }
}

#[test]
fn every_lint_exception_has_a_reason() {
    for file in FOLDERS.iter().flat_map(|it| sources(it)) {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in code_lines(&file) {
            let attributes = ["#[allow(", "#[expect(", "#![allow("];
            let exception = attributes.iter().any(|it| line.contains(it));
            let joined: String = text.lines().skip(number - 1).take(6).collect();
            let has_reason = joined.contains("reason =");
            assert!(
                !exception || has_reason,
                "{}:{number}: {line}",
                file.display()
            );
        }
    }
}

/// Writes the column of tests anew if `QUORLOCK_WRITE_OBLIGATIONS` is set.
#[test]
fn every_obligation_has_a_row_with_its_tests() {
    let file = root().join("tests/OBLIGATIONS.md");
    let page = fs::read_to_string(&file).unwrap();
    let tests = tests();
    let mut ids = Vec::new();
    let mut generated = String::new();
    for line in page.lines() {
        let columns: Vec<_> = line.split(" | ").collect();
        if let [id, what, how, _] = columns[..]
            && !["| id", "| ---"].contains(&id)
        {
            let id = id.trim_start_matches("| ");
            assert!(!what.is_empty(), "{id}");
            let is_known = ["enforced", "detected", "documented"].contains(&how);
            assert!(is_known, "{id}: {how}");
            let names = tests.iter().filter(|name| is_named_after(name, id));
            let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
            assert!(!names.is_empty(), "{id} has no test");
            generated += &format!("| {id} | {what} | {how} | {} |\n", names.join(", "));
            ids.push(id.to_owned());
        } else {
            generated += &format!("{line}\n");
        }
    }
    let expected = OBLIGATIONS
        .iter()
        .flat_map(|(chapter, count)| (1..=*count).map(move |number| format!("{chapter}{number}")));
    assert_eq!(ids, expected.collect::<Vec<_>>());
    if env::var_os("QUORLOCK_WRITE_OBLIGATIONS").is_some() {
        fs::write(file, generated).unwrap();
    } else {
        let what_to_do = "run this with QUORLOCK_WRITE_OBLIGATIONS=1 to write the tests' names";
        assert!(page == generated, "{what_to_do}");
    }
}

/// Whether the ids at the beginning of a test's name, as in `e1_d9_…`, include this one.
fn is_named_after(test: &str, id: &str) -> bool {
    let is_id = |part: &&str| {
        part.strip_prefix(|first: char| first.is_ascii_lowercase())
            .is_some_and(|rest| rest.parse::<u8>().is_ok())
    };
    test.split('_')
        .take_while(is_id)
        .any(|part| part == id.to_lowercase())
}

/// The names of all tests, except ignored ones. Of all functions: the tests of forks have a main of their own, and an
/// unused function is a warning.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in FOLDERS.iter().flat_map(|it| sources(it)) {
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

fn assert_not_in(files: &[PathBuf], what: &str) {
    for file in files {
        for (number, line) in code_lines(file) {
            let is_word = |it: char| it.is_alphanumeric() || it == '_';
            let at = line.find(what).filter(|at| !line[..*at].ends_with(is_word));
            let place = format!("{}:{number}", file.display());
            assert!(at.is_none(), "{place}: {what} has another place");
        }
    }
}

fn is_in(file: &Path, module: &str) -> bool {
    name("src", file).is_some_and(|it| it == module || it.starts_with(&format!("{module}/")))
}

/// The source without tests: nothing of a test's file, and not the unit tests at the end.
fn product<'a>(file: &Path, source: &'a str) -> &'a str {
    let tests = source.find("#[cfg(test)]\nmod tests {");
    let tests = tests.unwrap_or(source.len());
    let inside = file.strip_prefix(root()).unwrap_or(file).with_extension("");
    let in_tests = inside
        .components()
        .any(|it| TEST_MODULES.iter().any(|name| it.as_os_str() == *name));
    if in_tests { "" } else { &source[..tests] }
}

/// Lines that are not comments, with their numbers; without tests.
fn code_lines(file: &Path) -> Vec<(usize, String)> {
    let source = fs::read_to_string(file).unwrap();
    let lines = (1..).zip(product(file, &source).lines().map(str::to_owned));
    lines
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .collect()
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut files = files(&root().join(folder));
    files.retain(|it| it.extension().is_some_and(|it| it == "rs"));
    files
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
