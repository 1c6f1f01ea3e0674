//! TSDL, the language of the metadata of CTF 1.8 (CTF 1.8.3, section 7 and appendix C).
//!
//! # How
//! A recursive descent over the words. Named types are looked up where they are used, in the innermost block that
//! declares them, so that what comes out has no names of types left.
//!
//! # What fools it
//! `byte_order` of the trace may follow types that depend on it: orders that are not given stay open until the
//! types are built.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Choice, Clock, Event, Fault, Integer, Length, Metadata, Order, Ranges};
use super::ast::{Stream, Type, uuid};
use super::lexer::{Token, words};

/// Types that may be nested in each other.
const DEPTH: usize = 64;

type Result<T> = std::result::Result<T, Fault>;

/// Reads metadata as text.
///
/// # Errors
/// The text is not TSDL, or lacks something that nothing can be read without.
pub(super) fn parse(text: &str) -> Result<Metadata> {
    let words = words(text)?;
    let mut parser = Parser {
        words,
        at: 0,
        end: text.len(),
        scopes: vec![HashMap::new()],
        depth: 0,
        metadata: Metadata { version: 1, ..Metadata::default() },
        is_declared: false,
    };
    while parser.at < parser.words.len() {
        parser.top()?;
    }
    if !parser.is_declared {
        return Err(Fault { at: text.len(), what: "there is no `trace` block".into() });
    }
    if parser.metadata.streams.is_empty() && !parser.metadata.events.is_empty() {
        parser.metadata.streams.push(Stream::default());
    }
    Ok(parser.metadata)
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(i128),
    Text(String),
    /// Words with points between: `clock.monotonic.value`.
    Path(Vec<String>),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Number(n) => n.to_string(),
            Value::Text(text) => text.clone(),
            Value::Path(path) => path.join("."),
        }
    }

    fn number(&self) -> Option<i128> {
        match self {
            Value::Number(n) => Some(*n),
            Value::Text(_) | Value::Path(_) => None,
        }
    }
}

/// What stands in a block: attributes and types, by their names with points between.
#[derive(Default)]
struct Block {
    values: Vec<(usize, String, Value)>,
    types: Vec<(String, Arc<Type>)>,
}

impl Block {
    fn value(&self, name: &str) -> Option<(usize, &Value)> {
        let found = self.values.iter().rev().find(|(_, known, _)| known == name);
        found.map(|(at, _, value)| (*at, value))
    }

    fn class(&mut self, name: &str) -> Option<Arc<Type>> {
        let at = self.types.iter().position(|(known, _)| known == name)?;
        Some(self.types.swap_remove(at).1)
    }

    /// A number that is not negative.
    fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some((at, value)) = self.value(name) else { return Ok(None) };
        let number = value.number().and_then(|n| u64::try_from(n).ok());
        number.map(Some).ok_or_else(|| Fault { at, what: format!("`{name}` is no number") })
    }

    fn signed(&self, name: &str) -> Result<i64> {
        let Some((at, value)) = self.value(name) else { return Ok(0) };
        let number = value.number().and_then(|n| i64::try_from(n).ok());
        number.ok_or_else(|| Fault { at, what: format!("`{name}` is no number of 64 bits") })
    }

    fn order(&self) -> Result<Option<Order>> {
        let Some((at, value)) = self.value("byte_order") else { return Ok(None) };
        match value.text().as_str() {
            "le" => Ok(Some(Order::Little)),
            "be" | "network" => Ok(Some(Order::Big)),
            "native" => Ok(None),
            other => Err(Fault { at, what: format!("`{other}` is no byte order") }),
        }
    }

    fn uuid(&self) -> Result<Option<[u8; 16]>> {
        let Some((at, value)) = self.value("uuid") else { return Ok(None) };
        let found = uuid(&value.text());
        found.map(Some).ok_or_else(|| Fault { at, what: "`uuid` is no UUID".into() })
    }
}

struct Parser {
    words: Vec<(usize, Token)>,
    at: usize,
    /// The length of the text.
    end: usize,
    /// Named types, those of the innermost block last; `struct x` with its keyword.
    scopes: Vec<HashMap<String, Arc<Type>>>,
    depth: usize,
    metadata: Metadata,
    is_declared: bool,
}

/// Words that C types consist of.
const C_TYPES: &[&str] = &[
    "void",
    "char",
    "short",
    "int",
    "long",
    "float",
    "double",
    "signed",
    "unsigned",
    "_Bool",
    "_Complex",
    "_Imaginary",
];

impl Parser {
    fn place(&self) -> usize {
        self.words.get(self.at).map_or(self.end, |word| word.0)
    }

    fn fault<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Fault { at: self.place(), what: what.into() })
    }

    fn peek(&self) -> Option<&Token> {
        self.words.get(self.at).map(|word| &word.1)
    }

    fn is_mark(&self, mark: &str) -> bool {
        matches!(self.peek(), Some(Token::Mark(m)) if *m == mark)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(w)) if w == word)
    }

    fn take_mark(&mut self, mark: &str) -> bool {
        let is = self.is_mark(mark);
        self.at += usize::from(is);
        is
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, mark: &str) -> Result<()> {
        if self.take_mark(mark) {
            return Ok(());
        }
        self.fault(format!("expected `{mark}`, found {}", self.found()))
    }

    fn found(&self) -> String {
        match self.peek() {
            None => "the end".into(),
            Some(Token::Word(word)) => format!("`{word}`"),
            Some(Token::Text(text)) => format!("{text:?}"),
            Some(Token::Number(n)) => n.to_string(),
            Some(Token::Mark(mark)) => format!("`{mark}`"),
        }
    }

    fn word(&mut self) -> Result<String> {
        if let Some(Token::Word(word)) = self.peek() {
            let word = word.clone();
            self.at += 1;
            return Ok(word);
        }
        self.fault(format!("expected a name, found {}", self.found()))
    }

    /// One declaration of the outermost level.
    fn top(&mut self) -> Result<()> {
        if self.take_mark(";") || self.type_declaration()? {
            return Ok(());
        }
        let at = self.place();
        let kind = self.word()?;
        if !["trace", "env", "clock", "stream", "event", "callsite"].contains(&kind.as_str()) {
            return Err(Fault { at, what: format!("unknown block `{kind}`") });
        }
        self.expect("{")?;
        let block = self.block()?;
        self.take_mark(";");
        match kind.as_str() {
            "trace" => self.trace(block),
            "env" => {
                let facts =
                    block.values.iter().map(|(_, name, value)| (name.clone(), value.text()));
                self.metadata.environment.extend(facts);
                Ok(())
            }
            "clock" => self.clock(&block),
            "stream" => self.stream(block),
            "event" => self.event(at, block),
            _ => Ok(()),
        }
    }

    fn trace(&mut self, mut block: Block) -> Result<()> {
        self.is_declared = true;
        self.metadata.order = block.order()?;
        self.metadata.uuid = block.uuid()?;
        self.metadata.packet_header = block.class("packet.header");
        Ok(())
    }

    fn clock(&mut self, block: &Block) -> Result<()> {
        let name = block.value("name").map(|(_, value)| value.text()).unwrap_or_default();
        let frequency = block.number("freq")?.unwrap_or(1_000_000_000);
        if frequency == 0 {
            return self.fault("a clock of frequency 0");
        }
        self.metadata.clocks.push(Clock {
            name,
            frequency,
            offset_seconds: block.signed("offset_s")?,
            offset_cycles: block.signed("offset")?,
            uuid: block.uuid()?,
        });
        Ok(())
    }

    fn stream(&mut self, mut block: Block) -> Result<()> {
        let id = block.number("id")?.unwrap_or(0);
        if self.metadata.streams.iter().any(|stream| stream.id == id) {
            return self.fault(format!("the stream {id} is declared twice"));
        }
        self.metadata.streams.push(Stream {
            id,
            packet_context: block.class("packet.context"),
            event_header: block.class("event.header"),
            event_context: block.class("event.context"),
            clock: None,
        });
        Ok(())
    }

    fn event(&mut self, at: usize, mut block: Block) -> Result<()> {
        let id = block.number("id")?.unwrap_or(0);
        let Some((_, name)) = block.value("name") else {
            return Err(Fault { at, what: format!("the event {id} has no name") });
        };
        let name = name.text();
        let stream = block.number("stream_id")?;
        let stream = stream.or(self.metadata.streams.first().map(|stream| stream.id)).unwrap_or(0);
        self.metadata.events.push(Event {
            id,
            stream,
            name,
            context: block.class("context"),
            fields: block.class("fields"),
        });
        Ok(())
    }

    /// The inside of a block, up to and with its closing brace.
    fn block(&mut self) -> Result<Block> {
        self.scopes.push(HashMap::new());
        let mut block = Block::default();
        while !self.take_mark("}") {
            if self.take_mark(";") || self.type_declaration()? {
                continue;
            }
            let at = self.place();
            let name = self.path()?.join(".");
            if self.take_mark(":=") {
                let class = self.type_specifier()?;
                block.types.push((name, class));
            } else {
                self.expect("=")?;
                let value = self.value()?;
                block.values.push((at, name, value));
            }
            self.expect(";")?;
        }
        self.scopes.pop();
        Ok(block)
    }

    /// Words with points between, or a text.
    fn path(&mut self) -> Result<Vec<String>> {
        if let Some(Token::Text(text)) = self.peek() {
            let text = text.clone();
            self.at += 1;
            return Ok(vec![text]);
        }
        let mut path = vec![self.word()?];
        while self.take_mark(".") || self.take_mark("->") {
            path.push(self.word()?);
        }
        Ok(path)
    }

    fn value(&mut self) -> Result<Value> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let mut text = text.clone();
                self.at += 1;
                // Texts that follow each other are one, as in C.
                while let Some(Token::Text(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Ok(Value::Text(text))
            }
            Some(Token::Word(_)) => Ok(Value::Path(self.path()?)),
            _ => Ok(Value::Number(self.integer()?)),
        }
    }

    /// A number with its sign.
    fn integer(&mut self) -> Result<i128> {
        let negative = self.take_mark("-");
        if !negative {
            self.take_mark("+");
        }
        let Some(Token::Number(n)) = self.peek() else {
            return self.fault(format!("expected a number, found {}", self.found()));
        };
        let n = i128::from(*n);
        self.at += 1;
        Ok(if negative { -n } else { n })
    }

    /// `typealias`, `typedef`, or a named structure, variant or enumeration on its own; false if there is none.
    fn type_declaration(&mut self) -> Result<bool> {
        if self.take_word("typealias") {
            let class = self.type_specifier()?;
            let class = self.pointers(class)?;
            self.expect(":=")?;
            let mut name = Vec::new();
            while !self.is_mark(";") {
                match self.peek() {
                    Some(Token::Word(word)) => name.push(word.clone()),
                    Some(Token::Mark("*")) => name.push("*".into()),
                    _ => return self.fault(format!("expected a name, found {}", self.found())),
                }
                self.at += 1;
            }
            self.at += 1;
            self.declare(name.join(" "), class);
            return Ok(true);
        }
        if self.take_word("typedef") {
            let class = self.type_specifier()?;
            loop {
                let (name, class) = self.declarator(class.clone())?;
                self.declare(name, class);
                if !self.take_mark(",") {
                    break;
                }
            }
            self.expect(";")?;
            return Ok(true);
        }
        let is_declaration = ["struct", "variant", "enum"].iter().any(|word| self.is_word(word))
            && matches!(self.words.get(self.at + 1), Some((_, Token::Word(_))));
        if is_declaration {
            self.type_specifier()?;
            self.expect(";")?;
        }
        Ok(is_declaration)
    }

    fn declare(&mut self, name: String, class: Arc<Type>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, class);
        }
    }

    fn named(&self, name: &str) -> Option<Arc<Type>> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    /// A type, without the name of what has it.
    fn type_specifier(&mut self) -> Result<Arc<Type>> {
        self.depth += 1;
        if self.depth > DEPTH {
            return self.fault(format!("more than {DEPTH} types in each other"));
        }
        let class = self.type_specifier_within()?;
        self.depth -= 1;
        Ok(class)
    }

    fn type_specifier_within(&mut self) -> Result<Arc<Type>> {
        while self.take_word("const") {}
        let at = self.place();
        let word = self.word()?;
        let class = match word.as_str() {
            "integer" => Arc::new(Type::Integer(self.integer_class()?)),
            "floating_point" => Arc::new(self.float_class()?),
            "string" => {
                if self.take_mark("{") {
                    self.block()?;
                }
                Arc::new(Type::Text(Length::Terminated))
            }
            "struct" => return self.struct_class(),
            "variant" => return self.variant_class(),
            "enum" => return self.enum_class(),
            _ => {
                let mut name = word.clone();
                if C_TYPES.contains(&word.as_str()) {
                    while let Some(Token::Word(next)) = self.peek() {
                        if next != "const" && !C_TYPES.contains(&next.as_str()) {
                            break;
                        }
                        if next != "const" {
                            name = format!("{name} {next}");
                        }
                        self.at += 1;
                    }
                }
                // A pointer has a type of its own: `void *`.
                let mut found = self.named(&name);
                while self.is_mark("*") && self.named(&format!("{name} *")).is_some() {
                    name.push_str(" *");
                    self.at += 1;
                    found = self.named(&name);
                }
                let what = format!("the type `{name}` is not declared");
                found.ok_or(Fault { at, what })?
            }
        };
        while self.take_word("const") {}
        Ok(class)
    }

    /// Any `*` that follow a type: what they point to does not matter.
    fn pointers(&mut self, class: Arc<Type>) -> Result<Arc<Type>> {
        if self.is_mark("*") {
            return self.fault("a pointer to a type that declares no pointers");
        }
        Ok(class)
    }

    fn integer_class(&mut self) -> Result<Integer> {
        let at = self.place();
        self.expect("{")?;
        let block = self.block()?;
        let Some(size) = block.number("size")? else {
            return Err(Fault { at, what: "an integer without a size".into() });
        };
        if !(1..=64).contains(&size) {
            return Err(Fault { at, what: format!("an integer of {size} bits; 1 to 64 are read") });
        }
        let align = block.number("align")?;
        check_alignment(at, align)?;
        let word = |name: &str| block.value(name).map(|(_, value)| value.text());
        let signed = match word("signed").as_deref() {
            None | Some("false" | "FALSE" | "0") => false,
            Some("true" | "TRUE" | "1") => true,
            Some(other) => {
                return Err(Fault { at, what: format!("`{other}` is neither true nor false") });
            }
        };
        let base = match word("base").as_deref() {
            None | Some("decimal" | "dec" | "d" | "i" | "u" | "10") => 10,
            Some("hexadecimal" | "hex" | "x" | "X" | "p" | "16") => 16,
            Some("octal" | "oct" | "o" | "8") => 8,
            Some("binary" | "bin" | "b" | "2") => 2,
            Some(other) => return Err(Fault { at, what: format!("`{other}` is no base") }),
        };
        let is_text = matches!(
            word("encoding").as_deref(),
            Some("UTF8" | "utf8" | "utf-8" | "UTF-8" | "ASCII" | "ascii")
        );
        let clock = block.value("map").and_then(|(_, value)| match value {
            Value::Path(path) if path.len() == 3 && path[0] == "clock" => Some(path[1].clone()),
            _ => None,
        });
        let order = block.order()?;
        Ok(Integer { size, align, signed, base, order, is_text, clock, ..Integer::default() })
    }

    fn float_class(&mut self) -> Result<Type> {
        let at = self.place();
        self.expect("{")?;
        let block = self.block()?;
        let align = block.number("align")?;
        check_alignment(at, align)?;
        let size = match (block.number("exp_dig")?, block.number("mant_dig")?) {
            (Some(8), Some(24)) => 32,
            (Some(11), Some(53)) => 64,
            (exponent, mantissa) => {
                let shown = |n: Option<u64>| n.map_or("no".into(), |n| n.to_string());
                let (exponent, mantissa) = (shown(exponent), shown(mantissa));
                let what = format!(
                    "a floating-point number of {exponent} exponent and {mantissa} mantissa digits; \
                     8 and 24, and 11 and 53 are read"
                );
                return Err(Fault { at, what });
            }
        };
        Ok(Type::Float { size, align, order: block.order()? })
    }

    /// The name of a structure, variant or enumeration, if it has one.
    fn tag(&mut self) -> Option<String> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        let word = word.clone();
        self.at += 1;
        Some(word)
    }

    fn struct_class(&mut self) -> Result<Arc<Type>> {
        let at = self.place();
        let name = if self.is_word("align") { None } else { self.tag() };
        if !self.is_mark("{") {
            let Some(name) = name else { return self.fault("a structure without fields or name") };
            let found = self.named(&format!("struct {name}"));
            let what = format!("the structure `{name}` is not declared");
            return found.ok_or(Fault { at, what });
        }
        self.at += 1;
        let fields = self.members()?;
        let mut align = 1;
        if self.take_word("align") {
            self.expect("(")?;
            let at = self.place();
            align = u64::try_from(self.integer()?).unwrap_or(0);
            check_alignment(at, Some(align))?;
            self.expect(")")?;
        }
        let class = Arc::new(Type::Struct { fields, align });
        if let Some(name) = name {
            self.declare(format!("struct {name}"), class.clone());
        }
        Ok(class)
    }

    /// The fields of a structure or variant, up to and with the closing brace.
    fn members(&mut self) -> Result<Vec<(String, Arc<Type>)>> {
        self.scopes.push(HashMap::new());
        let mut members: Vec<(String, Arc<Type>)> = Vec::new();
        let mut known = std::collections::HashSet::new();
        while !self.take_mark("}") {
            if self.take_mark(";") || self.is_alias()? {
                continue;
            }
            let class = self.type_specifier()?;
            loop {
                let (name, class) = self.declarator(class.clone())?;
                if !known.insert(name.clone()) {
                    return self.fault(format!("two fields are named `{name}`"));
                }
                members.push((name, class));
                if !self.take_mark(",") {
                    break;
                }
            }
            self.expect(";")?;
        }
        self.scopes.pop();
        Ok(members)
    }

    /// A declaration of a named type among fields, as far as it cannot be a field.
    fn is_alias(&mut self) -> Result<bool> {
        if self.is_word("typealias") || self.is_word("typedef") {
            return self.type_declaration();
        }
        Ok(false)
    }

    /// The name of a field or type with its lengths in brackets, and the type that these make.
    fn declarator(&mut self, class: Arc<Type>) -> Result<(String, Arc<Type>)> {
        let class = self.pointers(class)?;
        let name = self.word()?;
        let mut lengths = Vec::new();
        while self.take_mark("[") {
            lengths.push(match self.peek() {
                Some(Token::Number(n)) => {
                    let n = *n;
                    self.at += 1;
                    Length::Fixed(n)
                }
                _ => Length::Of(self.path()?),
            });
            self.expect("]")?;
        }
        let array = |element, length| Arc::new(Type::Array { element, length, align: 1 });
        // `x[2][3]` is an array of two arrays of three.
        Ok((name, lengths.into_iter().rev().fold(class, array)))
    }

    fn variant_class(&mut self) -> Result<Arc<Type>> {
        let at = self.place();
        let name = self.tag();
        let mut selector = None;
        if self.take_mark("<") {
            selector = Some(self.path()?);
            self.expect(">")?;
        }
        let class = if self.take_mark("{") {
            let choices = self.members()?.into_iter();
            let choices =
                choices.map(|(name, class)| Choice { name, ranges: None, class }).collect();
            let class = Arc::new(Type::Variant { selector: None, choices });
            if let Some(name) = name {
                self.declare(format!("variant {name}"), class.clone());
            }
            class
        } else {
            let name = name.unwrap_or_default();
            let what = format!("the variant `{name}` is not declared");
            self.named(&format!("variant {name}")).ok_or(Fault { at, what })?
        };
        match &*class {
            Type::Variant { choices, .. } if selector.is_some() => {
                Ok(Arc::new(Type::Variant { selector, choices: choices.clone() }))
            }
            _ => Ok(class),
        }
    }

    fn enum_class(&mut self) -> Result<Arc<Type>> {
        let at = self.place();
        let name = self.tag();
        let container = if self.take_mark(":") { Some(self.type_specifier()?) } else { None };
        if !self.is_mark("{") {
            let name = name.unwrap_or_default();
            let what = format!("the enumeration `{name}` is not declared");
            return self.named(&format!("enum {name}")).ok_or(Fault { at, what });
        }
        let container = match container {
            Some(class) => class,
            None => {
                let what = "an enumeration without a type, where `int` is not declared";
                self.named("int").ok_or(Fault { at, what: what.into() })?
            }
        };
        let Type::Integer(integer) = &*container else {
            return Err(Fault {
                at,
                what: "an enumeration of something other than integers".into(),
            });
        };
        let mut integer = integer.clone();
        self.at += 1;
        integer.names = Some(self.enumerators()?);
        let class = Arc::new(Type::Integer(integer));
        if let Some(name) = name {
            self.declare(format!("enum {name}"), class.clone());
        }
        Ok(class)
    }

    fn enumerators(&mut self) -> Result<Vec<(String, Ranges)>> {
        let mut names: Vec<(String, Ranges)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut next = 0;
        while !self.take_mark("}") {
            let name = match self.peek() {
                Some(Token::Text(text)) => {
                    let text = text.clone();
                    self.at += 1;
                    text
                }
                _ => self.word()?,
            };
            let mut range = (next, next);
            if self.take_mark("=") {
                let from = self.integer()?;
                let to = if self.take_mark("...") { self.integer()? } else { from };
                if to < from {
                    return self.fault(format!("the range of `{name}` ends before it begins"));
                }
                range = (from, to);
            }
            next = range.1 + 1;
            let place = *places.entry(name.clone()).or_insert(names.len());
            match names.get_mut(place) {
                Some((_, ranges)) => ranges.push(range),
                None => names.push((name, vec![range])),
            }
            if !self.take_mark(",") && !self.is_mark("}") {
                return self.fault(format!("expected `,` or `}}`, found {}", self.found()));
            }
        }
        Ok(names)
    }
}

/// Alignments are powers of two.
fn check_alignment(at: usize, align: Option<u64>) -> Result<()> {
    match align {
        None => Ok(()),
        Some(align) if align.is_power_of_two() && align <= 1 << 20 => Ok(()),
        Some(align) => Err(Fault { at, what: format!("an alignment of {align} bits") }),
    }
}
