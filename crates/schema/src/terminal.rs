//! Standard output and standard error: the one place through which our programs print.
//!
//! What is printed holds names that processes, containers, nodes and files gave themselves, so nothing is
//! written here but [`Screen`]s and JSON whose every character shows ([`visible_json`]). `println!`,
//! `eprintln!` and the handles of the standard library are refused by clippy (`clippy.toml`, and
//! the lints at the head of our crates), so that a new line of output cannot go around this.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use crate::text::{Screen, Visible, visible_json};

/// Erases what [`status`] left on its line.
const ERASE: &str = "\r\x1b[K";

#[expect(clippy::disallowed_methods, reason = "this is the place that the others go through")]
fn stdout() -> io::Stdout {
    io::stdout()
}

#[expect(clippy::disallowed_methods, reason = "this is the place that the others go through")]
fn stderr() -> io::Stderr {
    io::stderr()
}

/// Whether people read standard output as it comes.
pub fn stdout_is_terminal() -> bool {
    stdout().is_terminal()
}

/// Whether people read standard error as it comes.
pub fn stderr_is_terminal() -> bool {
    stderr().is_terminal()
}

/// An empty screen for standard output: styled where that helps and is wanted (NO_COLOR, CLICOLOR_FORCE,
/// a terminal), as `setting` reads it from the environment.
pub fn screen(setting: impl Fn(&str) -> Option<OsString>) -> Screen {
    let set = |name| setting(name).is_some_and(|v| !v.is_empty());
    let forced = setting("CLICOLOR_FORCE").is_some_and(|v| v != "0");
    Screen::new(!set("NO_COLOR") && (forced || stdout_is_terminal()))
}

/// Bytes for programs, such as a format that the user asked for; the caller answers for every one.
pub fn exact_stdout() -> io::Stdout {
    stdout()
}

/// Standard error for what writes by itself, such as a log.
pub fn visible_stderr() -> Visible<io::Stderr> {
    Visible::new(stderr())
}

/// Prints a screen, and nothing else, to standard output.
pub fn show(screen: &Screen) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(screen.as_str().as_bytes())?;
    out.flush()
}

/// Prints a screen to standard error, in one write: beside what a command prints.
pub fn show_beside(screen: &Screen) -> io::Result<()> {
    stderr().lock().write_all(screen.as_str().as_bytes())
}

/// Prints one line to standard output.
pub fn say(text: impl Display) -> io::Result<()> {
    show(Screen::new(false).line(text))
}

/// Prints a JSON document, which `json` is already, to standard output.
pub fn say_json(json: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", visible_json(json))?;
    out.flush()
}

/// Prints to standard error, in one write: several programs share it. If nobody can read that, nobody can
/// be told so either.
fn tell(text: &str) {
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// Prints a line to standard error.
pub fn note(text: impl Display) {
    tell(Screen::new(false).line(text).as_str());
}

/// Prints what went wrong to standard error; its later lines are indented.
pub fn fail(text: impl Display) {
    tell(Screen::new(false).block("    ", text).as_str());
}

/// Prints a line that the next one replaces to standard error, which is a terminal.
pub fn status(text: impl Display) {
    let mut screen = Screen::new(false);
    screen.put(text);
    tell(&format!("{ERASE}{}", screen.as_str()));
}

/// Has panics told by the same rule: their messages may quote any text.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|info| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => fail(format_args!("{info}\n{trace}")),
            _ => fail(format_args!("{info}")),
        }
    }));
}
