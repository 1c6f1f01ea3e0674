//! Images with probes in them, kept on disk: a program that is started again does not wait for them again.
//!
//! A file is named by what it was made of, and holds the hash of what it holds. One that is damaged counts as absent
//! and is written anew; a directory that cannot be written to is told once, and nothing is kept.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The largest file that is read.
const MAX_FILE: u64 = 2 << 30;
/// Files that are older are removed when a new one is written.
const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

/// What became of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// PTX with probes in it; `None` if the image stays as it is.
    pub text: Option<String>,
    /// Why it stays as it is.
    pub why: Option<String>,
    /// The kernels that a probe is attached to: name, readable name, sites.
    pub kernels: Vec<(String, String, usize)>,
    /// Where each kernel begins, for the programs that are attached there: the site's number, and the kernel's name.
    pub begins: Vec<(u64, String)>,
    /// The kernels in which sites of programs lie that tell of launches: the site's number, and the kernel's name.
    pub sites: Vec<(u64, String)>,
    /// All kernels of the image by the way in which a probe reaches them.
    pub ways: Vec<(String, usize)>,
    /// What could not be reached.
    pub notes: Vec<String>,
    /// Where the driver would have loaded machine code for a newer device than the PTX is for: both.
    pub older: Option<(String, String)>,
    /// The kernels that can steal work.
    #[serde(default)]
    pub stealing: Vec<Steals>,
    /// It holds machine code alone.
    #[serde(default)]
    pub machine_code: bool,
    /// The kernels that were named for that and do not: readable name, and each reason.
    #[serde(default)]
    pub not_stealing: Vec<(String, Vec<String>)>,
}

/// A kernel that can steal work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Steals {
    pub kernel: String,
    pub readable: String,
    /// Its own parameters, and where the one that is added lies behind them.
    pub parameters: u32,
    pub at: u32,
    /// Only in blocks in which 32 threads in x are a warp.
    pub rows: bool,
    /// The program that orders its blocks.
    pub order: Option<String>,
    /// Its blocks ask the hardware.
    pub by_hardware: bool,
}

/// A directory of them.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

/// What an image with probes is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Of everything that decides what comes out.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update(concat!("gpuwhy-probe ", env!("CARGO_PKG_VERSION"), " 5"));
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    fn name(self) -> String {
        hex(&self.0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut all, byte| {
        let _ = write!(all, "{byte:02x}");
        all
    })
}

impl Cache {
    /// In this directory, or in the user's own.
    pub fn new(dir: Option<&Path>) -> Option<Self> {
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = || {
            let base = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
            Some(base.join("gpuwhy/probes"))
        };
        Some(Self { dir: dir.map(Path::to_owned).or_else(own)? })
    }

    /// What was kept under a key.
    pub fn get(&self, key: Key) -> Option<Made> {
        let file = std::fs::File::open(self.dir.join(key.name())).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        let (hash, body) = bytes.split_at_checked(65)?;
        let right = hash[..64] == *hex(&Sha256::digest(body)).as_bytes();
        if right { serde_json::from_slice(body).ok() } else { None }
    }

    /// Keeps something. It appears under its name when it is whole.
    pub fn put(&self, key: Key, made: &Made) -> Result<()> {
        let told = || format!("cannot keep images with probes in `{}`", self.dir.display());
        std::fs::create_dir_all(&self.dir).with_context(told)?;
        let body = serde_json::to_vec(made)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.dir).with_context(told)?;
        writeln!(file, "{}", hex(&Sha256::digest(&body))).with_context(told)?;
        file.write_all(&body).with_context(told)?;
        file.persist(self.dir.join(key.name())).with_context(told)?;
        self.forget_old();
        Ok(())
    }

    /// Removes what nobody has written for long.
    fn forget_old(&self) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let age = entry.metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed());
            if matches!(age, Ok(Ok(age)) if age > MAX_AGE) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Made {
        Made {
            text: Some(".version 8.0\n".into()),
            kernels: vec![("_Z1kv".into(), "k()".into(), 3)],
            ..Made::default()
        }
    }

    #[test]
    fn what_is_kept_is_what_comes_back_and_what_is_damaged_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(&dir.path().join("new"))).unwrap();
        let key = Key::of(&[b"image", b"object"]);
        assert_eq!(cache.get(key), None);
        cache.put(key, &example()).unwrap();
        assert_eq!(cache.get(key), Some(example()));
        assert_eq!(cache.get(Key::of(&[b"imageobject", b""])), None, "parts do not run together");
        let path = dir.path().join("new").join(key.name());
        let whole = std::fs::read(&path).unwrap();
        for damage in [0, 64, 70, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[damage] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let is_there = cache.get(key) == Some(example());
            // The one byte that does not count is the end of the first line.
            assert_eq!(is_there, damage == 64, "byte {damage}");
        }
        for length in [0, 10, 65, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.get(key), None, "{length} bytes");
        }
        cache.put(key, &example()).unwrap();
        assert_eq!(cache.get(key), Some(example()), "it is written anew");
    }

    #[test]
    fn a_place_that_is_no_directory_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::new(Some(file.path())).unwrap();
        let error = format!("{:#}", cache.put(Key::of(&[]), &example()).unwrap_err());
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert_eq!(cache.get(Key::of(&[])), None);
    }
}
