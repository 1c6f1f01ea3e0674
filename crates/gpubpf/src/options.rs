//! What a compilation is told besides the program.

use std::collections::BTreeSet;

/// Where maps are found at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// In a table in constant memory, which the host fills after it has loaded the module.
    ///
    /// The table is the symbol `gpuwhy_probe`, an array of 64-bit words: word 0 is the process id of
    /// who launches (`pid << 32 | tid`, as helper 14 gives it), words 1–3 are reserved, and for each
    /// map follow three words: the address of its values, the number of its shards (threads or SMs;
    /// 0 for maps that have one), and the address of the 64-bit counter of what was lost.
    Table,
    /// In that table, which somebody else declares, since several programs share it: the maps of
    /// this program are those from number `first` on.
    Shared {
        /// The number of the program's first map in the table.
        first: usize,
    },
    /// In such a table in global memory, whose address the text around has in a 64-bit register; the maps of this program
    /// are those from number `first` on.
    Behind {
        /// The register.
        register: String,
        /// The number of the program's first map in the table.
        first: usize,
    },
    /// In the text itself: the words of that table, which are known already.
    Fixed(Vec<u64>),
}

/// Where text finds the table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table<'a> {
    /// The symbol [`TABLE`] in constant memory.
    Constant,
    /// Global memory at the address in this register.
    Behind(&'a str),
}

impl Table<'_> {
    /// The instruction that loads a word of it.
    pub(crate) fn load(self, to: &str, word: usize) -> String {
        let offset = 8 * word;
        match self {
            Self::Constant => format!("ld.const.u64 {to}, [{TABLE}+{offset}]"),
            Self::Behind(register) => format!("ld.global.u64 {to}, [{register}+{offset}]"),
        }
    }
}

/// The name of the table of [`Addresses::Table`].
pub const TABLE: &str = "gpuwhy_probe";

/// Words of the table before those of the first map.
pub const TABLE_HEADER: usize = 4;

/// Whether the stack becomes registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// Where all accesses are at constant offsets; otherwise it lies in local memory.
    Promote,
    /// It lies in local memory (to compare the two).
    Memory,
}

/// How a program is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What the names of all registers and labels begin with; several fragments in one kernel need
    /// different ones.
    pub prefix: String,
    /// Where maps are found.
    pub addresses: Addresses,
    /// Whether the stack becomes registers.
    pub stack: Stack,
    /// The alignment of what `r1` points to, in bytes: 1, 2, 4 or 8.
    pub context_align: u32,
    /// What `r1` and `r2` are at the entry: 64-bit registers or literals of the text around.
    pub arguments: [Option<String>; 2],
    /// The 64-bit registers of the text around that hold what `r1` points to at a probe site, word
    /// by word; where there are none, `r1` is an address.
    pub context: Vec<String>,
    /// The 64-bit register of the text around that receives `r0`.
    pub result: Option<String>,
    /// Instructions of the program that add one number to one address in all lanes of a warp: one lane adds for all of
    /// them, by as many as there are.
    pub of_warp: BTreeSet<usize>,
    /// What the names of variables in shared memory begin with, before the number of the map in the table; somebody else
    /// declares them, sets them to 0 and adds them up. Without it maps of blocks are refused.
    pub of_block: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "gw_".into(),
            addresses: Addresses::Table,
            stack: Stack::Promote,
            context_align: 8,
            arguments: [None, None],
            context: Vec::new(),
            result: None,
            of_warp: BTreeSet::new(),
            of_block: None,
        }
    }
}
