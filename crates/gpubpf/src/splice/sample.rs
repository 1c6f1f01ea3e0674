//! Sampling by number, and what it left out: one in N launches, blocks and warps.
//!
//! Numbers are spread by the golden ratio, so that every N neighbours have one among them and no stride of the kernel misses
//! all. Where anything is sampled, each kernel counts at its beginning how many launches, blocks and warps there were and in
//! how many of them programs ran, into the map [`SAMPLED`]: its first thread adds what there are, the first thread of each
//! block and the first lane of each warp of the sample add themselves. So what is left out costs no atomic operation.

use std::fmt::Write as _;

use super::How;
use crate::contents::SAMPLED;
use crate::options::Table;
use crate::program::{Map, MapKind};

/// The map of counts: launches, those in the sample, blocks, those in the sample, warps, those in the sample.
pub(super) fn map() -> Map {
    Map {
        name: SAMPLED.into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 6,
        flags: 0,
    }
}

/// Branches that whole warps take together: to the end, where a launch, block or warp is not in the sample.
pub(super) fn gates(base: &str, how: &How) -> String {
    let (blocks, warps) = (how.blocks.get(), how.warps.get());
    let mut text = launches(base, how);
    if blocks > 1 || warps > 1 {
        // The block's number in the grid.
        text += &linear(base, "ctaid", "nctaid", 1);
    }
    if blocks > 1 {
        text += &one_in(base, 1, blocks);
    }
    if warps > 1 {
        text += &linear(base, "tid", "ntid", 2);
        text += &self::warps(base, warps);
    }
    text
}

/// The text at a kernel's beginning that counts what is sampled; `word` of the table is the address of the counts.
pub(super) fn census(base: &str, how: &How, table: Table, word: usize) -> String {
    let mut text = format!(
        "{{\n\t.reg .pred %{base}p<4>;\n\t.reg .b32 %{base}w<8>;\n\t.reg .b64 %{base}v;\n\t.reg .b64 %{base}c<3>;\n\
         \t{};\n\tsetp.eq.s64 %{base}p0, %{base}c0, 0;\n\t@%{base}p0 bra.uni {base}end;\n",
        table.load(&format!("%{base}c0"), word)
    );
    text += &linear(base, "ctaid", "nctaid", 1);
    text += &linear(base, "tid", "ntid", 2);
    // The first thread of a block, and that of the launch.
    let _ = write!(
        text,
        "\tsetp.eq.u32 %{base}p2, %{base}w2, 0;\n\tor.b32 %{base}w6, %{base}w1, %{base}w2;\n\
         \tsetp.eq.u32 %{base}p3, %{base}w6, 0;\n"
    );
    // Blocks, and warps of all blocks.
    let _ = write!(
        text,
        "\tmov.u32 %{base}w6, %nctaid.x;\n\tmov.u32 %{base}w7, %nctaid.y;\n\
         \tmul.wide.u32 %{base}c1, %{base}w6, %{base}w7;\n\tmov.u32 %{base}w6, %nctaid.z;\n\
         \tcvt.u64.u32 %{base}c2, %{base}w6;\n\tmul.lo.s64 %{base}c1, %{base}c1, %{base}c2;\n\
         {}\tadd.s32 %{base}w6, %{base}w6, 31;\n\
         \tshr.u32 %{base}w6, %{base}w6, 5;\n\tcvt.u64.u32 %{base}c2, %{base}w6;\n\
         \tmul.lo.s64 %{base}c2, %{base}c1, %{base}c2;\n",
        threads(base)
    );
    let add = |text: &mut String, predicate: u32, number: u32, what: &str| {
        let _ = writeln!(
            text,
            "\t@%{base}p{predicate} red.global.add.u64 [%{base}c0+{}], {what};",
            8 * number
        );
    };
    add(&mut text, 3, 0, "1");
    add(&mut text, 3, 2, &format!("%{base}c1"));
    add(&mut text, 3, 4, &format!("%{base}c2"));
    text += &launches(base, how);
    add(&mut text, 3, 1, "1");
    if how.blocks.get() > 1 {
        text += &one_in(base, 1, how.blocks.get());
    }
    add(&mut text, 2, 3, "1");
    if how.warps.get() > 1 {
        text += &warps(base, how.warps.get());
    }
    let _ = write!(text, "\tmov.u32 %{base}w6, %laneid;\n\tsetp.eq.u32 %{base}p2, %{base}w6, 0;\n");
    add(&mut text, 2, 5, "1");
    let _ = write!(text, "{base}end:\n}}\n");
    text
}

/// One in N launches.
fn launches(base: &str, how: &How) -> String {
    let launches = how.launches.get();
    if launches == 1 {
        return String::new();
    }
    // The launch's number in its context.
    format!(
        "\tmov.u64 %{base}v, %gridid;\n\tcvt.u32.u64 %{base}w4, %{base}v;\n{}",
        one_in(base, 4, launches)
    )
}

/// One in N warps: of the block in register 1, and the thread in register 2.
fn warps(base: &str, n: u32) -> String {
    format!(
        "\tshr.u32 %{base}w4, %{base}w2, 5;\n\tshl.b32 %{base}w3, %{base}w1, 5;\n\
         \tadd.s32 %{base}w4, %{base}w3, %{base}w4;\n{}",
        one_in(base, 4, n)
    )
}

/// The number of threads of a block into the 32-bit register 6.
pub(super) fn threads(base: &str) -> String {
    format!(
        "\tmov.u32 %{base}w6, %ntid.x;\n\tmov.u32 %{base}w7, %ntid.y;\n\
         \tmul.lo.s32 %{base}w6, %{base}w6, %{base}w7;\n\tmov.u32 %{base}w7, %ntid.z;\n\
         \tmul.lo.s32 %{base}w6, %{base}w6, %{base}w7;\n"
    )
}

/// The number of a block or thread, x fastest, into the 32-bit register `to`.
pub(super) fn linear(base: &str, index: &str, size: &str, to: u32) -> String {
    let mut text = format!("\tmov.u32 %{base}w{to}, %{index}.z;\n");
    for axis in ['y', 'x'] {
        let _ = write!(
            text,
            "\tmov.u32 %{base}w3, %{size}.{axis};\n\tmov.u32 %{base}w4, %{index}.{axis};\n\
             \tmad.lo.s32 %{base}w{to}, %{base}w{to}, %{base}w3, %{base}w4;\n"
        );
    }
    text
}

/// Lets one in `n` of the numbers in the register `of` through.
fn one_in(base: &str, of: u32, n: u32) -> String {
    let below = (1_u64 << 32).div_ceil(u64::from(n));
    format!(
        "\tmul.lo.u32 %{base}w5, %{base}w{of}, 0x9E3779B1;\n\tsetp.ge.u32 %{base}p1, %{base}w5, {below};\n\
         \t@%{base}p1 bra.uni {base}end;\n"
    )
}
