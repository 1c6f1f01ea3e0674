//! Colour where it helps and is wanted (NO_COLOR, CLICOLOR_FORCE, a terminal).

use std::io::IsTerminal;

/// Whether to use escape sequences.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// For what goes to standard output.
    pub fn stdout() -> Paint {
        let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|v| v != "0");
        Paint(!set("NO_COLOR") && (forced || std::io::stdout().is_terminal()))
    }

    /// What matters.
    pub fn bold(self, text: &str) -> String {
        if self.0 { format!("\x1b[1m{text}\x1b[0m") } else { text.into() }
    }

    /// What may be passed over.
    pub fn dim(self, text: &str) -> String {
        if self.0 { format!("\x1b[2m{text}\x1b[0m") } else { text.into() }
    }
}
