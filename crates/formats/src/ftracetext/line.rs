//! One line of text: `name-tid (pid) [cpu] flags time: event: fields`, and the same as perf writes it.

use std::ops::Range;

/// The head of a line lies within so many bytes: a name has 15, and numbers 10.
const HEAD: usize = 160;

/// An event's line, as places in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The name of the thread that ran; empty where it is not known.
    pub comm: Range<usize>,
    pub tid: Option<i64>,
    pub pid: Option<i64>,
    pub cpu: u32,
    pub time: Time,
    /// What happened.
    pub what: What,
}

/// When an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// In ns.
    Ns(i64),
    /// More ns than 64 bits hold.
    OutOfRange,
    /// Of a clock that counts something else.
    Ticks,
}

/// What a line says happened, as places in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// An event with its name, as it is printed, and its text.
    Event { name: Range<usize>, text: Range<usize> },
    /// `sys_read(fd: 3)`: the name without `sys_`.
    Enter { call: Range<usize>, text: Range<usize> },
    /// `sys_read -> 0x3`.
    Exit { call: Range<usize>, text: Range<usize> },
    /// A function that was called, by the function tracer.
    Function,
    /// Something else.
    Other,
}

/// How many events a line says were lost, if it says that; 0 if it does not say how many.
pub(super) fn lost(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line.trim_ascii()).ok()?;
    let (cpu, rest) = line.strip_prefix("CPU:")?.split_once(' ')?;
    cpu.parse::<u32>().ok()?;
    let mut words = rest.strip_prefix('[')?.strip_suffix(']')?.split(' ');
    let words: [&str; 3] = [words.next()?, words.next()?, words.next().unwrap_or_default()];
    match words {
        // The kernel's way and trace-cmd's.
        ["LOST", count, "EVENTS"] | [count, "EVENTS", "DROPPED"] => count.parse().ok(),
        ["LOST", "EVENTS", ""] | ["EVENTS", "DROPPED", ""] => Some(0),
        _ => None,
    }
}

/// `# entries-in-buffer/entries-written: 140080/250280   #P:4`: how many were overwritten.
pub(super) fn overwritten(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("# entries-in-buffer/entries-written:")?;
    let (held, written) = rest.split_whitespace().next()?.split_once('/')?;
    Some(written.parse::<u64>().ok()?.saturating_sub(held.parse().ok()?))
}

/// Whether it is an event's line.
pub(super) fn is_event(line: &[u8]) -> bool {
    parse(line).is_some_and(|line| !matches!(line.what, What::Other))
}

/// Takes a line apart; `None` if it is not an event's.
pub(super) fn parse(line: &[u8]) -> Option<Line> {
    let head = &line[..line.len().min(HEAD)];
    memchr::memchr_iter(b'[', head).find_map(|at| at_bracket(line, at))
}

/// With the bracket of the CPU at this place.
fn at_bracket(line: &[u8], at: usize) -> Option<Line> {
    if at == 0 || line[at - 1] != b' ' {
        return None;
    }
    let close = at + memchr::memchr(b']', &line[at..line.len().min(at + 8)])?;
    let cpu = digits(&line[at + 1..close])?;
    let (comm, tid, pid) = who(&line[..at])?;
    let (from, time) = time(line, close + 1)?;
    let what = what(line, from);
    Some(Line { comm, tid, pid, cpu: u32::try_from(cpu).ok()?, time, what })
}

/// A decimal number of nothing but digits.
pub(super) fn digits(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

type Who = (Range<usize>, Option<i64>, Option<i64>);

/// `  steam-25475 `, with `( 25470)` where the kernel prints processes; `steam 25470/25475 ` or `steam 25475` of perf.
fn who(head: &[u8]) -> Option<Who> {
    let mut rest = head.trim_ascii_end();
    let mut pid = None;
    if let Some(before) = rest.strip_suffix(b")") {
        let open = memchr::memrchr(b'(', before)?;
        let inner = before[open + 1..].trim_ascii();
        pid = digits(inner).map(|pid| pid as i64);
        if pid.is_none() && !inner.iter().all(|byte| *byte == b'-') {
            return None;
        }
        rest = before[..open].trim_ascii_end();
    }
    let word = memchr::memrchr(b' ', rest).map_or(0, |space| space + 1);
    let last = &rest[word..];
    let (end, tid) = if let Some(dash) = memchr::memrchr(b'-', last) {
        // A thread that has ended is -1 in perf.
        let tid = digits(&last[dash + 1..])?;
        (word + dash, (dash > 0 || tid != 1).then_some(tid))
    } else if let Some(slash) = memchr::memchr(b'/', last) {
        pid = Some(digits(&last[..slash])? as i64);
        (word, Some(digits(&last[slash + 1..])?))
    } else {
        (word, Some(digits(last)?))
    };
    let from = rest.len() - rest.trim_ascii_start().len();
    let comm = &rest[from.min(end)..end];
    let end = from.min(end) + comm.trim_ascii_end().len();
    let comm = match &rest[from.min(end)..end] {
        b"<...>" => 0..0,
        _ => from.min(end)..end,
    };
    let tid = tid.and_then(|tid| i64::try_from(tid).ok());
    Some((comm, tid, pid.filter(|pid| *pid >= 0)))
}

/// The time after the flags, and where it ends.
fn time(line: &[u8], from: usize) -> Option<(usize, Time)> {
    let mut at = from;
    // Flags come before it or do not.
    for _ in 0..2 {
        at += line[at..].iter().take_while(|byte| **byte == b' ').count();
        let end = at + memchr::memchr(b' ', &line[at..]).unwrap_or(line.len() - at);
        if let Some(word) = line[at..end].strip_suffix(b":")
            && let Some(time) = of(word)
        {
            return Some((end, time));
        }
        let is_flags = (3..=8).contains(&(end - at)) && !line[at..end].contains(&b':');
        if !is_flags {
            return None;
        }
        at = end;
    }
    None
}

/// `630659.115986157`.
fn of(word: &[u8]) -> Option<Time> {
    let Some(dot) = memchr::memchr(b'.', word) else {
        return digits(word).map(|_| Time::Ticks);
    };
    let (seconds, fraction) = (&word[..dot], &word[dot + 1..]);
    let is_number = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    if !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10i64.pow(9 - fraction.len() as u32);
    let ns = || {
        let seconds = i64::try_from(digits(seconds)?).ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(digits(fraction)? as i64 * scale)
    };
    Some(ns().map_or(Time::OutOfRange, Time::Ns))
}

/// What comes after the time.
fn what(line: &[u8], from: usize) -> What {
    let mut from = from + line[from..].iter().take_while(|byte| **byte == b' ').count();
    // perf may print how much a sample counts.
    let count = line[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count > 0 {
        let spaces = line[from + count..].iter().take_while(|byte| **byte == b' ').count();
        if spaces == 0 {
            return What::Other;
        }
        from += count + spaces;
    }
    let rest = &line[from..];
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let mut end = 0;
    while let Some(byte) = rest.get(end) {
        let next = rest.get(end + 1);
        match byte {
            b':' if end > 0 && next.is_none_or(|next| matches!(next, b' ' | b'\t')) => {
                return event(line, from..from + end);
            }
            b':' if end > 0 && next.is_some_and(|next| is_name(*next)) => {}
            byte if is_name(*byte) => {}
            _ => break,
        }
        end += 1;
    }
    let call = rest[..end].strip_prefix(b"sys_").map(|_| from + 4..from + end);
    let after = &rest[end..];
    match call.filter(|call| !call.is_empty()) {
        Some(call) if after.first() == Some(&b'(') => {
            What::Enter { call, text: from + end..line.len() }
        }
        Some(call) if after.starts_with(b" -> ") => {
            What::Exit { call, text: from + end + 4..line.len() }
        }
        _ if end > 0 && after.starts_with(b" <-") => What::Function,
        _ => What::Other,
    }
}

fn event(line: &[u8], name: Range<usize>) -> What {
    let rest = &line[name.end + 1..];
    let text = rest.trim_ascii_start();
    let from = line.len() - text.len();
    What::Event { name, text: from..from + text.trim_ascii_end().len() }
}
