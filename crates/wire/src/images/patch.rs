//! Kernels of machine code into which NVIDIA's Sanitizer puts calls of our functions.

use core::ffi::CStr;

/// What a program is told of a module of machine code: its plan's text is an image of functions, and these are called at
/// places of its kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// At which kinds of places: bits, by the numbers of `Sanitizer_InstructionId`, all of them with a
    /// [`function`](Patch::function).
    pub spots: u64,
    /// For how many programs each kernel has a word.
    pub programs: u32,
    /// The kernels, by the hash of their names ([`super::name_hash`]), with the word of each program: the number of its site
    /// and 1, or 0 where it is not meant. A launch is given the address of these words, behind that of the table.
    pub kernels: Vec<(u64, Vec<u64>)>,
}

impl Patch {
    /// The most programs.
    const MOST: u64 = 1 << 10;

    /// The function that is called at places of a kind.
    pub fn function(spot: u32) -> Option<&'static CStr> {
        match spot {
            1 => Some(c"gpuwhy_patch_enter"),
            2 => Some(c"gpuwhy_patch_exit"),
            3 => Some(c"gpuwhy_patch_access"),
            6 => Some(c"gpuwhy_patch_barrier"),
            _ => None,
        }
    }

    /// The kinds of places, and the function of each.
    pub fn places(&self) -> impl Iterator<Item = (u32, &'static CStr)> + '_ {
        let spots = (0..64).filter(|spot| self.spots >> spot & 1 == 1);
        spots.filter_map(|spot| Some((spot, Patch::function(spot)?)))
    }

    /// Bytes of the words that launches of all kernels are given.
    pub fn bytes(&self) -> u64 {
        self.kernels.len() as u64 * self.kernel_bytes()
    }

    /// Bytes of those of one: the address of the table, and each program's word.
    pub fn kernel_bytes(&self) -> u64 {
        8 * (1 + u64::from(self.programs))
    }

    /// The words that a launch of a kernel is given.
    pub fn given(&self, table: u64, kernel: usize) -> impl Iterator<Item = u64> + '_ {
        let words = self.kernels.get(kernel).map_or(&[][..], |(_, words)| words);
        std::iter::once(table).chain(words.iter().copied())
    }

    pub(super) fn head(patch: Option<&Patch>) -> [u64; 3] {
        patch.map_or([0; 3], |p| [p.kernels.len() as u64, p.programs.into(), p.spots])
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.kernels.iter().flat_map(|(name, words)| std::iter::once(*name).chain(words.clone()))
    }

    pub(super) fn read(
        [kernels, programs, spots]: [u64; 3],
        mut next: impl FnMut() -> Option<u64>,
    ) -> Option<Option<Patch>> {
        if kernels == 0 {
            return Some(None);
        }
        let known =
            (0..64).filter(|spot| spots >> spot & 1 == 1).all(|s| Self::function(s).is_some());
        if !known || spots == 0 || !(1..=Self::MOST).contains(&programs) {
            return None;
        }
        let mut kernel = || {
            let name = next()?;
            let words = (0..programs).map(|_| next()).collect::<Option<Vec<u64>>>()?;
            Some((name, words))
        };
        let kernels = (0..kernels).map(|_| kernel()).collect::<Option<_>>()?;
        Some(Some(Patch { spots, programs: programs as u32, kernels }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_given_the_tables_address_and_its_kernels_words() {
        let patch =
            Patch { spots: 0b1010, programs: 2, kernels: vec![(5, vec![1, 0]), (6, vec![2, 3])] };
        assert_eq!(patch.given(0x700, 1).collect::<Vec<_>>(), [0x700, 2, 3]);
        assert_eq!((patch.kernel_bytes(), patch.bytes()), (24, 48));
        let places: Vec<_> = patch.places().collect();
        assert_eq!(places, [(1, c"gpuwhy_patch_enter"), (3, c"gpuwhy_patch_access")]);
        let words: Vec<u64> = patch.words().collect();
        let read = |head, words: &[u64]| {
            let mut words = words.iter().copied();
            Patch::read(head, || words.next())
        };
        assert_eq!(read(Patch::head(Some(&patch)), &words), Some(Some(patch)));
        assert_eq!(read(Patch::head(None), &[]), Some(None));
        // No such place; none at all; no program; too many; words that are not there.
        for head in
            [[2, 2, 0b10_0000], [2, 2, 0], [2, 0, 2], [2, 1 << 11, 2], [3, 2, 2], [u64::MAX, 2, 2]]
        {
            assert_eq!(read(head, &words), None, "{head:?}");
        }
    }
}
