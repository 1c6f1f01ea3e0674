//! The value in the middle.

use std::cmp::Ordering;

/// The value in the middle, of an even number the greater one of both; zero of none.
pub(crate) fn median<T: Copy + Default>(
    of: impl Iterator<Item = T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> T {
    let mut all: Vec<T> = of.collect();
    all.sort_unstable_by(order);
    all.get(all.len() / 2).copied().unwrap_or_default()
}
