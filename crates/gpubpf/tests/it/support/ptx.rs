//! A small machine for the PTX that the compiler writes, one thread at a time: enough to see that a
//! fragment computes what the program means. It checks every access: inside of memory, aligned, and
//! no atomics on local memory. It knows no instruction that the compiler does not write.

use std::collections::HashMap;

/// Addresses of local memory begin here, where they are generic.
const LOCAL: u64 = 0x7000_0000_0000;

/// Device memory, as one range of addresses.
pub struct Memory {
    pub base: u64,
    pub bytes: Vec<u8>,
}

/// The special registers of one thread, by name without `%`.
pub type Specials = HashMap<&'static str, u64>;

struct Thread<'a> {
    regs: HashMap<String, u64>,
    local: Vec<u8>,
    memory: &'a mut Memory,
    specials: &'a Specials,
    parameters: &'a [u64],
}

/// Runs the kernel `text` (one entry, as `kernel` writes it) for one thread. `parameters` are its
/// words in order.
pub fn run(
    text: &str,
    parameters: &[u64],
    specials: &Specials,
    memory: &mut Memory,
) -> Result<(), String> {
    let lines = body(text);
    let mut labels = HashMap::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(label) = line.strip_suffix(':')
            && labels.insert(label, at).is_some()
        {
            return Err(format!("label {label} stands twice"));
        }
    }
    let mut thread =
        Thread { regs: HashMap::new(), local: Vec::new(), memory, specials, parameters };
    let mut at = 0;
    for _ in 0..2_000_000 {
        let Some(line) = lines.get(at) else { return Err("it runs off its end".into()) };
        at += 1;
        let went = thread.line(line).map_err(|why| format!("`{line}`: {why}"))?;
        match went {
            Went::On => {}
            Went::Ended => return Ok(()),
            Went::To(label) => at = *labels.get(label).ok_or(format!("no label {label}"))?,
        }
    }
    Err("too many instructions".into())
}

/// The statements between the outermost braces, without semicolons.
fn body(text: &str) -> Vec<&str> {
    let start = text.find("\n{\n").map_or(0, |at| at + 3);
    text[start..]
        .lines()
        .map(|line| line.trim().trim_end_matches(';'))
        .filter(|line| !line.is_empty() && !matches!(*line, "{" | "}"))
        .collect()
}

enum Went<'a> {
    On,
    Ended,
    To(&'a str),
}

fn mask(value: u64, bits: u32) -> u64 {
    if bits == 64 { value } else { value & ((1 << bits) - 1) }
}

fn signed(value: u64, bits: u32) -> i64 {
    (value << (64 - bits)) as i64 >> (64 - bits)
}

/// The width and signedness that a type suffix like `s32` says.
fn kind(suffix: &str) -> (bool, u32) {
    (suffix.starts_with('s'), suffix[1..].parse().unwrap_or(1))
}

impl Thread<'_> {
    fn value(&self, text: &str) -> Result<u64, String> {
        if let Some(special) = text.strip_prefix('%').and_then(|name| self.specials.get(name)) {
            return Ok(*special);
        }
        if text.starts_with('%') {
            return self
                .regs
                .get(text)
                .copied()
                .ok_or(format!("{text} is read before it is written"));
        }
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let value = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        let value = value.map_err(|_| format!("{text} is no value"))?;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn set(&mut self, name: &str, value: u64) {
        self.regs.insert(name.to_owned(), value);
    }

    /// `[%r1+8]`, `[name+8]` (local memory) or `[parameter]`.
    fn address(&self, text: &str, local: bool) -> Result<u64, String> {
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let base = if local && !base.starts_with('%') { 0 } else { self.value(base)? };
        Ok(base.wrapping_add(self.value(offset)?))
    }

    fn place(&mut self, address: u64, bytes: u32, local: bool) -> Result<&mut [u8], String> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(format!("{address:#x} is not aligned to {bytes}"));
        }
        let in_local = local || address >= LOCAL;
        let (memory, at) = if in_local {
            let at = if local { address } else { address - LOCAL };
            (&mut self.local, at)
        } else {
            let at = address
                .checked_sub(self.memory.base)
                .ok_or(format!("no memory at {address:#x}"))?;
            (&mut self.memory.bytes, at)
        };
        let at = at as usize;
        memory.get_mut(at..at + bytes as usize).ok_or(format!("no memory at {address:#x}"))
    }

    fn read(&mut self, address: u64, bytes: u32, local: bool) -> Result<u64, String> {
        let place = self.place(address, bytes, local)?;
        Ok(place.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn write(&mut self, address: u64, bytes: u32, local: bool, value: u64) -> Result<(), String> {
        let place = self.place(address, bytes, local)?;
        place.copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    fn line<'a>(&mut self, line: &'a str) -> Result<Went<'a>, String> {
        if line.ends_with(':') || line.starts_with(".reg") {
            return Ok(Went::On);
        }
        if line.starts_with(".local") {
            let size = line.split(['[', ']']).nth(1).and_then(|n| n.parse().ok());
            // What local memory holds at first is not defined.
            self.local = vec![0xa5; size.ok_or("no size")?];
            return Ok(Went::On);
        }
        let mut line = line;
        if let Some(guarded) = line.strip_prefix('@') {
            let (guard, rest) = guarded.split_once(' ').ok_or("a guard alone")?;
            if self.value(guard)? == 0 {
                return Ok(Went::On);
            }
            line = rest;
        }
        let (opcode, rest) = line.split_once(' ').unwrap_or((line, ""));
        match opcode {
            "bra" => return Ok(Went::To(rest)),
            "ret" | "exit" => return Ok(Went::Ended),
            "membar.sys" | "fence.acq_rel.gpu" | "prefetch.L2" => return Ok(Went::On),
            _ => {}
        }
        let args = arguments(rest);
        let parts: Vec<&str> = opcode.split('.').collect();
        self.instruction(&parts, &args)?;
        Ok(Went::On)
    }

    fn instruction(&mut self, parts: &[&str], args: &[&str]) -> Result<(), String> {
        let (is_signed, bits) = kind(parts.last().unwrap_or(&"b32"));
        let local = parts.contains(&"local");
        match parts[0] {
            "ld" if parts[1] == "param" => {
                let names = ["memory", "stride", "length", "results"];
                let at = names.iter().position(|n| args[1].ends_with(&format!("_{n}]")));
                self.set(args[0], self.parameters[at.ok_or("no parameter")?]);
            }
            "ld" => {
                let address = self.address(args[1], local)?;
                let value = self.read(address, bits / 8, local)?;
                self.set(args[0], if is_signed { signed(value, bits) as u64 } else { value });
            }
            "st" => {
                let address = self.address(args[0], local)?;
                let value = self.value(args[1])?;
                self.write(address, bits / 8, local, value)?;
            }
            "atom" | "red" => self.atomic(parts, args, bits)?,
            "isspacep" => {
                let address = self.value(args[1])?;
                self.set(args[0], u64::from(address >= LOCAL));
            }
            "cvta" => {
                let value = self.value(args[1])?;
                self.set(args[0], if local { LOCAL + value } else { value });
            }
            "mov" => self.mov(args)?,
            "cvt" => {
                let (from_signed, from) = kind(parts[2]);
                let (_, to) = kind(parts[1]);
                let value = mask(self.value(args[1])?, from);
                let value = if from_signed { signed(value, from) as u64 } else { value };
                self.set(args[0], mask(value, to));
            }
            "setp" => {
                let (a, b) = (mask(self.value(args[1])?, bits), mask(self.value(args[2])?, bits));
                let order =
                    if is_signed { signed(a, bits).cmp(&signed(b, bits)) } else { a.cmp(&b) };
                let holds = match parts[1] {
                    "eq" => order.is_eq(),
                    "ne" => order.is_ne(),
                    "lt" => order.is_lt(),
                    "le" => order.is_le(),
                    "gt" => order.is_gt(),
                    _ => order.is_ge(),
                };
                self.set(args[0], u64::from(holds));
            }
            _ => {
                let values: Result<Vec<u64>, String> =
                    args[1..].iter().map(|a| self.value(a)).collect();
                let result = compute(parts, &values?, is_signed, bits)?;
                let width = if parts.contains(&"wide") { 64 } else { bits };
                self.set(args[0], mask(result, width));
            }
        }
        Ok(())
    }

    /// Registers, symbols of local memory, and pairs of halves.
    fn mov(&mut self, args: &[&str]) -> Result<(), String> {
        let halves = |text: &str| -> Option<(String, String)> {
            let (low, high) = text.strip_prefix('{')?.strip_suffix('}')?.split_once(',')?;
            Some((low.trim().to_owned(), high.trim().to_owned()))
        };
        if let Some((low, high)) = halves(args[0]) {
            let value = self.value(args[1])?;
            self.set(&low, value & 0xffff_ffff);
            self.set(&high, value >> 32);
        } else if let Some((low, high)) = halves(args[1]) {
            let value = self.value(&low)? | self.value(&high)? << 32;
            self.set(args[0], value);
        } else if args[1].ends_with("stack") {
            self.set(args[0], 0);
        } else if args[1].ends_with("data0") {
            // Where the test put the read-only data.
            let at = *self.specials.get("data0").ok_or("no read-only data")?;
            self.set(args[0], at);
        } else {
            let value = self.value(args[1])?;
            self.set(args[0], value);
        }
        Ok(())
    }

    fn atomic(&mut self, parts: &[&str], args: &[&str], bits: u32) -> Result<(), String> {
        let (result, args) =
            if parts[0] == "atom" { (Some(args[0]), &args[1..]) } else { (None, args) };
        let address = self.address(args[0], false)?;
        if address >= LOCAL {
            return Err("an atomic on local memory".into());
        }
        let old = self.read(address, bits / 8, false)?;
        let operand = mask(self.value(args[1])?, bits);
        let new = match parts[parts.len() - 2] {
            "add" => old.wrapping_add(operand),
            "or" => old | operand,
            "and" => old & operand,
            "xor" => old ^ operand,
            "exch" => operand,
            "cas" if old == operand => self.value(args[2])?,
            "cas" => old,
            other => return Err(format!("atomic {other}")),
        };
        self.write(address, bits / 8, false, new)?;
        if let Some(result) = result {
            self.set(result, old);
        }
        Ok(())
    }
}

fn arguments(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[start..].trim());
    found
}

fn compute(parts: &[&str], v: &[u64], is_signed: bool, bits: u32) -> Result<u64, String> {
    let (a, b) = (mask(v[0], bits), v.get(1).map_or(0, |&b| mask(b, bits)));
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    Ok(match parts[0] {
        "add" => a.wrapping_add(b),
        "sub" => a.wrapping_sub(b),
        "neg" => a.wrapping_neg(),
        "mul" => a.wrapping_mul(b),
        "mad" => a.wrapping_mul(b).wrapping_add(v[2]),
        // Unspecified in PTX; whoever relies on it has a defect.
        "div" | "rem" if b == 0 || (is_signed && sb == -1) => {
            return Err("a division whose result PTX does not specify".into());
        }
        "div" if is_signed => (sa / sb) as u64,
        "div" => a / b,
        "rem" if is_signed => (sa % sb) as u64,
        "rem" => a % b,
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        "shl" if v[1] >= u64::from(bits) => 0,
        "shl" => a << v[1],
        "shr" if is_signed => (sa >> v[1].min(63)) as u64,
        "shr" if v[1] >= u64::from(bits) => 0,
        "shr" => a >> v[1],
        "selp" => {
            if v[2] != 0 {
                a
            } else {
                b
            }
        }
        "bfe" => {
            let value = a >> v[1];
            if is_signed {
                signed(mask(value, v[2] as u32), v[2] as u32) as u64
            } else {
                mask(value, v[2] as u32)
            }
        }
        "bfi" => {
            let field = mask(u64::MAX, v[3] as u32) << v[2];
            b & !field | (a << v[2]) & field
        }
        "prmt" => {
            let pool: Vec<u8> = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
            (0..4).fold(0, |r, n| r | u64::from(pool[(v[2] >> (4 * n) & 7) as usize]) << (8 * n))
        }
        other => return Err(format!("{other} is not known")),
    })
}
