//! The messages of an agent and a library: one size, a magic number and a version, either way.

/// What a message begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYDR");
const VERSION: u32 = 1;
/// Bytes of every message.
pub const BYTES: usize = 64;

/// What an agent asks a library to record. Zeros are the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Kernels and copies.
    pub kernels: Kernels,
    /// Calls that launch them.
    pub launches: bool,
    /// Collectives.
    pub collectives: Collectives,
    /// The period of [`Settings::nodes_for_ms`], ms; 0 is never.
    pub nodes_every_ms: u32,
    /// For how long of each period the nodes of CUDA graphs are recorded one by one where
    /// [`Settings::kernels`] is [`Kernels::Graphs`], ms.
    pub nodes_for_ms: u32,
}

/// How kernels are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kernels {
    /// Not at all.
    #[default]
    Off = 0,
    /// One by one, but a CUDA graph as a whole.
    Graphs = 1,
    /// One by one, also those of CUDA graphs.
    Nodes = 2,
}

/// How collectives are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Collectives {
    /// Not at all.
    #[default]
    Off = 0,
    /// Each call.
    Calls = 1,
    /// And their phases on the device.
    Phases = 2,
    /// And what NCCL's network threads wait for.
    Network = 3,
}

impl Settings {
    /// What costs next to nothing: kernels, copies and collectives, graphs as a whole.
    pub const USUAL: Settings = Settings {
        kernels: Kernels::Graphs,
        launches: false,
        collectives: Collectives::Calls,
        nodes_every_ms: 0,
        nodes_for_ms: 0,
    };

    /// Nothing is recorded.
    pub const NOTHING: Settings =
        Settings { kernels: Kernels::Off, collectives: Collectives::Off, ..Settings::USUAL };

    /// As a message.
    pub(crate) fn encode(self) -> [u8; BYTES] {
        let mut out = message();
        out[12] = self.kernels as u8;
        out[13] = self.launches.into();
        out[14] = self.collectives as u8;
        out[16..20].copy_from_slice(&self.nodes_every_ms.to_le_bytes());
        out[20..24].copy_from_slice(&self.nodes_for_ms.to_le_bytes());
        out
    }

    /// Reads a message; a value that this version does not know is the least. `None` if it is no
    /// message of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Settings> {
        checked(bytes)?;
        Some(Settings {
            kernels: match bytes[12] {
                1 => Kernels::Graphs,
                2 => Kernels::Nodes,
                _ => Kernels::Off,
            },
            launches: bytes[13] == 1,
            collectives: match bytes[14] {
                1 => Collectives::Calls,
                2 => Collectives::Phases,
                3 => Collectives::Network,
                _ => Collectives::Off,
            },
            nodes_every_ms: u32_at(bytes, 16),
            nodes_for_ms: u32_at(bytes, 20),
        })
    }
}

/// What a library sends first: its process's pid in its own namespace.
pub(crate) fn hello(pid: u32) -> [u8; BYTES] {
    let mut out = message();
    out[12..16].copy_from_slice(&pid.to_le_bytes());
    out
}

/// The pid in a [`hello`]; `None` if it is no message of this version.
pub fn pid_of_hello(bytes: &[u8]) -> Option<u32> {
    checked(bytes)?;
    Some(u32_at(bytes, 12))
}

/// A message without content.
pub fn message() -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

fn checked(bytes: &[u8]) -> Option<()> {
    (bytes.len() == BYTES && bytes[..8] == MAGIC.to_le_bytes() && u32_at(bytes, 8) == VERSION)
        .then_some(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}
