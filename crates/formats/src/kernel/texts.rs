//! Values of fields as texts, of which the latest are held.
//!
//! # How
//! Numbers and short texts each have one place by their hash, where the one that was asked for last lies. Most values of
//! a kernel's events come again within some thousand events (devices, priorities, names of threads), so that no text is
//! made for them, and none of the others is kept for long.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use gpuwhy_schema::Name;

use super::event::Value;

/// Places for numbers, and as many for texts.
const PLACES: usize = 1 << 12;
/// Longer texts are not held.
const LONGEST: usize = 64;

/// The latest texts.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// By the number's bits, and whether it is below 0.
    numbers: Vec<Option<((u64, bool), Name)>>,
    texts: Vec<Option<Name>>,
    hash: FixedState,
    buffer: String,
}

impl Texts {
    /// A value as it is shown, whose text may lie in `bytes`; `None` of one that the event lacks.
    pub fn of(&mut self, value: &Value, bytes: &[u8]) -> Option<Name> {
        Some(match value {
            Value::Absent => return None,
            Value::Unsigned(n) => self.number((*n, false), value),
            Value::Signed(n) => self.number((*n as u64, *n < 0), value),
            Value::Text(range) => {
                let text = bytes.get(range.clone()).and_then(|text| str::from_utf8(text).ok());
                match text.filter(|text| text.len() <= LONGEST) {
                    Some(text) => self.text(text),
                    None => self.made(value, bytes),
                }
            }
            Value::Float(_) => self.made(value, bytes),
        })
    }

    fn made(&mut self, value: &Value, bytes: &[u8]) -> Name {
        self.buffer.clear();
        value.show(bytes, &mut self.buffer);
        Name::from(&*self.buffer)
    }

    fn number(&mut self, number: (u64, bool), value: &Value) -> Name {
        if self.numbers.is_empty() {
            self.numbers = vec![None; PLACES];
        }
        let place = self.hash.hash_one(number.0) as usize % PLACES;
        if let Some((held, text)) = &self.numbers[place]
            && *held == number
        {
            return text.clone();
        }
        let text = self.made(value, &[]);
        self.numbers[place] = Some((number, text.clone()));
        text
    }

    fn text(&mut self, text: &str) -> Name {
        if self.texts.is_empty() {
            self.texts = vec![None; PLACES];
        }
        let place = &mut self.texts[self.hash.hash_one(text) as usize % PLACES];
        match place {
            Some(held) if **held == *text => held.clone(),
            _ => place.insert(text.into()).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_shown_as_itself_however_many_came_before() {
        let mut texts = Texts::default();
        let mut of = |value: Value, bytes: &[u8]| texts.of(&value, bytes).map(|t| t.to_string());
        for n in (0..20_000u64).chain((0..20_000).rev()) {
            assert_eq!(of(Value::Unsigned(n), b""), Some(n.to_string()));
            assert_eq!(of(Value::Signed(-(n as i64)), b""), Some((-(n as i64)).to_string()));
            let text = format!("thread {n}");
            assert_eq!(of(Value::Text(0..text.len()), text.as_bytes()), Some(text));
        }
        assert_eq!(of(Value::Unsigned(u64::MAX), b""), Some(u64::MAX.to_string()));
        assert_eq!(of(Value::Signed(-1), b""), Some("-1".into()));
        assert_eq!(of(Value::Float(0.5), b""), Some("0.5".into()));
        assert_eq!(of(Value::Absent, b""), None);
        assert_eq!(of(Value::Text(0..3), b"a\xffb"), Some("a\u{fffd}b".into()));
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(of(Value::Text(0..long.len()), long.as_bytes()), Some(long));
    }
}
