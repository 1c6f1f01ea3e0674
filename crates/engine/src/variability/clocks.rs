//! Whose times can be compared: devices of one file share its clock, and devices of several files have
//! clocks that were aligned more or less well.

use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_derive::devices::Devices;
use gpuwhy_schema::{ClockError, Ns, Source, Track};

/// The clocks of devices, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    devices: BTreeMap<u32, Clock>,
}

/// The clock of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clock {
    /// The files that its work was read from.
    sources: BTreeSet<u32>,
    /// By how much the times of these may differ from those of others.
    error: ClockError,
}

impl Clocks {
    /// Of the devices of a trace.
    pub fn of_trace(devices: &Devices, tracks: &[Track], sources: &[Source]) -> Clocks {
        let errors: BTreeMap<u32, ClockError> =
            sources.iter().map(|source| (source.id.0, ClockError::of(source))).collect();
        let mut clocks = Clocks::default();
        for track in tracks {
            if let Some(&device) = devices.streams.get(&track.id) {
                let source = track.source.0;
                clocks.add(device, source, errors.get(&source).copied().unwrap_or_default());
            }
        }
        clocks
    }

    /// Some work of a device was read from this file.
    pub fn add(&mut self, device: u32, source: u32, error: ClockError) {
        let clock = self.devices.entry(device).or_default();
        clock.sources.insert(source);
        clock.error = clock.error.max(error);
    }

    /// By how much times of two devices may differ.
    pub fn between(&self, a: u32, b: u32) -> ClockError {
        let (Some(a), Some(b)) = (self.devices.get(&a), self.devices.get(&b)) else {
            return ClockError::NONE;
        };
        match a.sources == b.sources && a.sources.len() == 1 {
            true => ClockError::NONE,
            false => a.error.max(b.error),
        }
    }

    /// By how much the times of one device may differ from each other: not at all, unless processes of several
    /// files share it.
    pub fn within(&self, device: u32) -> ClockError {
        self.between(device, device)
    }

    /// The greatest difference that there may be between any times of these devices.
    pub fn among(&self, devices: &[u32]) -> ClockError {
        let pairs = devices.iter().enumerate();
        let pairs = pairs.flat_map(|(i, a)| devices[..=i].iter().map(|b| self.between(*a, *b)));
        pairs.max().unwrap_or_default()
    }

    /// Whether no times of these devices differ by more than `most`.
    pub fn are_one(&self, devices: &[u32], most: Ns) -> bool {
        self.groups(devices, most).len() <= 1
            && devices.iter().all(|device| self.within(*device).carries(most))
    }

    /// These devices in groups within which no times differ by more than `most`.
    pub fn groups(&self, devices: &[u32], most: Ns) -> Vec<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for &device in devices {
            // The error is one of files, so who fits to one of a group fits to all of it.
            let fits = |group: &&mut Vec<u32>| self.between(group[0], device).carries(most);
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(device),
                None => groups.push(vec![device]),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two devices of each of two files, whose clocks may differ by this.
    fn clocks(error: ClockError) -> Clocks {
        let mut clocks = Clocks::default();
        (0..4).for_each(|device| clocks.add(device, device / 2, error));
        clocks
    }

    #[test]
    fn devices_of_one_file_can_be_compared_and_those_of_two_where_their_clocks_carry_it() {
        let all = [0, 1, 2, 3];
        let close = clocks(ClockError::Within(Ns::micros(4)));
        assert_eq!(close.groups(&all, Ns::millis(1)), [vec![0, 1, 2, 3]]);
        assert_eq!(close.groups(&all, Ns::micros(3)), [vec![0, 1], vec![2, 3]]);
        assert_eq!(close.among(&[0, 1]), ClockError::NONE);
        assert_eq!(close.among(&all), ClockError::Within(Ns::micros(4)));
        let unknown = clocks(ClockError::Unknown);
        assert_eq!(unknown.groups(&all, Ns::MAX), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn a_device_that_two_files_tell_of_compares_with_none_beyond_their_error() {
        let mut shared = clocks(ClockError::Within(Ns::millis(1)));
        shared.add(1, 1, ClockError::Within(Ns::millis(1)));
        let alone = [vec![0], vec![1], vec![2, 3]];
        assert_eq!(shared.groups(&[0, 1, 2, 3], Ns::micros(10)), alone);
        // Nor are its own times comparable with each other.
        assert!(!shared.are_one(&[1], Ns::micros(10)) && shared.are_one(&[1], Ns::millis(1)));
        assert!(shared.are_one(&[2, 3], Ns::ZERO));
        assert_eq!(shared.among(&[1]), ClockError::Within(Ns::millis(1)));
    }

    #[test]
    fn recordings_of_our_own_have_one_clock() {
        let none = Clocks::default();
        assert_eq!(none.groups(&[0, 5], Ns::ZERO), [vec![0, 5]]);
    }
}
