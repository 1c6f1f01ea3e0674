//! NCCL's exported functions, and the meaning of their parameters.
//!
//! From `nccl.h` of NCCL 2.27 to 2.32. A `...Config` variant (since 2.31) has the parameters of its
//! function and one more behind them.

/// A function of NCCL that is traced. Parameters are counted from 1; 0 is none.
#[derive(Debug)]
pub(super) struct Function {
    /// Its name in the library.
    pub symbol: &'static str,
    /// The operation, as NCCL's profiler names it; empty for calls that move no data.
    pub op: &'static str,
    /// The parameter with the number of elements.
    pub count: u8,
    /// The one with their type.
    pub datatype: u8,
    /// The one with the root, or the peer.
    pub peer: u8,
    /// The one with the communicator.
    pub comm: u8,
    /// The one that points to the new communicators.
    pub makes: u8,
    /// The one with the id that all ranks of the new communicator share: [`BY_VALUE`], or a pointer to
    /// it.
    pub id: u8,
    /// The one with the number of ranks of the new communicator.
    pub ranks: u8,
    /// The one with this rank.
    pub rank: u8,
    /// Whether the communicator ends.
    pub ends: bool,
}

/// An id that is passed by value: on the stack on x86-64, as a pointer to a copy on arm64, where it
/// takes the place of a parameter.
pub(super) const BY_VALUE: u8 = 15;

const NONE: Function = Function {
    symbol: "",
    op: "",
    count: 0,
    datatype: 0,
    peer: 0,
    comm: 0,
    makes: 0,
    id: 0,
    ranks: 0,
    rank: 0,
    ends: false,
};

const fn moves(
    symbol: &'static str,
    op: &'static str,
    [count, datatype, peer, comm]: [u8; 4],
) -> Function {
    Function { symbol, op, count, datatype, peer, comm, ..NONE }
}

const fn ends(symbol: &'static str) -> Function {
    Function { symbol, comm: 1, ends: true, ..NONE }
}

/// The parameter behind an id that is passed by value.
const BEHIND_ID: u8 = if cfg!(target_arch = "x86_64") { 3 } else { 4 };

const fn by_id(symbol: &'static str) -> Function {
    Function { symbol, makes: 1, ranks: 2, rank: BEHIND_ID, id: BY_VALUE, ..NONE }
}

/// All functions; their places here are their numbers in records.
pub(super) const FUNCTIONS: &[Function] = &[
    moves("ncclAllReduce", "AllReduce", [3, 4, 0, 6]),
    moves("ncclAllReduceConfig", "AllReduce", [3, 4, 0, 6]),
    moves("ncclAllGather", "AllGather", [3, 4, 0, 5]),
    moves("ncclAllGatherConfig", "AllGather", [3, 4, 0, 5]),
    moves("ncclReduceScatter", "ReduceScatter", [3, 4, 0, 6]),
    moves("ncclReduceScatterConfig", "ReduceScatter", [3, 4, 0, 6]),
    moves("ncclBroadcast", "Broadcast", [3, 4, 5, 6]),
    moves("ncclBroadcastConfig", "Broadcast", [3, 4, 5, 6]),
    moves("ncclBcast", "Broadcast", [2, 3, 4, 5]),
    moves("ncclReduce", "Reduce", [3, 4, 6, 7]),
    moves("ncclReduceConfig", "Reduce", [3, 4, 6, 7]),
    moves("ncclAlltoAll", "AlltoAll", [3, 4, 0, 5]),
    moves("ncclAlltoAllConfig", "AlltoAll", [3, 4, 0, 5]),
    moves("ncclGather", "Gather", [3, 4, 5, 6]),
    moves("ncclGatherConfig", "Gather", [3, 4, 5, 6]),
    moves("ncclScatter", "Scatter", [3, 4, 5, 6]),
    moves("ncclScatterConfig", "Scatter", [3, 4, 5, 6]),
    moves("ncclSend", "Send", [2, 3, 4, 5]),
    moves("ncclRecv", "Recv", [2, 3, 4, 5]),
    Function { symbol: "ncclGroupStart", ..NONE },
    Function { symbol: "ncclGroupEnd", ..NONE },
    by_id("ncclCommInitRank"),
    by_id("ncclCommInitRankConfig"),
    Function {
        symbol: "ncclCommInitRankScalable",
        makes: 1,
        ranks: 2,
        rank: 3,
        // A list of ids, of which the first gives the communicator its name.
        id: 5,
        ..NONE
    },
    // One process has all ranks: the second parameter is how many there are.
    Function { symbol: "ncclCommInitAll", makes: 1, ranks: 2, ..NONE },
    Function { symbol: "ncclCommSplit", comm: 1, makes: 4, ..NONE },
    Function { symbol: "ncclCommShrink", comm: 1, makes: 4, ..NONE },
    Function { symbol: "ncclCommGrow", comm: 1, makes: 5, ranks: 2, rank: 4, ..NONE },
    ends("ncclCommDestroy"),
    ends("ncclCommAbort"),
    Function { symbol: "ncclCommFinalize", comm: 1, ..NONE },
    Function { symbol: "ncclCommRevoke", comm: 1, ..NONE },
];

/// The number of the function that is exported under this name.
pub(super) fn number(symbol: &str) -> Option<u8> {
    // A quick check first: libraries export hundreds of thousands of names.
    symbol.strip_prefix("nccl")?;
    FUNCTIONS.iter().position(|f| f.symbol == symbol).and_then(|i| u8::try_from(i).ok())
}

impl Function {
    /// Whether one call makes the communicators of all ranks.
    pub fn makes_all(&self) -> bool {
        self.makes > 0 && self.ranks > 0 && self.rank == 0
    }

    /// What the BPF program has to know; as in `nccl_calls.bpf.c`.
    pub fn cookie(&self, number: u8) -> u64 {
        u64::from(number)
            | u64::from(self.makes) << 8
            | u64::from(self.id) << 12
            | u64::from(self.makes_all()) << 16
    }
}

/// Bytes of an element of type `ncclDataType_t`; `None` for an unknown type.
pub(super) fn size_of_type(datatype: u64) -> Option<u64> {
    // Records have whole registers, of which an enum takes the lower half.
    Some(match datatype as u32 {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// The meaning of an `ncclResult_t` other than 0.
pub(super) fn result_text(code: i32) -> String {
    match code {
        1 => "unhandled CUDA error",
        2 => "system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote error",
        IN_PROGRESS => "in progress",
        8 => "timeout",
        _ => return code.to_string(),
    }
    .to_owned()
}

/// The call goes on in the background: the communicator does not block.
pub(super) const IN_PROGRESS: i32 = 7;

/// The number by which NCCL's profiler plug-ins, its RAS and its log know a communicator: a hash of
/// its id, the same in every version since 2.23 (`getHash` of NCCL's `src/include/bitops.h`, by
/// Apache-2.0). With it the calls of all ranks can be matched, and matched with what NCCL reports
/// itself.
pub(super) fn communicator_hash(id: &[u64]) -> u64 {
    let (mut a, mut b) = (1 ^ (8 * id.len() as u64), 1_u64);
    for word in id {
        a = a.wrapping_add(b);
        b ^= a;
        a = (a ^ (a >> 31)).wrapping_mul(0x9de6_2bbc_8cef_3ce3);
        b = (b ^ (b >> 32)).wrapping_mul(0x485c_d631_1b59_9e79);
        a = a.wrapping_add(*word);
    }
    let mixed = (a ^ (a >> 31)).wrapping_mul(0xbac3_bd56_2846_de6b).wrapping_add(b);
    (mixed ^ (mixed >> 32)).wrapping_mul(0x995a_187a_14e7_b445)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_communicator_has_the_number_that_nccl_gives_it() {
        let id: Vec<u64> = (0..16_u8)
            .map(|i| u64::from_le_bytes(std::array::from_fn(|k| 8 * i + k as u8)))
            .collect();
        // What getHash of libnccl 2.27.7, 2.28.9, 2.29.7, 2.30.7, 2.31.2 and 2.32.3 returned, called
        // by its address.
        assert_eq!(communicator_hash(&id), 0x6afe_1cc1_7717_e1f4);
        assert_eq!(communicator_hash(&[0; 16]), 0xcc97_6ec6_c24b_b53c);
    }

    #[test]
    fn every_function_fits_its_cookie_and_is_found_once() {
        for (i, f) in FUNCTIONS.iter().enumerate() {
            assert_eq!(number(f.symbol), Some(i as u8), "{}", f.symbol);
            let parameters = [f.count, f.datatype, f.peer, f.comm, f.makes, f.ranks, f.rank];
            assert!(parameters.iter().all(|p| *p <= 7), "{}", f.symbol);
            assert_eq!(f.cookie(i as u8) & 0xff, i as u64);
            assert_eq!(f.op.is_empty(), f.count == 0, "{}", f.symbol);
        }
        assert_eq!(number("pncclAllReduce"), None);
        assert_eq!(number("ncclGetVersion"), None);
    }
}
