//! README, the guide and the pages for maintainers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{files, root, sources};

/// Of a line of Markdown that is not in a table.
const COLUMNS_MAX: usize = 120;

/// Words of the user's guide.
const GUIDE_WORDS_MAX: usize = 18_000;

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
            assert!(
                ["", "docs"].iter().any(|allowed| folder == *allowed),
                "{link}: not in the repository's root"
            );
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
        let found = heading.is_empty()
            || text
                .lines()
                .any(|line| line.starts_with('#') && anchor(line) == heading);
        assert!(found, "{link}: there is no such heading");
    }
}

/// A page is also read as a plain file, where links to items are dead and hidden lines are shown.
#[test]
fn the_pages_of_the_guide_read_well_as_files() {
    for (name, text) in users_guide() {
        assert!(
            !text.contains("](crate::"),
            "{name}: write a link to an item as [`Item`]"
        );
        let (mut in_block, mut in_rust) = (false, false);
        for line in text.lines() {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                in_block = !in_block;
                in_rust = in_block && is_rust(info);
            }
            let is_hidden = in_rust && (line.trim() == "#" || line.trim_start().starts_with("# "));
            assert!(!is_hidden, "{name}: a hidden line in an example: {line}");
            let is_long = !in_block && !line.starts_with('|') && 120 < line.chars().count();
            assert!(!is_long, "{name}: a line of more than 120 columns: {line}");
        }
    }
}

/// Whether rustdoc compiles a block with these words behind its fence.
fn is_rust(info: &str) -> bool {
    let words = [
        "",
        "rust",
        "no_run",
        "should_panic",
        "ignore",
        "compile_fail",
    ];
    info.split(',')
        .all(|word| words.contains(&word.trim()) || word.trim().starts_with('E'))
}

#[test]
fn the_guide_is_short() {
    let words: usize = users_guide()
        .iter()
        .map(|(_, text)| text.split_whitespace().count())
        .sum();
    assert!(
        words <= GUIDE_WORDS_MAX,
        "the user's guide has {words} words, more than {GUIDE_WORDS_MAX}"
    );
}

#[test]
fn the_page_of_the_crate_lists_the_guide_in_order() {
    let modules = fs::read_to_string(root().join("src/guide.rs")).unwrap();
    let pages = modules
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.split(' ').next());
    let pages: Vec<_> = pages.collect();
    let page = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let listed = page
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`guide::")?.split('`').next());
    assert_eq!(listed.collect::<Vec<_>>(), pages);
}

/// The names and texts of its pages.
fn users_guide() -> Vec<(String, String)> {
    let named = |file: PathBuf| {
        (
            file.file_stem().unwrap().to_string_lossy().into_owned(),
            fs::read_to_string(file).unwrap(),
        )
    };
    files(&root().join("src/guide"))
        .into_iter()
        .map(named)
        .collect()
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
    for page in
        of_the_root
            .iter()
            .chain(&["cli/README.md", "testing/README.md", "tests/OBLIGATIONS.md"])
    {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut in_block = false;
        let long = text.lines().find(|line| {
            in_block ^= line.starts_with("```");
            !in_block && !line.starts_with('|') && COLUMNS_MAX < line.chars().count()
        });
        assert_eq!(long, None, "{page}: longer than {COLUMNS_MAX} columns");
        let folder = root().join(page).parent().unwrap().to_owned();
        for link in text
            .split("](")
            .skip(1)
            .map(|rest| rest.split([')', '#']).next().unwrap())
        {
            assert!(
                link.starts_with("https://") || folder.join(link).exists(),
                "{page}: {link} does not exist"
            );
        }
    }
}

/// The command has variables of its own, which a benchmark sets as well.
#[test]
fn every_variable_of_tests_is_in_the_table_for_contributors() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let prefix = ["QUORLOCK", "_"].concat();
    let mut found = BTreeSet::new();
    for file in ["src", "testing", "tests", "benches"]
        .iter()
        .flat_map(|folder| sources(folder))
    {
        let text = fs::read_to_string(file).unwrap();
        let names = text
            .split(&prefix)
            .skip(1)
            .map(|rest| rest.split(|it: char| it != '_' && !it.is_ascii_uppercase()));
        found.extend(
            names.filter_map(|mut parts| parts.next().map(|name| format!("{prefix}{name}"))),
        );
    }
    found.retain(|name| {
        ![prefix.clone() + "NODES", prefix.clone() + "NO_QUARANTINE"].contains(name)
    });
    assert!(10 < found.len(), "{found:?}");
    for name in found {
        assert!(
            page.contains(&format!("`{name}")),
            "CONTRIBUTING.md lacks {name}"
        );
    }
}
