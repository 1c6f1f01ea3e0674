//! Tracepoints as a user names them.

use std::str::FromStr;

/// Tracepoints by a pattern of their system and name, as `drm:*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPattern {
    system: String,
    event: String,
}

impl FromStr for EventPattern {
    type Err = String;

    /// `SYSTEM:EVENT`, where `*` stands for any text.
    fn from_str(text: &str) -> Result<EventPattern, String> {
        match text.split_once(':') {
            Some((system, event)) if !system.is_empty() && !event.is_empty() => {
                Ok(EventPattern { system: system.to_owned(), event: event.to_owned() })
            }
            _ => Err("write SYSTEM:EVENT, as in drm:drm_vblank_event or i915:*".into()),
        }
    }
}

impl std::fmt::Display for EventPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.system, self.event)
    }
}

impl EventPattern {
    /// Whether a tracepoint is like it.
    pub(crate) fn matches(&self, system: &str, event: &str) -> bool {
        is_like(system, &self.system) && is_like(event, &self.event)
    }
}

/// Whether a text is like a pattern in which `*` stands for any text.
fn is_like(text: &str, pattern: &str) -> bool {
    let Some((begins, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut text) = text.strip_prefix(begins) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let ends = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_are_named_by_system_and_event() {
        let pattern = |text: &str| text.parse::<EventPattern>();
        let likes = |text: &str, system, event| pattern(text).unwrap().matches(system, event);
        assert!(likes("i915:*", "i915", "i915_request_in"));
        assert!(likes("*:*_request_*n", "i915", "i915_request_in"));
        assert!(likes("sched:sched_switch", "sched", "sched_switch"));
        assert!(!likes("i915:*", "xe", "i915_request_in"));
        assert!(!likes("sched:sched_switch", "sched", "sched_switch_x"));
        assert!(!likes("a:b*b", "a", "b"), "a text is not used twice");
        assert_eq!(pattern("i915:*").unwrap().to_string(), "i915:*");
        for bad in ["i915", ":x", "x:", ""] {
            assert!(pattern(bad).unwrap_err().contains("SYSTEM:EVENT"), "{bad}");
        }
    }
}
