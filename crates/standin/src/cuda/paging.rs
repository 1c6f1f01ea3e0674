//! Managed memory that may not all lie on its device: which pages do, what a kernel waits for, and what moves.
//!
//! *What it models.* Pages of 2 MiB, the blocks in which the driver keeps managed memory. A kernel that touches a
//! page which is not on the device waits for a fault and for the page to cross the link; where the device is full,
//! the page that was used longest ago leaves, and crosses the link the other way if it was written to. A prefetch
//! moves pages by the same link in the background: a kernel that comes before they have arrived waits for the rest,
//! without a fault. Advice: pages that are *mostly read* leave without crossing the link, and the first write to one
//! is a fault; pages that *prefer the device* leave after others; pages that *prefer the host* stay there, and each
//! access of them crosses the link by itself.
//!
//! *What it does not.* The driver's own prefetching around a fault: with pages of 2 MiB it is as if that always
//! fetched the whole block, and never the next one. Faults are handled one after the other, not in batches. Accesses
//! by the host, several devices with one page, hardware that counts accesses, and coherent links. A page's fault is
//! as long as [`FAULT_NS`], whatever else goes on. That pages which prefer the device leave last is an assumption:
//! CUDA's documentation says only that this advice guides the driver. Time is what the caller says; nothing here
//! reads a clock.

use std::collections::BTreeMap;

use gpuwhy_gpubpf::sim::Touch;

/// Bytes of a page.
pub(super) const PAGE: u64 = 2 << 20;
/// What a fault costs beside the page's way: tens of us on PCIe (Allen and Ge, "In-depth analyses of unified virtual
/// memory system for GPU accelerated computing", SC 2021).
const FAULT_NS: u64 = 50_000;
/// Bytes that cross the link in a us: 25 GB/s, as PCIe 4.0 with 16 lanes gives.
const LINK_BYTES: u64 = 25_000;
/// What an access of memory of the host waits for, beside its bytes.
const REMOTE_NS: u64 = 1_000;
/// Bytes that cross the link for an access of a thread.
const SECTOR: u64 = 32;

/// Where a page should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Prefers {
    #[default]
    Nothing,
    Device,
    Host,
}

/// `CUmem_advise`, for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    ReadMostly(bool),
    PreferDevice,
    PreferHost,
    NoPreference,
    Accessed(bool),
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    on_device: bool,
    /// When it was used, by the count of uses.
    used: u64,
    /// When it has arrived, ns.
    ready: u64,
    /// Written to since it came.
    dirty: bool,
    read_mostly: bool,
    prefers: Prefers,
    /// The device reaches it where it is without a fault.
    mapped: bool,
}

/// What kernels waited for, and what moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) faults: u64,
    /// Touches of pages that were under way.
    pub(super) waits: u64,
    /// Bytes to the device, by faults.
    pub(super) moved_in: u64,
    /// Bytes to the host.
    pub(super) moved_out: u64,
    /// Bytes that crossed the link without their page.
    pub(super) remote: u64,
    pub(super) stall_ns: u64,
}

/// The managed memory of a device.
#[derive(Debug)]
pub(super) struct Paging {
    /// Pages that have room on the device.
    room: usize,
    allocations: BTreeMap<u64, u64>,
    pages: BTreeMap<u64, Page>,
    on_device: usize,
    uses: u64,
    /// When the link is free, ns.
    link: u64,
}

/// How long bytes take to cross the link, ns.
fn crossing(bytes: u64) -> u64 {
    bytes * 1000 / LINK_BYTES
}

impl Paging {
    /// With room for so many pages.
    pub(super) fn new(room: usize) -> Paging {
        let (allocations, pages) = (BTreeMap::new(), BTreeMap::new());
        Paging { room: room.max(1), allocations, pages, on_device: 0, uses: 0, link: 0 }
    }

    /// Memory was allocated; it lies on the host.
    pub(super) fn add(&mut self, at: u64, bytes: u64) {
        self.allocations.insert(at, bytes);
        for page in pages(at, bytes) {
            self.pages.insert(page, Page::default());
        }
    }

    /// It was given back.
    pub(super) fn remove(&mut self, at: u64) {
        let Some(bytes) = self.allocations.remove(&at) else { return };
        for page in pages(at, bytes) {
            if self.pages.remove(&page).is_some_and(|page| page.on_device) {
                self.on_device -= 1;
            }
        }
    }

    /// Whether a range lies in one allocation.
    pub(super) fn holds(&self, at: u64, bytes: u64) -> bool {
        let found = self.allocations.range(..=at).next_back();
        let end = at.checked_add(bytes);
        found.zip(end).is_some_and(|((start, all), end)| bytes > 0 && end <= start + all)
    }

    /// A kernel that begins at a time touches pages, in this order: what it waits for.
    pub(super) fn run(&mut self, touches: &[Touch], begin: u64) -> Facts {
        let mut facts = Facts::default();
        for touch in touches {
            let Some(page) = self.pages.get(&touch.page).copied() else { continue };
            let at = begin + facts.stall_ns;
            self.uses += 1;
            let after = if page.on_device {
                self.here(page, touch, at, &mut facts)
            } else if page.prefers == Prefers::Host {
                remote(page, touch, &mut facts)
            } else {
                self.fault(page, touch, at, &mut facts)
            };
            self.pages.insert(touch.page, Page { used: self.uses, ..after });
        }
        facts
    }

    /// A page that is on the device, or on its way.
    fn here(&mut self, page: Page, touch: &Touch, at: u64, facts: &mut Facts) -> Page {
        if page.ready > at {
            facts.waits += 1;
            facts.stall_ns += page.ready - at;
        }
        if touch.written && page.read_mostly && !page.dirty {
            // The host's copy has to go.
            facts.faults += 1;
            facts.stall_ns += FAULT_NS;
        }
        Page { dirty: page.dirty || touch.written, ..page }
    }

    /// A page that is not.
    fn fault(&mut self, page: Page, touch: &Touch, at: u64, facts: &mut Facts) -> Page {
        let begin = at + FAULT_NS;
        facts.moved_out += self.make_room(begin, self.uses).unwrap_or(0);
        let ready = self.cross(begin, PAGE);
        facts.faults += 1;
        facts.moved_in += PAGE;
        facts.stall_ns += ready - at;
        self.on_device += 1;
        Page { on_device: true, ready, dirty: touch.written, ..page }
    }

    /// Bytes cross the link from a time on; when they have.
    fn cross(&mut self, from: u64, bytes: u64) -> u64 {
        self.link = self.link.max(from) + crossing(bytes);
        self.link
    }

    /// Lets a page go if there is no room for another one; the bytes that cross the link for that. `None`: all that
    /// are there were used as late as `since`.
    fn make_room(&mut self, at: u64, since: u64) -> Option<u64> {
        if self.on_device < self.room {
            return Some(0);
        }
        let there = self.pages.iter().filter(|(_, page)| page.on_device && page.used < since);
        let oldest = there.min_by_key(|(_, page)| (page.prefers == Prefers::Device, page.used));
        let address = *oldest?.0;
        let page = self.pages.get_mut(&address)?;
        let bytes = if page.dirty { PAGE } else { 0 };
        page.on_device = false;
        page.dirty = false;
        self.on_device -= 1;
        if bytes > 0 {
            self.cross(at, bytes);
        }
        Some(bytes)
    }

    /// Moves a range to the device in the background; the bytes that cross the link to it, and from it.
    pub(super) fn prefetch(&mut self, at: u64, bytes: u64, now: u64) -> (u64, u64) {
        let (mut moved, mut left) = (0, 0);
        let since = self.uses + 1;
        for address in pages(at, bytes) {
            let Some(page) = self.pages.get(&address).copied() else { continue };
            self.uses += 1;
            let mut after = Page { used: self.uses, ..page };
            if !page.on_device {
                // What this prefetch has brought does not leave for the rest of it.
                let Some(out) = self.make_room(now, since) else { break };
                left += out;
                self.on_device += 1;
                moved += PAGE;
                after =
                    Page { on_device: true, dirty: false, ready: self.cross(now, PAGE), ..after };
            }
            self.pages.insert(address, after);
        }
        (moved, left)
    }

    /// Moves a range to the host in the background; the bytes that cross the link.
    pub(super) fn prefetch_to_host(&mut self, at: u64, bytes: u64, now: u64) -> u64 {
        let mut moved = 0;
        for address in pages(at, bytes) {
            let Some(page) = self.pages.get_mut(&address).filter(|page| page.on_device) else {
                continue;
            };
            moved += if page.dirty { PAGE } else { 0 };
            page.on_device = false;
            page.dirty = false;
            self.on_device -= 1;
        }
        self.cross(now, moved);
        moved
    }

    /// Advice about a range.
    pub(super) fn advise(&mut self, at: u64, bytes: u64, advice: Advice) {
        for address in pages(at, bytes) {
            let Some(page) = self.pages.get_mut(&address) else { continue };
            match advice {
                Advice::ReadMostly(is) => page.read_mostly = is,
                Advice::PreferDevice => page.prefers = Prefers::Device,
                Advice::PreferHost => page.prefers = Prefers::Host,
                Advice::NoPreference => page.prefers = Prefers::Nothing,
                Advice::Accessed(is) => page.mapped = is,
            }
        }
    }
}

/// An access of a page that stays with the host.
fn remote(page: Page, touch: &Touch, facts: &mut Facts) -> Page {
    if !page.mapped {
        facts.faults += 1;
        facts.stall_ns += FAULT_NS;
    }
    let bytes = touch.accesses * SECTOR;
    facts.remote += bytes;
    facts.stall_ns += REMOTE_NS + crossing(bytes);
    Page { mapped: true, ..page }
}

/// The pages of a range.
fn pages(at: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let end = at.saturating_add(bytes);
    (at / PAGE..end.div_ceil(PAGE)).map(|number| number * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What moving a page takes.
    const MOVE: u64 = PAGE * 1000 / LINK_BYTES;

    /// A device with room for so many of eight pages, `a` to `h`.
    fn device(room: usize) -> Paging {
        let mut paging = Paging::new(room);
        paging.add(0, 8 * PAGE);
        paging
    }

    fn at(page: char) -> u64 {
        (page as u64 - 'a' as u64) * PAGE
    }

    /// Pages that a kernel reads, or writes (upper case); one access each.
    fn run(paging: &mut Paging, kernel: &str, begin: u64) -> Facts {
        let touch = |page: char| Touch {
            page: at(page.to_ascii_lowercase()),
            written: page.is_ascii_uppercase(),
            accesses: 1,
        };
        let touches: Vec<Touch> = kernel.chars().map(touch).collect();
        paging.run(&touches, begin)
    }

    /// The pages that a kernel finds on the device.
    fn here(paging: &Paging) -> String {
        ('a'..='h').filter(|page| paging.pages[&at(*page)].on_device).collect()
    }

    #[test]
    fn a_page_is_a_fault_once_while_there_is_room() {
        let mut paging = device(3);
        let facts = run(&mut paging, "abcabc", 0);
        assert_eq!((facts.faults, facts.moved_in, facts.moved_out), (3, 3 * PAGE, 0));
        assert_eq!(facts.stall_ns, 3 * (FAULT_NS + MOVE));
        assert_eq!(run(&mut paging, "cba", facts.stall_ns).stall_ns, 0);
    }

    #[test]
    fn the_page_that_was_used_longest_ago_leaves_and_crosses_the_link_if_it_was_written() {
        let mut paging = device(3);
        run(&mut paging, "Abca", 0);
        let facts = run(&mut paging, "d", 10_000_000);
        assert_eq!((facts.moved_out, here(&paging).as_str()), (0, "acd"));
        run(&mut paging, "cd", 20_000_000);
        let facts = run(&mut paging, "e", 30_000_000);
        assert_eq!((facts.moved_out, here(&paging).as_str()), (PAGE, "cde"));
        assert_eq!(facts.stall_ns, FAULT_NS + 2 * MOVE);
    }

    /// One page more than there is room for, in a circle: each touch is a fault.
    #[test]
    fn a_walk_that_is_larger_than_the_device_faults_each_time() {
        let mut paging = device(3);
        let faults: u64 = (0..5).map(|n| run(&mut paging, "abcd", n * 10_000_000).faults).sum();
        assert_eq!(faults, 20);
    }

    #[test]
    fn what_was_prefetched_is_no_fault_and_what_is_under_way_is_waited_for() {
        let mut paging = device(4);
        assert_eq!(paging.prefetch(at('b'), 2 * PAGE, 1_000), (2 * PAGE, 0));
        let facts = run(&mut paging, "b", 1_000 + MOVE / 2);
        assert_eq!((facts.faults, facts.waits, facts.stall_ns), (0, 1, MOVE - MOVE / 2));
        let facts = run(&mut paging, "c", 1_000 + 2 * MOVE);
        assert_eq!(facts, Facts::default());
        // A second time nothing moves; a part of a page is the page.
        assert_eq!(paging.prefetch(at('b') + 5, PAGE, 9_000_000), (0, 0));
    }

    #[test]
    fn a_prefetch_that_is_larger_than_the_device_does_not_push_out_its_own_pages() {
        let mut paging = device(3);
        run(&mut paging, "H", 0);
        assert_eq!(paging.prefetch(0, 5 * PAGE, 10_000_000), (3 * PAGE, PAGE));
        assert_eq!(here(&paging), "abc");
    }

    #[test]
    fn a_wrong_prefetch_pushes_out_what_was_of_use() {
        let mut paging = device(2);
        run(&mut paging, "ab", 0);
        paging.prefetch(at('g'), PAGE, 10_000_000);
        assert_eq!(run(&mut paging, "ab", 20_000_000).faults, 2);
    }

    #[test]
    fn pages_that_prefer_the_device_leave_last() {
        let mut paging = device(3);
        paging.advise(0, PAGE, Advice::PreferDevice);
        run(&mut paging, "abc", 0);
        run(&mut paging, "defg", 10_000_000);
        assert_eq!(here(&paging), "afg");
        paging.advise(0, PAGE, Advice::NoPreference);
        run(&mut paging, "h", 20_000_000);
        assert_eq!(here(&paging), "fgh");
    }

    #[test]
    fn pages_that_prefer_the_host_stay_there_and_push_nothing_out() {
        let mut paging = device(2);
        paging.advise(at('c'), 6 * PAGE, Advice::PreferHost);
        paging.advise(at('c'), PAGE, Advice::Accessed(true));
        run(&mut paging, "ab", 0);
        let facts = run(&mut paging, "cdcd", 10_000_000);
        // The second one has to be mapped first.
        assert_eq!((facts.faults, facts.remote, facts.moved_in), (1, 4 * SECTOR, 0));
        assert_eq!((facts.stall_ns < 2 * FAULT_NS, here(&paging).as_str()), (true, "ab"));
    }

    #[test]
    fn pages_that_are_mostly_read_leave_for_nothing_and_their_first_write_is_a_fault() {
        let mut paging = device(2);
        paging.advise(0, 2 * PAGE, Advice::ReadMostly(true));
        run(&mut paging, "ab", 0);
        assert_eq!(run(&mut paging, "AA", 10_000_000).faults, 1);
        let facts = run(&mut paging, "c", 20_000_000);
        assert_eq!((facts.moved_out, here(&paging).as_str()), (0, "ac"));
    }

    #[test]
    fn what_is_given_back_leaves_room_and_is_no_longer_there() {
        let mut paging = device(2);
        paging.add(16 * PAGE, 100);
        assert!(paging.holds(16 * PAGE, 100) && !paging.holds(16 * PAGE, 101));
        assert!(paging.holds(5, 8 * PAGE - 5) && !paging.holds(5, 8 * PAGE) && !paging.holds(5, 0));
        run(&mut paging, "ab", 0);
        paging.remove(0);
        assert!(!paging.holds(5, 1));
        assert_eq!((paging.on_device, run(&mut paging, "a", 0)), (0, Facts::default()));
        assert_eq!(paging.prefetch(0, PAGE, 0), (0, 0));
    }

    #[test]
    fn pages_that_are_moved_to_the_host_cross_the_link_if_they_were_written() {
        let mut paging = device(4);
        run(&mut paging, "aB", 0);
        assert_eq!(paging.prefetch_to_host(0, 3 * PAGE, 10_000_000), PAGE);
        assert_eq!((paging.on_device, run(&mut paging, "a", 20_000_000).faults), (0, 1));
    }
}
