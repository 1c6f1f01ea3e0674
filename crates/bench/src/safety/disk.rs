//! What a disk holds after the power went: every state that POSIX allows, of what a writer did to its
//! directory. The store's own tests use this file too.
//!
//! What was flushed holds. Of what was not: the bytes of a write may be there, or lost, or torn at a sector,
//! or zeros with the right length; a name may be made, changed or removed, or not, and later ones without
//! earlier ones. A flushed file whose name was not flushed may have no name.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gpuwhy_store::Op;

/// Sectors are written whole.
const SECTOR: u64 = 512;

/// What a state keeps of what was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All of it: only the process died.
    All,
    /// None of it.
    Nothing,
    /// All names, and lengths, but zeros in the place of bytes.
    Zeros,
    /// Names in the order in which they were changed, up to some moment; of the bytes, any.
    Ordered,
    /// Any of them.
    Any,
}

impl Keeps {
    /// Every kind of state.
    pub const ALL: [Keeps; 5] =
        [Keeps::All, Keeps::Nothing, Keeps::Zeros, Keeps::Ordered, Keeps::Any];
}

/// Numbers from a seed, the same everywhere (SplitMix64).
pub struct Draw(pub u64);

impl Draw {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Cut(u64),
}

/// A file, whatever it is called.
#[derive(Clone, Debug, Default)]
struct Inode {
    flushed: Vec<u8>,
    pending: Vec<Change>,
}

/// The names in a folder: numbers of inodes, `None` for a folder.
type Names = BTreeMap<String, Option<usize>>;

#[derive(Clone, Debug, Default)]
struct Folder {
    flushed: Names,
    /// Each is one change: names and what they stand for from now on.
    pending: Vec<Vec<(String, Option<Option<usize>>)>>,
    now: Names,
}

/// A directory on a disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    inodes: Vec<Inode>,
    folders: HashMap<String, Folder>,
}

fn split(path: &str) -> (&str, &str) {
    path.split_once('/').unwrap_or(("", path))
}

impl Disk {
    /// A disk on which these files lie, flushed.
    pub fn of(files: &BTreeMap<String, Vec<u8>>) -> Disk {
        let mut disk = Disk::default();
        for (path, bytes) in files {
            let (folder, name) = split(path);
            disk.inodes.push(Inode { flushed: bytes.clone(), pending: Vec::new() });
            let number = disk.inodes.len() - 1;
            if !folder.is_empty() {
                let root = disk.folders.entry(String::new()).or_default();
                root.flushed.insert(folder.into(), None);
                root.now.insert(folder.into(), None);
            }
            let folder = disk.folders.entry(folder.into()).or_default();
            folder.flushed.insert(name.into(), Some(number));
            folder.now.insert(name.into(), Some(number));
        }
        disk
    }

    fn change(&mut self, folder: &str, names: Vec<(String, Option<Option<usize>>)>) {
        let folder = self.folders.entry(folder.into()).or_default();
        for (name, to) in &names {
            match to {
                Some(to) => drop(folder.now.insert(name.clone(), *to)),
                None => drop(folder.now.remove(name)),
            }
        }
        folder.pending.push(names);
    }

    fn inode(&mut self, path: &str) -> Option<&mut Inode> {
        let (folder, name) = split(path);
        let number = self.folders.get(folder)?.now.get(name).copied()??;
        self.inodes.get_mut(number)
    }

    /// Does to it what the writer did.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Folder(name) => self.change("", vec![(name.clone(), Some(None))]),
            Op::Create(path) => {
                self.inodes.push(Inode::default());
                let (folder, name) = split(path);
                let inode = Some(Some(self.inodes.len() - 1));
                self.change(folder, vec![(name.into(), inode)]);
            }
            Op::Write { path, at, bytes } => {
                let change = Change::Write(*at, bytes.clone());
                if let Some(inode) = self.inode(path) {
                    inode.pending.push(change);
                }
            }
            Op::Cut(path, length) => {
                if let Some(inode) = self.inode(path) {
                    inode.pending.push(Change::Cut(*length));
                }
            }
            Op::SyncFile(path) => {
                if let Some(inode) = self.inode(path) {
                    for change in std::mem::take(&mut inode.pending) {
                        make(&mut inode.flushed, &change);
                    }
                }
            }
            Op::SyncFolder(name) => {
                if let Some(folder) = self.folders.get_mut(name) {
                    folder.pending.clear();
                    folder.flushed = folder.now.clone();
                }
            }
            Op::Rename(from, to) => {
                let ((of, old), (into, new)) = (split(from), split(to));
                let number = self.folders.get(of).and_then(|f| f.now.get(old).copied()).flatten();
                let (gone, there) = ((old.to_owned(), None), (new.to_owned(), Some(number)));
                if of == into {
                    self.change(of, vec![gone, there]);
                } else {
                    self.change(into, vec![there]);
                    self.change(of, vec![gone]);
                }
            }
            Op::Remove(path) | Op::RemoveFolder(path) => {
                let (folder, name) = split(path);
                self.change(folder, vec![(name.into(), None)]);
            }
        }
    }

    /// What may lie there after the power went.
    pub fn after_a_cut(&self, keeps: Keeps, draw: &mut Draw) -> BTreeMap<String, Vec<u8>> {
        let mut names: HashMap<&str, Names> = HashMap::new();
        for (path, folder) in &self.folders {
            let upto = match keeps {
                Keeps::Nothing => 0,
                Keeps::Ordered => draw.below(folder.pending.len() as u64 + 1) as usize,
                _ => folder.pending.len(),
            };
            let mut all = folder.flushed.clone();
            for change in &folder.pending[..upto] {
                if keeps == Keeps::Any && draw.below(2) == 0 {
                    continue;
                }
                for (name, to) in change {
                    match to {
                        Some(to) => drop(all.insert(name.clone(), *to)),
                        None => drop(all.remove(name)),
                    }
                }
            }
            names.insert(path, all);
        }
        let mut files = BTreeMap::new();
        let root = names.get("").cloned().unwrap_or_default();
        for (path, all) in
            names.iter().filter(|(path, _)| path.is_empty() || root.contains_key(**path))
        {
            for (name, inode) in all {
                let Some(inode) = inode.and_then(|number| self.inodes.get(number)) else {
                    continue;
                };
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                files.insert(path, content(inode, keeps, draw));
            }
        }
        files
    }
}

fn make(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Cut(length) => bytes.resize(*length as usize, 0),
        Change::Write(at, new) => {
            let (at, end) = (*at as usize, *at as usize + new.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(new);
        }
    }
}

fn content(inode: &Inode, keeps: Keeps, draw: &mut Draw) -> Vec<u8> {
    let mut bytes = inode.flushed.clone();
    for change in &inode.pending {
        let zeros = |at: u64, length: usize| Change::Write(at, vec![0; length]);
        let kept = match (keeps, change) {
            (Keeps::Nothing, _) => continue,
            (Keeps::All, change) => change.clone(),
            (Keeps::Zeros, Change::Write(at, new)) => zeros(*at, new.len()),
            (Keeps::Zeros, change) => change.clone(),
            (_, Change::Cut(_)) if draw.below(2) == 0 => continue,
            (_, Change::Cut(length)) => Change::Cut(*length),
            (_, Change::Write(at, new)) => match draw.below(4) {
                0 => continue,
                1 => zeros(*at, new.len()),
                2 => {
                    // Torn where a sector begins; the rest is as it was.
                    let end = *at + draw.below(new.len() as u64 + 1);
                    let end = (end / SECTOR * SECTOR).max(*at);
                    Change::Write(*at, new[..(end - at) as usize].to_vec())
                }
                _ => change.clone(),
            },
        };
        make(&mut bytes, &kept);
    }
    bytes
}

/// Lays files into a new directory.
pub fn lay(files: &BTreeMap<String, Vec<u8>>, path: &Path) -> std::io::Result<()> {
    std::fs::create_dir(path)?;
    for (name, bytes) in files {
        let file = path.join(name);
        if let Some(folder) = file.parent().filter(|folder| *folder != path) {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, bytes)?;
    }
    Ok(())
}
