//! What a program has, as policies hear of it: allocations, streams, and its kernels by their handles.

use core::ffi::c_void;
use std::collections::BTreeMap;

use gpuwhy_wire::images::{POINTERS, Told};

/// The most allocations, streams and kernels that are known; further ones are as if they were not there.
const MOST: usize = 1 << 16;

/// Memory of a device, or managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub number: u64,
    pub bytes: u64,
    pub managed: bool,
    pub context: usize,
    pub device: u64,
}

impl Allocation {
    /// What is told of it.
    pub fn told(&self, address: u64, freed: bool) -> Told {
        let Allocation { number, bytes, managed, device, .. } = *self;
        Told::Memory { number, address, bytes, managed, device, freed }
    }
}

/// All of a process.
#[derive(Debug)]
pub struct Book {
    allocations: BTreeMap<u64, Allocation>,
    allocated: u64,
    streams: BTreeMap<u64, u64>,
    streams_made: u64,
    /// The hashes of kernels' names, by handle, and whether it is that of a library's kernel and no function,
    kernels: BTreeMap<u64, (u64, bool)>,
    /// and which of their parameters have eight bytes.
    parameters: BTreeMap<u64, Vec<usize>>,
    launches: u64,
}

/// A launch, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    pub number: u64,
    pub kernel: u64,
    pub stream: u64,
    pub pointers: u64,
    pub pointer: [(u64, u64); POINTERS],
}

impl Book {
    pub const fn new() -> Book {
        Book {
            allocations: BTreeMap::new(),
            allocated: 0,
            streams: BTreeMap::new(),
            streams_made: 0,
            kernels: BTreeMap::new(),
            parameters: BTreeMap::new(),
            launches: 0,
        }
    }

    /// Memory was allocated.
    pub fn allocate(
        &mut self,
        address: u64,
        bytes: u64,
        managed: bool,
        context: usize,
        device: u64,
    ) -> Option<Allocation> {
        self.allocated += 1;
        let made = Allocation { number: self.allocated, bytes, managed, context, device };
        let room = self.allocations.len() < MOST;
        room.then(|| self.allocations.insert(address, made));
        room.then_some(made)
    }

    /// It is given back.
    pub fn free(&mut self, address: u64) -> Option<Allocation> {
        self.allocations.remove(&address)
    }

    /// It was not.
    pub fn keep(&mut self, address: u64, allocation: Allocation) {
        self.allocations.insert(address, allocation);
    }

    /// The allocation in which an address lies, and where it begins.
    fn find(&self, address: u64) -> Option<(u64, Allocation)> {
        let (base, found) = self.allocations.range(..=address).next_back()?;
        (address - base < found.bytes).then_some((*base, *found))
    }

    /// The managed memory in which a range lies.
    pub fn managed(&self, address: u64, bytes: u64) -> Option<Allocation> {
        let (base, found) = self.find(address).filter(|(_, found)| found.managed)?;
        (bytes > 0 && bytes <= found.bytes - (address - base)).then_some(found)
    }

    /// The number of a stream that is about to be created.
    pub fn next_stream(&mut self) -> u64 {
        self.streams_made += 1;
        self.streams_made
    }

    /// It was created.
    pub fn stream(&mut self, handle: u64, number: u64) {
        if self.streams.len() < MOST {
            self.streams.insert(handle, number);
        }
    }

    /// It is destroyed.
    pub fn stream_ends(&mut self, handle: u64) {
        self.streams.remove(&handle);
    }

    /// The program got a function or kernel by a name of this hash.
    pub fn kernel(&mut self, handle: u64, hash: u64, of_library: bool) {
        if self.kernels.len() < MOST {
            self.kernels.insert(handle, (hash, of_library));
        }
        // A handle may have been another function's.
        self.parameters.remove(&handle);
    }

    /// A kernel has another handle as well.
    pub fn also(&mut self, handle: u64, other: u64) {
        if let Some((hash, _)) = self.kernels.get(&handle).copied() {
            self.kernel(other, hash, false);
        }
    }

    /// A launch: what is known of its kernel and stream, and which parameters point into managed memory. `layout`
    /// tells which parameters of a function have eight bytes; `word` reads one.
    pub fn launch(
        &mut self,
        function: u64,
        stream: u64,
        layout: impl FnOnce(bool) -> Vec<usize>,
        word: impl Fn(usize) -> Option<u64>,
    ) -> Launched {
        self.launches += 1;
        let known = self.kernels.get(&function).copied();
        let (kernel, of_library) = known.unwrap_or_default();
        if !self.parameters.contains_key(&function) && self.parameters.len() < MOST {
            self.parameters.insert(function, layout(of_library));
        }
        let wide = self.parameters.get(&function).map_or(&[][..], Vec::as_slice);
        let (mut pointers, mut pointer) = (0, [(0, 0); POINTERS]);
        for address in wide.iter().filter_map(|number| word(*number)) {
            let found = self.find(address).filter(|(_, found)| found.managed);
            let Some((base, found)) = found else { continue };
            if let Some(place) = pointer.get_mut(pointers) {
                *place = (found.number, address - base);
            }
            pointers += 1;
        }
        Launched {
            number: self.launches,
            kernel,
            stream: self.streams.get(&stream).copied().unwrap_or(0),
            pointers: pointers as u64,
            pointer,
        }
    }
}

/// The parameter of this number, of eight bytes, where a launch gives the address of each.
pub fn parameter(params: *mut *mut c_void, number: usize) -> Option<u64> {
    if params.is_null() {
        return None;
    }
    // SAFETY: the driver reads as many addresses there as the kernel has parameters, and this one has a number below.
    let at = unsafe { params.add(number).read_unaligned() };
    // SAFETY: the driver reads the parameter's eight bytes there; no alignment is assumed.
    (!at.is_null()).then(|| unsafe { at.cast::<u64>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Managed memory from 1000 to 1100 and from 2000 to 2100, a device's from 3000 to 3100.
    fn book() -> Book {
        let mut book = Book::new();
        for (address, managed) in [(1000, true), (2000, true), (3000, false)] {
            book.allocate(address, 100, managed, 1, 0).unwrap();
        }
        book
    }

    #[test]
    fn a_range_is_managed_where_all_of_it_lies_in_managed_memory_that_is_there() {
        let mut book = book();
        let number = |book: &Book, at, bytes| book.managed(at, bytes).map(|found| found.number);
        for (at, bytes, wanted) in [
            (1000, 100, Some(1)),
            (1099, 1, Some(1)),
            (2050, 50, Some(2)),
            (1000, 101, None),
            (1100, 1, None),
            (999, 1, None),
            (3000, 1, None),
            (1000, 0, None),
            (1000, u64::MAX, None),
            (u64::MAX, 1, None),
        ] {
            assert_eq!(number(&book, at, bytes), wanted, "{at} {bytes}");
        }
        let gone = book.free(1000).unwrap();
        assert_eq!((number(&book, 1000, 1), book.free(1000)), (None, None));
        book.keep(1000, gone);
        assert_eq!(number(&book, 1000, 1), Some(1));
        book.free(1000);
        book.allocate(1000, 10, true, 1, 0);
        assert_eq!(number(&book, 1000, 10), Some(4), "another one at that place");
    }

    #[test]
    fn of_a_launch_are_told_the_parameters_that_point_into_managed_memory() {
        let mut book = book();
        book.kernel(70, 777, true);
        book.also(70, 71);
        let stream = book.next_stream();
        book.stream(500, stream);
        let words = [1010, 3000, 2099, 5, 1000, 1001, 1002, 1003];
        let word = |number: usize| words.get(number).copied();
        let layout = |of_library: bool| {
            assert!(!of_library, "it is the kernel's function");
            vec![0, 1, 2, 3, 4, 5, 6, 99]
        };
        let launched = book.launch(71, 500, layout, word);
        let pointer = [(1, 10), (2, 99), (1, 0), (1, 1)];
        let wanted = Launched { number: 1, kernel: 777, stream: 1, pointers: 5, pointer };
        assert_eq!(launched, wanted);
        // The layout is asked for once, until the handle is another function's.
        let launched = book.launch(71, 9, |_| panic!("it is known"), |_| None);
        assert_eq!((launched.number, launched.stream, launched.pointers), (2, 0, 0));
        book.kernel(71, 888, false);
        book.stream_ends(500);
        let launched = book.launch(71, 500, |_| vec![6], word);
        assert_eq!((launched.kernel, launched.stream, launched.pointers), (888, 0, 1));
        let of = |of_library: bool| if of_library { vec![0] } else { Vec::new() };
        assert_eq!(book.launch(70, 500, of, word).pointers, 1, "the kernel itself");
    }

    #[test]
    fn parameters_are_read_where_a_launch_gives_their_addresses() {
        let (mut first, mut second) = (5_u64, 6_u64);
        let mut all: [*mut c_void; 3] =
            [(&raw mut first).cast(), (&raw mut second).cast(), core::ptr::null_mut()];
        let read = |number| parameter(all.as_mut_ptr(), number);
        let mut read = read;
        assert_eq!((read(0), read(1), read(2)), (Some(5), Some(6), None));
        assert_eq!(parameter(core::ptr::null_mut(), 0), None);
    }
}
