//! The scripts, as servers are sent them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sha1_smol::Sha1;

pub(crate) struct Sources(BTreeMap<String, String>);

impl Sources {
    /// All that are run by themselves: they name their keys.
    pub(crate) fn read() -> Result<Sources, std::io::Error> {
        // Of the crate's own folder or, if another package has this file, of one above its own.
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|it| it.join("src/wire/scripts"));
        let folder = folders.into_iter().find(|it| it.is_dir()).unwrap_or_default();
        let mut sources = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            if !text.contains("-- KEYS[1]") {
                continue;
            }
            let mut source = String::new();
            for line in text.split_inclusive('\n') {
                let part = line.trim().strip_prefix("-- include ").map(|it| fs::read_to_string(folder.join(it)));
                let part = part.transpose()?.unwrap_or_else(|| line.to_owned());
                source.extend(part.split_inclusive('\n').filter(|it| !it.trim_start().starts_with("--")));
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            sources.insert(name, source);
        }
        Ok(Sources(sources))
    }

    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &String> {
        self.0.values()
    }

    pub(crate) fn hash(&self, name: &str) -> String {
        Sha1::from(&self.0[name]).digest().to_string()
    }
}
