//! Bytes become lines, and a line that is too long is not kept.

/// Bytes that have arrived, up to a line's end.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// Up to where there is no line's end.
    searched: usize,
}

/// A line is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.searched -= self.at;
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
        // What one long line needed is given back.
        if self.bytes.capacity() > 4096 && self.bytes.len() < self.bytes.capacity() / 8 {
            self.bytes.shrink_to(self.bytes.len() * 2);
        }
    }

    /// The next line without its end, if it has come whole.
    ///
    /// # Errors
    /// It is longer than `most` bytes, its end included.
    pub fn next_line(&mut self, most: usize) -> Result<Option<&[u8]>, TooLong> {
        let end = self.bytes[self.searched..].iter().position(|b| *b == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.bytes.len();
            return if self.bytes.len() - self.at >= most { Err(TooLong) } else { Ok(None) };
        };
        if end + 1 - self.at > most {
            return Err(TooLong);
        }
        let line = self.at..end;
        (self.at, self.searched) = (end + 1, end + 1);
        Ok(Some(&self.bytes[line]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let text = b"one\n\ntwo and more\nthree";
        for size in 1..text.len() {
            let (mut lines, mut got) = (Lines::default(), vec![]);
            for bytes in text.chunks(size) {
                lines.push(bytes);
                while let Some(line) = lines.next_line(100).unwrap() {
                    got.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(got, ["one", "", "two and more"], "{size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let mut lines = Lines::default();
        lines.push(b"four\n");
        lines.push(b"12345678");
        assert_eq!(lines.next_line(9), Ok(Some(&b"four"[..])));
        assert_eq!(lines.next_line(9), Ok(None));
        assert_eq!(lines.next_line(8), Err(TooLong));
        lines.push(b"\n");
        assert_eq!(lines.next_line(8), Err(TooLong));
        assert_eq!(lines.next_line(9), Ok(Some(&b"12345678"[..])));
    }
}
