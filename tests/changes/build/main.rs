//! Makes twins of scripts that can be changed while they run: each change is a branch, taken if it is the one that is tried.
//!
//! `find` finds what can be changed in a file, `weave` writes the file with all changes in it. What comes out is one file with
//! all modules of the store, and the list of the changes.

mod find;
mod weave;

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What no script runs: the commands that are no scripts, how a reply is written, the table of scripts. In these nothing is
/// changed.
const NO_PART_OF_A_SCRIPT: [&str; 3] = ["plain.rs", "reply.rs", "twins.rs"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../src/testing/store");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=build");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut paths: Vec<_> = fs::read_dir(&folder)?.map(|it| Ok(it?.path())).collect::<Result<_, std::io::Error>>()?;
    paths.sort();

    let constants = find::constants(&paths)?;
    let (mut modules, mut list, mut top) = (String::new(), String::new(), String::new());
    let mut count = 0;
    for path in &paths {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(path)?;
        if file == "mod.rs" {
            top = without_modules(&text);
            continue;
        }
        let is_changed = !NO_PART_OF_A_SCRIPT.contains(&&*file);
        let changes = if is_changed { find::changes(&text, &constants)? } else { Vec::new() };
        for change in &changes {
            let from = text.get(change.at.clone()).unwrap_or_default();
            let line = text[..change.at.start].matches('\n').count() + 1;
            let whole = text.lines().nth(line - 1).unwrap_or_default().trim();
            let (from, to) = (one_line(from), one_line(&change.to));
            list +=
                &format!("Change {{ file: {file:?}, line: {line}, whole: {whole:?}, from: {from:?}, to: {to:?} }},\n");
        }
        let name = Path::new(&file).with_extension("");
        modules += &format!("mod {} {{\n{}\n}}\n", name.display(), weave::weave(&text, &changes, count));
        count += changes.len();
    }
    fs::write(
        out.join("store.rs"),
        format!("#[allow(warnings, reason = \"nobody has written it\")]\nmod store {{\n{top}\n{modules}\n}}\n"),
    )?;
    fs::write(out.join("list.rs"), format!("pub(crate) const CHANGES: &[Change] = &[\n{list}];\n"))?;
    Ok(())
}

/// The modules follow in the same file; and what is woven breaks rules of style.
fn without_modules(text: &str) -> String {
    let is_kept = |it: &&str| !it.starts_with("mod ") && !it.starts_with("#![warn(");
    text.lines().filter(is_kept).fold(String::new(), |text, line| text + line + "\n")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
