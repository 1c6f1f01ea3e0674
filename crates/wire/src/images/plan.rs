//! An image with probes in it, and what a loader has to do for them.

use std::io;
use std::os::fd::OwnedFd;

use super::MAX_IMAGE;
use super::late::Late;
use super::memory::Memory;
use super::patch::Patch;
use super::records::Records;
use super::stealing::{Stealing, Stolen};

const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYPL");
const VERSION: u64 = 5;
/// Bytes of all maps at most.
const MOST_BYTES: u64 = 1 << 40;
/// What memory of the host is mapped by.
const PAGE: u64 = 4096;
/// Bytes before the words.
const HEAD: usize = 200;
/// The most words of a table, places of maps in it, kernels, and slots of arrays that a loader reads.
pub const MANY: u64 = 1 << 16;

/// An image with probes in it: PTX text, the table that its programs read (`gpuwhy_probe`), and the memory of their maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The number that the controller gave it.
    pub image: u64,
    /// Bytes of device memory that the maps take.
    pub state_bytes: u64,
    /// So many of them, whole pages at the beginning, are memory of the host that the device reaches: of what a
    /// [`State`](super::State) shows, and never copied.
    pub host_bytes: u64,
    /// Words that are addresses of memory that somebody else has, with its bytes: whoever asks for it gets a descriptor.
    pub shared: Vec<(u32, u64)>,
    /// The table, word by word.
    pub words: Vec<u64>,
    /// Words that are addresses: which one, and the offset in the maps' memory.
    pub places: Vec<(u32, u64)>,
    /// Words that are switches, program by program.
    pub switches: Vec<u32>,
    /// Where one of the maps counts the blocks that run.
    pub running: Option<Running>,
    /// Where one of the maps has the last launches.
    pub launches: Option<Launches>,
    /// The kernels, by the hash of their names ([`name_hash`]), with the number of the site where each begins: what a
    /// launch of that map says it is of.
    pub kernels: Vec<(u64, u64)>,
    /// The rings of records among the maps.
    pub rings: Vec<Ring>,
    /// The kernels' names, by the sites that lie in them.
    pub names: Vec<Name>,
    /// Kernels that can steal work.
    pub stealing: Option<Stealing>,
    /// Kernels of machine code from which functions of the text are called.
    pub patch: Option<Patch>,
    /// The PTX text; of functions for machine code it may be assembled.
    pub text: Vec<u8>,
}

/// An array in which programs count blocks that began less those that ended, by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The offset in the maps' memory.
    pub at: u64,
    /// How many bins it has, a power of two: the time in bins, modulo that.
    pub bins: u32,
    /// A bin is so long: 2 to the power of this, ns.
    pub shift: u32,
    /// The offset of an array with as many words, where the last block of each bin that ended says so ([`Running::ended`]);
    /// 0 if there is none.
    pub ends: u64,
}

/// A kernel, by a site that lies in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The site's number.
    pub site: u64,
    /// The name as a programmer wrote it.
    pub readable: String,
    /// The name in the image.
    pub mangled: String,
}

impl Name {
    /// The longest name, bytes.
    pub const MOST: usize = 512;

    fn put(&self, out: &mut Vec<u8>) {
        let (readable, mangled) = (self.readable.as_bytes(), self.mangled.as_bytes());
        out.extend(self.site.to_le_bytes());
        out.extend((readable.len() as u32).to_le_bytes());
        out.extend((mangled.len() as u32).to_le_bytes());
        out.extend_from_slice(readable);
        out.extend_from_slice(mangled);
        out.resize(out.len().next_multiple_of(8), 0);
    }

    fn read(bytes: &[u8], at: &mut usize) -> Option<Name> {
        let part = |from: usize, bytes_of: usize| bytes.get(from..from.checked_add(bytes_of)?);
        let word = |from| Some(u64::from_le_bytes(part(from, 8)?.try_into().ok()?));
        let (site, lengths) = (word(*at)?, word(*at + 8)?);
        let (first, second) = (lengths as u32 as usize, (lengths >> 32) as usize);
        if first.max(second) > Name::MOST {
            return None;
        }
        let text = |from, length| Some(String::from_utf8_lossy(part(from, length)?).into_owned());
        let (readable, mangled) = (text(*at + 16, first)?, text(*at + 16 + first, second)?);
        *at += 16 + (first + second).next_multiple_of(8);
        Some(Name { site, readable, mangled })
    }
}

/// An array in which programs write when each launch began: [`Launches::BYTES`] each, by the launch's number
/// modulo the slots. Its words are that number and 1, the site where its kernel begins, and when its first block began by
/// the device's clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// The offset in the maps' memory.
    pub at: u64,
    /// How many slots it has, a power of two.
    pub slots: u32,
}

impl Launches {
    /// Bytes of a launch.
    pub const BYTES: u32 = 24;

    /// The offset in the maps' memory of a word of a slot.
    pub fn word(&self, slot: u32, word: u32) -> u64 {
        self.at + u64::from(Launches::BYTES) * u64::from(slot) + 8 * u64::from(word)
    }

    fn read(at: u64, slots: u64, state_bytes: u64) -> Option<Option<Launches>> {
        if slots == 0 {
            return Some(None);
        }
        let bytes = u64::from(Launches::BYTES) * slots.min(MANY);
        let fits = at.is_multiple_of(8) && at.checked_add(bytes)? <= state_bytes;
        let good = fits && slots.is_power_of_two() && slots <= MANY;
        good.then_some(Some(Launches { at, slots: slots as u32 }))
    }
}

/// A ring of records for each SM, which a loader empties while kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The map's number.
    pub map: u32,
    /// How many SMs have one.
    pub sms: u32,
    /// The offset in the maps' memory of the first one.
    pub at: u64,
    /// Slots of each, a power of two.
    pub slots: u32,
    /// Bytes of a slot: a word that is written last, with the record's number and 1 in the upper half and its size in the
    /// lower one, and the record.
    pub slot_bytes: u32,
}

impl Ring {
    /// Bytes before the slots: the count of records, and that of places that are taken.
    const HEAD: u64 = 64;

    /// Bytes of the ring of an SM.
    pub fn bytes(&self) -> u64 {
        Ring::HEAD + u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// The offset in the maps' memory of the slot of a record.
    pub fn slot(&self, sm: u32, number: u64) -> u64 {
        let slot = number & (u64::from(self.slots) - 1);
        self.at + u64::from(sm) * self.bytes() + Ring::HEAD + slot * u64::from(self.slot_bytes)
    }

    fn words(&self) -> [u64; 3] {
        let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        [pair(self.map, self.sms), self.at, pair(self.slots, self.slot_bytes)]
    }

    fn read([first, at, last]: [u64; 3], state_bytes: u64) -> Option<Ring> {
        let ring = Ring {
            map: first as u32,
            sms: (first >> 32) as u32,
            at,
            slots: last as u32,
            slot_bytes: (last >> 32) as u32,
        };
        let aligned = at.is_multiple_of(8) && ring.slot_bytes.is_multiple_of(8);
        let sized = ring.slots.is_power_of_two() && ring.slot_bytes >= 16;
        let end = || ring.bytes().checked_mul(ring.sms.into())?.checked_add(at);
        let fits = aligned && sized && u64::from(ring.sms) <= MANY;
        (fits && end()? <= state_bytes).then_some(ring)
    }
}

/// The hash by which both ends know a kernel: FNV-1a of its name, mangled.
pub fn name_hash(name: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

impl Running {
    /// The site where the last block of a bin ended, by what its word in the other array holds: 1 more than the site in the
    /// lower 24 bits, and the lower 40 bits of the bin, counted from the clock's zero. `None` if none has, or a turn earlier.
    pub fn ended(bin: u64, word: u64) -> Option<u64> {
        let site = word & 0xff_ffff;
        (site > 0 && word >> 24 == bin & 0xff_ffff_ffff).then(|| site - 1)
    }

    fn read(words: [u64; 4], state_bytes: u64) -> Option<Option<Running>> {
        let [at, bins, shift, ends] = words;
        if bins == 0 {
            return Some(None);
        }
        let fits = |at: u64| {
            Some(at.is_multiple_of(8) && at.checked_add(8 * bins.min(MANY))? <= state_bytes)
        };
        let good =
            fits(at)? && fits(ends)? && bins.is_power_of_two() && bins <= MANY && shift <= 32;
        good.then_some(Some(Running { at, bins: bins as u32, shift: shift as u32, ends }))
    }
}

impl Plan {
    /// Bytes that a [`State`](super::State) shows: the maps, how late launches are, records on their way, and how kernels
    /// that can steal were launched.
    pub fn shown_bytes(&self) -> u64 {
        let kernels = self.stealing.as_ref().map_or(0, |stealing| stealing.kernels.len());
        self.stolen_at() + Stolen::BYTES * kernels as u64
    }

    /// Where it is said how kernels that can steal were launched, from the beginning of the maps.
    pub fn stolen_at(&self) -> u64 {
        self.records_at() + if self.rings.is_empty() { 0 } else { Records::BYTES }
    }

    /// The kernel in which a site lies.
    pub fn name(&self, site: u64) -> Option<&Name> {
        self.names.iter().find(|name| name.site == site)
    }

    /// Where [`Records`] begin, from the beginning of the maps.
    pub fn records_at(&self) -> u64 {
        self.state_bytes.next_multiple_of(8) + Late::bytes(self.kernels.len())
    }

    /// In memory that can be sent.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn share(&self) -> io::Result<Memory> {
        let mut out = Vec::with_capacity(HEAD + 8 * self.words.len() + self.text.len() + 64);
        let counts = [self.words.len(), self.places.len(), self.switches.len(), self.text.len()];
        let numbers = [MAGIC, VERSION, self.image, self.state_bytes];
        let counts = counts.map(|count| count as u64);
        let places = self.places.iter().flat_map(|(word, at)| [u64::from(*word), *at]);
        let switches = self.switches.iter().map(|word| u64::from(*word));
        let running = self.running;
        let running = running.map_or([0; 4], |r| [r.at, r.bins.into(), r.shift.into(), r.ends]);
        let launches = self.launches.map_or([0; 2], |l| [l.at, l.slots.into()]);
        let all = numbers.into_iter().chain(counts).chain(running).chain(launches);
        let more = [self.kernels.len(), self.rings.len(), self.names.len()];
        let more = more.map(|count| count as u64);
        let all = all.chain(more).chain(Stealing::head(self.stealing.as_ref()));
        let all = all.chain([self.host_bytes, self.shared.len() as u64]);
        let all = all.chain(Patch::head(self.patch.as_ref()));
        let shared = self.shared.iter().flat_map(|(word, bytes)| [u64::from(*word), *bytes]);
        let all = all.chain(self.words.iter().copied());
        let kernels = self.kernels.iter().flat_map(|(name, site)| [*name, *site]);
        let rings = self.rings.iter().flat_map(Ring::words);
        let thieves = self.stealing.iter().flat_map(Stealing::words);
        let all = all.chain(places).chain(switches).chain(kernels).chain(rings).chain(thieves);
        let all = all.chain(shared).chain(self.patch.iter().flat_map(Patch::words));
        out.extend(all.flat_map(u64::to_le_bytes));
        self.names.iter().for_each(|name| name.put(&mut out));
        out.extend_from_slice(&self.text);
        let memory = Memory::new(out.len())?;
        memory.write(0, &out);
        Ok(memory)
    }

    /// Reads what was received.
    ///
    /// # Errors
    /// It is no plan of this version: a number in it leads beyond its end.
    pub fn read(fd: OwnedFd) -> io::Result<Plan> {
        let memory = Memory::of(fd)?;
        Plan::of(&memory.read(0, memory.len())).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(crate) fn of(bytes: &[u8]) -> Option<Plan> {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
        };
        let mut head = [0; HEAD / 8];
        for (number, value) in head.iter_mut().enumerate() {
            *value = word(8 * number)?;
        }
        let [magic, version, image, state_bytes, words, places, switches, text, rest @ ..] = head;
        let [at, bins, shift, ends, launched, slots, kernels, rings, names, more @ ..] = rest;
        let [stealing @ .., host_bytes, shared, kernels_of_code, programs, spots] = more;
        let running = Running::read([at, bins, shift, ends], state_bytes)?;
        let launches = Launches::read(launched, slots, state_bytes)?;
        let counts = [words, places, switches, kernels, rings, names, shared, kernels_of_code];
        let few = counts.iter().chain(&stealing[..2]).all(|count| *count <= MANY);
        let sized = host_bytes <= state_bytes && state_bytes <= MOST_BYTES;
        let right = [magic, version] == [MAGIC, VERSION] && few && sized;
        if !right || !host_bytes.is_multiple_of(PAGE) {
            return None;
        }
        let mut at = HEAD;
        let mut next = || {
            at += 8;
            word(at - 8)
        };
        let words: Vec<u64> = (0..words).map(|_| next()).collect::<Option<_>>()?;
        let inside =
            |number: u64| u32::try_from(number).ok().filter(|n| (*n as usize) < words.len());
        let mut place = || {
            let (word, at) = (inside(next()?)?, next()?);
            (at.checked_add(8)? <= state_bytes).then_some((word, at))
        };
        let places: Vec<(u32, u64)> = (0..places).map(|_| place()).collect::<Option<_>>()?;
        let switches: Vec<u32> = (0..switches).map(|_| inside(next()?)).collect::<Option<_>>()?;
        let kernels: Vec<(u64, u64)> =
            (0..kernels).map(|_| Some((next()?, next()?))).collect::<Option<_>>()?;
        let rings: Vec<Ring> = (0..rings)
            .map(|_| Ring::read([next()?, next()?, next()?], state_bytes))
            .collect::<Option<_>>()?;
        let stealing = Stealing::read(stealing, &mut next)?;
        let mut one = || {
            let (word, bytes) = (inside(next()?)?, next()?);
            (1..=MOST_BYTES).contains(&bytes).then_some((word, bytes))
        };
        let shared: Vec<(u32, u64)> = (0..shared).map(|_| one()).collect::<Option<_>>()?;
        let patch = Patch::read([kernels_of_code, programs, spots], &mut next)?;
        let names: Vec<Name> =
            (0..names).map(|_| Name::read(bytes, &mut at)).collect::<Option<_>>()?;
        let text = usize::try_from(text).ok().filter(|text| *text as u64 <= MAX_IMAGE)?;
        let text = bytes.get(at..at.checked_add(text)?)?.to_vec();
        Some(Plan {
            image,
            state_bytes,
            host_bytes,
            shared,
            words,
            places,
            switches,
            running,
            launches,
            kernels,
            rings,
            names,
            stealing,
            patch,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::super::stealing::Thief;
    use super::*;

    fn example() -> Plan {
        Plan {
            image: 7,
            state_bytes: 96,
            host_bytes: 0,
            shared: vec![(5, 8)],
            words: vec![0, 0, 0, 0, 0, 132, 0, 1],
            places: vec![(4, 0), (6, 88)],
            switches: vec![7],
            running: Some(Running { at: 32, bins: 8, shift: 16, ends: 0 }),
            launches: Some(Launches { at: 32, slots: 2 }),
            kernels: vec![(name_hash(b"_Z1kv"), 3)],
            rings: vec![Ring { map: 1, sms: 1, at: 0, slots: 2, slot_bytes: 16 }],
            names: vec![Name { site: 3, readable: "k()".into(), mangled: "_Z1kv".into() }],
            stealing: Some(Stealing {
                switch: 1,
                record_bytes: 128,
                kernels: vec![Thief {
                    name: name_hash(b"_Z1kv"),
                    parameters: 2,
                    at: 16,
                    rows: true,
                    by_hardware: false,
                }],
            }),
            patch: Some(Patch {
                spots: 2,
                programs: 1,
                kernels: vec![(name_hash(b"_Z1kv"), vec![4])],
            }),
            text: b".version 8.0\n\0".to_vec(),
        }
    }

    #[test]
    fn a_plan_is_the_same_at_the_other_end() {
        let memory = example().share().unwrap();
        let fd = memory.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Plan::read(fd).unwrap(), example());
    }

    #[test]
    fn words_of_launches_and_slots_of_rings_lie_side_by_side() {
        let launches = Launches { at: 32, slots: 4 };
        let words: Vec<u64> =
            (0..2).flat_map(|slot| (0..3).map(move |word| launches.word(slot, word))).collect();
        assert_eq!(words, [32, 40, 48, 56, 64, 72]);
        let ring = Ring { map: 1, sms: 2, at: 128, slots: 4, slot_bytes: 24 };
        let slots = |sm| [0, 1, 3, 4, 5].map(|number| ring.slot(sm, number) - 128);
        assert_eq!(ring.bytes(), 64 + 4 * 24);
        assert_eq!(slots(0), [64, 88, 136, 64, 88]);
        assert_eq!(slots(1), slots(0).map(|at| at + 160));
    }

    #[test]
    fn a_number_that_leads_beyond_the_end_makes_it_no_plan() {
        let memory = example().share().unwrap();
        let good = memory.read(0, memory.len());
        assert_eq!(Plan::of(&good), Some(example()));
        let mut large = good.clone();
        large[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Plan::of(&large), None, "no machine has as much memory");
        // The counts.
        for (at, value) in [
            (32, 9000),
            (40, MANY + 1),
            (48, 600),
            (56, 1 << 40),
            // Where the running blocks are counted: offset, bins, shift, ends.
            (64, 40),
            (72, 7),
            (72, 16),
            (80, 33),
            (88, 4),
            (88, 40),
            // Where the last launches are: offset, slots. The number of kernels.
            (96, 56),
            (104, 3),
            (104, 4),
            (112, MANY + 1),
            (112, 1 << 13),
            // The numbers of rings and of names.
            (120, 2000),
            (128, 2000),
            // Kernels that steal: how many, the switch, bytes of a record.
            (136, MANY + 1),
            (144, MANY + 1),
            (152, 0),
            (152, 100),
            (152, 1 << 21),
            // What lies in the host's memory: no whole page; more than there is.
            (160, 64),
            (160, 4096),
            // How many maps are others'.
            (168, MANY + 1),
            // Of machine code: the kernels, the programs, the kinds of places.
            (176, MANY + 1),
            (184, 0),
            (184, 2000),
            (192, 0),
            (192, 32),
            // The word of a place; its offset; the word of a switch.
            (264, 8),
            (272, 89),
            (296, 8),
            // A ring: SMs, offset, slots.
            (320, 2 << 32 | 1),
            (328, 4),
            (328, 8),
            (336, 16 << 32 | 3),
            (336, 8 << 32 | 2),
            (336, 16 << 32),
            // Of a kernel that steals: parameters, the place of the one more, and whether 32 threads in x are a warp.
            (352, 16 << 32 | 4097),
            (352, 4 << 32),
            (352, 1 << 52),
            (360, 4),
            // Memory of somebody else: the word; its bytes.
            (368, 8),
            (376, 0),
            (376, MOST_BYTES + 1),
            // The lengths of a name.
            (408, 513),
            (408, 513 << 32),
        ] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            assert_eq!(Plan::of(&bad), None, "{value} at {at}");
        }
        for length in 0..HEAD + 8 * 8 {
            assert_eq!(Plan::of(&good[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_block_that_ended_a_turn_earlier_is_none() {
        let word = (0x12_3456_7890_u64 & 0xff_ffff_ffff) << 24 | 6;
        assert_eq!(Running::ended(0x12_3456_7890, word), Some(5));
        assert_eq!(Running::ended(0x12_3456_7890 + 8192, word), None);
        assert_eq!(Running::ended(0x12_3456_7890, word - 6), None, "nothing was written");
        assert_eq!(Running::ended(0, 0), None);
    }

    #[test]
    fn the_seeds_of_the_fuzz_target_are_a_plan_and_a_record() {
        let [plan, record] = crate::fuzzing::valid_images();
        assert!(Plan::of(&plan[1..]).is_some());
        crate::fuzzing::images(&plan);
        crate::fuzzing::images(&record);
        let seed = |name| std::fs::read(format!("../../fuzz/corpus/probe_images/{name}")).unwrap();
        assert!([seed("plan"), seed("record")] == [plan, record], "run the program `seeds`");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_plan_or_none(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
            if head && bytes.len() > 16 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Some(plan) = Plan::of(&bytes) {
                prop_assert!(plan.text.len() <= bytes.len());
            }
        }
    }
}
