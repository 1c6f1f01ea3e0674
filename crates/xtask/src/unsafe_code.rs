//! Unsafe code is a small room: only named files hold it, and each piece gives its argument.
//!
//! Clippy already asks for a `// SAFETY:` comment at blocks and impls; this check adds what it
//! cannot know, which is where unsafe code may be at all, and refuses arguments that say nothing.
//! Crates without such a file must say `#![forbid(unsafe_code)]` at the root of each library and
//! binary, so that the compiler keeps the promise too.

use std::path::Path;

use anyhow::{Context, Result};

use crate::source;

/// Where unsafe code may be: folders end with a slash.
const ROOM: &[&str] = &[
    // Shared memory, atomics on it, and its mapping.
    "crates/wire/",
    // Records as the kernel wrote them, maps in our memory, and what only libbpf's C interface has.
    "crates/collect/src/bpf/",
    // System calls that std does not have.
    "crates/collect/src/sys/",
    // Workloads and injectors that need a system call which std does not have.
    "crates/testkit/",
    // Functions that drivers and libraries call, and theirs that it calls.
    "crates/inject/",
    // Functions of the GPU driver that programs call, and the driver's that it calls.
    "crates/interpose/",
    // Functions of Python, wrapped as the stable interface cannot.
    "crates/python/src/wrap.rs",
    // Stand-ins for those drivers and libraries, with their C interfaces.
    "crates/standin/",
];

/// Unsafe code where none may be, or without an argument.
pub fn run(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in source::files(root)? {
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        found.extend(check(&path.display().to_string(), &text));
    }
    Ok(found)
}

fn check(path: &str, text: &str) -> Vec<String> {
    let allowed = ROOM.iter().any(|room| path.starts_with(room));
    let code = source::code_only(text);
    let mut found = Vec::new();
    let forbids = code.contains("#![forbid(unsafe_code)]");
    if let Some(name) = crate_of_root(path)
        && !ROOM.iter().any(|room| room.starts_with(&format!("crates/{name}/")))
        && !forbids
    {
        found.push(format!("{path}: lacks `#![forbid(unsafe_code)]`"));
    }
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<&str> = code.lines().collect();
    for line in source::lines_with_word(&code.join("\n"), "unsafe") {
        let after = code[line - 1].split("unsafe").nth(1).unwrap_or("").trim_start();
        // `#[unsafe(no_mangle)]` gives a name to the linker and touches no memory. Crates that
        // forbid unsafe code are refused it by the compiler.
        if after.starts_with('(') && code[line - 1].trim_start().starts_with("#[") {
            continue;
        }
        // `unsafe fn`, `unsafe trait` and `unsafe extern` state a duty of others; the argument is
        // theirs to give.
        let declares = ["fn", "trait", "extern"].iter().any(|word| after.starts_with(word));
        if !allowed {
            found.push(format!("{path}:{line}: unsafe code outside of {}", ROOM.join(", ")));
        } else if !declares {
            match argument(&lines, &code, line - 1) {
                None => found.push(format!("{path}:{line}: unsafe code without `// SAFETY:`")),
                Some(said) if is_empty(&said) => {
                    found.push(format!("{path}:{line}: a SAFETY comment that gives no argument"));
                }
                Some(_) => {}
            }
        }
    }
    found
}

/// The crate whose library or binary has its root in this file.
fn crate_of_root(path: &str) -> Option<&str> {
    let (name, inside) = path.strip_prefix("crates/")?.split_once('/')?;
    let root = matches!(inside, "src/lib.rs" | "src/main.rs")
        || inside.strip_prefix("src/bin/").is_some_and(|f| f.ends_with(".rs"));
    root.then_some(name)
}

/// What the SAFETY comment of `line` (from 0) says; none without one.
///
/// It stands on the line itself or in the comment above the statement that the line is part of:
/// lines between them may hold only the statement's beginning, attributes and more comments.
fn argument(lines: &[&str], code: &[&str], line: usize) -> Option<String> {
    // A statement's first line lies at most this many lines above its `unsafe`.
    const REACH: usize = 8;
    let mut said = String::new();
    for at in (line.saturating_sub(REACH * 3)..=line).rev() {
        let comment = lines[at].find("//").filter(|&i| code[at].get(i..i + 2) == Some("  "));
        let is_code = !code[at].trim().is_empty();
        if let Some(i) = comment {
            let comment = lines[at][i..].trim_start_matches('/').trim();
            if let Some((_, first)) = comment.split_once("SAFETY:") {
                return Some(format!("{first} {said}"));
            }
            if !is_code {
                said = format!("{comment} {said}");
                continue;
            }
        }
        // Above the statement another one ends: there is no comment for this one.
        let ends = code[at].trim_end().ends_with([';', '}']);
        if at < line && is_code && (ends || line - at > REACH) {
            return None;
        }
        if lines[at].trim().is_empty() {
            return None;
        }
    }
    None
}

/// Whether a comment only asserts. `as above` and `integers only` are arguments, `this is fine`
/// and `ok` are not.
fn is_empty(said: &str) -> bool {
    const HOLLOW: &[&str] = &[
        "",
        "all",
        "fine",
        "fixme",
        "good",
        "here",
        "is",
        "it",
        "me",
        "obvious",
        "obviously",
        "ok",
        "okay",
        "safe",
        "see",
        "sound",
        "this",
        "todo",
        "trivial",
        "trivially",
        "trust",
        "we",
        "yes",
    ];
    let words = said.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    words.into_iter().all(|word| HOLLOW.contains(&word.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> String {
        check(path, text).join("\n")
    }

    const RING: &str = "crates/wire/src/ring.rs";

    #[test]
    fn an_argument_above_beside_or_above_the_statement_passes() {
        for good in [
            "// SAFETY: the length was checked above.\nunsafe { f() }",
            "let x = unsafe { f() }; // SAFETY: the length was checked above.",
            "// SAFETY: the length was checked above,\n// and any bytes are a valid record.\n\
             let x =\n    unsafe { f() };",
            "// SAFETY: all fields are atomics.\n#[cfg(unix)]\nunsafe impl Sync for Ring {}",
            "// SAFETY: as above.\nunsafe impl Sync for Ring {}",
            "unsafe fn f() {}",
            "pub unsafe trait Plain {}",
            "unsafe extern \"C\" {}",
            "// unsafe is spoken of only\nlet s = \"unsafe\";",
        ] {
            assert_eq!(found(RING, good), "", "of {good}");
        }
    }

    #[test]
    fn no_argument_or_an_empty_one_is_named() {
        assert_eq!(
            found(RING, "let a = 1;\nunsafe { f() }"),
            "crates/wire/src/ring.rs:2: unsafe code without `// SAFETY:`"
        );
        assert_eq!(
            found(RING, "// SAFETY: the length was checked.\nlet a = g();\nunsafe { f() }"),
            "crates/wire/src/ring.rs:3: unsafe code without `// SAFETY:`"
        );
        for hollow in ["this is fine", "OK.", "trust me", ""] {
            assert_eq!(
                found(RING, &format!("// SAFETY: {hollow}\nunsafe {{ f() }}")),
                "crates/wire/src/ring.rs:2: a SAFETY comment that gives no argument"
            );
        }
    }

    #[test]
    fn outside_of_the_room_no_argument_helps() {
        let text = "#![forbid(unsafe_code)]\n// SAFETY: the length was checked above.\nunsafe {}";
        assert_eq!(
            found("crates/derive/src/lib.rs", text),
            "crates/derive/src/lib.rs:3: unsafe code outside of crates/wire/, \
             crates/collect/src/bpf/, crates/collect/src/sys/, crates/testkit/, crates/inject/, \
             crates/interpose/, crates/python/src/wrap.rs, crates/standin/"
        );
        assert_eq!(
            found("crates/derive/src/lib.rs", "fn f() {}"),
            "crates/derive/src/lib.rs: lacks `#![forbid(unsafe_code)]`"
        );
        assert_eq!(found("crates/derive/src/walk.rs", "fn f() {}"), "");
        let named = "#[unsafe(no_mangle)]\nextern \"C\" fn f() {}";
        assert_eq!(found("crates/collect/src/elf.rs", named), "");
        // A crate with a room cannot forbid; its other files are still outside.
        assert_eq!(found("crates/collect/src/lib.rs", "mod sys;"), "");
        assert_ne!(found("crates/collect/src/procfs.rs", "// SAFETY: an argument.\nunsafe {}"), "");
    }
}
