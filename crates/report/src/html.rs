//! The two functions through which text from a trace reaches a page.
//!
//! A process can be named `</script><script>…` or can turn the reading direction of a whole
//! line, so besides HTML's own characters everything invisible is made visible.

use std::fmt::Write;

use gpuwhy_schema::text::plain;
use serde::Serialize;

/// `text` for HTML, as content or as a quoted attribute.
pub fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// `value` as JSON that may stand inside a script element: no `<` that could end it, nothing that
/// is not ASCII, so that the page's encoding cannot matter. The script shows strings as text
/// only, through the same rule for the unseen.
pub fn json(value: &impl Serialize) -> String {
    // Our own types have neither maps with odd keys nor failing serializers.
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\'' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            // Delete is ASCII, does not show, and may stand in JSON as it is.
            c if c.is_ascii() && c != '\u{7f}' => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place() {
        assert_eq!(
            esc("<img src=x onerror='a'>\"&"),
            "&lt;img src=x onerror=&#39;a&#39;&gt;&quot;&amp;"
        );
        assert_eq!(esc("a\u{202e}b\u{0}c\nd"), "a\\u{202e}b\\u{0}c d");
        assert_eq!(
            json(&"</script><!--\u{2028}é😀\u{7f}"),
            "\"\\u003c/script\\u003e\\u003c!--\\u2028\\u00e9\\ud83d\\ude00\\u007f\""
        );
    }

    #[test]
    fn json_that_was_made_safe_still_says_the_same() {
        let text = "</script>\u{202e}&'\"\\ \u{1f600}";
        assert_eq!(serde_json::from_str::<String>(&json(&text)).unwrap(), text);
    }
}
