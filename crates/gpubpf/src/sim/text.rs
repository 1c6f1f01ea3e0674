//! Words, literals and declarations of PTX text.

use super::floats::from_f64;
use super::soft::{Format, Round};
use super::types::{Ty, mask};

/// The words and signs of `code`, without comments.
pub(crate) fn tokens(code: &str) -> Vec<&str> {
    let bytes = code.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii_whitespace() || byte == 0 {
            at += 1;
        } else if code[at..].starts_with("//") {
            at = code[at..].find('\n').map_or(bytes.len(), |end| at + end);
        } else if code[at..].starts_with("/*") {
            at = code[at..].find("*/").map_or(bytes.len(), |end| at + end + 2);
        } else if byte == b'"' {
            let end = code[at + 1..].find('"').map_or(bytes.len(), |end| at + end + 2);
            found.push(&code[at..end]);
            at = end;
        } else {
            let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte);
            let length = bytes[at..].iter().take_while(|&&byte| word(byte)).count();
            let mut end = at + length.max(1);
            while !code.is_char_boundary(end) {
                end += 1;
            }
            found.push(&code[at..end]);
            at = end;
        }
    }
    found
}

/// The largest alignment of a variable.
const MAX_ALIGN: u64 = 1 << 20;

/// A literal as the bits of `ty`.
pub(crate) fn literal(text: &str, ty: Ty) -> Option<u64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits.trim_start()),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let to_format = |format: Format, from: Format, bits: u64| {
        let real = from.unpack(bits);
        format.pack(if negative { real.negated() } else { real }, Round::Nearest, false)
    };
    let exact = [
        ("0f", Format::F32, 8),
        ("0F", Format::F32, 8),
        ("0d", Format::F64, 16),
        ("0D", Format::F64, 16),
    ];
    for (prefix, from, length) in exact {
        if let Some(digits) = digits.strip_prefix(prefix) {
            let bits = hex(digits).filter(|_| digits.len() == length)?;
            // The bits as they are, NaN's too, where no conversion is asked for.
            return match ty.float() {
                Some(format) if format != from => Some(to_format(format, from, bits)),
                _ if negative => Some(bits ^ 1 << (length * 4 - 1)),
                _ => Some(bits),
            };
        }
    }
    let plain = digits.trim_end_matches(['U', 'u']);
    let integer = if let Some(digits) = plain.strip_prefix("0x").or(plain.strip_prefix("0X")) {
        hex(digits)
    } else if let Some(digits) = plain.strip_prefix("0b").or(plain.strip_prefix("0B")) {
        u64::from_str_radix(digits, 2).ok()
    } else if plain.len() > 1 && plain.starts_with('0') && !plain.contains('.') {
        u64::from_str_radix(plain, 8).ok()
    } else {
        plain.parse().ok()
    };
    match (integer, ty.float()) {
        (Some(value), _) if digits.contains('.') => Some(value),
        (Some(value), None | Some(Format::F16 | Format::Bf16)) => {
            let value = if negative { value.wrapping_neg() } else { value };
            Some(mask(value, ty.width().max(1)))
        }
        (_, Some(format)) => {
            let value: f64 = digits.parse().ok()?;
            Some(from_f64(format, if negative { -value } else { value }))
        }
        (None, None) => None,
    }
}

/// A variable or parameter as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared<'a> {
    pub(crate) name: &'a str,
    /// How many registers `name<n>` declares.
    pub(crate) range: Option<u32>,
    pub(crate) ty: Ty,
    pub(crate) align: u64,
    /// Bytes; 0 where the size is left open (`[]`).
    pub(crate) bytes: u64,
    /// Words of what it is at first.
    pub(crate) initial: Vec<&'a str>,
    /// `.reg`, not `.param`.
    pub(crate) register: bool,
}

/// Reads what stands behind the space of a declaration: `.align 8 .b8 a[16] = {1}, b;`
pub(crate) fn declared<'a>(words: &[&'a str]) -> Result<Vec<Declared<'a>>, String> {
    let mut found = Vec::new();
    let (mut ty, mut align, mut vector) = (None, 0_u64, 1_u64);
    let (mut at, mut register) = (0, false);
    while let Some(&word) = words.get(at) {
        at += 1;
        match word {
            "," | ";" => {}
            ".align" => {
                let number = words.get(at).and_then(|w| w.parse::<u64>().ok());
                align = number
                    .filter(|n| n.is_power_of_two() && *n <= MAX_ALIGN)
                    .ok_or("an alignment is expected")?;
                at += 1;
            }
            ".attribute" => {
                while words.get(at).is_some_and(|&w| w != ")") {
                    at += 1;
                }
                at += 1;
            }
            ".reg" => register = true,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            _ if word.starts_with('.') => {
                if let Some(named) = Ty::parse(&word[1..]) {
                    ty = Some(named);
                }
            }
            _ => {
                let ty = ty.ok_or_else(|| format!("`{word}` is declared without a type"))?;
                let natural = u64::from(ty.bytes()) * vector;
                let (range, bytes) = shape(words, &mut at, natural)?;
                let initial = initial(words, &mut at);
                let align = if align == 0 { natural.max(1) } else { align };
                found.push(Declared { name: word, range, ty, align, bytes, initial, register });
            }
        }
    }
    Ok(found)
}

/// `<n>` or `[n][m]` behind a name.
fn shape(words: &[&str], at: &mut usize, natural: u64) -> Result<(Option<u32>, u64), String> {
    let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
    let (mut range, mut bytes) = (None, natural);
    loop {
        match words.get(*at) {
            Some(&"<") => {
                let count = number(*at + 1).and_then(|n| u32::try_from(n).ok());
                range = Some(count.ok_or("a number of registers is expected")?);
                *at += 3;
            }
            Some(&"[") if words.get(*at + 1) == Some(&"]") => {
                bytes = 0;
                *at += 2;
            }
            Some(&"[") => {
                let count = number(*at + 1).ok_or("a number of elements is expected")?;
                bytes = bytes.checked_mul(count).ok_or("an array that is too large")?;
                *at += 3;
            }
            _ => return Ok((range, bytes)),
        }
    }
}

/// The words behind `=`, up to the comma or semicolon outside of braces.
fn initial<'a>(words: &[&'a str], at: &mut usize) -> Vec<&'a str> {
    let mut found = Vec::new();
    if words.get(*at) != Some(&"=") {
        return found;
    }
    *at += 1;
    let mut depth = 0_u32;
    while let Some(&word) = words.get(*at) {
        match word {
            "{" | "(" => depth += 1,
            "}" | ")" => depth = depth.saturating_sub(1),
            "," | ";" if depth == 0 => break,
            _ => {}
        }
        found.push(word);
        *at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_take_the_type_of_their_place() {
        let of = |text, ty| literal(text, Ty::parse(ty).unwrap());
        assert_eq!(of("0f3F800000", "f32"), Some(0x3f80_0000));
        assert_eq!(of("0f3F800000", "f64"), Some(1f64.to_bits()));
        assert_eq!(of("0d3FF0000000000000", "f32"), Some(0x3f80_0000));
        assert_eq!(of("1.5", "f32"), Some(u64::from(1.5f32.to_bits())));
        assert_eq!(of("-1", "s32"), Some(0xffff_ffff));
        assert_eq!(of("0x1FU", "b32"), Some(31));
        assert_eq!(of("017", "b32"), Some(15));
        assert_eq!(of("0", "f32"), Some(0));
        assert_eq!(of("0x3C00", "f16"), Some(0x3c00));
        assert_eq!(of("%r1", "b32"), None);
    }

    #[test]
    fn declarations_say_type_alignment_shape_and_first_values() {
        let words = tokens(".align 16 .b8 a[2][8] = {1, {2}}, b; // and no more");
        let found = declared(&words).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name, found[0].bytes, found[0].align), ("a", 16, 16));
        assert_eq!(found[0].initial, ["{", "1", ",", "{", "2", "}", "}"]);
        assert_eq!((found[1].name, found[1].bytes), ("b", 1));
        let found = declared(&tokens(".u64 .ptr .global .align 4 p_0")).unwrap();
        assert_eq!((found[0].name, found[0].bytes), ("p_0", 8));
        assert_eq!(declared(&tokens(".b32 %r<7>;")).unwrap()[0].range, Some(7));
        assert!(declared(&tokens("x;")).is_err());
    }
}
