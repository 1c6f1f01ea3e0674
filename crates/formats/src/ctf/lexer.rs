//! The words of TSDL (CTF 1.8.3, appendix C).

use super::ast::Fault;

/// A word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or a keyword.
    Word(String),
    /// A text in quotes.
    Text(String),
    /// A number, without its sign.
    Number(u64),
    /// A character, or several that belong together: `:=`, `...`, `->`.
    Mark(&'static str),
}

/// Splits a text into words, each with the byte that it begins at.
pub(super) fn words(text: &str) -> Result<Vec<(usize, Token)>, Fault> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let fault = |what: &str| Fault { at, what: what.into() };
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with(b"/*") {
            let end = text[at + 2..].find("*/").ok_or_else(|| fault("a comment has no end"))?;
            at += end + 4;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        } else if byte == b'"' || byte == b'\'' {
            let (content, length) = quoted(rest).map_err(fault)?;
            words.push((at, Token::Text(content)));
            at += length;
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let is_part = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
            let length = rest.iter().position(|b| !is_part(b)).unwrap_or(rest.len());
            words.push((at, Token::Word(text[at..at + length].to_owned())));
            at += length;
        } else if byte.is_ascii_digit() {
            let length = rest.iter().position(|b| !b.is_ascii_alphanumeric()).unwrap_or(rest.len());
            let number = number(&text[at..at + length]).ok_or_else(|| {
                fault(&format!("`{}` is no number", shorten(&text[at..at + length])))
            })?;
            words.push((at, Token::Number(number)));
            at += length;
        } else {
            const MARKS: &[&str] = &[
                ":=", "...", "->", "{", "}", "[", "]", "(", ")", "<", ">", ";", ",", ":", "=", ".",
                "*", "+", "-",
            ];
            let mark = MARKS.iter().find(|mark| rest.starts_with(mark.as_bytes()));
            let mark = mark.ok_or_else(|| fault(&format!("unexpected byte 0x{byte:02x}")))?;
            words.push((at, Token::Mark(mark)));
            at += mark.len();
        }
    }
    Ok(words)
}

/// A long word as an error shows it.
fn shorten(word: &str) -> String {
    match word.get(..40) {
        Some(start) if word.len() > 40 => format!("{start}…"),
        _ => word.to_owned(),
    }
}

/// Decimal, hexadecimal, octal or binary, with the endings that C allows.
fn number(word: &str) -> Option<u64> {
    let word = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let lower = word.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0x") {
        u64::from_str_radix(digits, 16).ok()
    } else if let Some(digits) = lower.strip_prefix("0b") {
        u64::from_str_radix(digits, 2).ok()
    } else if lower.len() > 1 && lower.starts_with('0') {
        u64::from_str_radix(&lower[1..], 8).ok()
    } else {
        lower.parse().ok()
    }
}

/// The content of a quoted text, and how many bytes it takes with its quotes.
fn quoted(bytes: &[u8]) -> Result<(String, usize), &'static str> {
    let quote = bytes[0];
    let mut content = Vec::new();
    let mut at = 1;
    loop {
        match bytes.get(at) {
            None => return Err("a text in quotes has no end"),
            Some(0) => return Err("a text in quotes holds a zero byte"),
            Some(b) if *b == quote => break,
            Some(b'\\') => {
                let (byte, length) = escaped(&bytes[at + 1..]).ok_or("a text ends in `\\`")?;
                content.extend(byte);
                at += 1 + length;
            }
            Some(b) => {
                content.push(*b);
                at += 1;
            }
        }
    }
    Ok((String::from_utf8_lossy(&content).into_owned(), at + 1))
}

/// The byte that follows a backslash, and how many bytes it is written with.
fn escaped(bytes: &[u8]) -> Option<(Option<u8>, usize)> {
    let digits = |from: usize, most: usize, radix: u32| {
        bytes[from..].iter().take(most).take_while(|b| (**b as char).is_digit(radix)).count()
    };
    let value = |from: usize, count: usize, radix: u32| {
        let text = std::str::from_utf8(&bytes[from..from + count]).unwrap_or_default();
        u32::from_str_radix(text, radix).unwrap_or(0) as u8
    };
    Some(match *bytes.first()? {
        b'n' => (Some(b'\n'), 1),
        b't' => (Some(b'\t'), 1),
        b'r' => (Some(b'\r'), 1),
        b'a' => (Some(7), 1),
        b'b' => (Some(8), 1),
        b'f' => (Some(12), 1),
        b'v' => (Some(11), 1),
        b'x' => {
            let count = digits(1, 2, 16);
            (Some(value(1, count, 16)), 1 + count)
        }
        b'0'..=b'7' => {
            let count = digits(0, 3, 8);
            (Some(value(0, count, 8)), count)
        }
        other => (Some(other), 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match words(text) {
            Ok(words) => words
                .iter()
                .map(|(at, word)| format!("{at}:{word:?}"))
                .collect::<Vec<_>>()
                .join(" "),
            Err(fault) => format!("{} at {}", fault.what, fault.at),
        }
    }

    #[test]
    fn words_comments_and_numbers_of_all_bases_are_told_apart() {
        assert_eq!(
            shown("a_1 /* b */ := 0x1F // c\n [017] -3 \"x\\\"\\x41\\n\""),
            "0:Word(\"a_1\") 12:Mark(\":=\") 15:Number(31) 26:Mark(\"[\") 27:Number(15) \
             30:Mark(\"]\") 32:Mark(\"-\") 33:Number(3) 35:Text(\"x\\\"A\\n\")"
        );
        assert_eq!(shown("0 ... 30ULL"), "0:Number(0) 2:Mark(\"...\") 6:Number(30)");
    }

    #[test]
    fn what_cannot_be_a_word_is_refused_with_its_place() {
        assert_eq!(shown("a /* b"), "a comment has no end at 2");
        assert_eq!(shown("x = \"abc"), "a text in quotes has no end at 4");
        assert_eq!(shown("x = \"a\0c\""), "a text in quotes holds a zero byte at 4");
        assert_eq!(shown("x @"), "unexpected byte 0x40 at 2");
        assert_eq!(shown("99999999999999999999"), "`99999999999999999999` is no number at 0");
    }
}
