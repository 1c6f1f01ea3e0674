//! The string table of a report.

use std::collections::HashMap;

use gpuwhy_schema::Name;

/// Longer names are cut off: a string table may hold the whole output of a program.
pub(super) const LONGEST_NAME: usize = 4096;

/// Strings by their numbers.
#[derive(Debug, Default)]
pub(super) struct Strings {
    dense: Vec<Option<Name>>,
    sparse: HashMap<i64, Name>,
}

impl Strings {
    /// The string of this number.
    pub fn get(&self, id: i64) -> Option<&Name> {
        match usize::try_from(id).ok().and_then(|i| self.dense.get(i)) {
            Some(found) => found.as_ref(),
            None => self.sparse.get(&id),
        }
    }

    /// All strings with small numbers, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (i64, &Name)> {
        let named = self.dense.iter().enumerate();
        named.filter_map(|(id, name)| Some((id as i64, name.as_ref()?)))
    }

    /// Adds the string of this number.
    pub fn put(&mut self, id: i64, name: Name) {
        // Nsight numbers strings in order, except for a few with large numbers.
        match usize::try_from(id) {
            Ok(i) if i < self.dense.len() + 1024 => {
                if i >= self.dense.len() {
                    self.dense.resize(i + 1, None);
                }
                self.dense[i] = Some(name);
            }
            _ => {
                self.sparse.insert(id, name);
            }
        }
    }
}

/// A text as a name, cut off after [`LONGEST_NAME`] bytes at most, at the end of a character.
pub(super) fn name_of(text: &str) -> Name {
    if text.len() <= LONGEST_NAME {
        return text.into();
    }
    let end = (0..=LONGEST_NAME).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text[..end].into()
}
