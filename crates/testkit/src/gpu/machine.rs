//! Opening a machine by its directory, its GPUs, and the defects of its CUPTI.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use anyhow::{Context, Result, bail};

use super::defect::Defect;
use super::layout::{GPUS, Gpu, Layout, MAGIC, VERSION};
use crate::sys::{self, Shared};

/// Environment variable: the directory of the machine.
pub const ENV: &str = "GPUWHY_STANDIN";
/// Environment variable: how many GPUs a machine gets that does not exist yet; 1 if unset.
pub const ENV_GPUS: &str = "GPUWHY_STANDIN_GPUS";
/// Environment variable: defects that CUPTI has in this process from its start, besides those of
/// the machine; names of [`Defect::name`] separated by commas.
pub const ENV_DEFECTS: &str = "GPUWHY_STANDIN_DEFECTS";
/// The file in the directory.
pub const FILE: &str = "device";

/// GPUs that several processes share.
pub struct Machine {
    shared: Shared<Layout>,
    /// Bits of the defects of the environment, which hold for this process only.
    own_defects: u64,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("gpus", &self.count()).finish_non_exhaustive()
    }
}

impl Machine {
    /// Opens the machine that [`ENV`] names, or creates it.
    ///
    /// # Errors
    /// If the variable is not set, one of the others has no valid value, or as [`Machine::open`].
    pub fn from_env() -> Result<Machine> {
        let dir = std::env::var_os(ENV)
            .with_context(|| format!("{ENV} is not set; set it to the directory of the machine"))?;
        let gpus = match std::env::var(ENV_GPUS) {
            Ok(n) => n.parse().with_context(|| format!("{ENV_GPUS} is `{n}`, not a number"))?,
            Err(_) => 1,
        };
        let mut machine = Machine::open(Path::new(&dir), gpus)?;
        for word in std::env::var(ENV_DEFECTS).unwrap_or_default().split(',') {
            match Defect::named(word.trim()) {
                Some(defect) => machine.own_defects |= defect as u64,
                None if word.trim().is_empty() => {}
                None => {
                    let known = Defect::ALL.map(Defect::name).join(", ");
                    bail!("{ENV_DEFECTS} names `{word}`, which is none of {known}");
                }
            }
        }
        Ok(machine)
    }

    /// Opens the machine in a directory, or creates it with this many GPUs.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is not one of this version.
    pub fn open(dir: &Path, gpus: usize) -> Result<Machine> {
        let path = dir.join(FILE);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("cannot open the machine `{}`", path.display()))?;
        Machine::map(&file, gpus)
            .with_context(|| format!("cannot use the machine `{}`", path.display()))
    }

    fn map(file: &File, gpus: usize) -> Result<Machine> {
        if !(1..=GPUS).contains(&gpus) {
            bail!("a machine has 1 to {GPUS} GPUs, not {gpus}");
        }
        // The process that creates it completes it under the lock; closing the file releases the lock.
        file.lock().context("cannot lock it")?;
        let length = file.metadata().context("cannot get its size")?.len();
        let expected = size_of::<Layout>() as u64;
        if length != 0 && length != expected {
            bail!(
                "it has {length} bytes, and a machine of this version has {expected}; use another \
                 directory or remove the file"
            );
        }
        let shared: Shared<Layout> = match length {
            0 => Shared::create(file).context("cannot create it")?,
            _ => Shared::open(file).context("cannot map it")?,
        };
        if length == 0 {
            shared.begin(gpus, sys::now());
        }
        let (magic, version) = (shared.magic.load(Acquire), shared.version.load(Relaxed));
        if magic != MAGIC || version != VERSION {
            bail!(
                "it is no machine of version {VERSION} (magic {magic:#x}, version {version}); use \
                 another directory or remove the file"
            );
        }
        file.unlock().context("cannot unlock it")?;
        Ok(Machine { shared, own_defects: 0 })
    }

    /// How many GPUs it has, including those that have fallen off the bus.
    pub fn count(&self) -> usize {
        (self.shared.count.load(Relaxed) as usize).min(GPUS)
    }

    /// A GPU by its index.
    pub fn gpu(&self, index: usize) -> Option<&Gpu> {
        self.gpus().get(index)
    }

    /// All GPUs, by index.
    pub fn gpus(&self) -> &[Gpu] {
        &self.shared.gpus[..self.count()]
    }

    /// When it was created.
    pub fn created(&self) -> u64 {
        self.shared.created.load(Relaxed)
    }

    /// Whether CUPTI has this defect now.
    pub fn has(&self, defect: Defect) -> bool {
        (self.shared.defects.load(Relaxed) | self.own_defects) & defect as u64 != 0
    }

    /// Turns a defect of CUPTI on or off, for all processes.
    pub fn set_defect(&self, defect: Defect, on: bool) {
        if on {
            self.shared.defects.fetch_or(defect as u64, Relaxed);
        } else {
            self.shared.defects.fetch_and(!(defect as u64), Relaxed);
        }
    }

    /// Number, from 0, of the first record of a process whose timestamps a defect spoils; 1000
    /// unless set.
    pub fn defect_after(&self) -> u64 {
        self.shared.defect_after.load(Relaxed)
    }

    /// Sets [`Machine::defect_after`].
    pub fn set_defect_after(&self, records: u64) {
        self.shared.defect_after.store(records, Relaxed);
    }

    /// Device memory that 10,000 records cost under [`Defect::GraphGrowth`], bytes; 64 MiB unless
    /// set.
    pub fn defect_growth(&self) -> u64 {
        self.shared.defect_growth.load(Relaxed)
    }

    /// Sets [`Machine::defect_growth`].
    pub fn set_defect_growth(&self, bytes: u64) {
        self.shared.defect_growth.store(bytes, Relaxed);
    }
}
