//! What policies ask for, and the list in which a program leaves it while it runs in the simulator.

/// The word of the table of maps that holds the list's address: reserved in device programs.
pub(crate) const TABLE_WORD: usize = 1;
/// What one run of a program may ask for.
pub(crate) const MOST: u64 = 1024;
/// Bytes before the first entry; the first eight count what was asked for.
pub(crate) const HEAD: u64 = 16;
/// The most arguments of an action.
pub(crate) const ARGUMENTS: u8 = 3;
/// Bytes of an entry: the helper's number and its arguments.
pub(crate) const BYTES: u64 = 8 * (1 + ARGUMENTS as u64);
/// Bytes of the list.
pub(crate) const LIST_BYTES: u64 = HEAD + MOST * BYTES;

/// Advice about managed memory, with CUDA's numbers (`CUmem_advise`) where CUDA has it; the device is that on which
/// the memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Advice {
    /// Mostly read: devices keep copies.
    ReadMostly = 1,
    /// No longer.
    NotReadMostly = 2,
    /// It belongs on the device.
    PreferDevice = 3,
    /// It belongs nowhere in particular.
    NoPreference = 4,
    /// The device accesses it, and is to reach it without a fault.
    Accessed = 5,
    /// No longer.
    NotAccessed = 6,
    /// Ours: it belongs in the host's memory (CUDA's 3, with the host as its place).
    PreferHost = 7,
}

impl Advice {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ReadMostly,
        Self::NotReadMostly,
        Self::PreferDevice,
        Self::NoPreference,
        Self::Accessed,
        Self::NotAccessed,
        Self::PreferHost,
    ];

    /// The advice with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|advice| *advice as u64 == number)
    }
}

/// What a policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Managed memory is to be moved to the device on which it was allocated.
    Prefetch {
        /// Its first byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// The driver is to be advised about managed memory.
    Advise {
        /// Its first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// The number of an [`Advice`], or none that exists.
        advice: u64,
    },
    /// From now on launches of a kernel are to be delayed; by 0 not any more.
    Delay {
        /// The hash of its name, as launches have it; 0 for all.
        kernel: u64,
        /// By so much, us.
        us: u64,
    },
    /// Streams that are created from now on are to have a priority.
    Priority {
        /// Which one of the process, counted from 1; 0 for all.
        stream: u64,
        /// The priority: lower numbers come first.
        priority: i64,
    },
}

/// What a list holds, and how many actions found no room in it.
pub(crate) fn read(list: &[u8]) -> (Vec<Action>, u64) {
    let (words, _) = list.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let asked = words.first().copied().unwrap_or(0);
    let entries = words.get(HEAD as usize / 8..).unwrap_or_default();
    let entry = |entry: &[u64]| {
        Some(match *entry {
            [514, address, bytes, _] => Action::Prefetch { address, bytes },
            [515, address, bytes, advice] => Action::Advise { address, bytes, advice },
            [516, kernel, us, _] => Action::Delay { kernel, us },
            [517, stream, priority, _] => Action::Priority { stream, priority: priority as i64 },
            _ => return None,
        })
    };
    let entries = entries.chunks_exact(BYTES as usize / 8).take(asked.min(MOST) as usize);
    (entries.filter_map(entry).collect(), asked.saturating_sub(MOST))
}
