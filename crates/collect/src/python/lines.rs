//! Tables of line numbers of code objects.

/// The line of an instruction, which begins `at` bytes from the first one, by the table of Python 3.11 and later
/// (`Objects/locations.md` of CPython). `None` if the table does not say, or is none.
pub(super) fn of_locations(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let (mut line, mut from) = (first, 0_u64);
    while let Some(byte) = bytes.next() {
        let (code, instructions) = (byte >> 3 & 15, u64::from(byte & 7) + 1);
        let here = match code {
            // No line, one that is so many lines on, with or without columns, the same one, and up to two on.
            15 => None,
            14 => {
                line = line.saturating_add(signed(variable(&mut bytes)?));
                let (_, _, _) =
                    (variable(&mut bytes)?, variable(&mut bytes)?, variable(&mut bytes)?);
                Some(line)
            }
            13 => {
                line = line.saturating_add(signed(variable(&mut bytes)?));
                Some(line)
            }
            10..=12 => {
                line = line.saturating_add(i64::from(code - 10));
                let (_, _) = (bytes.next()?, bytes.next()?);
                Some(line)
            }
            _ => {
                bytes.next()?;
                Some(line)
            }
        };
        let to = from + 2 * instructions;
        if (from..to).contains(&at) {
            return here;
        }
        from = to;
    }
    None
}

/// A number in groups of six bits, the lowest first.
fn variable(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut number = 0;
    for group in 0..10 {
        let byte = bytes.next()?;
        number |= u64::from(byte & 0x3f) << (6 * group);
        if byte & 0x40 == 0 {
            return Some(number);
        }
    }
    None
}

/// The sign is in the lowest bit.
fn signed(number: u64) -> i64 {
    let size = (number >> 1) as i64;
    if number & 1 == 1 { -size } else { size }
}

/// The same by the table of Python 3.10 (PEP 626).
pub(super) fn of_deltas(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let (mut line, mut to) = (first, 0_u64);
    for pair in table.chunks_exact(2) {
        let (bytes, delta) = (u64::from(pair[0]), pair[1] as i8);
        let has_line = delta != -128;
        if has_line {
            line += i64::from(delta);
        }
        to += bytes;
        if at < to {
            return has_line.then_some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `compile` of Python 3.11 makes of `def f():\n    a = 1\n    b = g(a,\n          2)\n    return b`, and
    /// what `co_positions()` says of it, one line for each two bytes.
    #[test]
    fn lines_of_a_function_of_python_3_11() {
        let table = [
            128, 0, 216, 8, 9, 128, 65, 221, 8, 9, 136, 33, 216, 10, 11, 241, 3, 1, 9, 13, 244, 0,
            1, 9, 13, 128, 65, 224, 11, 12, 128, 72,
        ];
        let expected = [1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3, 3, 3, 3, 3, 3, 3, 5, 5];
        let lines = (0..21).map(|unit| of_locations(&table, 1, 2 * unit).unwrap());
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        assert_eq!(of_locations(&table, 1, 42), None, "the function has ended");
        // Lines beyond all numbers: 14 is a line so far from the last one, here 2⁵⁹ at a time, and 12 is two on.
        let far = [[0xf0, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x3f, 0, 0, 0]; 64];
        assert_eq!(of_locations(far.as_flattened(), 1, 126), Some(i64::MAX));
        let further = [far.as_flattened(), &[0xe0, 0, 0]].concat();
        assert_eq!(of_locations(&further, 1, 128), Some(i64::MAX));
    }

    #[test]
    fn lines_of_a_function_of_python_3_10() {
        // 4 bytes of line 11, 6 of none, 2 of line 9.
        let table = [4, 1, 6, 0x80, 2, 0xfe];
        let line = |at| of_deltas(&table, 10, at);
        assert_eq!(
            [line(0), line(2), line(4), line(10), line(12)],
            [Some(11), Some(11), None, Some(9), None]
        );
    }

    #[test]
    fn tables_that_are_cut_or_of_any_bytes_end() {
        for fill in [0x00, 0x7f, 0x80, 0xff, 0xf0] {
            for len in 0..40 {
                let table = vec![fill; len];
                let (_, _) = (of_locations(&table, 1, 1000), of_deltas(&table, 1, 1000));
            }
        }
    }
}
