//! Brings a trace whose writer died into order.

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use gpuwhy_schema::Ns;
use serde::Serialize;

use crate::dir::{Dir, journal_name};
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
    let manifest = Manifest::read_in(dir)?;
    let mut recovered = Recovered::default();
    sweep(dir, &manifest, &mut recovered)?;
    let journals = unsealed(dir, &manifest)?;
    for number in dir.journals()?.into_iter().filter(|n| *n < manifest.next_segment) {
        // Sealed already; the writer died before it could remove the journal.
        dir.remove(&journal_name(number))?;
    }
    if journals.is_empty() {
        return Ok((None, recovered));
    }
    let mut sealer = Sealer::resume(dir.clone(), manifest, keep)?;
    // What is not believed goes first, the last one before the others, while the journal that is cut is
    // still there to say why: a recovery may be cut off too.
    let (believed, lost): (Vec<_>, Vec<_>) =
        journals.into_iter().partition(|(_, found)| found.is_believed);
    for (number, found) in lost.iter().rev() {
        recovered.journals += 1;
        recovered.torn_bytes += found.torn_bytes();
        sealer.manifest.quarantined_bytes += found.torn_bytes();
        set_aside(dir, *number, found, &mut recovered)?;
        dir.remove(&journal_name(*number))?;
    }
    if !lost.is_empty() {
        dir.sync_folder(Some("journal"))?;
    }
    if believed.is_empty() {
        sealer.manifest.commit(dir)?;
    }
    for (number, found) in believed {
        recovered.journals += 1;
        recovered.torn_bytes += found.torn_bytes();
        sealer.manifest.quarantined_bytes += found.torn_bytes();
        set_aside(dir, number, &found, &mut recovered)?;
        let sealed = sealer.seal(number, &found)?;
        recovered.rows += sealed.rows;
    }
    Ok((Some(sealer), recovered))
}

/// The journals that hold what `manifest` does not name yet. After the first that was cut, by a power cut
/// that took the end of it or all of it, nothing of the later ones is believed: their rows refer to what is
/// missing.
pub(crate) fn unsealed(dir: &Dir, manifest: &Manifest) -> Result<Vec<(u32, Found)>> {
    let mut all = Vec::new();
    let mut next = manifest.next_segment;
    let mut is_cut = false;
    for number in dir.journals()?.into_iter().filter(|n| *n >= manifest.next_segment) {
        let mut found = Found::scan(dir, &journal_name(number))?;
        if is_cut || number != next {
            is_cut = true;
            found.give_up();
        }
        is_cut |= found.is_cut();
        next = number.saturating_add(1);
        all.push((number, found));
    }
    Ok(all)
}

/// Copies what is torn of a journal to `quarantine/`.
fn set_aside(dir: &Dir, number: u32, found: &Found, recovered: &mut Recovered) -> Result<()> {
    let Some(torn) = &found.torn else { return Ok(()) };
    let relative = format!("quarantine/{number:05}.journal.{}", torn.start);
    dir.commit(&relative, |file, path| {
        let mut from = &found.file;
        from.seek(SeekFrom::Start(torn.start)).map_err(Error::io("read", &found.path))?;
        let mut bytes = from.take(torn.end - torn.start);
        std::io::copy(&mut bytes, file).map_err(Error::io("write", path))
    })?;
    recovered.quarantine.push(dir.at(&relative));
    Ok(())
}

/// Removes half-written files, and sets aside whole ones that no manifest came to name.
fn sweep(dir: &Dir, manifest: &Manifest, recovered: &mut Recovered) -> Result<()> {
    let named: HashSet<&str> = manifest.file.iter().map(|f| f.path.as_str()).collect();
    let mut folders: Vec<&str> = gpuwhy_schema::TABLES.to_vec();
    folders.push("state.head");
    folders.push("quarantine");
    folders.push(crate::pyramid::FOLDER);
    for folder in folders {
        // Most tables have no rows in most traces.
        for name in dir.list(folder)? {
            let file = format!("{folder}/{name}");
            if name.ends_with(".tmp") {
                dir.remove(&file)?;
            } else if name.ends_with(".parquet")
                && folder != "quarantine"
                && !named.contains(file.as_str())
            {
                // Its rows are in the journal too, or it was dropped; it is kept all the same,
                // because removing what one does not understand is not recovery.
                let to = format!("quarantine/{folder}.{name}");
                dir.folder("quarantine")?;
                dir.root.rename(&file, &to).map_err(Error::io("set aside", &dir.at(&file)))?;
                recovered.quarantine.push(dir.at(&to));
            }
        }
    }
    Ok(())
}
