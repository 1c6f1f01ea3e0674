//! Which kernels a pattern means: names as the text has them, or as the programmer wrote them.

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// How deep the parser of mangled names may recurse; templates of CUTLASS need a few hundred.
const RECURSION: u32 = 160;

/// A kernel's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    mangled: String,
    /// Demangled: with its parameters, without them, and without template arguments either.
    demangled: Vec<String>,
}

impl Names {
    /// Of a name as an image has it.
    pub fn new(mangled: &str) -> Self {
        let mut demangled = Vec::new();
        let limits = ParseOptions::default().recursion_limit(RECURSION);
        if let Ok(symbol) = Symbol::new_with_options(mangled, &limits) {
            let bare = DemangleOptions::new().no_params().no_return_type();
            demangled.extend(symbol.demangle().ok());
            if let Ok(name) = symbol.demangle_with_options(&bare) {
                demangled.extend(without_arguments(&name));
                demangled.push(name);
            }
        }
        Self { mangled: mangled.to_owned(), demangled }
    }

    /// Whether `pattern` means this kernel: the mangled name, or the demangled one with or without its parameters, or
    /// without template arguments; `*` is any characters, `?` any one.
    pub fn matches(&self, pattern: &str) -> bool {
        glob(pattern, &self.mangled) || self.demangled.iter().any(|name| glob(pattern, name))
    }

    /// The name as a programmer wrote it, with parameters; the mangled one where it is none.
    pub fn readable(&self) -> &str {
        self.demangled.first().unwrap_or(&self.mangled)
    }
}

/// `a<b>::c<d>` as `a::c`; `None` for names with operators, whose angle brackets mean other things.
fn without_arguments(name: &str) -> Option<String> {
    if name.contains("operator") {
        return None;
    }
    let (mut depth, mut short) = (0_usize, String::new());
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => short.push(c),
            _ => {}
        }
    }
    (depth == 0).then_some(short)
}

/// Whether all of `text` is what `pattern` says: `*` is any characters, `?` any one.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last star stands, and what it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_meant_by_its_mangled_and_by_its_written_name() {
        let names = Names::new("_ZN2ns4gemmIfLi4EEEvPKT_S3_PS1_");
        assert_eq!(names.readable(), "void ns::gemm<float, 4>(float const*, float const*, float*)");
        for (pattern, meant) in [
            ("*", true),
            ("_ZN2ns4gemm*", true),
            ("ns::gemm", true),
            ("ns::gemm<float, 4>", true),
            ("ns::gemm<*", true),
            ("*gemm*float const*", true),
            ("n?::gem?", true),
            ("gemm", false),
            ("ns::gemm<double*", false),
            ("", false),
        ] {
            assert_eq!(names.matches(pattern), meant, "{pattern}");
        }
        assert!(Names::new("matmul_kernel").matches("matmul_kernel"));
        assert!(!Names::new("matmul_kernel").matches("matmul"));
    }

    #[test]
    fn patterns_match_the_whole_name() {
        for (pattern, text, wanted) in [
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**", "", true),
            ("?", "", false),
            ("ab", "abc", false),
            ("*ab", "aab", true),
        ] {
            assert_eq!(glob(pattern, text), wanted, "{pattern} {text}");
        }
    }
}
