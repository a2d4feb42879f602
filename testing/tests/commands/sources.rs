//! The shipped scripts, as servers are sent them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha1_smol::Sha1;

/// The source of each script by its name.
pub(crate) fn read() -> Result<BTreeMap<String, String>, std::io::Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/wire/scripts");
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        // Parts that scripts include state no keys.
        if !text.contains("-- KEYS[1]") {
            continue;
        }
        let mut source = String::new();
        for line in text.split_inclusive('\n') {
            let part = line
                .trim()
                .strip_prefix("-- include ")
                .map(|part| fs::read_to_string(folder.join(part)));
            let part = part.transpose()?.unwrap_or_else(|| line.to_owned());
            source.extend(
                part.split_inclusive('\n')
                    .filter(|line| !line.trim_start().starts_with("--")),
            );
        }
        sources.insert(
            path.file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            source,
        );
    }
    Ok(sources)
}

pub(crate) fn hash(source: &str) -> String {
    Sha1::from(source).digest().to_string()
}
