//! The most frequent events, taken apart from their ends: switches and wakeups, as the kernel and as trace-cmd print
//! them; and what programs print into the trace.
//!
//! # How
//! In these texts all but the names of threads are numbers and words without spaces. So what follows a name is read from
//! the end backwards, and what is left is the name, whatever it holds. That is what the patterns of `fields.rs` find
//! too, with many times the work. Where a text could be read in two ways, because a name holds an arrow, nothing is said
//! here and the pattern decides.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// The groups of a pattern, in its order; `None` is one that the text lacks.
pub(super) type Groups<'a> = [Option<&'a [u8]>; 7];

/// The number of the event's pattern that a text is of, among those of that event, and its groups.
pub(super) fn groups<'a>(event: &str, text: &'a [u8]) -> Option<(usize, Groups<'a>)> {
    match event {
        "sched_switch" => switch(text),
        "sched_wakeup" | "sched_waking" | "sched_wakeup_new" => wakeup(text),
        "print" | "bprint" | "tracing_mark_write" => print(text),
        _ => None,
    }
}

/// What stands between the threads of a switch.
const ARROW: &[u8] = b" ==> ";
static FIND_ARROW: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(ARROW));

fn switch(text: &[u8]) -> Option<(usize, Groups<'_>)> {
    let at = FIND_ARROW.find(text)?;
    let (before, after) = (&text[..at], &text[at + ARROW.len()..]);
    if FIND_ARROW.find(after).is_some() {
        return None;
    }
    let (mut before, mut after) = (Back(before), Back(after));
    let state = before.word()?;
    if let Some(state) = state.strip_prefix(b"prev_state=") {
        before.literal(b" ")?;
        let prev_prio = before.signed_after(b" prev_prio=")?;
        let prev_pid = before.signed_after(b" prev_pid=")?;
        let prev_comm = before.0.strip_prefix(b"prev_comm=")?;
        let next_prio = after.signed_after(b" next_prio=")?;
        let next_pid = after.signed_after(b" next_pid=")?;
        let next_comm = after.0.strip_prefix(b"next_comm=")?;
        let all = [prev_comm, prev_pid, prev_prio, state, next_comm, next_pid, next_prio];
        return (!state.is_empty()).then_some((0, all.map(Some)));
    }
    before.literal(b" ")?;
    let [prev_comm, prev_pid, prev_prio] = before.thread()?;
    let [next_comm, next_pid, next_prio] = after.thread()?;
    let all = [prev_comm, prev_pid, prev_prio, state, next_comm, next_pid, next_prio];
    Some((1, all.map(Some)))
}

fn wakeup(text: &[u8]) -> Option<(usize, Groups<'_>)> {
    let mut back = Back(text);
    if let Some(cpu) = back.digits_after(b" target_cpu=") {
        let success = back.digits_after(b" success=");
        let prio = back.signed_after(b" prio=")?;
        let pid = back.digits_after(b" pid=")?;
        let comm = back.0.strip_prefix(b"comm=")?;
        return Some((0, [Some(comm), Some(pid), Some(prio), success, Some(cpu), None, None]));
    }
    let cpu = back.digits_after(b" CPU:");
    let success = back.digits_after(b" success=");
    let [comm, pid, prio] = back.thread()?;
    Some((1, [Some(comm), Some(pid), Some(prio), success, cpu, None, None]))
}

/// `ADDRESS: TEXT`, or a text alone.
fn print(text: &[u8]) -> Option<(usize, Groups<'_>)> {
    if memchr::memchr(b'\n', text).is_some() {
        return None;
    }
    let word = text.iter().take_while(|byte| !is_space(byte)).count();
    let address = text[..word].strip_suffix(b":").filter(|address| !address.is_empty());
    let (ip, buf) = match text[word..].strip_prefix(b" ").filter(|_| address.is_some()) {
        Some(buf) => (address, buf),
        None => (None, text),
    };
    Some((0, [ip, Some(buf), None, None, None, None, None]))
}

fn is_space(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0x0b
}

/// A text that is read from its end.
#[derive(Clone, Copy)]
struct Back<'a>(&'a [u8]);

impl<'a> Back<'a> {
    fn literal(&mut self, what: &[u8]) -> Option<()> {
        self.0 = self.0.strip_suffix(what)?;
        Some(())
    }

    /// What is not space.
    fn word(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().rev().take_while(|byte| !is_space(byte)).count();
        self.split(length)
    }

    fn split(&mut self, length: usize) -> Option<&'a [u8]> {
        let (rest, last) = self.0.split_at(self.0.len() - length);
        self.0 = rest;
        (length > 0).then_some(last)
    }

    /// Digits, with a minus if `what` stands before that; nothing is taken if it does not.
    fn signed_after(&mut self, what: &[u8]) -> Option<&'a [u8]> {
        let mut after = *self;
        let digits = after.0.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let minus = usize::from(digits > 0 && after.0[..after.0.len() - digits].ends_with(b"-"));
        let number = after.split(digits + minus)?;
        after.literal(what)?;
        *self = after;
        Some(number)
    }

    fn digits_after(&mut self, what: &[u8]) -> Option<&'a [u8]> {
        let before = *self;
        let number = self.signed_after(what)?;
        if number.starts_with(b"-") {
            *self = before;
            return None;
        }
        Some(number)
    }

    /// `NAME:PID [PRIORITY]`, which is all that is left.
    fn thread(mut self) -> Option<[&'a [u8]; 3]> {
        self.literal(b"]")?;
        let prio = self.signed_after(b" [")?;
        let pid = self.digits_after(b":")?;
        Some([self.0, pid, prio])
    }
}
