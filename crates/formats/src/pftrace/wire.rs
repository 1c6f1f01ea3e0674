//! The wire format of protocol buffers: fields one after the other, whatever they mean
//! (protobuf.dev/programming-guides/encoding).

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A number of variable length.
    Varint(u64),
    /// 8 bytes.
    Eight([u8; 8]),
    /// 4 bytes.
    Four([u8; 4]),
    /// A text, a message, or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The number, if it is one.
    pub fn number(self) -> Option<u64> {
        match self {
            Value::Varint(number) => Some(number),
            Value::Eight(bytes) => Some(u64::from_le_bytes(bytes)),
            Value::Four(bytes) => Some(u32::from_le_bytes(bytes).into()),
            Value::Bytes(_) => None,
        }
    }

    /// The bytes, if it has a length.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A message does not follow the format from this byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    /// How many bytes into the message.
    pub at: usize,
}

/// The fields of a message.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Of a message.
pub(super) fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { bytes, at: 0 }
}

/// A number of variable length at the begin of `bytes`, and how many bytes it has.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0u64;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((number, place + 1));
        }
    }
    None
}

/// Packed numbers of variable length, up to the first that is malformed.
pub(super) fn packed(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (number, length) = varint(rest)?;
        rest = &rest[length..];
        Some(number)
    })
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let part = rest.get(..usize::try_from(count).ok()?)?;
        self.at += part.len();
        Some(part)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let (key, length) = varint(&self.bytes[self.at..])?;
        self.at += length;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            0 => {
                let (value, length) = varint(&self.bytes[self.at..])?;
                self.at += length;
                Value::Varint(value)
            }
            1 => Value::Eight(self.take(8)?.try_into().ok()?),
            2 => {
                let (count, length) = varint(&self.bytes[self.at..])?;
                self.at += length;
                Value::Bytes(self.take(count)?)
            }
            5 => Value::Four(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let began = self.at;
        let field = self.field();
        if field.is_none() {
            self.at = self.bytes.len();
        }
        Some(field.ok_or(Malformed { at: began }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_apart_and_says_where_it_is_malformed() {
        // The examples of the documentation of the encoding: 150, and the text "testing".
        let message = [0x08, 0x96, 0x01, 0x12, 7, b't', b'e', b's', b't', b'i', b'n', b'g'];
        let all: Vec<_> = fields(&message).map(Result::unwrap).collect();
        assert_eq!(all, [(1, Value::Varint(150)), (2, Value::Bytes(b"testing"))]);
        assert_eq!(fields(&message[..8]).nth(1), Some(Err(Malformed { at: 3 })));
        assert_eq!(fields(&[0x0d, 1, 0, 0, 0]).next().unwrap().unwrap().1.number(), Some(1));
        // Groups, a field without a number, a varint that does not end.
        for bad in
            [&[0x0b][..], &[0x00, 1], &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]]
        {
            assert_eq!(fields(bad).collect::<Vec<_>>(), [Err(Malformed { at: 0 })], "{bad:?}");
        }
        assert_eq!(packed(&[1, 0x96, 0x01, 3]).collect::<Vec<_>>(), [1, 150, 3]);
        assert_eq!(varint(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), Some((u64::MAX, 10)));
    }
}
