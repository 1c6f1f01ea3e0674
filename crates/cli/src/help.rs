//! All help pages as one Markdown page, for `docs/cli.md`.

use std::fmt::Write;

use clap::CommandFactory;

use crate::args::Cli;

/// The page.
pub fn markdown() -> String {
    let mut out = String::from(
        "# The commands\n\nMade by `cargo xtask docs` from `gpuwhy help-all`; do not edit.\n",
    );
    let mut root = Cli::command();
    root.build();
    page(&mut out, &mut root);
    out
}

fn page(out: &mut String, command: &mut clap::Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_string();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(out, "\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for sub in command.get_subcommands_mut() {
        if !sub.is_hide_set() && sub.get_name() != "help" {
            page(out, sub);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_has_a_page() {
        let page = super::markdown();
        for command in ["gpuwhy record", "gpuwhy diagnose", "gpuwhy bench injectors"] {
            assert!(page.contains(&format!("## `{command}`")), "{command}");
        }
        assert!(!page.contains("__exec"));
    }
}
