//! What registers a function declares, and how wide they are, block by block.

use std::collections::HashMap;

/// The declared registers that are visible at a place.
#[derive(Debug, Default)]
pub(super) struct Registers<'a> {
    /// Block by block, innermost last: names, and stems of numbered ones with how many there are.
    blocks: Vec<Block<'a>>,
}

#[derive(Debug, Default)]
struct Block<'a> {
    names: HashMap<&'a str, Width>,
    stems: HashMap<&'a str, (u64, Width)>,
}

/// A register's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Predicate,
    Bits(u32),
}

impl<'a> Registers<'a> {
    pub(super) fn open(&mut self) {
        self.blocks.push(Block::default());
    }

    pub(super) fn close(&mut self) {
        self.blocks.pop();
    }

    /// Takes a directive in: `.reg .b32 %r<10>;`, `.reg .pred p, q;`. Others are no registers.
    pub(super) fn declare(&mut self, directive: &'a str) {
        let Some(rest) = directive.strip_prefix(".reg") else { return };
        let Some(block) = self.blocks.last_mut() else { return };
        let rest = rest.trim_end_matches(';').trim_start();
        let Some((kind, names)) = rest.split_once(char::is_whitespace) else { return };
        let width = match kind {
            ".pred" => Width::Predicate,
            _ => match kind[1.min(kind.len())..].trim_start_matches(['b', 'u', 's', 'f']).parse() {
                Ok(bits) => Width::Bits(bits),
                // Vectors and types that hold no number.
                Err(_) => return,
            },
        };
        for name in names.split(',').map(str::trim) {
            match name.split_once('<') {
                Some((stem, count)) => {
                    let count = count.trim_end_matches('>').trim().parse().unwrap_or(0);
                    block.stems.insert(stem.trim_end(), (count, width));
                }
                None => {
                    block.names.insert(name, width);
                }
            }
        }
    }

    /// The width of `name`; `None` where it is no register that was declared.
    pub(super) fn width(&self, name: &str) -> Option<Width> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = &name[stem.len()..];
        let number = match number {
            "" => None,
            _ if number.len() > 1 && number.starts_with('0') => None,
            _ => number.parse::<u64>().ok(),
        };
        self.blocks.iter().rev().find_map(|block| {
            let numbered = || {
                let (count, width) = *block.stems.get(stem)?;
                number.filter(|&number| number < count).map(|_| width)
            };
            block.names.get(name).copied().or_else(numbered)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_has_the_width_of_the_innermost_block_that_declares_it() {
        let mut registers = Registers::default();
        registers.open();
        registers.declare(".reg .b32 \t%r<10>;");
        registers.declare(".reg .pred %p1, q;");
        registers.declare(".local .b8 %r20[4];");
        assert_eq!(registers.width("%r9"), Some(Width::Bits(32)));
        assert_eq!(registers.width("%r10"), None);
        assert_eq!(registers.width("%r20"), None);
        registers.open();
        registers.declare(".reg .f64 %r9;");
        assert_eq!(registers.width("%r9"), Some(Width::Bits(64)));
        assert_eq!(registers.width("q"), Some(Width::Predicate));
        registers.close();
        assert_eq!(registers.width("%r9"), Some(Width::Bits(32)));
    }
}
