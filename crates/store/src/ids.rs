//! A set of ids in bounded memory: one bit an id where ids are dense, two bytes where not.

use std::collections::HashMap;

use gpuwhy_schema::Id;

/// Ids of one run of 65536.
#[derive(Debug)]
enum Run {
    /// The low halves, ascending.
    Few(Vec<u16>),
    Many(Box<[u64; 1024]>),
}

/// From here on the bits are smaller than the list.
const FEW: usize = 4096;

/// A set of span, mark and finding ids.
#[derive(Debug, Default)]
pub(crate) struct IdSet {
    runs: HashMap<u64, Run>,
}

impl IdSet {
    /// Whether it was not there before.
    pub fn insert(&mut self, id: Id) -> bool {
        let low = id.0 as u16;
        let run = self.runs.entry(id.0 >> 16).or_insert_with(|| Run::Few(Vec::new()));
        match run {
            Run::Few(few) => {
                // Ids are mostly given out in order.
                if few.last().is_none_or(|&last| last < low) {
                    few.push(low);
                } else {
                    let Err(at) = few.binary_search(&low) else { return false };
                    few.insert(at, low);
                }
                if few.len() > FEW {
                    let mut bits = Box::new([0; 1024]);
                    few.iter().for_each(|&low| bits[usize::from(low) / 64] |= 1 << (low % 64));
                    *run = Run::Many(bits);
                }
                true
            }
            Run::Many(bits) => {
                let word = &mut bits[usize::from(low) / 64];
                let fresh = *word & (1 << (low % 64)) == 0;
                *word |= 1 << (low % 64);
                fresh
            }
        }
    }

    /// Whether `id` was inserted.
    pub fn contains(&self, id: Id) -> bool {
        let low = id.0 as u16;
        match self.runs.get(&(id.0 >> 16)) {
            None => false,
            Some(Run::Few(few)) => few.binary_search(&low).is_ok(),
            Some(Run::Many(bits)) => bits[usize::from(low) / 64] & (1 << (low % 64)) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_says_what_a_hash_set_says(ids in prop::collection::vec(0u64..9000, 0..12000), far: u64) {
            let (mut ours, mut theirs) = (IdSet::default(), std::collections::HashSet::new());
            for id in ids.into_iter().chain([far]) {
                prop_assert_eq!(ours.insert(Id(id)), theirs.insert(id));
            }
            for id in (0..9000).chain([far, far ^ 1]) {
                prop_assert_eq!(ours.contains(Id(id)), theirs.contains(&id));
            }
        }
    }
}
