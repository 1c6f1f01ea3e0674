//! Kernels beside which one stands that steals work, and how often that was launched in their place.

use super::state::State;

/// What a program is told of the kernels of an image that can steal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stealing {
    /// The program's switch ([`State::is_on`]) that says whether they do.
    pub switch: u32,
    /// Bytes of device memory, all zero, that a launch needs for itself while it runs, and leaves as they were.
    pub record_bytes: u64,
    /// The kernels.
    pub kernels: Vec<Thief>,
}

/// A kernel that can steal. The one beside it has its name with [`Stealing::SUFFIX`], and one parameter more, the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thief {
    /// The hash of its name ([`super::name_hash`]).
    pub name: u64,
    /// Its own parameters.
    pub parameters: u32,
    /// Where the one that is added lies in a buffer of all.
    pub at: u32,
    /// It may steal only where the blocks' side in x is a multiple of 32, or the only one.
    pub rows: bool,
    /// Its blocks ask the hardware: it has no further parameter, needs no record, and is launched with the same grid.
    pub by_hardware: bool,
}

/// How often a kernel that can steal was launched, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stolen {
    /// The one that steals was launched in its place.
    pub stolen: u64,
    /// All blocks of the launch run at once, so that there is nothing to be stolen.
    pub fits: u64,
    /// It was captured for a graph, of which several may run at once.
    pub captured: u64,
    /// The launch has attributes, or a shape, with which it may not steal.
    pub unsuitable: u64,
    /// There was no record for its stream.
    pub no_record: u64,
    /// The driver refused the one that steals, and was then asked for the kernel itself.
    pub refused: u64,
}

impl Stealing {
    /// What the names of kernels that steal end with.
    pub const SUFFIX: &'static str = "_with_policy";
    /// Bytes of the parameter that is added: the record's address, the grid's sides, and the launch's blocks.
    pub const PARAMETER_BYTES: usize = 24;
    /// The most bytes of a record.
    const MOST_RECORD: u64 = 1 << 20;

    pub(super) fn head(stealing: Option<&Stealing>) -> [u64; 3] {
        stealing.map_or([0; 3], |s| [s.kernels.len() as u64, s.switch.into(), s.record_bytes])
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.kernels.iter().flat_map(|kernel| {
            let Thief { name, parameters, at, rows, by_hardware } = *kernel;
            let flags = u64::from(rows) | u64::from(by_hardware) << 1;
            [name, u64::from(at) << 32 | u64::from(parameters), flags]
        })
    }

    pub(super) fn read(
        [kernels, switch, record_bytes]: [u64; 3],
        mut next: impl FnMut() -> Option<u64>,
    ) -> Option<Option<Stealing>> {
        if kernels == 0 {
            return Some(None);
        }
        let sized =
            record_bytes.is_multiple_of(64) && (64..=Stealing::MOST_RECORD).contains(&record_bytes);
        if !sized {
            return None;
        }
        let mut thief = || {
            let (name, places, flags) = (next()?, next()?, next()?);
            let (parameters, at) = (places as u32, (places >> 32) as u32);
            // The most that a kernel can have.
            let right = parameters <= 4096 && at <= 32_768 && at.is_multiple_of(8) && flags <= 3;
            let (rows, by_hardware) = (flags & 1 != 0, flags & 2 != 0);
            right.then_some(Thief { name, parameters, at, rows, by_hardware })
        };
        let kernels = (0..kernels).map(|_| thief()).collect::<Option<_>>()?;
        Some(Some(Stealing { switch: switch as u32, record_bytes, kernels }))
    }
}

impl Stolen {
    /// Bytes of a kernel.
    pub const BYTES: u64 = 48;

    fn words(&self) -> [u64; 6] {
        let Stolen { stolen, fits, captured, unsuitable, no_record, refused } = *self;
        [stolen, fits, captured, unsuitable, no_record, refused]
    }

    /// All of them together.
    pub fn add(&mut self, other: &Stolen) {
        let mut words = self.words();
        for (word, more) in words.iter_mut().zip(other.words()) {
            *word = word.saturating_add(more);
        }
        *self = Stolen::of(words);
    }

    fn of([stolen, fits, captured, unsuitable, no_record, refused]: [u64; 6]) -> Stolen {
        Stolen { stolen, fits, captured, unsuitable, no_record, refused }
    }
}

impl State {
    /// Says how a kernel was launched; what is said of all begins at `at`.
    pub fn tell_stolen(&self, at: u64, kernel: usize, stolen: &Stolen) {
        let first = at + Stolen::BYTES * kernel as u64;
        (0..).zip(stolen.words()).for_each(|(n, word)| self.put(first + 8 * n, word));
    }

    /// What was said of a kernel.
    pub fn stolen(&self, at: u64, kernel: usize) -> Stolen {
        let first = at + Stolen::BYTES * kernel as u64;
        Stolen::of(core::array::from_fn(|n| self.number(first + 8 * n as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_each_kernel_is_read_again() {
        let state = State::new(64 + 2 * Stolen::BYTES).unwrap();
        let one = Stolen::of([1, 2, 3, 4, 5, 6]);
        state.tell_stolen(64, 1, &one);
        assert_eq!((state.stolen(64, 0), state.stolen(64, 1)), (Stolen::default(), one));
        let mut sum = Stolen { stolen: u64::MAX, ..one };
        sum.add(&one);
        assert_eq!(sum, Stolen::of([u64::MAX, 4, 6, 8, 10, 12]));
    }
}
