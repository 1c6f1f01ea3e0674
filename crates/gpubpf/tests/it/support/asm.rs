//! The assembly text of the conformance files as bytes.

use std::collections::HashMap;

/// Assembles `text`; an error names its line.
pub fn assemble(text: &str) -> Result<Vec<u8>, String> {
    let mut labels = HashMap::new();
    let mut lines = Vec::new();
    let mut slot = 0_i64;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label.trim().to_owned(), slot);
        } else if !line.is_empty() {
            lines.push((slot, line));
            slot += if line.starts_with("lddw") { 2 } else { 1 };
        }
    }
    // `exit` names the last `exit` instruction where no label does, as the suite's assembler has it.
    if let Some((slot, _)) = lines.iter().rev().find(|(_, line)| *line == "exit") {
        labels.entry("exit".to_owned()).or_insert(*slot);
    }
    let mut bytes = Vec::new();
    for (slot, line) in lines {
        let code = one(line, slot, &labels).map_err(|why| format!("`{line}`: {why}"))?;
        bytes.extend(code);
    }
    Ok(bytes)
}

fn slot(code: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Vec<u8> {
    let mut bytes = vec![code, dst | src << 4];
    bytes.extend(offset.to_le_bytes());
    bytes.extend(imm.to_le_bytes());
    bytes
}

fn number(text: &str) -> Result<i64, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let value = value.map_err(|e| format!("{text}: {e}"))? as i64;
    Ok(if negative { value.wrapping_neg() } else { value })
}

fn imm(text: &str) -> Result<i32, String> {
    let value = number(text)?;
    if (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&value) {
        Ok(value as i32)
    } else {
        Err(format!("{text} does not fit into 32 bits"))
    }
}

fn reg(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("%r").ok_or(format!("{text} is not a register"))?;
    digits.parse().map_err(|_| format!("{text} is not a register"))
}

/// `[%r1+8]`
fn memory(text: &str) -> Result<(u8, i16), String> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let inner = inner.ok_or(format!("{text} is not an address"))?;
    match inner.find(['+', '-']) {
        Some(at) => {
            let offset = number(inner[at..].trim())?;
            let offset = i16::try_from(offset).map_err(|_| format!("{text}: offset"))?;
            Ok((reg(inner[..at].trim())?, offset))
        }
        None => Ok((reg(inner.trim())?, 0)),
    }
}

const ALU: [(&str, u8, i16); 14] = [
    ("add", 0x00, 0),
    ("sub", 0x10, 0),
    ("mul", 0x20, 0),
    ("div", 0x30, 0),
    ("sdiv", 0x30, 1),
    ("or", 0x40, 0),
    ("and", 0x50, 0),
    ("lsh", 0x60, 0),
    ("rsh", 0x70, 0),
    ("mod", 0x90, 0),
    ("smod", 0x90, 1),
    ("xor", 0xa0, 0),
    ("mov", 0xb0, 0),
    ("arsh", 0xc0, 0),
];

const JUMP: [(&str, u8); 11] = [
    ("jeq", 0x10),
    ("jgt", 0x20),
    ("jge", 0x30),
    ("jset", 0x40),
    ("jne", 0x50),
    ("jsgt", 0x60),
    ("jsge", 0x70),
    ("jlt", 0xa0),
    ("jle", 0xb0),
    ("jslt", 0xc0),
    ("jsle", 0xd0),
];

fn size(letter: &str) -> Option<u8> {
    Some(match letter {
        "w" => 0x00,
        "h" => 0x08,
        "b" => 0x10,
        "dw" => 0x18,
        _ => return None,
    })
}

fn one(line: &str, at: i64, labels: &HashMap<String, i64>) -> Result<Vec<u8>, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let args: Vec<&str> = rest.split(',').map(str::trim).filter(|a| !a.is_empty()).collect();
    let distance = |text: &str| match labels.get(text) {
        Some(target) => Ok(target - at - 1),
        None => number(text),
    };
    let short = |text: &str| {
        distance(text).and_then(|d| i16::try_from(d).map_err(|_| "jump is too far".to_owned()))
    };
    if name == "lock" {
        return lock(rest);
    }
    match (name, &args[..]) {
        ("exit", []) => Ok(slot(0x95, 0, 0, 0, 0)),
        ("lddw", [dst, value]) => {
            let value = number(value)? as u64;
            let mut bytes = slot(0x18, reg(dst)?, 0, 0, value as i32);
            bytes.extend(slot(0, 0, 0, 0, (value >> 32) as i32));
            Ok(bytes)
        }
        ("ja", [to]) => Ok(slot(0x05, 0, 0, short(to)?, 0)),
        ("ja32", [to]) => Ok(slot(0x06, 0, 0, 0, distance(to)? as i32)),
        ("call", [target]) => match target.strip_prefix("local") {
            Some(label) => Ok(slot(0x85, 0, 1, 0, distance(label.trim())? as i32)),
            None if target.starts_with('%') => Ok(slot(0x8d, reg(target)?, 0, 0, 0)),
            None => Ok(slot(0x85, 0, 0, 0, imm(target)?)),
        },
        ("neg", [dst]) => Ok(slot(0x87, reg(dst)?, 0, 0, 0)),
        ("neg32", [dst]) => Ok(slot(0x84, reg(dst)?, 0, 0, 0)),
        (_, [dst]) => endian(name, reg(dst)?),
        (_, [dst, src]) => two(name, dst, src),
        (_, [dst, src, to]) => {
            let base = name.trim_end_matches("32");
            let code = JUMP.iter().find(|(n, _)| *n == base).ok_or("unknown mnemonic")?.1;
            let class = if base == name { 5 } else { 6 };
            match reg(src) {
                Ok(src) => Ok(slot(code | class | 8, reg(dst)?, src, short(to)?, 0)),
                Err(_) => Ok(slot(code | class, reg(dst)?, 0, short(to)?, imm(src)?)),
            }
        }
        _ => Err("wrong number of operands".into()),
    }
}

fn endian(name: &str, dst: u8) -> Result<Vec<u8>, String> {
    let split = name.find(|c: char| c.is_ascii_digit()).ok_or("unknown mnemonic")?;
    let code = match &name[..split] {
        "le" => 0xd4,
        "be" => 0xdc,
        "swap" | "bswap" => 0xd7,
        _ => return Err("unknown mnemonic".into()),
    };
    Ok(slot(code, dst, 0, 0, imm(&name[split..])?))
}

fn two(name: &str, dst: &str, src: &str) -> Result<Vec<u8>, String> {
    if let Some(bits) = name.strip_prefix("movsx") {
        let (from, to) = bits.split_at(bits.len() - 2);
        let class = if to == "32" { 0xbc } else { 0xbf };
        return Ok(slot(class, reg(dst)?, reg(src)?, imm(from)? as i16, 0));
    }
    if let Some(size) = name.strip_prefix("ldxs").and_then(size) {
        let (base, offset) = memory(src)?;
        return Ok(slot(0x81 | size, reg(dst)?, base, offset, 0));
    }
    if let Some(size) = name.strip_prefix("ldx").and_then(size) {
        let (base, offset) = memory(src)?;
        return Ok(slot(0x61 | size, reg(dst)?, base, offset, 0));
    }
    if let Some(size) = name.strip_prefix("stx").and_then(size) {
        let (base, offset) = memory(dst)?;
        return Ok(slot(0x63 | size, base, reg(src)?, offset, 0));
    }
    if let Some(size) = name.strip_prefix("st").and_then(size) {
        let (base, offset) = memory(dst)?;
        return Ok(slot(0x62 | size, base, 0, offset, imm(src)?));
    }
    let base = name.trim_end_matches("32");
    let (_, code, offset) = ALU.iter().find(|(n, _, _)| *n == base).ok_or("unknown mnemonic")?;
    let class = if base == name { 7 } else { 4 };
    match reg(src) {
        Ok(src) => Ok(slot(code | class | 8, reg(dst)?, src, *offset, 0)),
        Err(_) => Ok(slot(code | class, reg(dst)?, 0, *offset, imm(src)?)),
    }
}

/// `lock [fetch] OP[32] [address], %reg`
fn lock(rest: &str) -> Result<Vec<u8>, String> {
    let (words, src) = rest.split_once(',').ok_or("lock without operands")?;
    let open = words.find('[').ok_or("lock without an address")?;
    let (base, offset) = memory(words[open..].trim())?;
    let mut words: Vec<&str> = words[..open].split_whitespace().collect();
    let name = words.pop().ok_or("lock without an operation")?;
    let fetch = i32::from(words == ["fetch"]);
    let operation = match name.trim_end_matches("32") {
        "add" => fetch,
        "or" => 0x40 | fetch,
        "and" => 0x50 | fetch,
        "xor" => 0xa0 | fetch,
        "xchg" => 0xe1,
        "cmpxchg" => 0xf1,
        _ => return Err("unknown operation".into()),
    };
    let code = if name.ends_with("32") { 0xc3 } else { 0xdb };
    Ok(slot(code, base, reg(src.trim())?, offset, operation))
}
