//! Which files belong to the repository, and Rust source without its comments and literals.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's files, relative to `root`, sorted: what git tracks or would track.
pub fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run `git ls-files`")?;
    if !out.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let mut files: Vec<PathBuf> = String::from_utf8_lossy(&out.stdout)
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        // A tracked file that somebody has just deleted is listed still.
        .filter(|path| root.join(path).is_file())
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// `text` with comments and literals replaced by spaces, line breaks kept, so that a word found
/// in it is code, and at the same byte offset as in `text`.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = text.as_bytes().to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes[i..].starts_with(b"//") => {
                i + bytes[i..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - i)
            }
            b'/' if bytes[i..].starts_with(b"/*") => block_comment_end(bytes, i),
            b'"' => string_end(bytes, i),
            b'r' if !after_word(bytes, i) => match raw_string_end(bytes, i) {
                Some(end) => end,
                None => {
                    i += 1;
                    continue;
                }
            },
            b'b' if !after_word(bytes, i) && bytes.get(i + 1) == Some(&b'r') => {
                match raw_string_end(bytes, i + 1) {
                    Some(end) => end,
                    None => {
                        i += 1;
                        continue;
                    }
                }
            }
            b'\'' => match char_end(text, i) {
                Some(end) => end,
                // A lifetime or a label.
                None => {
                    i += 1;
                    continue;
                }
            },
            _ => {
                i += 1;
                continue;
            }
        };
        for b in &mut out[i..end] {
            if *b != b'\n' {
                *b = b' ';
            }
        }
        i = end;
    }
    String::from_utf8(out).unwrap_or_default()
}

/// The lines on which `word` stands as a word of its own, from 1.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let bytes = line.as_bytes();
            let free = |b: Option<&u8>| !b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
            free(at.checked_sub(1).and_then(|i| bytes.get(i))) && free(bytes.get(at + word.len()))
        })
    };
    code.lines().enumerate().filter(|(_, line)| holds(line)).map(|(i, _)| i + 1).collect()
}

fn after_word(bytes: &[u8], i: usize) -> bool {
    i > 0 && (bytes[i - 1].is_ascii_alphanumeric() || bytes[i - 1] == b'_')
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut i, mut depth) = (start, 0usize);
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if bytes[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r##"…"##` at `start`, if that is what stands there.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let rest = &bytes[open + 1..];
    let at = rest.windows(close.len()).position(|w| w == close);
    Some(at.map_or(bytes.len(), |at| open + 1 + at + close.len()))
}

/// The end of a character literal at `start`; none for a lifetime.
fn char_end(text: &str, start: usize) -> Option<usize> {
    let mut chars = text[start + 1..].char_indices();
    let (_, first) = chars.next()?;
    if first != '\\' {
        let (at, second) = chars.next()?;
        return (second == '\'').then_some(start + 1 + at + 1);
    }
    // `'\''`, `'\n'`, `'\u{1F600}'`: the character after the backslash is never the end.
    chars.next()?;
    let (at, _) = chars.find(|&(_, c)| c == '\'' || c == '\n')?;
    Some(start + 1 + at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spaces are collapsed so that the expectation can be read.
    fn check(text: &str, code: &str) {
        let found = code_only(text);
        assert_eq!(found.len(), text.len(), "offsets must stay");
        assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), code, "of {text}");
    }

    #[test]
    fn only_code_is_left() {
        check("a // unsafe\nb", "a b");
        check("a /* x /* unsafe */ y */ b", "a b");
        check(r#"f("unsafe \" still", b"unsafe") + c"#, "f( , b ) + c");
        check(r##"r#"an "unsafe" word"# + br"unsafe" + x"##, "+ + x");
        check(r#"'"' + '\'' + '\u{22}' + b'"' + "s""#, "+ + + b +");
        check(
            "fn f<'a>(x: &'a str) -> &'static str { 'outer: loop {} }",
            "fn f<'a>(x: &'a str) -> &'static str { 'outer: loop {} }",
        );
        check("let for_r = parser\"\";", "let for_r = parser ;");
        check("'é' + x", "+ x");
        check("never closed \"", "never closed");
    }

    #[test]
    fn a_word_is_a_word() {
        assert_eq!(lines_with_word("unsafe {}\nunsafe_op\nnot_unsafe\n(unsafe)", "unsafe"), [1, 4]);
    }
}
