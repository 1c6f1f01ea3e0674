//! The files of the conformance suite (bpf_conformance, MIT and Apache-2.0): outside of the
//! repository, below `GPUWHY_TRACES`.

use std::path::PathBuf;

use super::asm;

/// One file of the suite.
#[derive(Debug, Default)]
pub struct Vector {
    pub name: String,
    /// The program.
    pub code: Vec<u8>,
    /// What it finds in its memory.
    pub memory: Vec<u8>,
    /// `r0` at the end, where it succeeds.
    pub result: Option<u64>,
    /// Whether the file names an error that is expected.
    pub fails: bool,
    /// Why the text could not be assembled, where it could not.
    pub bad_text: Option<String>,
}

/// The suite's folder, or `None` (and a line that says so) where this machine lacks it.
pub fn folder() -> Option<PathBuf> {
    let at = std::env::var_os("GPUWHY_TRACES").map(PathBuf::from);
    let at = at.map(|at| at.join("device/bpf_conformance")).filter(|at| at.is_dir());
    if at.is_none() {
        println!("skipped: GPUWHY_TRACES names no folder with device/bpf_conformance");
    }
    at
}

/// All files of `folder` (`tests` or `negative`), by name.
pub fn read(folder: &str) -> Option<Vec<Vector>> {
    let at = self::folder()?.join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "data"))
        .collect();
    files.sort();
    Some(files.iter().map(|path| parse(path)).collect())
}

fn parse(path: &std::path::Path) -> Vector {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut vector = Vector { name, ..Vector::default() };
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("-- ") {
            Some(head) => sections.push((head.trim().to_owned(), String::new())),
            None => {
                if let Some((_, body)) = sections.last_mut() {
                    body.push_str(line);
                    body.push('\n');
                }
            }
        }
    }
    for (head, body) in sections {
        match head.as_str() {
            "asm" => match asm::assemble(&body) {
                Ok(code) => vector.code = code,
                Err(why) => vector.bad_text = Some(why),
            },
            "raw" => {
                let code = raw(&body);
                assert!(vector.code.is_empty() || vector.code == code, "{}", vector.name);
                vector.code = code;
            }
            "mem" => {
                vector.memory = words(&body).map(|w| u8::from_str_radix(w, 16).unwrap()).collect()
            }
            "result" => {
                let text = body.lines().next().unwrap_or("").trim();
                let hex = text.trim_start_matches("0x");
                vector.result = Some(u64::from_str_radix(hex, 16).unwrap());
            }
            "error" => vector.fails = true,
            _ => {}
        }
    }
    vector
}

fn words(body: &str) -> impl Iterator<Item = &str> {
    body.lines().map(|l| l.split('#').next().unwrap_or("")).flat_map(str::split_whitespace)
}

/// Bytes in hexadecimal, or words of 64 bits that begin with `0x`.
fn raw(body: &str) -> Vec<u8> {
    let word = |w: &str| match w.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap().to_le_bytes().to_vec(),
        None => vec![u8::from_str_radix(w, 16).unwrap()],
    };
    words(body).flat_map(word).collect()
}
