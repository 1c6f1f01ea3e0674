//! Brings a trace whose writer died into order.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use gpuwhy_schema::Ns;
use serde::Serialize;

use crate::dir::Dir;
use crate::journal::Found;
use crate::manifest::Manifest;
use crate::seal::Sealer;
use crate::{Error, Result};

/// What a dead writer had left, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    /// Journals that were found.
    pub journals: u32,
    /// Rows that they held.
    pub rows: u64,
    /// Bytes of them that were torn.
    pub torn_bytes: u64,
    /// Where torn bytes and files without an owner were put.
    pub quarantine: Vec<PathBuf>,
    /// Why the trace was read as it lies, although it could do with recovery.
    pub not_written: Option<String>,
}

impl Recovered {
    /// Whether there was nothing to be done.
    pub fn is_nothing(&self) -> bool {
        *self == Recovered::default()
    }
}

/// Seals what journals hold, sets aside what is torn, removes what was half done.
///
/// The caller holds the lock. The sealer comes back if one was needed.
pub(crate) fn recover(dir: &Dir, keep: Option<Ns>) -> Result<(Option<Sealer>, Recovered)> {
    dir.refuse_links()?;
    let manifest = Manifest::read(&dir.path)?;
    let mut recovered = Recovered::default();
    sweep(dir, &manifest, &mut recovered)?;
    let journals = dir.journals()?;
    if journals.is_empty() {
        return Ok((None, recovered));
    }
    let mut sealer = Sealer::resume(dir.clone(), manifest, keep)?;
    for number in journals {
        let path = dir.journal_path(number);
        if number < sealer.manifest.next_segment {
            // Sealed already; the writer died before it could remove the journal.
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            continue;
        }
        let found = Found::scan(&path)?;
        recovered.journals += 1;
        recovered.torn_bytes += found.torn_bytes();
        sealer.manifest.quarantined_bytes += found.torn_bytes();
        set_aside(dir, number, &found, &mut recovered)?;
        let sealed = sealer.seal(number, &found)?;
        recovered.rows += sealed.rows;
    }
    Ok((Some(sealer), recovered))
}

/// Copies the torn stretches of a journal to `quarantine/`.
fn set_aside(dir: &Dir, number: u32, found: &Found, recovered: &mut Recovered) -> Result<()> {
    for torn in &found.torn {
        let relative = format!("quarantine/{number:05}.journal.{}", torn.start);
        dir.commit(&relative, |file, path| {
            let mut from = &found.file;
            from.seek(SeekFrom::Start(torn.start)).map_err(Error::io("read", &found.path))?;
            let mut bytes = from.take(torn.end - torn.start);
            std::io::copy(&mut bytes, file).map_err(Error::io("write", path))
        })?;
        recovered.quarantine.push(dir.path.join(relative));
    }
    Ok(())
}

/// Removes half-written files, and sets aside whole ones that no manifest came to name.
fn sweep(dir: &Dir, manifest: &Manifest, recovered: &mut Recovered) -> Result<()> {
    let named: HashSet<&str> = manifest.file.iter().map(|f| f.path.as_str()).collect();
    let mut folders: Vec<String> = gpuwhy_schema::TABLES.iter().map(|t| t.to_string()).collect();
    folders.push("state.head".into());
    folders.push("quarantine".into());
    for folder in folders {
        let path = dir.path.join(&folder);
        // Most tables have no rows in most traces.
        let Ok(entries) = std::fs::read_dir(&path) else { continue };
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &path))?;
            let file = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".tmp") {
                std::fs::remove_file(&file).map_err(Error::io("remove", &file))?;
            } else if name.ends_with(".parquet")
                && folder != "quarantine"
                && !named.contains(format!("{folder}/{name}").as_str())
            {
                // Its rows are in the journal too, or it was dropped; it is kept all the same,
                // because removing what one does not understand is not recovery.
                let to = dir.path.join(format!("quarantine/{folder}.{name}"));
                let parent = dir.path.join("quarantine");
                std::fs::create_dir_all(&parent).map_err(Error::io("create", &parent))?;
                std::fs::rename(&file, &to).map_err(Error::io("set aside", &file))?;
                recovered.quarantine.push(to);
            }
        }
    }
    Ok(())
}
