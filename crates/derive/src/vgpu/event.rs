//! An event of a kernel's tracer, as the model takes it.

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Field<'a> {
    /// A number, a flag or a pointer; one of 64 bits without a sign is taken as its bits.
    Integer(i64),
    /// A text.
    Text(&'a str),
}

/// An event of a kernel's tracer.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// When, ns on the clock of the trace.
    pub time: i64,
    /// The thread that caused it, if known; 0 is the idle task.
    pub tid: Option<i64>,
    /// The name of that thread or of its process.
    pub comm: Option<&'a str>,
    /// As the tracer names it, with or without its system: `i915:i915_request_in`.
    pub name: &'a str,
    /// The fields with their names.
    pub fields: &'a [(&'a str, Field<'a>)],
}

impl Event<'_> {
    /// The name without the system before it.
    pub fn short_name(&self) -> &str {
        self.name.rsplit(':').next().unwrap_or(self.name)
    }

    /// The number in the first of these fields that there is; tracers and kernels spell some differently.
    pub fn integer(&self, names: &[&str]) -> Option<i64> {
        names.iter().find_map(|name| match self.field(name)? {
            Field::Integer(value) => Some(*value),
            Field::Text(text) => number(text),
        })
    }

    /// The text in the first of these fields that there is.
    pub fn text(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| match self.field(name)? {
            Field::Text(text) => Some(*text),
            Field::Integer(_) => None,
        })
    }

    fn field(&self, name: &str) -> Option<&Field<'_>> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// A number as tracers write it: decimal, or hexadecimal after `0x`.
pub fn number(text: &str) -> Option<i64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(|value| value as i64);
    }
    text.parse::<i64>().ok().or_else(|| text.parse::<u64>().ok().map(|value| value as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_any_spelling_and_read_as_numbers() {
        let fields = [
            ("hw_id", Field::Text("7")),
            ("workload", Field::Text("0xffff88000000a000")),
            ("timeline", Field::Text("gfx")),
            ("left", Field::Integer(-3)),
        ];
        let name = "i915:i915_gem_request_add";
        let event = Event { time: 0, tid: None, comm: None, name, fields: &fields };
        assert_eq!(event.short_name(), "i915_gem_request_add");
        assert_eq!(event.integer(&["ctx", "hw_id"]), Some(7));
        assert_eq!(event.integer(&["workload"]), Some(0xffff_8800_0000_a000_u64 as i64));
        assert_eq!(event.integer(&["left"]), Some(-3));
        assert_eq!((event.integer(&["timeline"]), event.integer(&["dev"])), (None, None));
        assert_eq!(event.text(&["timeline"]), Some("gfx"));
    }
}
