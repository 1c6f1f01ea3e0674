//! The cases of PREVAIL's authors (vbpf/ebpf-verifier, MIT), outside of the repository below `GPUWHY_TRACES`.
//!
//! A case has what registers hold before, code, what is known behind it, and messages where the code is wrong. What
//! holds before becomes instructions that load unknown numbers and leave if they are outside of the case's bounds;
//! what is known behind it becomes comparisons that lead to an access which no verifier allows. So each case is an
//! ordinary program: it is to be accepted, or refused where the case has messages.
//!
//! A case that needs what device programs do not have is skipped for that feature, by name. `golden/prevail.txt` has
//! the numbers and each case where we differ; `PREVAIL=1` writes it again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::support::asm;
use gpuwhy_gpubpf::insn::{Insn, Wide};
use gpuwhy_gpubpf::{Budget, Effect, Map, MapKind, Program};

/// A case as its file has it.
#[derive(Debug, Default)]
struct Case {
    name: String,
    before: Vec<String>,
    options: Vec<String>,
    /// Blocks by their labels, in order.
    code: Vec<(String, Vec<String>)>,
    after: Vec<String>,
    messages: Vec<String>,
}

/// Why a case is not run.
type Skipped = &'static str;

fn folder() -> Option<PathBuf> {
    let at = std::env::var_os("GPUWHY_TRACES").map(PathBuf::from);
    let at = at.map(|at| at.join("device/prevail_yaml/test-data")).filter(|at| at.is_dir());
    if at.is_none() {
        println!("skipped: GPUWHY_TRACES names no folder with device/prevail_yaml");
    }
    at
}

/// Items of `["a", "b"]` or of one line that begins with a dash.
fn items(text: &str) -> Vec<String> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    // A comma within an item stands within quotes, or between the bounds of an interval.
    let (mut out, mut item, mut quoted, mut depth) = (Vec::new(), String::new(), false, 0);
    for c in inner.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        match c {
            '"' => {}
            ',' if !quoted && depth == 0 => out.push(std::mem::take(&mut item)),
            c => item.push(c),
        }
    }
    out.push(item);
    out.into_iter().map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// The item of a line `- "…"`.
fn item(line: &str) -> String {
    line.trim_start_matches('-').trim().trim_matches('"').to_owned()
}

/// The cases of a file: the subset of YAML that they are written in.
fn cases(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases = Vec::new();
    for document in text.split("\n---") {
        let mut case = Case::default();
        let mut part = String::new();
        // An inline list may go on in the next lines.
        let mut open = String::new();
        for line in document.lines() {
            if line.trim_start().starts_with('#') || line.trim().is_empty() || line == "---" {
                continue;
            }
            let head = line.split_once(':').filter(|(key, _)| {
                !line.starts_with(' ') && key.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            });
            let mut rest = line.trim().to_owned();
            if let Some((key, value)) = head
                && open.is_empty()
            {
                part = key.to_owned();
                rest = value.trim().to_owned();
            }
            if !open.is_empty() || (rest.starts_with('[') && part != "code") {
                open.push_str(&rest);
                let all = open.matches('[').count() == open.matches(']').count();
                if !all {
                    open.push(' ');
                    continue;
                }
                rest = std::mem::take(&mut open);
            }
            let list = |into: &mut Vec<String>| match rest.chars().next() {
                Some('[') => into.extend(items(&rest)),
                Some('-') => into.push(item(&rest)),
                _ => {}
            };
            match part.as_str() {
                "test-case" => {
                    case.name = rest.split("  #").next().unwrap().trim().trim_matches('"').into()
                }
                "pre" => list(&mut case.before),
                "post" => list(&mut case.after),
                "options" => list(&mut case.options),
                "messages" => list(&mut case.messages),
                "code" if rest.starts_with('<') => {
                    let (label, text) = rest.split_once(':').unwrap();
                    case.code.push((label.to_owned(), Vec::new()));
                    let text = text.trim().trim_start_matches('|').trim();
                    if !text.is_empty() {
                        case.code.last_mut().unwrap().1.push(text.to_owned());
                    }
                }
                "code" if !rest.is_empty() => case.code.last_mut().unwrap().1.push(rest),
                _ => {}
            }
        }
        if !case.name.is_empty() {
            cases.push(case);
        }
    }
    cases
}

fn integer(text: &str) -> Option<i64> {
    let text = text.trim().trim_end_matches("ll");
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|number| number as i64),
        None => text.parse::<i128>().ok().map(|number| number as i64),
    }
}

/// `K` or `[A, B]`.
fn interval(text: &str) -> Option<(i64, i64)> {
    match text.trim().strip_prefix('[') {
        None => integer(text).map(|number| (number, number)),
        Some(rest) => {
            let (from, to) = rest.strip_suffix(']')?.split_once(',')?;
            Some((integer(from)?, integer(to)?))
        }
    }
}

/// `r3` or `w3`: its number, and whether all 64 bits are meant.
fn register(text: &str) -> Option<(u8, bool)> {
    let text = text.trim();
    let whole = text.starts_with('r');
    let number = text.strip_prefix(['r', 'w'])?.parse().ok()?;
    (number <= 10).then_some((number, whole))
}

/// What a register holds before.
#[derive(Debug, Default, Clone)]
struct Before {
    number: bool,
    stack: Option<i64>,
    signed: Option<(i64, i64)>,
    unsigned: Option<(i64, i64)>,
    same: Option<u8>,
}

/// The case as a program; with what is to be known behind it, if `check` says so and it can be said.
struct Translator {
    lines: Vec<String>,
    labels: usize,
}

impl Translator {
    fn fresh(&mut self) -> String {
        self.labels += 1;
        format!("fresh{}", self.labels)
    }

    fn put(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Jumps to `to` where `r` is outside of the interval.
    fn outside(&mut self, r: u8, scratch: u8, bounds: (i64, i64), signed: bool, to: &str) {
        let (less, more) = if signed { ("jslt", "jsgt") } else { ("jlt", "jgt") };
        for (jump, bound) in [(less, bounds.0), (more, bounds.1)] {
            self.put(format!("lddw %r{scratch}, {:#x}", bound as u64));
            self.put(format!("{jump} %r{r}, %r{scratch}, {to}"));
        }
    }

    /// What holds before the code.
    fn before(&mut self, case: &Case) -> Result<(), Skipped> {
        let mut registers: BTreeMap<u8, Before> = BTreeMap::new();
        let mut stack: BTreeMap<(i64, i64), Option<i64>> = BTreeMap::new();
        for line in &case.before {
            let (what, value) = line.split_once('=').ok_or("relations between values before")?;
            let (what, value) = (what.trim(), value.trim());
            if let Some(place) = what.strip_prefix("s[") {
                let (range, of) = place.split_once("].").ok_or("an unknown form")?;
                let (from, to) = range.split_once("...").ok_or("an unknown form")?;
                let range = (integer(from).unwrap(), integer(to).unwrap());
                let known = stack.entry(range).or_default();
                match of {
                    "type" if value == "number" => {}
                    "svalue" | "uvalue" => {
                        let number = integer(value);
                        *known = Some(number.ok_or("an interval in the stack before")?);
                    }
                    _ => return Err("addresses in the stack before"),
                }
                continue;
            }
            let Some((name, of)) = what.split_once('.') else {
                return Err(match what {
                    "packet_size" | "meta_offset" => "packets",
                    _ => "an unknown form",
                });
            };
            let (r, _) = register(name).ok_or("an unknown form")?;
            let entry = registers.entry(r).or_default();
            match (of, value) {
                ("type", "number") => entry.number = true,
                ("type", "stack") => {}
                ("type", "ctx") => return Err("the context of a host's program"),
                ("type", "packet") => return Err("packets"),
                ("type", "shared") => return Err("regions that are shared"),
                ("type", "map_fd" | "map_fd_programs") => {
                    return Err("map descriptors in registers");
                }
                ("type", _) => return Err("types that are not known"),
                ("stack_offset", value) => {
                    entry.stack =
                        Some(integer(value).ok_or("offsets into the stack that are not constant")?);
                }
                ("stack_numeric_size", _) => {
                    return Err("numbers in the stack that are known by an address");
                }
                ("svalue" | "uvalue", value) => match interval(value) {
                    Some(bounds) if of == "svalue" => entry.signed = Some(bounds),
                    Some(bounds) => entry.unsigned = Some(bounds),
                    None => match value.split_once('.').and_then(|(other, _)| register(other)) {
                        Some((other, _)) if other == r => {}
                        Some((other, _)) => entry.same = Some(other),
                        None => return Err("relations between values before"),
                    },
                },
                _ => return Err("an unknown form"),
            }
        }
        if registers.get(&10).is_some_and(|top| top.stack != Some(512)) {
            return Err("a stack that does not begin at its end");
        }
        registers.remove(&10);
        if registers.is_empty() && stack.is_empty() {
            return Ok(());
        }
        for line in ["stw [%r10-512], 0", "lddw %r1, 0", "mov %r2, %r10", "add %r2, -512", "call 1"]
        {
            self.put(line);
        }
        for ((from, to), value) in stack {
            let (mut at, end) = (from - 512, to - 512 + 1);
            match value {
                None => self.put("ldxdw %r1, [%r0+120]"),
                Some(value) => self.put(format!("lddw %r1, {:#x}", value as u64)),
            }
            if value.is_some() && !matches!(end - at, 1 | 2 | 4 | 8) {
                return Err("a number of the stack of no usual size");
            }
            while at < end {
                let (size, bytes) = match end - at {
                    8.. => ("dw", 8),
                    4.. => ("w", 4),
                    2.. => ("h", 2),
                    _ => ("b", 1),
                };
                self.put(format!("stx{size} [%r10{at}], %r1"));
                at += bytes;
            }
        }
        let numbers: Vec<(u8, Before)> =
            registers.clone().into_iter().filter(|(_, b)| b.number).collect();
        // `r0` holds the address until the last one was loaded.
        for (r, _) in numbers.iter().rev() {
            self.put(format!("ldxdw %r{r}, [%r0+{}]", 8 * r));
        }
        if numbers.first().is_none_or(|(r, _)| *r != 0) {
            self.put("mov %r0, 0");
        }
        let scratch =
            (0..10).rev().find(|r| !registers.contains_key(r)).ok_or("as many registers")?;
        for (r, before) in &numbers {
            if let Some(other) = before.same {
                self.put(format!("mov %r{r}, %r{other}"));
            }
            match (before.signed, before.unsigned) {
                (Some((from, to)), _) | (_, Some((from, to))) if from == to => {
                    self.put(format!("lddw %r{r}, {:#x}", from as u64));
                }
                (signed, unsigned) => {
                    for (bounds, sign) in [(signed, true), (unsigned, false)] {
                        if let Some(bounds) = bounds {
                            self.outside(*r, scratch, bounds, sign, "out");
                        }
                    }
                }
            }
        }
        for (r, before) in &registers {
            if let (false, Some(at)) = (before.number, before.stack) {
                self.put(format!("mov %r{r}, %r10"));
                self.put(format!("add %r{r}, {}", at - 512));
            }
        }
        Ok(())
    }

    /// `r1 < 3`: jumps to `to` where it holds, or where it does not.
    fn condition(&mut self, text: &str, holds: bool, to: &str) -> Result<(), Skipped> {
        const ALL: [(&str, &str, &str); 12] = [
            ("&==", "", "jset"),
            ("&!=", "jset", ""),
            ("s>=", "jsge", "jslt"),
            ("s<=", "jsle", "jsgt"),
            ("s>", "jsgt", "jsle"),
            ("s<", "jslt", "jsge"),
            ("==", "jeq", "jne"),
            ("!=", "jne", "jeq"),
            (">=", "jge", "jlt"),
            ("<=", "jle", "jgt"),
            (">", "jgt", "jle"),
            ("<", "jlt", "jge"),
        ];
        let (op, yes, no) = ALL
            .into_iter()
            .find(|(op, ..)| text.contains(&format!(" {op} ")))
            .ok_or("an unknown form")?;
        let (left, right) = text.split_once(&format!(" {op} ")).unwrap();
        let (r, whole) = register(left).ok_or("an unknown form")?;
        let right = match register(right) {
            Some((other, _)) => format!("%r{other}"),
            None => match integer(right).ok_or("an unknown form")? {
                value if i32::try_from(value).is_ok() => value.to_string(),
                value if !whole && u32::try_from(value).is_ok() => value.to_string(),
                _ => return Err("comparisons with numbers of 64 bits"),
            },
        };
        let (jump, other) = if holds { (yes, no) } else { (no, yes) };
        let bits = if whole { "" } else { "32" };
        if jump.is_empty() {
            let behind = self.fresh();
            self.put(format!("{other}{bits} %r{r}, {right}, {behind}"));
            self.put(format!("ja {to}"));
            self.put(format!("{behind}:"));
        } else {
            self.put(format!("{jump}{bits} %r{r}, {right}, {to}"));
        }
        Ok(())
    }

    fn statement(&mut self, text: &str, exit_to: Option<&str>) -> Result<(), Skipped> {
        let text = text.split(';').next().unwrap().split(" #").next().unwrap().trim();
        let label = |text: &str| text.trim().trim_matches(['<', '>']).to_owned();
        if text.is_empty() {
            return Ok(());
        }
        if text == "exit" {
            match exit_to {
                Some(to) => self.put(format!("ja {to}")),
                None => self.put("exit"),
            }
            return Ok(());
        }
        if let Some(condition) = text.strip_prefix("assume ") {
            return self.condition(condition, false, "out");
        }
        if let Some(to) = text.strip_prefix("goto ") {
            self.put(format!("ja b_{}", label(to)));
            return Ok(());
        }
        if let Some(rest) = text.strip_prefix("if ") {
            let (condition, to) = rest.split_once(" goto ").ok_or("an unknown form")?;
            let to = format!("b_{}", label(to));
            return self.condition(condition, true, &to);
        }
        if text.starts_with("callx") {
            return Err("indirect calls");
        }
        if let Some(callee) = text.strip_prefix("call ") {
            if callee.trim().starts_with('<') {
                self.put(format!("call local b_{}", label(callee)));
                return Ok(());
            }
            let id = integer(callee).ok_or("an unknown form")?;
            return Err(match id {
                1..=3 => "map descriptors in registers",
                _ => "helpers of a host",
            });
        }
        if let Some(rest) = text.strip_prefix("lock ") {
            return self.lock(rest);
        }
        if let Some(rest) = text.strip_prefix("*(") {
            let (place, value) = rest.split_once('=').ok_or("an unknown form")?;
            let (size, address) = memory(place)?;
            match register(value) {
                Some((r, _)) => self.put(format!("stx{size} {address}, %r{r}")),
                None => {
                    let value = integer(value).ok_or("an unknown form")?;
                    if i32::try_from(value).is_err() && u32::try_from(value).is_err() {
                        return Err("a store of a number of 64 bits");
                    }
                    self.put(format!("st{size} {address}, {value}"));
                }
            }
            return Ok(());
        }
        self.assignment(text)
    }

    fn lock(&mut self, rest: &str) -> Result<(), Skipped> {
        let (rest, fetch) = match rest.strip_suffix(" fetch") {
            Some(rest) => (rest, "fetch "),
            None => (rest, ""),
        };
        let rest = rest.strip_prefix("*(").ok_or("an unknown form")?;
        let close = rest.rfind(')').ok_or("an unknown form")?;
        let (size, address) = memory(&rest[..=close])?;
        let (op, value) = rest[close + 1..].trim().split_once(' ').ok_or("an unknown form")?;
        let (r, _) = register(value).ok_or("an unknown form")?;
        let op = match op {
            "+=" => "add",
            "|=" => "or",
            "&=" => "and",
            "^=" => "xor",
            "x=" => "xchg",
            "cx=" => "cmpxchg",
            _ => return Err("an unknown form"),
        };
        let bits = match size {
            "w" => "32",
            "dw" => "",
            _ => return Err("atomic operations of 1 and 2 bytes"),
        };
        self.put(format!("lock {fetch}{op}{bits} {address}, %r{r}"));
        Ok(())
    }

    fn assignment(&mut self, text: &str) -> Result<(), Skipped> {
        const OPS: [(&str, &str); 16] = [
            ("s>>=", "arsh"),
            ("s/=", "sdiv"),
            ("s%=", "smod"),
            ("s8=", "movsx8"),
            ("s16=", "movsx16"),
            ("s32=", "movsx32"),
            ("<<=", "lsh"),
            (">>=", "rsh"),
            ("+=", "add"),
            ("-=", "sub"),
            ("*=", "mul"),
            ("/=", "div"),
            ("%=", "mod"),
            ("&=", "and"),
            ("|=", "or"),
            ("^=", "xor"),
        ];
        let found = OPS.into_iter().find(|(op, _)| text.contains(op));
        let ((left, right), name) = match found {
            Some((op, name)) => (text.split_once(op).unwrap(), name),
            None => (text.split_once('=').ok_or("an unknown form")?, "mov"),
        };
        let (r, whole) = register(left).ok_or("an unknown form")?;
        let (right, bits) = (right.trim(), if whole { "" } else { "32" });
        if name.starts_with("movsx") {
            let (other, _) = register(right).ok_or("an unknown form")?;
            let to = if whole { "64" } else { "32" };
            self.put(format!("{name}{to} %r{r}, %r{other}"));
            return Ok(());
        }
        if let Some((other, _)) = register(right) {
            self.put(format!("{name}{bits} %r{r}, %r{other}"));
            return Ok(());
        }
        if name != "mov" {
            let value = integer(right).ok_or("an unknown form")?;
            if i32::try_from(value).is_err() && (whole || u32::try_from(value).is_err()) {
                return Err("arithmetic with immediate numbers of 64 bits");
            }
            self.put(format!("{name}{bits} %r{r}, {value}"));
            return Ok(());
        }
        if let Some(other) = right.strip_prefix('-').and_then(register) {
            if other.0 != r {
                return Err("an unknown form");
            }
            self.put(format!("neg{bits} %r{r}"));
            return Ok(());
        }
        if let Some(place) = right.strip_prefix("*(") {
            let (size, address) = memory(place)?;
            self.put(format!("ldx{size} %r{r}, {address}"));
            return Ok(());
        }
        if let Some((op, other)) = right.split_once(' ')
            && let Some((other, _)) = register(other)
        {
            let known =
                ["be16", "be32", "be64", "le16", "le32", "le64", "swap16", "swap32", "swap64"];
            if other != r || !known.contains(&op) {
                return Err("an unknown form");
            }
            self.put(format!("{op} %r{r}"));
            return Ok(());
        }
        let value = integer(right).ok_or("an unknown form")?;
        if i32::try_from(value).is_ok() || (!whole && u32::try_from(value).is_ok()) {
            self.put(format!("mov{bits} %r{r}, {value}"));
        } else {
            self.put(format!("lddw %r{r}, {:#x}", value as u64));
        }
        Ok(())
    }

    /// What is to be known behind the code; whether there is something.
    fn after(&mut self, case: &Case) -> bool {
        let used = |r: &u8| case.after.iter().any(|line| line.contains(&format!("r{r}.")));
        let Some(scratch) = (0..10).rev().find(|r| !used(r)) else { return false };
        let mut any = false;
        for line in &case.after {
            let Some((what, value)) = line.split_once('=') else { continue };
            let Some((name, of)) = what.trim().split_once('.') else { continue };
            let (Some((r, _)), Some(bounds)) = (register(name), interval(value)) else { continue };
            let signed = match of {
                "svalue" => true,
                "uvalue" => false,
                _ => continue,
            };
            self.outside(r, scratch, bounds, signed, "bad");
            any = true;
        }
        any
    }
}

/// `*(u32 *)(r10 - 4)` without its beginning, as size and address.
fn memory(text: &str) -> Result<(&'static str, String), Skipped> {
    let (size, rest) = text.split_once("*)").ok_or("an unknown form")?;
    let size = match size.trim() {
        "u8" => "b",
        "u16" => "h",
        "u32" => "w",
        "u64" => "dw",
        "s8" => "sb",
        "s16" => "sh",
        "s32" => "sw",
        _ => return Err("an unknown form"),
    };
    let inner = rest.trim().trim_start_matches('(').trim_end_matches(')');
    let inner: String = inner.chars().filter(|c| !c.is_whitespace()).collect();
    let end = inner.find(['+', '-']).unwrap_or(inner.len());
    let (r, _) = register(&inner[..end]).ok_or("an unknown form")?;
    let offset = if end < inner.len() { &inner[end..] } else { "+0" };
    Ok((size, format!("[%r{r}{offset}]")))
}

/// The program of a case, and whether it checks what is to be known behind the code.
fn translate(case: &Case, check: bool) -> Result<(String, bool), Skipped> {
    for option in &case.options {
        match option.as_str() {
            "!allow_division_by_zero" => return Err("division by zero as an error"),
            "big_endian" => return Err("big-endian hosts"),
            "assume_assertions" => return Err("assertions that are believed"),
            "!big_endian" | "termination" | "simplify" => {}
            _ => return Err("an unknown option"),
        }
    }
    let mut to = Translator { lines: Vec::new(), labels: 0 };
    to.before(case)?;
    let calls =
        case.code.iter().flat_map(|(_, lines)| lines).any(|line| line.starts_with("call <"));
    let exit_to = (!calls).then_some("check");
    for (label, lines) in &case.code {
        to.put(format!("b_{}:", label.trim_matches(['<', '>'])));
        for line in lines {
            to.statement(line, exit_to)?;
        }
    }
    to.put("ja check");
    to.put("check:");
    let checks = check && !calls && to.after(case);
    for line in
        ["mov %r0, 0", "exit", "out:", "mov %r0, 0", "exit", "bad:", "ldxdw %r0, [%r10+8]", "exit"]
    {
        to.put(line);
    }
    Ok((to.lines.join("\n"), checks))
}

/// What the verifier says of a program.
fn verdict(text: &str) -> Result<(), String> {
    let code =
        asm::assemble(text).map_err(|error| format!("cannot be assembled: {error}\n{text}"))?;
    let mut program =
        Program::from_bytes(&code, "gpu/insn/loads").map_err(|fault| fault.to_string())?;
    // The first `lddw` of a program with a prelude is its map.
    if text.starts_with("stw [%r10-512], 0")
        && let Some(Insn::LoadWide { value, .. }) = program.insns.get_mut(1)
    {
        *value = Wide::Map(0);
    }
    program.maps = vec![Map {
        name: "unknown".into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 128,
        max_entries: 1,
        flags: 0,
    }];
    let budget = Budget { warp_instructions: u64::MAX, effect: Effect::Controlling };
    gpuwhy_gpubpf::verify(&program, budget).map(drop).map_err(|fault| fault.to_string())
}

/// Whether the messages say that code is wrong; that some is not reached does not.
fn wrong(case: &Case) -> bool {
    case.messages.iter().any(|message| !message.contains("nreachable"))
}

#[test]
fn the_cases_of_prevails_authors_are_judged_as_they_judge_them() {
    let Some(folder) = folder() else { return };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut accepted, mut refused, mut proved, mut asked) = (0, 0, 0, 0);
    let mut skipped: BTreeMap<Skipped, usize> = BTreeMap::new();
    let (mut lax, mut strict, mut weaker) = (String::new(), String::new(), String::new());
    let mut all = 0;
    for path in files {
        let file = path.file_stem().unwrap().to_string_lossy().into_owned();
        for case in cases(&path) {
            all += 1;
            let (plain, with) = match (translate(&case, false), translate(&case, true)) {
                (Ok((plain, _)), Ok(with)) => (plain, with),
                (Err(why), _) | (_, Err(why)) => {
                    *skipped.entry(why).or_default() += 1;
                    continue;
                }
            };
            let name = format!("{file}: {}", case.name);
            match (wrong(&case), verdict(&plain)) {
                (false, Ok(())) => accepted += 1,
                (true, Err(_)) => refused += 1,
                (true, Ok(())) => {
                    let _ = writeln!(lax, "{name}: {}", case.messages.join("; "));
                    continue;
                }
                (false, Err(why)) => {
                    let _ = writeln!(strict, "{name}: {why}");
                    continue;
                }
            }
            if with.1 && !wrong(&case) {
                asked += 1;
                match verdict(&with.0) {
                    Ok(()) => proved += 1,
                    Err(_) => {
                        let _ = writeln!(weaker, "{name}");
                    }
                }
            }
        }
    }
    let mut out = format!(
        "{all} cases: {accepted} accepted and {refused} refused as their authors do\n\
         of {asked} with bounds behind the code, {proved} are proved\n\nskipped, by what device programs do not have:\n"
    );
    for (why, count) in &skipped {
        let _ = writeln!(out, "{count:>4} {why}");
    }
    let _ = write!(
        out,
        "\naccepted, and their authors refuse:\n{lax}\nrefused, and their authors accept:\n{strict}\n\
         bounds that are not proved:\n{weaker}"
    );
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/prevail.txt");
    if std::env::var_os("PREVAIL").is_some() {
        std::fs::write(&golden, &out).unwrap();
    }
    let kept = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(all, 697);
    assert_eq!(out, kept, "PREVAIL=1 writes {} again", golden.display());
}
