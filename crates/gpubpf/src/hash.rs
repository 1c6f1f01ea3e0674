//! Hash maps on the device (1501), in place: a look-up is a loop over at most [`PROBES`] slots, without a call.
//!
//! *Layout.* Slots of equal size in a power of two, each with a word that says what it is, the key and the value:
//! 0 is free, 1 is being written, 2 was deleted, anything else is the hash of its key with the lower two bits set.
//! A key lies in the first slot from its hash on that was free when it came.
//!
//! *Who writes first.* Who finds a free slot takes it by compare-and-exchange, writes key and value and then the
//! word, so whoever reads the word sees the whole entry, and no key is there twice. Whoever meets a slot that is being
//! written waits for at most [`SPINS`] looks. Lanes of one warp meet again behind the writing, so none waits for
//! another of its own warp.
//!
//! *What fools it.* Values that are there already are overwritten word by word: of two that write the same key
//! at once the later word counts; who adds up uses atomics on the value. A slot that was deleted is not used again. A
//! key that finds none of its slots free is counted as lost.

use crate::call::{BPF_NOEXIST, E2BIG, EEXIST, Word, copy, map, map_word, parts};
use crate::emit::{Emitter, Target};
use crate::error::Fault;
use crate::flow::State;
use crate::insn::Reg;
use crate::options::Options;
use crate::program::{Map, MapKind};
use crate::value::Value;

/// Slots that a key may lie in.
pub(crate) const PROBES: u32 = 32;

/// Looks at a slot that another thread is writing, before it counts as lost.
const SPINS: u32 = 4096;

/// The longest key, in bytes.
const MAX_KEY: u32 = 64;

/// The most entries.
const MAX_ENTRIES: u32 = 1 << 24;

/// `-ENOENT`: there is no such key.
const ENOENT: i64 = -2;

/// `update` only where the key exists.
const BPF_EXIST: u64 = 2;

/// What the word of a slot says.
const FREE: u64 = 0;
const WRITING: u64 = 1;
const DELETED: u64 = 2;
/// Both bits are set where an entry lies.
pub(crate) const THERE: u64 = 3;

/// The hash map at `r1`, with its number and how many slots it has.
fn shape(e: &Emitter, state: &State) -> Result<(u32, Map, u64), Fault> {
    let (index, map) = map(e, state, 1)?;
    let Map { name, key_size, value_size, max_entries, .. } = &map;
    let sound = (1..=MAX_KEY).contains(key_size)
        && *value_size > 0
        && (1..=MAX_ENTRIES).contains(max_entries);
    let Some(slots) = map.slots().filter(|_| sound) else {
        return Err(e.fault(format!(
            "map `{name}` has keys of {key_size} bytes, values of {value_size} and {max_entries} entries; a hash \
             map has keys of 1 to {MAX_KEY} bytes, values, and 1 to {MAX_ENTRIES} entries"
        )));
    };
    Ok((index, map, slots))
}

/// Lowers a helper on a hash map at `r1`; whether it is one.
pub(crate) fn lower(
    e: &mut Emitter,
    options: &Options,
    id: u32,
    state: &State,
) -> Result<bool, Fault> {
    if !map(e, state, 1).is_ok_and(|(_, map)| map.kind == MapKind::Hash) {
        return Ok(false);
    }
    match id {
        1 => lookup(e, options, state)?,
        2 => update(e, options, state)?,
        3 => delete(e, options, state)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Begins the walk over the slots of the key at `r2`: the word of its entry into `#t2`, the number of its first slot
/// into `#t3`, and the count of slots into `#w0`.
fn begin(e: &mut Emitter, state: &State, map: &Map, slots: u64) -> Result<(), Fault> {
    // A multiplication and a shift for each word, as in the finaliser of MurmurHash3 (Appleby).
    e.line("mov.b64 #t2, 0x9e3779b97f4a7c15");
    for (at, size) in parts(map.key_size) {
        let source = e.target(state, 2, at.into(), size.bytes().into())?;
        e.load("#t1", &source, size, false);
        e.line("xor.b64 #t2, #t2, #t1");
        e.line("mul.lo.u64 #t2, #t2, 0xff51afd7ed558ccd");
        e.line("shr.u64 #t1, #t2, 32");
        e.line("xor.b64 #t2, #t2, #t1");
    }
    e.line("shr.u64 #t3, #t2, 2");
    e.line(&format!("and.b64 #t3, #t3, {}", slots - 1));
    e.line(&format!("or.b64 #t2, #t2, {THERE}"));
    e.line("mov.b32 #w0, 0");
    Ok(())
}

/// The address of slot `#t3` into `#t0`.
fn slot(e: &mut Emitter, options: &Options, index: u32, map: &Map) -> Result<(), Fault> {
    map_word(e, options, "#t0", index, Word::Values)?;
    e.line(&format!("mul.lo.u64 #t1, #t3, {}", map.slot()));
    e.line("add.s64 #t0, #t0, #t1");
    Ok(())
}

/// Jumps to `other` where the key of the slot at `#t0` is not the one at `r2`.
fn compare(e: &mut Emitter, state: &State, map: &Map, other: &str) -> Result<(), Fault> {
    for (at, size) in parts(map.key_size) {
        let key = e.target(state, 2, at.into(), size.bytes().into())?;
        e.load("#t1", &key, size, false);
        let there = Target::Memory {
            space: ".global",
            base: "#t0".into(),
            offset: i64::from(8 + at),
            align: 3,
        };
        e.load("#t5", &there, size, false);
        e.line("setp.ne.u64 #p0, #t1, #t5");
        e.line(&format!("@#p0 bra {other}"));
    }
    Ok(())
}

/// Goes on to the next slot and jumps to `again`, unless all were looked at.
fn next(e: &mut Emitter, slots: u64, again: &str) {
    e.line("add.s64 #t3, #t3, 1");
    e.line(&format!("and.b64 #t3, #t3, {}", slots - 1));
    e.line("add.u32 #w0, #w0, 1");
    e.line(&format!("setp.lt.u32 #p0, #w0, {}", slots.min(PROBES.into())));
    e.line(&format!("@#p0 bra {again}"));
}

/// The address of the entry of the key at `r2` into `#t0`; jumps to `none` where there is none.
fn find(
    e: &mut Emitter,
    options: &Options,
    state: &State,
    none: &str,
) -> Result<(u32, Map), Fault> {
    let (index, map, slots) = shape(e, state)?;
    let (again, other, found) = (e.fresh(), e.fresh(), e.fresh());
    begin(e, state, &map, slots)?;
    e.label(&again);
    slot(e, options, index, &map)?;
    e.line("ld.acquire.gpu.global.u64 #t4, [#t0]");
    e.line(&format!("setp.eq.u64 #p0, #t4, {FREE}"));
    e.line(&format!("@#p0 bra {none}"));
    e.line("setp.ne.u64 #p0, #t4, #t2");
    e.line(&format!("@#p0 bra {other}"));
    compare(e, state, &map, &other)?;
    e.line(&format!("bra {found}"));
    e.label(&other);
    next(e, slots, &again);
    e.line(&format!("bra {none}"));
    e.label(&found);
    Ok((index, map))
}

/// The address of the value into `r0`, or 0.
fn lookup(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    let (none, done) = (e.fresh(), e.fresh());
    let (_, map) = find(e, options, state, &none)?;
    e.line(&format!("add.s64 #r0, #t0, {}", map.value_at()));
    e.line(&format!("bra {done}"));
    e.label(&none);
    e.line("mov.b64 #r0, 0");
    e.label(&done);
    Ok(())
}

fn delete(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    let (none, done) = (e.fresh(), e.fresh());
    find(e, options, state, &none)?;
    // Who deletes it first has deleted it.
    e.line(&format!("atom.acq_rel.gpu.global.cas.b64 #t4, [#t0], #t2, {DELETED}"));
    e.line("setp.ne.u64 #p0, #t4, #t2");
    e.line(&format!("@#p0 bra {none}"));
    e.line("mov.b64 #r0, 0");
    e.line(&format!("bra {done}"));
    e.label(&none);
    e.line(&format!("mov.b64 #r0, {ENOENT}"));
    e.label(&done);
    Ok(())
}

/// Copies the key into the slot at `#t0`.
fn copy_key(e: &mut Emitter, state: &State, map: &Map) -> Result<(), Fault> {
    const KEY: Reg = 2;
    copy(e, state, KEY, map.key_size, 8)
}

fn update(e: &mut Emitter, options: &Options, state: &State) -> Result<(), Fault> {
    const VALUE: Reg = 3;
    let flags = match state.reg(4) {
        Value::Const(flags @ (0 | BPF_NOEXIST | BPF_EXIST)) => flags,
        Value::Const(flags) => return Err(e.fault(format!("update with flags {flags}"))),
        _ => return Err(e.fault("the flags of an update must be a constant")),
    };
    let (index, map, slots) = shape(e, state)?;
    let value_at = map.value_at() as u32;
    let (again, taken, written, other, full, done) =
        (e.fresh(), e.fresh(), e.fresh(), e.fresh(), e.fresh(), e.fresh());
    begin(e, state, &map, slots)?;
    e.line("mov.b32 #w1, 0");
    e.label(&again);
    slot(e, options, index, &map)?;
    e.line("ld.acquire.gpu.global.u64 #t4, [#t0]");
    e.line(&format!("setp.ne.u64 #p0, #t4, {FREE}"));
    e.line(&format!("@#p0 bra {taken}"));
    if flags == BPF_EXIST {
        e.line(&format!("mov.b64 #r0, {ENOENT}"));
        e.line(&format!("bra {done}"));
    } else {
        e.line(&format!("atom.acq_rel.gpu.global.cas.b64 #t4, [#t0], {FREE}, {WRITING}"));
        // Lanes of this warp that came too late meet the one that writes behind its writing.
        e.line(&format!("setp.ne.u64 #p1, #t4, {FREE}"));
        e.line(&format!("@#p1 bra {written}"));
        copy_key(e, state, &map)?;
        copy(e, state, VALUE, map.value_size, value_at)?;
        e.line("st.release.gpu.global.u64 [#t0], #t2");
        e.label(&written);
        e.line("mov.b64 #r0, 0");
        e.line(&format!("@!#p1 bra {done}"));
    }
    e.label(&taken);
    e.line(&format!("setp.eq.u64 #p0, #t4, {WRITING}"));
    let ready = e.fresh();
    e.line(&format!("@!#p0 bra {ready}"));
    e.line("add.u32 #w1, #w1, 1");
    e.line(&format!("setp.lt.u32 #p0, #w1, {SPINS}"));
    e.line(&format!("@#p0 bra {again}"));
    e.line(&format!("bra {full}"));
    e.label(&ready);
    e.line("setp.ne.u64 #p0, #t4, #t2");
    e.line(&format!("@#p0 bra {other}"));
    compare(e, state, &map, &other)?;
    if flags == BPF_NOEXIST {
        e.line(&format!("mov.b64 #r0, {EEXIST}"));
    } else {
        copy(e, state, VALUE, map.value_size, value_at)?;
        e.line("mov.b64 #r0, 0");
    }
    e.line(&format!("bra {done}"));
    e.label(&other);
    next(e, slots, &again);
    e.label(&full);
    map_word(e, options, "#t3", index, Word::Lost)?;
    e.line("red.relaxed.gpu.global.add.u64 [#t3], 1");
    e.line(&format!("mov.b64 #r0, {E2BIG}"));
    e.label(&done);
    Ok(())
}
