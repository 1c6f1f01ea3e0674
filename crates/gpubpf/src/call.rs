//! Helpers as PTX, in place: no helper is a call.

use crate::actions;
use crate::emit::{Emitter, Target};
use crate::error::Fault;
use crate::flow::State;
use crate::helpers::Helper;
use crate::insn::{Reg, Size};
use crate::options::{Addresses, Options, TABLE_HEADER, Table};
use crate::program::{Map, MapKind};
use crate::value::Value;

/// `-E2BIG`: the key is beyond the map, as the kernel's arrays say it.
pub(crate) const E2BIG: i64 = -7;
/// `-EEXIST`: every key of an array exists.
pub(crate) const EEXIST: i64 = -17;
/// `-EINVAL`: elements of arrays cannot be deleted.
const EINVAL: i64 = -22;
/// `-ENOSPC`: a ring is full.
const ENOSPC: i64 = -28;

/// `update` only where the key does not exist yet.
pub(crate) const BPF_NOEXIST: u64 = 1;

/// Lowers a call of helper `id`.
pub(crate) fn lower(
    e: &mut Emitter,
    options: &Options,
    id: u32,
    state: &State,
) -> Result<(), Fault> {
    let helper = Helper::from_id(id).map_err(|reason| e.fault(reason))?;
    match helper {
        Helper::Lookup => lookup(e, options, state)?,
        Helper::Update => update(e, options, state)?,
        Helper::Delete => {
            let (_, map) = map(e, state, 1)?;
            values_only(e, &map)?;
            e.line(&format!("mov.b64 #r0, {EINVAL}"));
        }
        Helper::Output => output(e, options, state)?,
        Helper::PidTgid => word(e, options, "#r0", 0)?,
        // Read again at each call: two reads must not be merged into one.
        Helper::GlobalTimer => e.line("mov.u64 #r0, %globaltimer"),
        Helper::Clock64 => e.line("mov.u64 #r0, %clock64"),
        Helper::BlockIdx | Helper::BlockDim | Helper::ThreadIdx | Helper::GridDim => {
            let register = helper.triple().unwrap_or_default();
            for (reg, axis) in [(1, 'x'), (2, 'y'), (3, 'z')] {
                let target = e.target_to_write(state, reg, 0, 8)?;
                e.line(&format!("mov.u32 #w0, %{register}.{axis}"));
                e.line("cvt.u64.u32 #t0, #w0");
                e.store(&target, Size::B8, "#t0");
            }
            e.line("mov.b64 #r0, 0");
        }
        Helper::MembarSys => {
            e.line("membar.sys");
            e.line("mov.b64 #r0, 0");
        }
        Helper::CudaExit => e.line("exit"),
        Helper::GridId => e.line("mov.u64 #r0, %gridid"),
        Helper::SmId => special(e, "smid"),
        Helper::WarpId => special(e, "warpid"),
        Helper::LaneId => special(e, "laneid"),
        Helper::PrefetchL2 => {
            if !state.reg(1).is_stack() {
                e.line("prefetch.L2 [#r1]");
            }
            e.line("mov.b64 #r0, 0");
        }
        Helper::AskPrefetch | Helper::AskAdvise | Helper::AskDelay | Helper::AskPriority => {
            ask(e, options, helper)?;
        }
    }
    Ok(())
}

/// Adds to the list of what a policy asks for. It has one thread, so that nothing is atomic.
fn ask(e: &mut Emitter, options: &Options, helper: Helper) -> Result<(), Fault> {
    let Some((what, arguments)) = helper.asks() else { return Ok(()) };
    let done = e.fresh();
    e.line("mov.b64 #r0, 0");
    if matches!(helper, Helper::AskPrefetch | Helper::AskAdvise) {
        // Of no bytes nothing is asked: so a program needs no branch for what it leaves alone.
        e.line("setp.eq.s64 #p0, #r2, 0");
        e.line(&format!("@#p0 bra {done}"));
    }
    word(e, options, "#t0", actions::TABLE_WORD)?;
    e.line("ld.global.u64 #t1, [#t0]");
    e.line("add.s64 #t2, #t1, 1");
    e.line("st.global.u64 [#t0], #t2");
    e.line(&format!("setp.ge.u64 #p0, #t1, {}", actions::MOST));
    e.line(&format!("@#p0 mov.b64 #r0, {ENOSPC}"));
    e.line(&format!("@#p0 bra {done}"));
    e.line(&format!("mul.lo.s64 #t1, #t1, {}", actions::BYTES));
    e.line("add.s64 #t0, #t0, #t1");
    e.line(&format!("mov.b64 #t1, {what}"));
    e.line(&format!("st.global.u64 [#t0+{}], #t1", actions::HEAD));
    for reg in 1..=actions::ARGUMENTS {
        let from = if reg <= arguments { Emitter::reg(reg) } else { "0".into() };
        e.line(&format!("mov.b64 #t1, {from}"));
        e.line(&format!("st.global.u64 [#t0+{}], #t1", actions::HEAD + 8 * u64::from(reg)));
    }
    e.label(&done);
    Ok(())
}

/// A 32-bit special register into `r0`.
fn special(e: &mut Emitter, name: &str) {
    e.line(&format!("mov.u32 #w0, %{name}"));
    e.line("cvt.u64.u32 #r0, #w0");
}

/// Word `index` of the table into `dst`.
fn word(e: &mut Emitter, options: &Options, dst: &str, index: usize) -> Result<(), Fault> {
    // Programs that share a table share its header.
    let shared = |first: usize| if index < TABLE_HEADER { index } else { index + 3 * first };
    match &options.addresses {
        Addresses::Table => e.line(&Table::Constant.load(dst, index)),
        Addresses::Shared { first } => e.line(&Table::Constant.load(dst, shared(*first))),
        Addresses::Behind { register, first } => {
            e.line(&Table::Behind(register).load(dst, shared(*first)));
        }
        Addresses::Fixed(words) => {
            let Some(word) = words.get(index) else {
                return Err(e.fault(format!("the table of maps has no word {index}")));
            };
            e.line(&format!("mov.b64 {dst}, {word:#x}"));
        }
    }
    Ok(())
}

/// What word of the table of a map.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    Values,
    Shards,
    Lost,
}

pub(crate) fn map_word(
    e: &mut Emitter,
    options: &Options,
    dst: &str,
    map: u32,
    what: Word,
) -> Result<(), Fault> {
    word(e, options, dst, TABLE_HEADER + 3 * map as usize + what as usize)
}

/// The map that `reg` names, with its index.
pub(crate) fn map(e: &Emitter, state: &State, reg: Reg) -> Result<(u32, Map), Fault> {
    match state.reg(reg) {
        Value::Map(index) => match e.program.maps.get(index as usize) {
            Some(map) => Ok((index, map.clone())),
            None => Err(e.fault(format!("map {index} does not exist"))),
        },
        _ => Err(e.fault(format!("r{reg} is not one map on every path to this call"))),
    }
}

/// Refuses maps that have no values by key, or that have no lowering.
fn values_only(e: &Emitter, map: &Map) -> Result<(), Fault> {
    let Map { name, kind, .. } = map;
    match kind {
        MapKind::PerThreadArray
        | MapKind::Array
        | MapKind::KernelShared
        | MapKind::PerSmArray
        | MapKind::BlockArray
        | MapKind::HostArray => {}
        // Lowered by `hash`.
        MapKind::Hash => {}
        MapKind::Ring => return Err(e.fault(format!("map `{name}` is a ring and has no keys"))),
        MapKind::Other(id) => {
            return Err(e.fault(format!(
                "map `{name}` has type {id}, which a GPU does not reach; device programs use 1501 (hash), 1502 (a \
                 value per thread), 1503 (array), 1504 (shared with the kernel), 1527 (ring), 1540 \
                 (a value per SM), 1541 (a sum per block) or 1542 (array in the host's memory)"
            )));
        }
    }
    if map.key_size != 4 || map.value_size == 0 || map.max_entries == 0 {
        return Err(e.fault(format!(
            "map `{name}` has keys of {} bytes, values of {} and {} entries; an array has keys of 4 \
             bytes and at least one entry",
            map.key_size, map.value_size, map.max_entries
        )));
    }
    Ok(())
}

/// Computes the address of the value of the key at `r2` into `#t0`, and into `#p0` whether there is
/// none. What a per-thread array has no room for is counted.
fn address(e: &mut Emitter, options: &Options, state: &State) -> Result<(u32, Map), Fault> {
    let (index, map) = map(e, state, 1)?;
    values_only(e, &map)?;
    let key = e.target(state, 2, 0, 4)?;
    e.load("#t1", &key, Size::B4, false);
    e.line(&format!("setp.ge.u64 #p0, #t1, {}", map.max_entries));
    // The key's place among all values: key, or key * shards + shard.
    if let Some(shard) = shard(&map) {
        map_word(e, options, "#t3", index, Word::Shards)?;
        shard(e);
        e.line("setp.ge.u64 #p1, #t2, #t3");
        map_word(e, options, "#t4", index, Word::Lost)?;
        e.line("@#p1 red.relaxed.gpu.global.add.u64 [#t4], 1");
        e.line("or.pred #p0, #p0, #p1");
        e.line("mul.lo.s64 #t1, #t1, #t3");
        e.line("add.s64 #t1, #t1, #t2");
    }
    match map.kind {
        MapKind::BlockArray => of_block(e, options, index)?,
        _ => map_word(e, options, "#t0", index, Word::Values)?,
    }
    e.line(&format!("mul.lo.s64 #t1, #t1, {}", map.stride()));
    e.line("add.s64 #t0, #t0, #t1");
    Ok((index, map))
}

/// The generic address of a map in shared memory into `#t0`.
fn of_block(e: &mut Emitter, options: &Options, index: u32) -> Result<(), Fault> {
    let (Some(name), Addresses::Shared { first }) = (&options.of_block, &options.addresses) else {
        return Err(e.fault(
            "a map of type 1541 lies in the shared memory of a kernel's blocks, and there is no kernel around",
        ));
    };
    e.line(&format!("mov.u64 #t0, {name}{}", first + index as usize));
    e.line("cvta.shared.u64 #t0, #t0");
    Ok(())
}

/// How the shard of this thread is computed into `#t2`.
fn shard(map: &Map) -> Option<fn(&mut Emitter)> {
    match map.kind {
        MapKind::PerThreadArray => Some(thread),
        MapKind::PerSmArray | MapKind::Ring => Some(sm),
        _ => None,
    }
}

fn sm(e: &mut Emitter) {
    e.line("mov.u32 #w0, %smid");
    e.line("cvt.u64.u32 #t2, #w0");
}

/// The number of this thread in the grid: x fastest, then y, then z, of the whole grid's width.
fn thread(e: &mut Emitter) {
    for axis in ['z', 'y', 'x'] {
        e.line(&format!("mov.u32 #w0, %ctaid.{axis}"));
        e.line(&format!("mov.u32 #w1, %ntid.{axis}"));
        e.line(&format!("mov.u32 #w2, %tid.{axis}"));
        e.line("cvt.u64.u32 #t5, #w2");
        e.line("mad.wide.u32 #t5, #w0, #w1, #t5");
        if axis == 'z' {
            e.line("mov.b64 #t2, #t5");
            continue;
        }
        e.line(&format!("mov.u32 #w0, %nctaid.{axis}"));
        e.line("mul.wide.u32 #t4, #w0, #w1");
        e.line("mad.lo.s64 #t2, #t2, #t4, #t5");
    }
}

fn lookup(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    address(e, options, state)?;
    e.line("selp.b64 #r0, 0, #t0, #p0");
    Ok(())
}

fn update(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    match state.reg(4) {
        Value::Const(BPF_NOEXIST) => {
            let (_, map) = map(e, state, 1)?;
            values_only(e, &map)?;
            e.line(&format!("mov.b64 #r0, {EEXIST}"));
            return Ok(());
        }
        Value::Const(0 | 2) => {}
        Value::Const(flags) => return Err(e.fault(format!("update with flags {flags}"))),
        _ => return Err(e.fault("the flags of an update must be a constant")),
    }
    let (_, map) = address(e, options, state)?;
    let done = e.fresh();
    e.line(&format!("mov.b64 #r0, {E2BIG}"));
    e.line(&format!("@#p0 bra {done}"));
    copy(e, state, 3, map.value_size, 0)?;
    e.line("mov.b64 #r0, 0");
    e.label(&done);
    Ok(())
}

/// Copies `bytes` bytes from the address in `from` to `[#t0 + offset]`, which is a multiple of 8.
pub(crate) fn copy(
    e: &mut Emitter,
    state: &State,
    from: Reg,
    bytes: u32,
    offset: u32,
) -> Result<(), Fault> {
    if bytes > MAX_COPY {
        return Err(e.fault(format!("a value of {bytes} bytes is copied; at most {MAX_COPY}")));
    }
    for (at, size) in parts(bytes) {
        let source = e.target(state, from, at.into(), size.bytes().into())?;
        let offset = i64::from(offset + at);
        let to = Target::Memory { space: ".global", base: "#t0".into(), offset, align: 3 };
        e.load("#t1", &source, size, false);
        e.store(&to, size, "#t1");
    }
    Ok(())
}

/// The parts in which so many bytes are loaded and stored: offset and size.
pub(crate) fn parts(bytes: u32) -> impl Iterator<Item = (u32, Size)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let size = match bytes - at {
            8.. => Size::B8,
            4.. => Size::B4,
            2.. => Size::B2,
            1 => Size::B1,
            0 => return None,
        };
        let part = (at, size);
        at += size.bytes();
        Some(part)
    })
}

/// The most bytes that one helper call copies.
const MAX_COPY: u32 = 4096;

fn output(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    let (index, map) = map(e, state, 2)?;
    let name = &map.name;
    if map.kind != MapKind::Ring {
        return Err(e.fault(format!(
            "map `{name}` has type {}; records go to a ring (1527)",
            map.kind.id()
        )));
    }
    let Value::Const(size) = state.reg(5) else {
        return Err(e.fault("the size of a record must be a constant"));
    };
    let Some(ring) = map.ring_bytes().filter(|_| map.max_entries > 0) else {
        return Err(e.fault(format!("ring `{name}` has no room")));
    };
    if size == 0 || size > u64::from(map.value_size) {
        let reason = format!(
            "a record of {size} bytes for ring `{name}`, whose values have {}",
            map.value_size
        );
        return Err(e.fault(reason));
    }
    let (lost, done) = (e.fresh(), e.fresh());
    map_word(e, options, "#t3", index, Word::Shards)?;
    sm(e);
    e.line("setp.ge.u64 #p0, #t2, #t3");
    e.line(&format!("@#p0 bra {lost}"));
    map_word(e, options, "#t0", index, Word::Values)?;
    e.line(&format!("mul.lo.s64 #t2, #t2, {ring}"));
    e.line("add.s64 #t0, #t0, #t2");
    // A place is taken first, and given back where there was none; only who has one takes a number. So numbers have no
    // gaps, and whoever empties the ring gives places back by the same counter.
    e.line("atom.relaxed.gpu.global.add.u64 #t1, [#t0+8], 1");
    e.line(&format!("setp.ge.u64 #p0, #t1, {}", map.max_entries));
    e.line("@#p0 red.relaxed.gpu.global.add.u64 [#t0+8], -1");
    e.line(&format!("@#p0 bra {lost}"));
    e.line("atom.relaxed.gpu.global.add.u64 #t4, [#t0], 1");
    e.line(&format!("and.b64 #t1, #t4, {}", map.ring_slots() - 1));
    e.line(&format!("mul.lo.s64 #t1, #t1, {}", map.ring_slot()));
    e.line("add.s64 #t0, #t0, #t1");
    copy(e, state, 4, size as u32, 64 + 8)?;
    // The number and 1, and the size, are written last: who reads them sees the whole record.
    e.line("add.s64 #t4, #t4, 1");
    e.line("shl.b64 #t4, #t4, 32");
    e.line(&format!("or.b64 #t4, #t4, {size}"));
    e.line("st.release.gpu.global.u64 [#t0+64], #t4");
    e.line("mov.b64 #r0, 0");
    e.line(&format!("bra {done}"));
    e.label(&lost);
    map_word(e, options, "#t3", index, Word::Lost)?;
    e.line("red.relaxed.gpu.global.add.u64 [#t3], 1");
    e.line(&format!("mov.b64 #r0, {ENOSPC}"));
    e.label(&done);
    Ok(())
}
