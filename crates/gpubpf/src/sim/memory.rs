//! Memory with bounds, and with what of it was written.

use super::code::{CONST, GLOBAL, GLOBAL_END, Space};
use super::fault::Trouble;

/// Bytes, each with whether it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) data: Vec<u8>,
    /// 1 where it was written.
    written: Vec<u8>,
}

impl Bytes {
    /// `size` bytes that nobody has written.
    pub(crate) fn unwritten(size: usize) -> Self {
        // A pattern that is no sensible number, so that it is seen where checks are off.
        Self { data: vec![0xa5; size], written: vec![0; size] }
    }

    pub(crate) fn resize(&mut self, size: usize) {
        self.data.resize(size, 0xa5);
        self.written.resize(size, 0);
    }

    /// What is beyond `size` counts as unwritten again.
    pub(crate) fn forget(&mut self, size: usize) {
        if let Some(rest) = self.written.get_mut(size..) {
            rest.fill(0);
        }
    }

    fn range(&self, at: u64, bytes: u32) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(at).ok()?;
        let end = start.checked_add(bytes as usize)?;
        (end <= self.data.len()).then_some(start..end)
    }

    /// Up to eight bytes as a number, and whether all were written.
    pub(crate) fn read(&self, at: u64, bytes: u32) -> Option<(u64, bool)> {
        let range = self.range(at, bytes)?;
        let written = self.written[range.clone()].iter().all(|&byte| byte == 1);
        let mut value = [0; 8];
        value[..bytes as usize].copy_from_slice(&self.data[range]);
        Some((u64::from_le_bytes(value), written))
    }

    pub(crate) fn write(&mut self, at: u64, bytes: u32, value: u64) -> Option<()> {
        let range = self.range(at, bytes)?;
        self.written[range.clone()].fill(1);
        self.data[range].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Some(())
    }

    /// Writes many bytes.
    pub(crate) fn fill(&mut self, at: u64, from: &[u8]) -> Option<()> {
        let range = self.range(at, u32::try_from(from.len()).ok()?)?;
        self.written[range.clone()].fill(1);
        self.data[range].copy_from_slice(from);
        Some(())
    }
}

/// A page that a kernel touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Where it begins: the address of a byte in it, rounded down.
    pub page: u64,
    /// Whether it was written to, and not only read.
    pub written: bool,
    /// How many accesses of single threads came one after the other.
    pub accesses: u64,
}

/// The most touches that are kept of a launch.
const MOST_TOUCHES: usize = 1 << 20;

#[derive(Debug)]
struct Region {
    base: u64,
    bytes: Bytes,
    /// The size of its pages, where it is told which of them are touched.
    pages: Option<u64>,
}

/// Device memory: allocations with gaps between them, and constants.
#[derive(Debug)]
pub(crate) struct Global {
    /// By their addresses.
    regions: Vec<Region>,
    next: u64,
    next_const: u64,
    left: u64,
    /// The region that was used last.
    last: std::cell::Cell<usize>,
    /// Pages of regions that are watched, as they were touched; one that is touched again at once stands here once.
    touches: std::cell::RefCell<Vec<Touch>>,
}

impl Global {
    pub(crate) fn new(limit: u64) -> Self {
        let last = std::cell::Cell::new(0);
        let touches = std::cell::RefCell::default();
        Self { regions: Vec::new(), next: GLOBAL, next_const: CONST, left: limit, last, touches }
    }

    /// Room for `bytes`, which nobody has written; `None` where there is none left.
    pub(crate) fn allocate(&mut self, space: Space, bytes: u64, align: u64) -> Option<u64> {
        self.left = self.left.checked_sub(bytes.max(1))?;
        let next = if space == Space::Const { &mut self.next_const } else { &mut self.next };
        let base = next.checked_next_multiple_of(align.max(256))?;
        // A gap, so that what runs over an end meets nothing.
        *next = base.checked_add(bytes)?.checked_add(256)?;
        if space != Space::Const && *next > GLOBAL_END {
            return None;
        }
        let at = self.regions.partition_point(|region| region.base < base);
        let bytes = Bytes::unwritten(bytes as usize);
        self.regions.insert(at, Region { base, bytes, pages: None });
        Some(base)
    }

    /// From now on it is kept which pages of an allocation kernels touch; whether there is one.
    pub(crate) fn watch(&mut self, address: u64, page_bytes: u64) -> bool {
        let found = self.find(address);
        if let Some(at) = found {
            self.regions[at].pages = Some(page_bytes.max(1));
        }
        found.is_some()
    }

    /// The pages that were touched since this was last asked, in order.
    pub(crate) fn touched(&mut self) -> Vec<Touch> {
        std::mem::take(self.touches.get_mut())
    }

    fn touch(&self, address: u64, page_bytes: u64, written: bool) {
        let page = address - address % page_bytes;
        let mut touches = self.touches.borrow_mut();
        let full = touches.len() >= MOST_TOUCHES;
        match touches.last_mut() {
            Some(last) if last.page == page => {
                last.written |= written;
                last.accesses += 1;
            }
            _ if full => {}
            _ => touches.push(Touch { page, written, accesses: 1 }),
        }
    }

    /// Bytes that are left.
    pub(crate) fn room(&self) -> u64 {
        self.left
    }

    /// Gives an allocation back; whether there was one.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let Ok(at) = self.regions.binary_search_by_key(&address, |region| region.base) else {
            return false;
        };
        self.left += (self.regions.remove(at).bytes.data.len() as u64).max(1);
        true
    }

    fn find(&self, address: u64) -> Option<usize> {
        let holds = |at: usize| {
            let region = self.regions.get(at)?;
            let within = address.checked_sub(region.base)?;
            (within < region.bytes.data.len() as u64).then_some(at)
        };
        let found = holds(self.last.get()).or_else(|| {
            let after = self.regions.partition_point(|region| region.base <= address);
            holds(after.checked_sub(1)?)
        })?;
        self.last.set(found);
        Some(found)
    }

    pub(crate) fn read(&self, address: u64, bytes: u32) -> Option<(u64, bool)> {
        let region = &self.regions[self.find(address)?];
        if let Some(page_bytes) = region.pages {
            self.touch(address, page_bytes, false);
        }
        region.bytes.read(address - region.base, bytes)
    }

    pub(crate) fn write(&mut self, address: u64, bytes: u32, value: u64) -> Option<()> {
        let at = self.find(address)?;
        if let Some(page_bytes) = self.regions[at].pages {
            self.touch(address, page_bytes, true);
        }
        let region = &mut self.regions[at];
        region.bytes.write(address - region.base, bytes, value)
    }

    pub(crate) fn fill(&mut self, address: u64, from: &[u8]) -> Result<(), Trouble> {
        let bytes = from.len() as u32;
        let done = self.find(address).and_then(|at| {
            let region = &mut self.regions[at];
            region.bytes.fill(address - region.base, from)
        });
        let nowhere = Trouble::OutOfBounds { what: "store", space: Space::Global, address, bytes };
        if from.is_empty() { Ok(()) } else { done.ok_or(nowhere) }
    }

    /// `bytes` from `address` on, written or not.
    pub(crate) fn slice(&self, address: u64, bytes: usize) -> Result<&[u8], Trouble> {
        let found = self.find(address).and_then(|at| {
            let region = &self.regions[at];
            let start = (address - region.base) as usize;
            region.bytes.data.get(start..start.checked_add(bytes)?)
        });
        let bytes = bytes as u32;
        match found {
            None if bytes == 0 => Ok(&[]),
            None => {
                Err(Trouble::OutOfBounds { what: "load", space: Space::Global, address, bytes })
            }
            Some(found) => Ok(found),
        }
    }
}
