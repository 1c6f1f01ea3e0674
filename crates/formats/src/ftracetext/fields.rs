//! The text of an event, as its `print fmt` printed it, and the fields in it.
//!
//! # How
//! Most events are printed as `key=value key=value`. Those that gpuwhy makes more of than marks and that are printed
//! otherwise, and those that print names of threads before numbers, have a pattern ([`PATTERNS`]): a regular
//! expression whose groups are named like the kernel's fields. A group's name ends with how its text is read: `__x`
//! hexadecimal, `__ret` a call's result, `__state` letters of a thread's state, `__dev` a device's two numbers.

use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Name;
use regex::bytes::Regex;

use super::frequent;
use super::line::digits;
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
    text: &'static str,
    /// Made when the pattern is first needed: that takes as long as to read thousands of events.
    regex: OnceLock<Option<Regex>>,
    groups: Vec<(Name, How)>,
}

impl Pattern {
    fn new(text: &'static str) -> Pattern {
        let names = text.split("(?<").skip(1).filter_map(|rest| rest.split_once('>'));
        let groups = names.map(|(name, _)| group(name)).collect();
        Pattern { text, regex: OnceLock::new(), groups }
    }

    /// The regular expression; a test compiles all of them.
    fn regex(&self) -> Option<&Regex> {
        let made = || Regex::new(&format!("(?-u){}", self.text)).ok();
        self.regex.get_or_init(made).as_ref()
    }
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

/// The patterns, and which each event has.
struct Patterns {
    all: Vec<Pattern>,
    of: HashMap<&'static str, Vec<usize>>,
}

impl Patterns {
    fn of(&self, event: &str) -> impl Iterator<Item = &Pattern> {
        self.of.get(event).into_iter().flatten().map(|place| &self.all[*place])
    }
}

static ALL: LazyLock<Patterns> = LazyLock::new(|| {
    let all = PATTERNS.iter().map(|(_, pattern)| Pattern::new(pattern)).collect();
    let mut of: HashMap<&'static str, Vec<usize>> = HashMap::new();
    for (place, (events, _)) in PATTERNS.iter().enumerate() {
        events.iter().for_each(|event| of.entry(event).or_default().push(place));
    }
    Patterns { all, of }
});

/// How many patterns are regular expressions with the groups that they seem to have, for tests.
#[cfg(test)]
pub(super) fn compiled() -> usize {
    let is_sound = |pattern: &&Pattern| {
        let names = pattern.regex().map(|regex| regex.capture_names().skip(1).flatten());
        let groups = names.map(|names| names.map(group).collect::<Vec<_>>());
        groups.as_ref() == Some(&pattern.groups)
    };
    ALL.all.iter().filter(is_sound).count()
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

/// The names of the fields of an event, and the number of the type that it makes with them. Events of a name mostly have
/// the same fields, so that those of the one before are kept as far as they come again.
#[derive(Debug, Default)]
pub(super) struct Layout {
    names: Vec<Name>,
    /// How many fields the event has so far.
    count: usize,
    /// Of the event before, if all fields are the same.
    pub kind: Option<usize>,
}

impl Layout {
    /// The names of the fields.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// The next field is called this, which `make` makes a name of.
    fn push(&mut self, name: &str, make: impl FnOnce() -> Name) {
        // Names of patterns are the same ones each time.
        let is_same = |known: &Name| std::ptr::eq(&**known, name) || **known == *name;
        if !self.names.get(self.count).is_some_and(is_same) {
            self.names.truncate(self.count);
            self.names.push(make());
            self.kind = None;
        }
        self.count += 1;
    }

    /// The event has no more fields.
    fn end(&mut self) {
        if self.names.len() > self.count {
            self.names.truncate(self.count);
            self.kind = None;
        }
        self.count = 0;
    }
}

/// Takes texts of events apart, and keeps what it needs for that.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Fields of all events that were printed twice, and those beyond [`FIELDS`].
    pub doubtful: u64,
    pub beyond: u64,
    known: HashMap<Vec<u8>, Name>,
    found: Vec<(Range<usize>, Range<usize>)>,
}

/// Names that are kept.
const KNOWN: usize = 1 << 14;

impl Fields {
    /// Adds the fields of an event, whose name is without its system, to `raw`, and their names to `layout`, which is that
    /// of the event before of the same name.
    pub fn read(&mut self, event: &str, text: &[u8], layout: &mut Layout, raw: &mut RawEvent) {
        let key = match event.starts_with(SYS_EXIT) {
            true => SYS_EXIT,
            false => event,
        };
        let mut add = |(name, how): &(Name, How), text: Option<&[u8]>| {
            layout.push(name, || name.clone());
            match text {
                Some(text) => push(text, *how, raw),
                None => raw.values.push(Value::Absent),
            }
        };
        if let Some((number, texts)) = frequent::groups(key, text)
            && let Some(pattern) = ALL.of(key).nth(number)
        {
            pattern.groups.iter().zip(texts).for_each(|(group, text)| add(group, text));
            return layout.end();
        }
        for pattern in ALL.of(key) {
            if let Some(captures) = pattern.regex().and_then(|regex| regex.captures(text)) {
                for (number, group) in pattern.groups.iter().enumerate() {
                    add(group, captures.get(number + 1).map(|found| found.as_bytes()));
                }
                return layout.end();
            }
        }
        self.keys(event, text, layout, raw);
        layout.end();
    }

    /// `key=value, key=value`, and what comes before the first key.
    fn keys(&mut self, event: &str, text: &[u8], layout: &mut Layout, raw: &mut RawEvent) {
        let (mut found, known) = (std::mem::take(&mut self.found), &mut self.known);
        found.clear();
        find(text, &mut found);
        let before = trimmed(&text[..found.first().map_or(text.len(), |(key, _)| key.start)]);
        if !before.is_empty() {
            layout.push(TEXT, || TEXT.into());
            raw.push_text(before);
        }
        self.beyond += found.len().saturating_sub(FIELDS) as u64;
        for (key, value) in found.iter().take(FIELDS) {
            let (key, value) = (&text[key.clone()], trimmed(&text[value.clone()]));
            let is_twice = found.iter().filter(|other| text[other.0.clone()] == *key).count() > 1;
            let key = std::str::from_utf8(key).unwrap_or_default();
            let renamed = RENAMED.iter().find(|(of, was, _)| *of == event && *was == key);
            let name = renamed.map_or(key, |(.., is)| is);
            let mut push_name = |name: &str| layout.push(name, || shared(known, name));
            if is_twice {
                self.doubtful += 1;
                push_name(name);
                raw.values.push(Value::Absent);
            } else if let Some((class, instance)) = engine(event, name, value) {
                push_name("class");
                push_name("instance");
                raw.values.extend([class, instance]);
            } else {
                push_name(name);
                push(value, How::Plain, raw);
            }
        }
        self.found = found;
    }
}

/// The one copy of a name, as long as there are not too many.
fn shared(known: &mut HashMap<Vec<u8>, Name>, name: &str) -> Name {
    if let Some(known) = known.get(name.as_bytes()) {
        return known.clone();
    }
    let new = Name::from(name);
    if known.len() < KNOWN {
        known.insert(name.as_bytes().to_vec(), new.clone());
    }
    new
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
        if value.last().is_none_or(u8::is_ascii_alphanumeric) {
            return value;
        }
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
    let as_text = || std::str::from_utf8(text).ok();
    let value = match how {
        How::Plain => number(text),
        How::Hexadecimal => {
            as_text().and_then(|text| hexadecimal(text.strip_prefix("0x").unwrap_or(text)))
        }
        How::Result => as_text().and_then(result),
        How::State => as_text().and_then(state),
        How::Device => as_text().and_then(device),
    };
    match value {
        Some(value) => raw.values.push(value),
        None => raw.push_text(text),
    }
}

fn hexadecimal(digits: &str) -> Option<Value> {
    u64::from_str_radix(digits, 16).ok().map(Value::Unsigned)
}

/// Decimal, hexadecimal after `0x`, or an address of 16 digits, which the kernel prints without.
fn number(bytes: &[u8]) -> Option<Value> {
    let hexadecimal = |digits| std::str::from_utf8(digits).ok().and_then(hexadecimal);
    match bytes {
        [b'0', b'x', digits @ ..] => {
            let is_begun = digits.first().is_some_and(u8::is_ascii_hexdigit);
            hexadecimal(digits).filter(|_| is_begun)
        }
        [first, ..]
            if bytes.len() == 16
                && bytes.iter().all(u8::is_ascii_hexdigit)
                && (*first == b'0' || !bytes.iter().all(u8::is_ascii_digit)) =>
        {
            hexadecimal(bytes)
        }
        [b'-', size @ ..] => {
            let size = digits(size).filter(|size| *size <= i64::MIN.unsigned_abs())?;
            Some(Value::Signed((size as i64).wrapping_neg()))
        }
        _ => digits(bytes).map(Value::Unsigned),
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
        ALL.of(event).enumerate().find_map(|(number, pattern)| {
            let captures = pattern.regex()?.captures(text)?;
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
                let prints = ["", ":", "0x7:", "0x7: ", "0x7:\t", " a: b", "é: =", "a:b: c"]
                    .map(|begin| format!("{begin}{a}: {b}{end}"));
                let switches = switches.iter().map(|text| ("sched_switch", text));
                let wakeups = wakeups.iter().map(|text| ("sched_waking", text));
                let prints = prints.iter().map(|text| ("print", text));
                for (event, text) in switches.chain(wakeups).chain(prints) {
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
        assert!(quick > 4500, "{quick} texts were taken apart from their ends");
    }
}
