//! Kernel names that are short enough for a record, and still different for different kernels.
//!
//! A C++ kernel's name is mangled and often has a thousand letters, nearly all of them template
//! arguments; a record's name has 120. So the path is kept (`at::native::vectorized_elementwise`), and
//! a hash of the whole name, in six hexadecimal digits, stands for what was left out: two instances of
//! one template differ, and the same instance has the same name in every process and run.

/// Bytes that a record's name may have.
const ROOM: usize = gpuwhy_wire::layout::NAME_BYTES;

/// A name, without allocation.
#[derive(Clone, Copy)]
pub struct Short {
    bytes: [u8; ROOM],
    len: usize,
}

impl Short {
    /// The text, up to the first byte that is no UTF-8.
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.len];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }

    fn push(&mut self, more: &[u8]) {
        let room = ROOM - self.len;
        let n = more.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&more[..n]);
        self.len += n;
    }

    fn tag(&mut self, whole: &[u8]) {
        self.len = self.len.min(ROOM - 9);
        // Not in the middle of a letter.
        while self.len > 0 && self.bytes[self.len] & 0xc0 == 0x80 {
            self.len -= 1;
        }
        let hash = whole.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self.push(b"<#");
        for shift in [20, 16, 12, 8, 4, 0] {
            self.push(&[b"0123456789abcdef"[(hash >> shift) as usize & 15]]);
        }
        self.push(b">");
    }
}

/// The name as a record has it.
pub fn short(name: &[u8]) -> Short {
    let mut out = Short { bytes: [0; ROOM], len: 0 };
    let mut at = Mangled { rest: name };
    if name.starts_with(b"_Z") {
        at.rest = &name[2..];
        match at.path(&mut out) {
            Some(Template::None) => return out,
            Some(Template::Yes) => {
                out.tag(name);
                return out;
            }
            None => out.len = 0,
        }
    }
    out.push(name);
    if name.len() > ROOM {
        out.tag(name);
    }
    out
}

/// Whether a name has template arguments.
enum Template {
    None,
    Yes,
}

/// The rest of a name in the Itanium C++ ABI's mangling, section 5.1.
struct Mangled<'a> {
    rest: &'a [u8],
}

impl<'a> Mangled<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// `3foo`.
    fn identifier(&mut self) -> Option<&'a [u8]> {
        let mut len = 0usize;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            len = len.checked_mul(10)?.checked_add(usize::from(digit - b'0'))?;
            self.rest = &self.rest[1..];
        }
        let (name, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        (len > 0).then_some(name)
    }

    /// The names of a path, without what is between angle brackets.
    fn path(&mut self, out: &mut Short) -> Option<Template> {
        let nested = self.peek() == Some(b'N');
        if nested {
            self.next();
            while let Some(b'r' | b'V' | b'K') = self.peek() {
                self.next();
            }
        }
        let mut template = Template::None;
        let mut names = 0;
        loop {
            match self.peek() {
                Some(b'0'..=b'9') => {
                    let name = self.identifier()?;
                    if names > 0 {
                        out.push(b"::");
                    }
                    out.push(if name.starts_with(b"_GLOBAL__N_") { b"(anonymous)" } else { name });
                    names += 1;
                }
                // The compiler's own mark of internal linkage.
                Some(b'L') => {
                    self.next();
                }
                Some(b'S') => {
                    self.next();
                    match self.next()? {
                        b't' => {
                            out.push(b"std");
                            names += 1;
                        }
                        // A substitution stands for an earlier name, which is not kept.
                        _ => return None,
                    }
                }
                Some(b'I') => {
                    self.arguments()?;
                    template = Template::Yes;
                }
                Some(b'E') if nested => break,
                _ if nested => return None,
                _ => break,
            }
            if !nested && names > 0 && !matches!(self.peek(), Some(b'I')) {
                break;
            }
        }
        (names > 0).then_some(template)
    }

    /// Everything from `I` to its `E`.
    fn arguments(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'0'..=b'9' => {
                    self.identifier()?;
                }
                b'L' => {
                    self.next();
                    self.literal()?;
                }
                b'N' | b'I' | b'J' | b'X' | b'F' => {
                    self.next();
                    depth += 1;
                }
                b'S' => {
                    // `S_`, `S1_`, `St`: the digits are no length.
                    self.next();
                    while let Some(b'0'..=b'9' | b'A'..=b'Z') = self.peek() {
                        self.next();
                    }
                    if self.peek() == Some(b'_') {
                        self.next();
                    }
                }
                b'T' => {
                    self.next();
                    while let Some(b'0'..=b'9') = self.peek() {
                        self.next();
                    }
                }
                b'E' => {
                    self.next();
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(());
                    }
                }
                _ => {
                    self.next();
                }
            }
        }
    }

    /// The rest of `Li256E`, `LN3foo3barE1E`, `L_Z3fooE`.
    fn literal(&mut self) -> Option<()> {
        match self.peek()? {
            b'N' => {
                self.next();
                while self.peek()? != b'E' {
                    match self.peek()? {
                        b'0'..=b'9' => {
                            self.identifier()?;
                        }
                        b'I' => self.arguments()?,
                        _ => {
                            self.next();
                        }
                    }
                }
                self.next();
            }
            b'0'..=b'9' => {
                self.identifier()?;
            }
            _ => {}
        }
        while self.next()? != b'E' {}
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: &str) {
        let short = short(name.as_bytes());
        let text = short.as_str();
        let path = text.split("<#").next().unwrap();
        assert_eq!(path, expected.trim_end_matches('…'), "{text}");
        assert_eq!(text.contains("<#"), expected.ends_with('…'), "{text}");
        assert!(text.len() <= ROOM);
    }

    #[test]
    fn a_path_stays_and_arguments_become_a_number() {
        check("triton_poi_fused_add_0", "triton_poi_fused_add_0");
        check("_Z4axpyfPfS_", "axpy");
        check("_Z6kernelILi256EfEvPT0_", "kernel…");
        check(
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
            "at::native::vectorized_elementwise_kernel…",
        );
        check(
            "_ZN7cutlass6KernelI66cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x1_tn_align8EEvNT_6ParamsE",
            "cutlass::Kernel…",
        );
        check("_ZN12_GLOBAL__N_14warpEv", "(anonymous)::warp");
        check(
            "_Z36ncclDevKernel_AllReduce_Sum_f32_RINGP11ncclDevComm",
            "ncclDevKernel_AllReduce_Sum_f32_RING",
        );
        check("_ZN3fooILN3bar4kindE1EE3runEv", "foo::run…");
    }

    #[test]
    fn instances_of_one_template_differ_and_an_instance_is_itself() {
        let name = |n: u32| format!("_Z6kernelILi{n}EfEvPT0_");
        let of = |n| short(name(n).as_bytes()).as_str().to_owned();
        assert_ne!(of(128), of(256));
        assert_eq!(of(128), of(128));
    }

    #[test]
    fn what_is_no_mangled_name_is_kept_and_what_is_too_long_is_cut() {
        check("_Z", "_Z");
        check("_ZN", "_ZN");
        check("_Z99999999999999999999999x", "_Z99999999999999999999999x");
        check("_ZNS1_3fooE", "_ZNS1_3fooE");
        check("", "");
        let long = "k".repeat(500);
        check(&long, &format!("{}…", "k".repeat(ROOM - 9)));
        let cut = "ü".repeat(200);
        assert!(short(cut.as_bytes()).as_str().ends_with('>'));
        assert_eq!(short(&[b'a', 0xff, b'b']).as_str(), "a");
    }
}
