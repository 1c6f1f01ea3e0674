//! Kernels of one template that were built with other arguments, by their names.
//!
//! # What it sees
//! Names of kernels, mangled or as a programmer writes them. Two are of one template if they are called alike without
//! their arguments; how they differ is the shortest way from one list of arguments to the other.
//!
//! # Why it matters
//! A library that lacks a variant falls back to another one, which is slower and has another name (StriaTrace, appendix
//! C.2: a tile of 128 instead of 64 made an attention kernel take 210 µs instead of 140).
//!
//! # What fools it
//! Libraries whose kernels are all instances of one wrapper: those are paired that differ least, and a kernel whose name
//! shares less than half of its words with every other one is taken for another kernel.

use std::borrow::Cow;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use serde::Serialize;

/// Longer mangled names are compared as they are.
const MANGLED: usize = 8192;
/// Words of a name that are compared.
const WORDS: usize = 512;
/// Of names that were cut off, at most so many arguments and names are closed.
const CLOSED: usize = 48;

/// What of a kernel's arguments became what.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Replaced {
    /// What it was; empty if there was nothing.
    pub from: String,
    /// What it is.
    pub to: String,
}

impl std::fmt::Display for Replaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_nothing =
            |text: &str| if text.is_empty() { "nothing".into() } else { text.to_owned() };
        write!(f, "{} -> {}", or_nothing(&self.from), or_nothing(&self.to))
    }
}

/// A kernel's name as a programmer writes it. Tools cut mangled names off: of such a name what is left of it, with what
/// was open closed.
pub fn readable(name: &str) -> Cow<'_, str> {
    if !name.starts_with("_Z") || name.len() > MANGLED || !name.is_ascii() {
        return name.into();
    }
    if let Some(whole) = demangled(name) {
        return whole.into();
    }
    let left = without_cut_off_word(name);
    for closed in 0..=CLOSED {
        for rest in ["", "vv"] {
            let tried = format!("{left}{}{rest}", "E".repeat(closed));
            if let Some(readable) = demangled(&tried) {
                return readable.into();
            }
        }
    }
    name.into()
}

fn demangled(name: &str) -> Option<String> {
    let limits = ParseOptions::default().recursion_limit(192);
    let bare = DemangleOptions::new().no_params().no_return_type();
    Symbol::new_with_options(name, &limits).ok()?.demangle_with_options(&bare).ok()
}

/// A mangled name without its last word, if that says that it is longer than what is left of it.
fn without_cut_off_word(name: &str) -> &str {
    let bytes = name.as_bytes();
    let mut at = bytes.len();
    for end in (1..=bytes.len()).rev().take(256) {
        if !bytes[end - 1].is_ascii_digit() || bytes.get(end).is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let begin = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
        let says = name[begin..end].parse().unwrap_or(0usize);
        // A literal has its type before it: `Li64`.
        let is_literal = begin >= 2 && bytes[begin - 2] == b'L';
        if !is_literal && says > bytes.len() - end {
            at = begin;
        }
    }
    &name[..at]
}

/// A kernel without return type, template arguments and parameters.
pub fn base_name(name: &str) -> &str {
    let end = name.find(['<', '(']).unwrap_or(name.len());
    let head = name[..end].trim_end();
    head.rsplit(' ').next().unwrap_or(head)
}

/// The words of a name behind its base name, without punctuation.
fn words(name: &str) -> Vec<&str> {
    let is_of_word = |c: char| c.is_alphanumeric() || "_:.-".contains(c);
    let behind = &name[name.find('<').unwrap_or(name.len())..];
    behind.split(|c| !is_of_word(c)).filter(|word| !word.is_empty()).take(WORDS).collect()
}

/// How two instances of one template differ, and in how many words; none if they have less than half of these in common.
pub fn differences(before: &str, after: &str) -> Option<(usize, Vec<Replaced>)> {
    let (a, b) = (words(before), words(after));
    // What the ends of both have in common, of all pairs of ends.
    let mut common = vec![vec![0u16; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = match a[i] == b[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (longest, same) = (a.len().max(b.len()), usize::from(common[0][0]));
    if 2 * same < longest {
        return None;
    }
    let (mut i, mut j) = (0, 0);
    let mut out: Vec<Replaced> = Vec::new();
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let (mut from, mut to) = (Vec::new(), Vec::new());
        while i < a.len() || j < b.len() {
            let differ = i >= a.len() || j >= b.len() || a[i] != b[j];
            if !differ {
                break;
            }
            if j >= b.len() || i < a.len() && common[i + 1][j] >= common[i][j + 1] {
                from.push(a[i]);
                i += 1;
            } else {
                to.push(b[j]);
                j += 1;
            }
        }
        out.push(Replaced { from: from.join(" "), to: to.join(" ") });
    }
    Some((longest - same, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// StriaTrace, table 7: both names are cut off there.
    const OLD: &str = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25\
                       CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_ILi64EEENS7_ILi128\
                       EEESB_EEELi128ENS_10bfloat16_tEfNS_4arch4Sm90ELb1ELb0ELb1ELb1ELb0ELb1ELb1ELb1";
    const NEW: &str = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25\
                       CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_ILi128EEESA_SA_\
                       EEELi128ENS_10bfloat16_tEfNS_4arch4Sm90ELb1ELb0ELb0ELb1ELb1ELb0ELb1ELb1ELb1";

    #[test]
    fn the_name_of_a_kernel_has_neither_template_nor_parameters() {
        assert_eq!(base_name("void at::native::add<float, 4>(float*)"), "at::native::add");
        assert_eq!(base_name("gemm_kernel"), "gemm_kernel");
        assert_eq!(base_name("init(float*, int)"), "init");
        assert_eq!(base_name(""), "");
    }

    #[test]
    fn names_that_were_cut_off_tell_that_the_tile_grew_from_64_to_128() {
        let (old, new) = (readable(OLD), readable(NEW));
        assert_eq!(
            (base_name(&old), base_name(&new)),
            ("cutlass::device_kernel", "cutlass::device_kernel")
        );
        assert!(old.contains("cute::C<64>, cute::C<128>, cute::C<128>"), "{old}");
        assert!(new.contains("cute::C<128>, cute::C<128>, cute::C<128>"), "{new}");
        let (_, differ) = differences(&old, &new).unwrap();
        assert_eq!(differ[0], Replaced { from: "64".into(), to: "128".into() }, "{differ:?}");
    }

    #[test]
    fn a_name_may_be_cut_off_anywhere() {
        for end in 30..OLD.len() {
            let left = readable(&OLD[..end]);
            assert!(left.contains("cutlass"), "{end}: {left}");
        }
        let told = (30..OLD.len()).filter(|end| !readable(&OLD[..*end]).starts_with("_Z")).count();
        assert!(told * 10 > 8 * (OLD.len() - 30), "{told} of {}", OLD.len() - 30);
    }

    #[test]
    fn what_is_no_mangled_name_stays_as_it_is() {
        for name in ["", "_Z", "_Zé", "gemm", "_ZN3foo", "void f<1>(int)", &"_Z".repeat(5000)] {
            let said = readable(name);
            assert!(said == name || said == "foo", "{name}: {said}");
        }
        assert_eq!(readable("_ZN2at6native3addIfLi4EEEvPT_"), "at::native::add<float, 4>");
    }

    #[test]
    fn arguments_that_were_added_or_left_out_are_told() {
        let told = |a, b| {
            let (words, list) = differences(a, b).unwrap();
            (words, list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        };
        assert_eq!(told("f<int, 1, a, b>", "f<int, 2, a, b>"), (1, "1 -> 2".into()));
        assert_eq!(told("f<int, 1, a>", "f<int, 1, true, a>"), (1, "nothing -> true".into()));
        assert_eq!(told("f<int, 1, a, b>", "f<1, a, c>"), (2, "int -> nothing; b -> c".into()));
        assert_eq!(told("f<1>", "f<1>"), (0, String::new()));
        assert_eq!(
            differences("f<a, b, c>", "f<d, e, c>"),
            None,
            "another kernel of the same wrapper"
        );
    }
}
