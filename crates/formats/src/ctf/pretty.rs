//! Events in the text form of babeltrace2's `sink.text.pretty`, so that its output is an oracle for every field.

use std::fmt::Write as _;

use gpuwhy_schema::Name;

use super::ast::Role;
use super::build::Int;
use super::decode::Sink;
use super::stream::Body;

/// Writes values as babeltrace2 does.
#[derive(Default)]
pub(super) struct Pretty {
    pub text: String,
    /// Whether nothing stands in the innermost brackets yet.
    is_first: Vec<bool>,
    /// The name of the value that comes next.
    pending: Option<Name>,
}

impl Pretty {
    /// Between the parts of an event.
    pub fn part(&mut self, part: Body) {
        match part {
            Body::Anew => *self = Pretty::default(),
            _ if !self.text.is_empty() => self.text.push_str(", "),
            _ => {}
        }
    }

    fn separate(&mut self) {
        if let Some(first) = self.is_first.last_mut() {
            self.text.push_str(if *first { " " } else { ", " });
            *first = false;
        }
    }

    /// Writes the name of the value that follows.
    fn name(&mut self) {
        if let Some(name) = self.pending.take() {
            self.separate();
            let _ = write!(self.text, "{name} = ");
        }
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
    }
}

impl Sink for Pretty {
    fn field(&mut self, name: &Name) {
        self.pending = Some(name.clone());
    }

    fn element(&mut self, index: u64) {
        self.separate();
        let _ = write!(self.text, "[{index}] = ");
    }

    fn begin(&mut self, elements: Option<u64>) {
        self.name();
        self.text.push(if elements.is_some() { '[' } else { '{' });
        self.is_first.push(true);
    }

    fn end(&mut self, is_array: bool) {
        self.is_first.pop();
        self.text.push_str(if is_array { " ]" } else { " }" });
    }

    fn choice(&mut self, _: &Name) {
        self.name();
        self.text.push_str("{ ");
        self.is_first.push(true);
    }

    fn end_choice(&mut self) {
        self.is_first.pop();
        self.text.push_str(" }");
    }

    fn integer(&mut self, bits: u64, class: &Int) {
        // What a packet says for the reader's use is not shown.
        if class.role.is_some_and(|role| role != Role::Cpu) {
            self.pending = None;
            return;
        }
        self.name();
        let masked = if class.size == 64 { bits } else { bits & ((1 << class.size) - 1) };
        let shown = match class.base {
            2 => format!("0b{masked:0width$b}", width = class.size as usize),
            8 => {
                // Three bits a digit, the sign repeated into the last one.
                let digits = class.size.div_ceil(3);
                let mask = if 3 * digits >= 64 { u64::MAX } else { (1 << (3 * digits)) - 1 };
                format!("0{:o}", if class.signed { bits & mask } else { masked })
            }
            16 => {
                let digits = class.size.div_ceil(4);
                let mask = if 4 * digits >= 64 { u64::MAX } else { (1 << (4 * digits)) - 1 };
                format!("0x{:X}", if class.signed { bits & mask } else { masked })
            }
            _ if class.signed => format!("{}", bits as i64),
            _ => format!("{bits}"),
        };
        let Some(names) = &class.names else { return self.write(&shown) };
        let value = if class.signed { i128::from(bits as i64) } else { i128::from(bits) };
        let of_value = names
            .iter()
            .filter(|(_, ranges)| ranges.iter().any(|(from, to)| (*from..=*to).contains(&value)));
        let labels: Vec<String> =
            of_value.map(|(name, _)| format!("\"{}\"", escape(name.as_bytes()))).collect();
        let label = match labels.as_slice() {
            [] => "<unknown>".into(),
            [one] => one.clone(),
            many => format!("{{ {} }}", many.join(", ")),
        };
        let shown = if class.signed { (bits as i64).to_string() } else { bits.to_string() };
        let _ = write!(self.text, "( {label} : container = {shown} )");
    }

    fn float(&mut self, value: f64, _: bool) {
        self.name();
        let shown = general(value);
        self.text.push_str(&shown);
    }

    fn text(&mut self, text: &[u8]) {
        self.name();
        let _ = write!(self.text, "\"{}\"", escape(text));
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.begin(Some(bytes.len() as u64));
        for (index, byte) in bytes.iter().enumerate() {
            self.element(index as u64);
            let _ = write!(self.text, "{byte}");
        }
        self.end(true);
    }

    fn absent(&mut self) {
        self.name();
        self.text.push_str("<none>");
    }
}

/// A text with the escapes of C.
fn escape(text: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            '\x07' => shown.push_str("\\a"),
            '\x08' => shown.push_str("\\b"),
            '\x0c' => shown.push_str("\\f"),
            '\x0b' => shown.push_str("\\v"),
            '\x1b' => shown.push_str("\\e"),
            '"' => shown.push_str("\\\""),
            '\'' => shown.push_str("\\'"),
            '?' => shown.push_str("\\?"),
            '\\' => shown.push_str("\\\\"),
            other => shown.push(other),
        }
    }
    shown
}

/// `%g` of C: six significant digits.
fn general(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan".into() } else { "nan".into() };
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf".into() } else { "inf".into() };
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let scientific = format!("{value:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", (5 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(digits), exponent.abs())
}
