//! Names that attack the terminal: how many harmful characters reach one, over every command that prints
//! names of others.
//!
//! Each command runs on a pseudo-terminal, where it may style its output. Our own sequences (bold, dim, reset,
//! the erased status line) are taken out of what came; every other control and every character that does
//! not show counts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use gpuwhy_store::{Options, Writer};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::hostile;
use crate::program;
use crate::result::Figure;

/// What our programs may send besides text.
const OWN: [&str; 5] = ["\x1b[1m", "\x1b[2m", "\x1b[0m", "\r\x1b[K", "\r\n"];

/// Runs every command over every text.
pub fn run(args: &super::Args) -> Result<super::Measured> {
    let keep = std::env::temp_dir().join(format!("gpuwhy-escape-{}", std::process::id()));
    std::fs::create_dir(&keep).with_context(|| format!("cannot make `{}`", keep.display()))?;
    let measured = run_in(&keep, args);
    let _ = std::fs::remove_dir_all(&keep);
    measured
}

fn run_in(folder: &Path, args: &super::Args) -> Result<super::Measured> {
    let mut measured = super::Measured::default();
    let everything = hostile::everything();
    let mut texts: Vec<&str> = vec![&everything];
    texts.extend(hostile::TEXTS.iter().map(|(_, text)| *text));
    let (mut runs, mut bytes) = (0, 0);
    let mut by_command: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    for (number, text) in texts.iter().enumerate().take(args.tries(texts.len())) {
        let folder = folder.join(number.to_string());
        std::fs::create_dir(&folder)?;
        for command in commands(&folder, text)? {
            let name = command[0].to_string_lossy().into_owned();
            let sent = on_a_terminal(&command, text)?;
            let harm = harm(&sent);
            if harm > 0 {
                let start: String = String::from_utf8_lossy(&sent).chars().take(200).collect();
                measured.notes.push(format!("{command:?}: {start:?}"));
            }
            let row = by_command.entry(gpuwhy_schema::text::plain(&name)).or_default();
            *row = (row.0 + 1, row.1 + sent.len(), row.2 + harm);
            (runs, bytes) = (runs + 1, bytes + harm);
        }
        std::fs::remove_dir_all(&folder)?;
    }
    let figure = Figure { value: bytes as f64, spread: [bytes as f64; 2], n: runs };
    measured.figures.insert("escape_bytes".into(), figure);
    let row = |(command, (runs, sent, harm)): (String, (usize, usize, usize))| {
        let cells = [
            ("command", command),
            ("runs", runs.to_string()),
            ("sent_bytes", sent.to_string()),
            ("escape_bytes", harm.to_string()),
        ];
        cells.map(|(name, value)| (name.to_owned(), value)).into()
    };
    measured.tables.insert("escapes".into(), by_command.into_iter().map(row).collect());
    Ok(measured)
}

/// Every command that prints names, over a trace and over files of these names.
fn commands(folder: &Path, text: &str) -> Result<Vec<Vec<OsString>>> {
    let trace = folder.join("t.trace");
    let mut writer = Writer::create(&trace, Options::default())?;
    writer.append(&mut hostile::recording(text))?;
    writer.finish()?;
    // No file is called so; the rest of the text is.
    let name: Vec<u8> = text.bytes().filter(|b| !matches!(b, 0 | b'/')).take(200).collect();
    let file = folder.join(OsStr::from_bytes(&name));
    std::fs::write(&file, [b"{\"traceEvents\": [", text.as_bytes()].concat())?;
    let no_trace = folder.join("no.trace");
    std::fs::create_dir(&no_trace)?;
    let manifest = format!("format = \"gpuwhy-trace\"\nschema_version = \"{text}\"");
    std::fs::write(no_trace.join("trace.toml"), manifest)?;
    let program = folder.join(OsString::from_vec([b"p", name.as_slice()].concat()));
    std::fs::copy("/bin/sleep", &program).context("cannot copy a program")?;
    let (page, out, perfetto) =
        (folder.join("page.html"), folder.join("out.trace"), folder.join("t.pftrace"));
    let all: Vec<Vec<&OsStr>> = vec![
        vec!["diagnose".as_ref(), trace.as_ref(), "--html".as_ref(), page.as_ref()],
        vec!["diagnose".as_ref(), "--detector".as_ref(), "darzi".as_ref(), trace.as_ref()],
        vec!["diagnose".as_ref(), "--json".as_ref(), trace.as_ref()],
        vec!["diagnose".as_ref(), file.as_ref()],
        vec!["validate".as_ref(), trace.as_ref()],
        vec!["validate".as_ref(), "--json".as_ref(), trace.as_ref()],
        vec!["validate".as_ref(), no_trace.as_ref()],
        vec!["variability".as_ref(), trace.as_ref()],
        vec!["variability".as_ref(), "--json".as_ref(), trace.as_ref()],
        vec!["variability".as_ref(), file.as_ref()],
        vec!["export".as_ref(), trace.as_ref(), "--perfetto".as_ref(), perfetto.as_ref()],
        vec!["export".as_ref(), file.as_ref(), "--perfetto".as_ref(), perfetto.as_ref()],
        vec!["import".as_ref(), file.as_ref(), "-o".as_ref(), out.as_ref()],
        vec!["explain".as_ref(), file.as_ref()],
        vec!["doctor".as_ref()],
        vec![
            "record".as_ref(),
            "--force".as_ref(),
            "-o".as_ref(),
            out.as_ref(),
            "--".as_ref(),
            program.as_ref(),
            "0.1".as_ref(),
        ],
        vec!["record".as_ref(), "-o".as_ref(), file.as_ref(), "--".as_ref(), file.as_ref()],
        vec!["record".as_ref(), "--off".as_ref(), file.as_ref()],
        vec!["watch".as_ref(), "--join".as_ref(), file.as_ref()],
        vec!["inject".as_ref(), file.as_ref()],
        vec!["inject".as_ref(), "cpu-hog".as_ref(), "--work-dir".as_ref(), file.as_ref()],
        vec!["bench".as_ref(), file.as_ref()],
        vec!["query".as_ref(), trace.as_ref(), "select * from entity".as_ref()],
        vec!["query".as_ref(), file.as_ref(), "select 1".as_ref()],
        vec![file.as_ref()],
    ];
    Ok(all.into_iter().map(|c| c.into_iter().map(OsStr::to_owned).collect()).collect())
}

/// Runs a command on a terminal of its own until it ends, and returns what it sent there.
fn on_a_terminal(command: &[OsString], text: &str) -> Result<Vec<u8>> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    let slave = File::options().read(true).write(true).open(slave)?;
    let no_nul = text.replace('\0', "");
    let child = Command::new(program::gpuwhy())
        .args(command)
        .env("GPUWHY_INJECT", format!("/{no_nul}.so"))
        .env("GPUWHY_BENCH", program::own()?)
        .stdin(Stdio::null())
        .stdout(slave.try_clone()?)
        .stderr(slave)
        .spawn()
        .context("cannot start gpuwhy")?;
    let mut child = Ended(child);
    let mut sent = Vec::new();
    // When nobody holds the other end any more, reading fails.
    match File::from(master).read_to_end(&mut sent) {
        Err(e) if e.raw_os_error() != Some(rustix::io::Errno::IO.raw_os_error()) => {
            return Err(e.into());
        }
        _ => {}
    }
    child.0.wait()?;
    Ok(sent)
}

/// Does not outlive us.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Harmful characters in what was sent, our own sequences taken out.
fn harm(sent: &[u8]) -> usize {
    let mut left = sent.to_vec();
    for own in OWN {
        let mut kept = Vec::with_capacity(left.len());
        let mut rest = left.as_slice();
        while let Some(at) = rest.windows(own.len()).position(|w| w == own.as_bytes()) {
            kept.extend_from_slice(&rest[..at]);
            // What was apart stays apart.
            kept.push(b'\n');
            rest = &rest[at + own.len()..];
        }
        kept.extend_from_slice(rest);
        left = kept;
    }
    hostile::harmful(&left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_does_not_count_and_what_it_hides_does() {
        assert_eq!(harm(b"\x1b[1mbold\x1b[0m\r\n\r\x1b[K5 s"), 0);
        assert_eq!(harm(b"\x1b[31mred\x1b[0m"), 1);
        assert_eq!(harm(b"\x1b\x1b[0m[2J"), 1);
        assert_eq!(harm("a\u{9b}2J\u{202e}\x07".as_bytes()), 3);
        assert_eq!(harm(b"\xff"), 1);
    }
}
