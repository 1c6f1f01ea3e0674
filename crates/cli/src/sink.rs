//! Where gpuwhy's own text goes, apart from what the command writes.
//!
//! While a command runs, its terminal is its own: as long as it has the terminal in raw mode, lines of ours
//! wait, and nothing that goes wrong with ours reaches the command.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gpuwhy_schema::text::{Screen, visible_json};
use gpuwhy_store::Output;
use rustix::io::Errno;
use rustix::termios::{LocalModes, OutputModes, tcgetattr};

/// Texts that wait for the terminal at most; what comes then is counted.
const HELD: usize = 1000;
/// How long a place that takes nothing at present is waited for: the command may have made it so that
/// nobody waits for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A place that was chosen on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `-`
    Stdout,
    /// `fd:3`
    Descriptor(i32),
    /// A file, which is made or replaced.
    File(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        // Links to what is open already, which a shell writes for `>(COMMAND)`: files are not written through
        // links.
        let number = match text {
            "/dev/stderr" => Some("2"),
            _ => ["fd:", "/dev/fd/", "/proc/self/fd/"]
                .iter()
                .find_map(|form| text.strip_prefix(form)),
        };
        match number {
            _ if matches!(text, "-" | "/dev/stdout") => Ok(Place::Stdout),
            None => Ok(Place::File(text.into())),
            Some(number) => match number.parse() {
                Ok(number) if number >= 0 => Ok(Place::Descriptor(number)),
                _ => Err("write fd:N, where N is the number of an open descriptor".into()),
            },
        }
    }
}

enum Out {
    Standard(BorrowedFd<'static>),
    File(File),
}

impl AsFd for Out {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Out::Standard(out) => *out,
            Out::File(out) => out.as_fd(),
        }
    }
}

/// Takes screens and JSON documents.
pub struct Sink {
    out: Out,
    /// Whether the place may be a terminal that belongs to a command at present.
    shared: bool,
    held: Vec<String>,
    not_held: usize,
}

impl Sink {
    /// At `place`, or by default on standard error beside a command, and else on standard output.
    pub fn open(place: Option<&Place>, beside_command: bool) -> Result<Sink> {
        let out = match place {
            None if beside_command => return Ok(Sink::stderr(true)),
            Some(Place::Descriptor(2)) => return Ok(Sink::stderr(beside_command)),
            None | Some(Place::Stdout | Place::Descriptor(1)) => {
                Out::Standard(rustix::stdio::stdout())
            }
            Some(Place::Descriptor(number)) => Out::File(
                gpuwhy_collect::inherited(*number)
                    .with_context(|| format!("cannot write to descriptor {number}"))?,
            ),
            Some(Place::File(path)) => Out::File(Output::create(path)?.live()?),
        };
        Ok(Sink { out, shared: beside_command, held: Vec::new(), not_held: 0 })
    }

    /// Standard error.
    pub fn stderr(beside_command: bool) -> Sink {
        let out = Out::Standard(rustix::stdio::stderr());
        Sink { out, shared: beside_command, held: Vec::new(), not_held: 0 }
    }

    /// Writes a screen, or holds it while a command has the terminal to itself.
    pub fn show(&mut self, screen: &Screen) -> io::Result<()> {
        self.text(screen.as_str())
    }

    /// Writes a JSON document and a newline in the same way.
    pub fn json(&mut self, json: &str) -> io::Result<()> {
        self.text(&(visible_json(json) + "\n"))
    }

    /// The command has ended: what waited is written.
    pub fn release(&mut self) {
        self.shared = false;
        // Nobody could be told.
        let _ = self.text("");
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if self.shared && self.modes().is_some_and(|raw| raw.keys) {
            match self.held.len() < HELD {
                true => self.held.push(text.to_owned()),
                false => self.not_held += 1,
            }
            return Ok(());
        }
        for text in std::mem::take(&mut self.held) {
            self.write(&text)?;
        }
        let more = std::mem::take(&mut self.not_held);
        if more > 0 {
            self.write(&format!("gpuwhy: {more} more were not held back\n"))?;
        }
        self.write(text)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let with_returns;
        let mut left = match self.modes() {
            // A terminal that was left so would begin the next line below the end of this one.
            Some(Raw { newlines: true, .. }) => {
                with_returns = text.replace('\n', "\r\n");
                with_returns.as_bytes()
            }
            _ => text.as_bytes(),
        };
        let mut waited = Duration::ZERO;
        while !left.is_empty() {
            match rustix::io::write(&self.out, left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if waited < PATIENCE => {
                    let moment = Duration::from_millis(10);
                    std::thread::sleep(moment);
                    waited += moment;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// How the terminal is set; `None` if this is none.
    fn modes(&self) -> Option<Raw> {
        tcgetattr(&self.out).ok().map(|modes| Raw {
            keys: !modes.local_modes.contains(LocalModes::ICANON),
            newlines: !modes.output_modes.contains(OutputModes::OPOST),
        })
    }
}

/// What a terminal leaves to the program.
struct Raw {
    /// Keys come one by one: the program draws the screen, or reads a password.
    keys: bool,
    /// Newlines go out as they are.
    newlines: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_a_descriptor_or_standard_output() {
        assert_eq!("-".parse(), Ok(Place::Stdout));
        assert_eq!("fd:3".parse(), Ok(Place::Descriptor(3)));
        assert_eq!("a:b".parse(), Ok(Place::File("a:b".into())));
        assert_eq!("/dev/stdout".parse(), Ok(Place::Stdout));
        assert_eq!("/dev/stderr".parse(), Ok(Place::Descriptor(2)));
        assert_eq!("/dev/fd/63".parse(), Ok(Place::Descriptor(63)));
        for bad in ["fd:", "fd:-1", "fd:x"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn events_are_written_through_no_link_and_into_no_pipe() {
        let tmp = tempfile::tempdir().unwrap();
        let (victim, link) = (tmp.path().join("victim"), tmp.path().join("link"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let refused = Sink::open(Some(&Place::File(link)), false).err().unwrap();
        assert!(format!("{refused:#}").contains("symbolic link"), "{refused:#}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        // A file is replaced, and can be read while it is written.
        let mut sink = Sink::open(Some(&Place::File(victim.clone())), false).unwrap();
        sink.json("{}").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"{}\n");
    }
}
