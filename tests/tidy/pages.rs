//! README, the guide and the pages for maintainers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{files, root, sources};

/// Of a line of Markdown that is not in a table.
const COLUMNS_MAX: usize = 120;

/// Of a line of code in a page.
const CODE_COLUMNS_MAX: usize = 100;

#[test]
fn the_links_of_the_readme_lead_to_pages_and_headings_that_exist() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let inline = readme
        .split("](")
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap());
    let listed = readme.lines().filter_map(|line| {
        line.strip_prefix('[')?
            .split_once("]: ")
            .map(|(_, link)| link)
    });
    let links: Vec<_> = inline.chain(listed).collect();
    assert!(10 < links.len(), "{links:?}");
    let modules = fs::read_to_string(root().join("src/guide.rs")).unwrap();
    for link in links {
        let Some(page) = link.strip_prefix("https://docs.rs/quorlock/latest/quorlock/guide/")
        else {
            let folder = Path::new(link).parent().unwrap();
            let is_near = ["", "docs"].iter().any(|allowed| folder == *allowed);
            assert!(is_near, "{link}: not in the repository's root");
            assert!(root().join(link).exists(), "{link} does not exist");
            continue;
        };
        let (module, heading) = page
            .split_once("/#")
            .unwrap_or((page.trim_end_matches('/'), ""));
        let declared = format!("\npub mod {module} {{}}");
        let Some((before, _)) = modules.split_once(&declared).filter(|_| !module.is_empty()) else {
            assert!(page.is_empty(), "{link}: there is no such page");
            continue;
        };
        let file = before
            .rsplit("include_str!(\"")
            .next()
            .and_then(|rest| rest.split('"').next())
            .unwrap();
        let text = fs::read_to_string(root().join("src").join(file)).unwrap();
        let anchor = |line: &str| {
            line.trim_start_matches(['#', ' '])
                .to_lowercase()
                .replace(' ', "-")
        };
        let mut headings = text.lines().filter(|line| line.starts_with('#'));
        let found = heading.is_empty() || headings.any(|line| anchor(line) == heading);
        assert!(found, "{link}: there is no such heading");
    }
}

#[test]
fn pages_beside_the_guide_have_short_lines_and_links_to_files_that_exist() {
    let of_the_root = [
        "README.md",
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    let others = [
        "cli/README.md",
        "cli/CHANGELOG.md",
        "testing/README.md",
        "testing/CHANGELOG.md",
        "tests/OBLIGATIONS.md",
    ];
    for page in of_the_root.iter().chain(&others) {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut in_block = false;
        let long = text.lines().find(|line| {
            in_block ^= line.starts_with("```");
            !in_block && !line.starts_with('|') && COLUMNS_MAX < line.chars().count()
        });
        assert_eq!(long, None, "{page}: longer than {COLUMNS_MAX} columns");
        let folder = root().join(page).parent().unwrap().to_owned();
        for rest in text.split("](").skip(1) {
            let link = rest.split([')', '#']).next().unwrap();
            let exists = link.starts_with("https://") || folder.join(link).exists();
            assert!(exists, "{page}: {link} does not exist");
        }
    }
}

/// Between backquotes.
#[test]
fn files_that_comments_and_pages_name_exist() {
    let there: Vec<String> = sources("")
        .iter()
        .chain(&files(&root().join("src/wire/scripts")))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    let page = root().join("CONTRIBUTING.md");
    let mut wrong = Vec::new();
    for file in sources("").into_iter().chain([page]) {
        let text = fs::read_to_string(&file).unwrap();
        for name in text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2))
        {
            let is_file = [".rs", ".lua"].iter().any(|end| name.ends_with(end));
            let is_name = |it: char| it.is_ascii_alphanumeric() || "/._".contains(it);
            if !is_file || !name.chars().all(is_name) || name.starts_with('.') {
                continue;
            }
            let ends = |path: &String| path == name || path.ends_with(&format!("/{name}"));
            if !there.iter().any(ends) {
                wrong.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A window of 1,280 pixels has room for a hundred columns beside the list of contents.
#[test]
fn code_lines_of_pages_have_at_most_100_columns() {
    let guide = fs::read_dir(root().join("src/guide")).unwrap();
    let pages = guide.map(|entry| entry.unwrap().path());
    let readmes = ["README.md", "cli/README.md", "testing/README.md"].map(|it| root().join(it));
    let mut wrong = Vec::new();
    for page in pages.filter(|it| it.is_file()).chain(readmes) {
        let text = fs::read_to_string(&page).unwrap();
        // What a terminal shows is not ours to break.
        let blocks = text.split("```").skip(1).step_by(2);
        for block in blocks.filter(|block| !block.starts_with("console")) {
            for line in block
                .lines()
                .filter(|it| CODE_COLUMNS_MAX < it.chars().count())
            {
                wrong.push(format!("{}: {line}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A link in a package would be published as a file with a path in it.
#[test]
fn every_package_has_the_texts_of_the_licences_and_a_changelog() {
    for package in ["cli", "testing"] {
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = fs::read_to_string(root().join(package).join(licence)).unwrap();
            let expected = fs::read_to_string(root().join(licence)).unwrap();
            assert!(own == expected, "{package}/{licence} is another text");
        }
        let changes = fs::read_to_string(root().join(package).join("CHANGELOG.md")).unwrap();
        assert!(changes.contains("## 0.1.0"), "{package}");
    }
}

/// The command has variables of its own, which a benchmark sets as well.
#[test]
fn every_variable_of_tests_is_in_the_table_for_contributors() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let prefix = ["QUORLOCK", "_"].concat();
    let mut found = BTreeSet::new();
    let folders = ["src", "testing", "tests", "benches"];
    for file in folders.iter().flat_map(|folder| sources(folder)) {
        let text = fs::read_to_string(file).unwrap();
        for rest in text.split(&prefix).skip(1) {
            let end = rest.find(|it: char| it != '_' && !it.is_ascii_uppercase());
            found.insert(format!("{prefix}{}", &rest[..end.unwrap_or(rest.len())]));
        }
    }
    found.retain(|name| {
        ![prefix.clone() + "NODES", prefix.clone() + "NO_QUARANTINE"].contains(name)
    });
    assert!(10 < found.len(), "{found:?}");
    for name in found {
        let is_there = page.contains(&format!("`{name}"));
        assert!(is_there, "CONTRIBUTING.md lacks {name}");
    }
}
