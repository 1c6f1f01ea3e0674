//! How late launches began, as the program's end counts it: words behind the maps of a [`State`].

use super::state::State;

/// Bins of [`Late::bins`].
const BINS: usize = 64;
/// Words of a kernel before its bins.
const BEFORE: usize = 5;
/// Bytes of what is said of all kernels.
const ALL_BYTES: u64 = 16;

/// How late the launches of one kernel began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// Launches whose call on the host is known.
    pub known: u64,
    /// Launches whose call is not known, or that were not seen to begin.
    pub unknown: u64,
    /// From calls to begins, the sum, ns.
    pub total: u64,
    /// The longest, ns.
    pub longest: u64,
    /// The number of that launch, as the device counts them.
    pub longest_number: u64,
    /// How many took at least 2^n ns and less than 2^(n+1); bin 0 has those below 2 ns as well.
    pub bins: [u64; BINS],
}

impl Default for Late {
    fn default() -> Self {
        Late { known: 0, unknown: 0, total: 0, longest: 0, longest_number: 0, bins: [0; BINS] }
    }
}

impl Late {
    /// Bytes of a kernel.
    pub const BYTES: u64 = 8 * (BEFORE + BINS) as u64;

    /// Bytes behind the maps for so many kernels.
    pub fn bytes(kernels: usize) -> u64 {
        if kernels == 0 { 0 } else { ALL_BYTES + Late::BYTES * kernels as u64 }
    }

    /// Counts a launch that began so many ns after its call.
    pub fn count(&mut self, number: u64, ns: u64) {
        self.known += 1;
        self.total = self.total.saturating_add(ns);
        if ns >= self.longest {
            (self.longest, self.longest_number) = (ns, number);
        }
        self.bins[ns.max(1).ilog2() as usize] += 1;
    }

    /// What a share of the known launches did not exceed, ns: the end of the bin in which it lies, and at most the longest.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.known as f64).ceil() as u64;
        let mut so_far = 0_u64;
        let bin = self.bins.iter().position(|count| {
            so_far = count.saturating_add(so_far);
            so_far >= wanted.max(1)
        });
        bin.map_or(0, |bin| (2_u64 << bin).wrapping_sub(1)).min(self.longest)
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let first = [self.known, self.unknown, self.total, self.longest, self.longest_number];
        first.into_iter().chain(self.bins)
    }
}

impl State {
    /// Says how late the launches of a kernel began; maps have so many bytes.
    pub fn tell_late(&self, maps: u64, kernel: usize, late: &Late) {
        let first = maps + ALL_BYTES + Late::BYTES * kernel as u64;
        (0..).zip(late.words()).for_each(|(n, word)| self.put(first + 8 * n, word));
    }

    /// What was said of a kernel.
    pub fn late(&self, maps: u64, kernel: usize) -> Late {
        let first = maps + ALL_BYTES + Late::BYTES * kernel as u64;
        let word = |n: usize| self.number(first + 8 * n as u64);
        let [known, unknown, total, longest, longest_number] = core::array::from_fn(word);
        let bins = core::array::from_fn(|bin| word(BEFORE + bin));
        Late { known, unknown, total, longest, longest_number, bins }
    }

    /// Says how many launches were lost before they were read: on the device, and on the host.
    pub fn tell_lost_launches(&self, maps: u64, [device, host]: [u64; 2]) {
        self.put(maps, device);
        self.put(maps + 8, host);
    }

    /// What was said of lost launches.
    pub fn lost_launches(&self, maps: u64) -> [u64; 2] {
        [self.number(maps), self.number(maps + 8)]
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_said_of_each_kernel_is_read_at_the_other_end() {
        let ours = State::new(64 + Late::bytes(2)).unwrap();
        let fd = ours.as_fd().try_clone_to_owned().unwrap();
        let theirs = State::of(fd, 64 + Late::bytes(2)).unwrap();
        let mut late = Late::default();
        for (number, ns) in [(1, 0), (2, 1), (3, 5000), (4, 4096), (5, 5000)] {
            late.count(number, ns);
        }
        late.unknown = 3;
        theirs.tell_late(64, 1, &late);
        theirs.tell_lost_launches(64, [7, 8]);
        assert_eq!((ours.late(64, 0), ours.late(64, 1)), (Late::default(), late.clone()));
        assert_eq!(ours.lost_launches(64), [7, 8]);
        assert_eq!((late.total, late.longest, late.longest_number), (14_097, 5000, 5));
        assert_eq!((late.bins[0], late.bins[12]), (2, 3));
        assert_eq!((late.quantile(0.4), late.quantile(0.5), late.quantile(1.0)), (1, 5000, 5000));
        assert_eq!((Late::default().quantile(0.5), Late::bytes(0)), (0, 0));
        let hostile = Late { known: u64::MAX, bins: [u64::MAX; BINS], ..late.clone() };
        assert_eq!(hostile.quantile(1.0), 1);
        late.count(6, u64::MAX);
        assert_eq!((late.bins[63], late.quantile(1.0), late.total), (1, u64::MAX, u64::MAX));
    }
}
