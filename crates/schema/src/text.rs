//! Text of others where people read it: on a terminal, in a line of JSON, on a page.
//!
//! A process can be named `\x1b]52;c;…` (fills the clipboard), `\u{202e}` (turns the reading direction
//! of a line) or `x\nroot@host# ` (looks like a prompt). So whatever is shown to people goes through
//! [`plain`], or is built as a [`Screen`], which puts everything through the same rule and can emit
//! neither an escape sequence nor the end of a line that is not our own.

use std::fmt::{self, Display, Write as _};
use std::io;

/// Characters of one piece of text on a line of a [`Screen`]; what is longer is cut, and the cut is said.
pub const MAX_SHOWN: usize = 16 << 10;

/// Whether a reader, or the terminal, would be misled by a character that does not show: control
/// characters (C0, DEL, C1), and those that change direction, join, or take no room.
pub fn unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// `text` as one line with everything visible: the ends of lines become spaces, other characters that do
/// not show their numbers, as in `\u{1b}`.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut out, c));
    out
}

fn push(out: &mut String, c: char) {
    if c == '\n' {
        out.push(' ');
    } else if unseen(c) {
        // A `String` takes everything.
        let _ = write!(out, "\\u{{{:x}}}", c as u32);
    } else {
        out.push(c);
    }
}

/// JSON with the characters that do not show written as escapes: the same data, harmless on a terminal.
///
/// `json` must be JSON already. Between its values only the ends of lines and spaces are such
/// characters, and they stay.
pub fn visible_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !unseen(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// Text for a terminal.
///
/// Nothing that is put onto it can begin an escape sequence or another line: styles and ends of lines
/// come from calls, never from text. It deliberately is no [`fmt::Write`], whose users could end lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    text: String,
    styled: bool,
}

impl Screen {
    /// An empty one; `styled`, if [`Screen::bold`] and [`Screen::dim`] are to show.
    pub fn new(styled: bool) -> Screen {
        Screen { text: String::new(), styled }
    }

    /// Puts text onto the line.
    pub fn put(&mut self, text: impl Display) -> &mut Screen {
        self.shown(Lines::Joined, text);
        self
    }

    /// Puts text onto the line, and ends it.
    pub fn line(&mut self, text: impl Display) -> &mut Screen {
        self.put(text).end()
    }

    /// Ends the line.
    pub fn end(&mut self) -> &mut Screen {
        self.text.push('\n');
        self
    }

    /// Puts text of several lines, each after the first behind `indent`, so that none of them can pass for
    /// a line of its own; and ends the last.
    pub fn block(&mut self, indent: &str, text: impl Display) -> &mut Screen {
        self.shown(Lines::Kept(indent), text);
        if self.text.ends_with('\n') { self } else { self.end() }
    }

    /// What matters.
    pub fn bold(&mut self, text: impl Display) -> &mut Screen {
        self.styled("\x1b[1m", text)
    }

    /// What may be passed over.
    pub fn dim(&mut self, text: impl Display) -> &mut Screen {
        self.styled("\x1b[2m", text)
    }

    fn styled(&mut self, sequence: &str, text: impl Display) -> &mut Screen {
        if !self.styled {
            return self.put(text);
        }
        self.text.push_str(sequence);
        self.put(text);
        self.text.push_str("\x1b[0m");
        self
    }

    fn shown(&mut self, lines: Lines, text: impl Display) {
        let mut to =
            Shown { out: &mut self.text, left: MAX_SHOWN, cut: false, lines, pending: false };
        // Only a `Display` of somebody else could fail; what it wrote before is there.
        let _ = write!(to, "{text}");
    }

    /// As it goes to the terminal.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether nothing was put onto it.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// What becomes of the ends of lines in text.
#[derive(Clone, Copy)]
enum Lines<'a> {
    /// Spaces.
    Joined,
    /// They stay, and this stands in front of what follows.
    Kept(&'a str),
}

/// Text on its way onto a screen.
struct Shown<'a> {
    out: &'a mut String,
    /// Characters of this line that are still shown.
    left: usize,
    cut: bool,
    lines: Lines<'a>,
    /// Whether a line has ended and nothing has followed it yet.
    pending: bool,
}

impl fmt::Write for Shown<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if let Lines::Kept(indent) = self.lines {
                if std::mem::take(&mut self.pending) {
                    self.out.push_str(indent);
                }
                if c == '\n' {
                    self.out.push('\n');
                    (self.left, self.cut, self.pending) = (MAX_SHOWN, false, true);
                    continue;
                }
            }
            if self.left > 0 {
                self.left -= 1;
                push(self.out, c);
            } else if !std::mem::replace(&mut self.cut, true) {
                self.out.push_str("… (cut)");
            }
        }
        Ok(())
    }
}

/// Passes bytes on to a terminal with everything visible but the ends of lines; of what is no UTF-8 each
/// byte is shown as `\xNN`.
#[derive(Debug)]
pub struct Visible<W> {
    to: W,
    /// The first bytes of a character that is not whole yet.
    begun: Vec<u8>,
}

impl<W: io::Write> Visible<W> {
    /// In front of `to`.
    pub fn new(to: W) -> Visible<W> {
        Visible { to, begun: Vec::new() }
    }
}

impl<W: io::Write> io::Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut out = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for c in chunk.valid().chars() {
                if c == '\n' { out.push(c) } else { push(&mut out, c) }
            }
            let rest = chunk.invalid();
            let cut_off = std::str::from_utf8(rest).is_err_and(|e| e.error_len().is_none());
            if chunks.peek().is_none() && cut_off {
                self.begun = rest.to_vec();
            } else {
                rest.iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
            }
        }
        self.to.write_all(out.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Fills the clipboard, clears the screen, sets the title, begins a sequence in C1, turns the reading
    /// direction, pretends a prompt, ends a C string, rings.
    const HOSTILE: &str =
        "a\x1b]52;c;cm0K\x07\x1b[2J\x1b]0;t\x07\u{9b}2J\u{202e}\nroot@host# \0\r\x7f\u{feff}z";

    fn controls(text: &str) -> Vec<char> {
        text.chars().filter(|&c| unseen(c)).collect()
    }

    #[test]
    fn nothing_in_a_hostile_name_reaches_the_terminal_as_a_control() {
        assert_eq!(controls(&plain(HOSTILE)), []);
        let mut screen = Screen::new(true);
        screen.put("x ").put(HOSTILE).line(format_args!(" of {HOSTILE}"));
        assert_eq!(controls(screen.as_str()), ['\n']);
        assert!(screen.as_str().starts_with("x a\\u{1b}]52;c;cm0K\\u{7}\\u{1b}[2J"), "{screen:?}");
        assert!(screen.as_str().contains("\\u{202e} root@host# \\u{0}\\u{d}"), "{screen:?}");
    }

    #[test]
    fn styles_are_ours_and_cannot_be_ended_from_inside() {
        let mut screen = Screen::new(true);
        screen.bold("a\x1b[0mb").dim("c").end();
        assert_eq!(screen.as_str(), "\x1b[1ma\\u{1b}[0mb\x1b[0m\x1b[2mc\x1b[0m\n");
        let mut screen = Screen::new(false);
        screen.bold("a").dim("c").end();
        assert_eq!(screen.as_str(), "ac\n");
    }

    #[test]
    fn the_later_lines_of_a_block_cannot_pass_for_lines_of_their_own() {
        let mut screen = Screen::new(false);
        screen.block("    ", "cannot read `a\nroot# rm`\n\nwhy\n").line("next");
        assert_eq!(screen.as_str(), "cannot read `a\n    root# rm`\n    \n    why\nnext\n");
    }

    #[test]
    fn what_is_too_long_is_cut_and_the_cut_is_said() {
        let mut screen = Screen::new(false);
        screen.line("x".repeat(1 << 20)).line("next");
        assert!(screen.as_str().len() < MAX_SHOWN + 20);
        assert!(screen.as_str().ends_with("x… (cut)\nnext\n"));
    }

    #[test]
    fn json_stays_the_same_data() {
        let json = "{\n  \"name\": \"a\u{9b}2J\u{202e}\u{7f}\u{e0041}ü\"\n}";
        assert_eq!(
            visible_json(json),
            "{\n  \"name\": \"a\\u009b2J\\u202e\\u007f\\udb40\\udc41ü\"\n}"
        );
    }

    #[test]
    fn bytes_become_visible_however_they_are_cut() {
        let bytes = ["a\u{9b}ü\x1b\n".as_bytes(), b"\xff\x9b", "é\u{202e}".as_bytes()].concat();
        for at in 0..=bytes.len() {
            let mut to = Visible::new(Vec::new());
            to.write_all(&bytes[..at]).unwrap();
            to.write_all(&bytes[at..]).unwrap();
            let text = String::from_utf8(to.to).unwrap();
            assert_eq!(text, "a\\u{9b}ü\\u{1b}\n\\xff\\x9bé\\u{202e}", "cut at {at}");
        }
    }
}
