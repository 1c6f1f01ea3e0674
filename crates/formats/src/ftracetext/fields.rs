//! The text of an event, as its `print fmt` printed it, and the fields in it.
//!
//! # How
//! Most events are printed as `key=value key=value`. Those that gpuwhy makes more of than marks and that are printed
//! otherwise, and those that print names of threads before numbers, have a pattern ([`PATTERNS`]): a regular
//! expression whose groups are named like the kernel's fields. A group's name ends with how its text is read: `__x`
//! hexadecimal, `__ret` a call's result, `__state` letters of a thread's state, `__dev` a device's two numbers.

use std::ops::Range;
use std::sync::LazyLock;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Name;
use regex::bytes::Regex;

use super::frequent;
use gpuwhy_tracepoint::{RawEvent, Value};

/// Fields of one event at most; others are left out and counted.
pub(super) const FIELDS: usize = 64;

/// The field that holds what is no field.
const TEXT: &str = "text";

/// Patterns by the names of their events (include/trace/events of Linux; plug-ins of libtraceevent 1.7).
pub(super) const PATTERNS: &[(&[&str], &str)] = &[
    (
        &["sched_switch"],
        r"^prev_comm=(?<prev_comm>.*) prev_pid=(?<prev_pid>-?\d+) prev_prio=(?<prev_prio>-?\d+) prev_state=(?<prev_state__state>\S+) ==> next_comm=(?<next_comm>.*) next_pid=(?<next_pid>-?\d+) next_prio=(?<next_prio>-?\d+)",
    ),
    (
        &["sched_switch"],
        r"^(?<prev_comm>.*):(?<prev_pid>\d+) \[(?<prev_prio>-?\d+)\] (?<prev_state__state>\S+) ==> (?<next_comm>.*):(?<next_pid>\d+) \[(?<next_prio>-?\d+)\]$",
    ),
    (
        &["sched_wakeup", "sched_waking", "sched_wakeup_new"],
        r"^comm=(?<comm>.*) pid=(?<pid>\d+) prio=(?<prio>-?\d+)(?: success=(?<success>\d+))? target_cpu=(?<target_cpu>\d+)$",
    ),
    (
        &["sched_wakeup", "sched_waking", "sched_wakeup_new"],
        r"^(?<comm>.*):(?<pid>\d+) \[(?<prio>-?\d+)\](?: success=(?<success>\d+))?(?: CPU:(?<target_cpu>\d+))?$",
    ),
    (
        &["sched_process_fork"],
        r"^comm=(?<parent_comm>.*) pid=(?<parent_pid>\d+) child_comm=(?<child_comm>.*) child_pid=(?<child_pid>\d+)$",
    ),
    (
        &["task_rename"],
        r"^pid=(?<pid>\d+) oldcomm=(?<oldcomm>.*) newcomm=(?<newcomm>.*) oom_score_adj=(?<oom_score_adj>-?\d+)$",
    ),
    (
        &["block_rq_insert", "block_rq_issue"],
        r"^(?<dev__dev>\d+,\d+) (?<rwbs>\S+) (?:(?<bytes>\d+) )?\((?<cmd>.*?)\) (?<sector>\d+) \+ (?<nr_sector>\d+)(?: \S+)? \[(?<comm>.*)\]$",
    ),
    (
        &["block_rq_complete", "block_rq_requeue"],
        r"^(?<dev__dev>\d+,\d+) (?<rwbs>\S+) \((?<cmd>.*?)\) (?<sector>\d+) \+ (?<nr_sector>\d+)(?: \S+)? \[(?<error>-?\d+)\]$",
    ),
    (&["sys_enter"], r"^NR (?<id>-?\d+) \((?<args>.*)\)$"),
    (&["sys_exit"], r"^NR (?<id>-?\d+) = (?<ret>-?\d+)$"),
    (&[SYS_EXIT], r"^(?<ret__ret>-?(?:0x)?[0-9a-f]+)$"),
    (
        &["drm_sched_job", "drm_run_job", "drm_sched_job_queue", "drm_sched_job_run"],
        r"^(?:dev=(?<dev>\S+), )?(?:entity=(?<entity__x>[0-9a-fx]+), )?(?:id=(?<id>\d+), )?fence=(?:(?<fence_context>\d+):(?<fence_seqno>\d+)|(?<fence__x>[0-9a-fx]+)), ring=(?<name>.*), job count:(?<job_count>\d+), hw job count:(?<hw_job_count>-?\d+)(?:, client_id:(?<client_id>\d+))?$",
    ),
    (
        &["drm_sched_process_job", "drm_sched_job_done"],
        r"^fence=(?:(?<fence_context>\d+):(?<fence_seqno>\d+)|(?<fence__x>[0-9a-fx]+)) signaled$",
    ),
    (
        &["drm_sched_job_add_dep", "drm_sched_job_unschedulable"],
        r"^fence=(?<fence_context>\d+):(?<fence_seqno>\d+) depends on (?:unsignalled )?fence=(?<ctx>\d+):(?<seqno>\d+)$",
    ),
    (&["kvm_entry"], r"^vcpu (?<vcpu_id>\d+),? rip (?<rip__x>0x[0-9a-f]+)"),
    (
        &["kvm_exit"],
        r"^(?:vcpu (?<vcpu_id>\d+) )?reason (?<exit_reason>\S+) rip (?<guest_rip__x>0x[0-9a-f]+)(?: info1? (?<info1>\S+)(?: info2)? (?<info2>\S+))?",
    ),
    // What programs write themselves is theirs.
    (&["print", "bprint", "tracing_mark_write"], r"^(?:(?<ip>\S+): )?(?<buf>.*)$"),
];

/// Stands for the returns of all system calls.
const SYS_EXIT: &str = "sys_exit_";

/// Keys as they are printed where the kernel's field is called otherwise.
const RENAMED: &[(&str, &str, &str)] = &[
    ("amdgpu_cs_ioctl", "sched_job", "sched_job_id"),
    ("amdgpu_sched_run_job", "sched_job", "sched_job_id"),
    ("i915_request_out", "completed?", "completed"),
    ("i915_gem_request_out", "completed?", "completed"),
];

/// A pattern with its groups.
struct Pattern {
    regex: Regex,
    groups: Vec<(Name, How)>,
}

/// How the text of a group is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plain,
    Hexadecimal,
    Result,
    State,
    Device,
}

static BY_EVENT: LazyLock<HashMap<&'static str, Vec<Pattern>>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Vec<Pattern>> = HashMap::new();
    for (events, pattern) in PATTERNS {
        for event in *events {
            // A test compiles all of them.
            let Ok(regex) = Regex::new(&format!("(?-u){pattern}")) else { continue };
            let groups = regex.capture_names().skip(1).map(|name| group(name.unwrap_or_default()));
            let groups = groups.collect();
            all.entry(event).or_default().push(Pattern { regex, groups });
        }
    }
    all
});

/// How many patterns there are, for tests.
#[cfg(test)]
pub(super) fn compiled() -> usize {
    BY_EVENT.values().map(Vec::len).sum()
}

fn group(name: &str) -> (Name, How) {
    let (name, how) = match name.rsplit_once("__") {
        Some((name, "x")) => (name, How::Hexadecimal),
        Some((name, "ret")) => (name, How::Result),
        Some((name, "state")) => (name, How::State),
        Some((name, "dev")) => (name, How::Device),
        _ => (name, How::Plain),
    };
    (name.into(), how)
}

/// Takes texts of events apart, and keeps what it needs for that.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// The names of the last event's fields.
    pub names: Vec<Name>,
    /// Fields of all events that were printed twice, and those beyond [`FIELDS`].
    pub doubtful: u64,
    pub beyond: u64,
    known: HashMap<Vec<u8>, Name>,
    found: Vec<(Range<usize>, Range<usize>)>,
}

/// Names that are kept.
const KNOWN: usize = 1 << 14;

impl Fields {
    /// Adds the fields of an event, whose name is without its system, to `raw`; [`Fields::names`] are theirs.
    pub fn read(&mut self, event: &str, text: &[u8], raw: &mut RawEvent) {
        self.names.clear();
        let key = match event.starts_with(SYS_EXIT) {
            true => SYS_EXIT,
            false => event,
        };
        let patterns = BY_EVENT.get(key);
        if let Some((number, texts)) = frequent::groups(key, text)
            && let Some(pattern) = patterns.and_then(|all| all.get(number))
        {
            for ((name, how), text) in pattern.groups.iter().zip(texts) {
                self.names.push(name.clone());
                match text {
                    Some(text) => push(text, *how, raw),
                    None => raw.values.push(Value::Absent),
                }
            }
            return;
        }
        for pattern in patterns.into_iter().flatten() {
            if let Some(captures) = pattern.regex.captures(text) {
                for (number, (name, how)) in pattern.groups.iter().enumerate() {
                    self.names.push(name.clone());
                    match captures.get(number + 1) {
                        Some(found) => push(found.as_bytes(), *how, raw),
                        None => raw.values.push(Value::Absent),
                    }
                }
                return;
            }
        }
        self.keys(event, text, raw);
    }

    /// `key=value, key=value`, and what comes before the first key.
    fn keys(&mut self, event: &str, text: &[u8], raw: &mut RawEvent) {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        find(text, &mut found);
        let before = trimmed(&text[..found.first().map_or(text.len(), |(key, _)| key.start)]);
        if !before.is_empty() {
            self.names.push(TEXT.into());
            raw.push_text(before);
        }
        self.beyond += found.len().saturating_sub(FIELDS) as u64;
        for (key, value) in found.iter().take(FIELDS) {
            let (key, value) = (&text[key.clone()], trimmed(&text[value.clone()]));
            let is_twice = found.iter().filter(|other| text[other.0.clone()] == *key).count() > 1;
            let key = std::str::from_utf8(key).unwrap_or_default();
            let renamed = RENAMED.iter().find(|(of, was, _)| *of == event && *was == key);
            let name = renamed.map_or(key, |(.., is)| is);
            if is_twice {
                self.doubtful += 1;
                self.push_name(name);
                raw.values.push(Value::Absent);
            } else if let Some((class, instance)) = engine(event, name, value) {
                self.push_name("class");
                self.push_name("instance");
                raw.values.extend([class, instance]);
            } else {
                self.push_name(name);
                push(value, How::Plain, raw);
            }
        }
        self.found = found;
    }

    fn push_name(&mut self, name: &str) {
        if let Some(known) = self.known.get(name.as_bytes()) {
            self.names.push(known.clone());
            return;
        }
        let new = Name::from(name);
        if self.known.len() < KNOWN {
            self.known.insert(name.as_bytes().to_vec(), new.clone());
        }
        self.names.push(new);
    }
}

/// `engine=0:1` of i915: class and instance.
fn engine(event: &str, key: &str, value: &[u8]) -> Option<(Value, Value)> {
    if key != "engine" || !event.starts_with("i915_") {
        return None;
    }
    let (class, instance) = std::str::from_utf8(value).ok()?.split_once(':')?;
    Some((Value::Unsigned(class.parse().ok()?), Value::Unsigned(instance.parse().ok()?)))
}

/// Finds keys and where their values lie.
fn find(text: &[u8], found: &mut Vec<(Range<usize>, Range<usize>)>) {
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'?' | b'-');
    let mut after = 0;
    for at in memchr::memchr_iter(b'=', text) {
        let long = text[after..at].iter().rev().take_while(|byte| is_key(**byte)).count();
        let from = at - long;
        let is_begun = from == 0 || matches!(text[from - 1], b' ' | b',' | b'[' | b'(' | b'{');
        let is_named =
            text[from..at].first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_');
        if !is_begun || !is_named {
            continue;
        }
        if let Some((_, value)) = found.last_mut() {
            value.end = from;
        }
        found.push((from..at, at + 1..text.len()));
        after = at + 1;
    }
}

/// Without what stands between a value and the next key.
fn trimmed(value: &[u8]) -> &[u8] {
    let mut value = value.trim_ascii();
    loop {
        let before = value;
        for between in [&b"==>"[..], b",", b"[", b"(", b"{"] {
            value = value.strip_suffix(between).unwrap_or(value).trim_ascii_end();
        }
        for (open, close) in [(b'[', b"]"), (b'(', b")"), (b'{', b"}")] {
            if let Some(inner) = value.strip_suffix(close)
                && !inner.contains(&open)
            {
                value = inner.trim_ascii_end();
            }
        }
        if value.len() == before.len() {
            return value;
        }
    }
}

/// Adds a value.
fn push(text: &[u8], how: How, raw: &mut RawEvent) {
    let value = std::str::from_utf8(text).ok().and_then(|text| match how {
        How::Plain => number(text),
        How::Hexadecimal => hexadecimal(text.strip_prefix("0x").unwrap_or(text)),
        How::Result => result(text),
        How::State => state(text),
        How::Device => device(text),
    });
    match value {
        Some(value) => raw.values.push(value),
        None => raw.push_text(text),
    }
}

fn hexadecimal(digits: &str) -> Option<Value> {
    u64::from_str_radix(digits, 16).ok().map(Value::Unsigned)
}

/// Decimal, hexadecimal after `0x`, or an address of 16 digits, which the kernel prints without.
fn number(text: &str) -> Option<Value> {
    let bytes = text.as_bytes();
    if let Some(digits) = text.strip_prefix("0x") {
        return hexadecimal(digits).filter(|_| bytes[2].is_ascii_hexdigit());
    }
    let is_address = bytes.len() == 16
        && bytes.iter().all(u8::is_ascii_hexdigit)
        && (bytes[0] == b'0' || !bytes.iter().all(u8::is_ascii_digit));
    if is_address {
        return hexadecimal(text);
    }
    match bytes.strip_prefix(b"-") {
        Some(digits) if digits.first().is_some_and(u8::is_ascii_digit) => {
            text.parse().ok().map(Value::Signed)
        }
        None if bytes.first().is_some_and(u8::is_ascii_digit) => {
            text.parse().ok().map(Value::Unsigned)
        }
        _ => None,
    }
}

/// What a system call returned: printed as the bits of a `long`.
fn result(text: &str) -> Option<Value> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(|bits| Value::Signed(bits as i64)),
        None => text.parse().ok().map(Value::Signed),
    }
}

/// The bits of a thread's state by its letters (include/linux/sched.h, `TASK_REPORT`); `+` was preempted.
fn state(text: &str) -> Option<Value> {
    let mut bits = 0;
    for letter in text.bytes() {
        bits |= match letter {
            b'R' | b'|' => 0,
            b'S' => 1,
            b'D' => 2,
            b'T' => 4,
            b't' => 8,
            b'X' | b'x' => 0x10,
            b'Z' => 0x20,
            b'P' => 0x40,
            b'I' => 0x80,
            b'+' => 0x100,
            // Killable, about to be woken, and others that older kernels print beside one of those above.
            b'K' | b'W' | b'w' | b'N' | b'p' | b'n' => 0,
            _ => return text.parse().ok().map(Value::Signed),
        };
    }
    Some(Value::Signed(bits))
}

/// `8,16` as the kernel numbers devices (include/linux/kdev_t.h).
fn device(text: &str) -> Option<Value> {
    let (major, minor) = text.split_once(',')?;
    let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(Value::Unsigned(major << 20 | minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first pattern of an event that fits a text finds: its number, and its groups.
    fn by_pattern<'a>(event: &str, text: &'a [u8]) -> Option<(usize, Vec<Option<&'a [u8]>>)> {
        BY_EVENT[event].iter().enumerate().find_map(|(number, pattern)| {
            let captures = pattern.regex.captures(text)?;
            let groups = captures.iter().skip(1).map(|group| group.map(|found| found.as_bytes()));
            Some((number, groups.collect()))
        })
    }

    #[test]
    fn frequent_events_are_taken_apart_as_their_patterns_do() {
        let names =
            ["a", "", "a b", "x:1 [2]", "a ==> b", "p pid=1", "q prio=2", "=", "r CPU:1", "]"];
        let mut quick = 0;
        for (a, b) in names.iter().flat_map(|a| names.iter().map(move |b| (a, b))) {
            for (state, end) in [("R", ""), ("S+", " "), ("x y", ""), ("", ""), ("\u{b}", "]")] {
                let switches = [
                    format!(
                        "prev_comm={a} prev_pid=7 prev_prio=-2 prev_state={state} ==> next_comm={b} \
                         next_pid=-1 next_prio=120{end}"
                    ),
                    format!("{a}:7 [-2] {state} ==> {b}:8 [120]{end}"),
                    format!("{a}:-7 [-2] {state} ==> {b}:8 [120]{end}"),
                ];
                let wakeups = [
                    format!("comm={a} pid=7 prio=-2 target_cpu=3{end}"),
                    format!("comm={a} pid=7 prio=120 success=1 target_cpu=3{end}"),
                    format!("{a}:7 [120] success=1 CPU:3{end}"),
                    format!("{a}:7 [-20]{b}{end}"),
                    format!("{a}:7 [120] success=-1 CPU:-3{end}"),
                ];
                let switches = switches.iter().map(|text| ("sched_switch", text));
                for (event, text) in switches.chain(wakeups.iter().map(|t| ("sched_waking", t))) {
                    let Some((number, groups)) = frequent::groups(event, text.as_bytes()) else {
                        continue;
                    };
                    quick += 1;
                    let expected = by_pattern(event, text.as_bytes()).expect(text);
                    let groups = groups[..expected.1.len()].to_vec();
                    assert_eq!((number, groups), expected, "{event}: {text}");
                }
            }
        }
        assert!(quick > 500, "{quick} texts were taken apart from their ends");
    }
}
