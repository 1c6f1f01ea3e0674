//! The generated pages: `docs/schema.md` from the declarations in `schema`, `docs/cli.md` from
//! the program's own help, and benchmark tables between their markers from `bench/results`.
//!
//! A page that can be made is never written by hand, and `cargo xtask docs --check` fails when
//! one lags behind, or when a link between pages leads nowhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{bench, source};

/// Writes every generated page that differs.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in pages(root)? {
        if std::fs::read_to_string(root.join(&path)).is_ok_and(|old| old == text) {
            continue;
        }
        std::fs::write(root.join(&path), text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        println!("docs: wrote {}", path.display());
    }
    Ok(())
}

/// The pages that are not what [`write()`] would make of them, with the first line that differs.
pub fn stale(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (path, text) in pages(root)? {
        let old = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        if let Some((line, is, should)) = first_difference(&old, &text) {
            found.push(format!(
                "{}:{line} says `{is}` where `{should}` belongs; run `cargo xtask docs`",
                path.display()
            ));
        }
    }
    for path in markdown(root)? {
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let folder = root.join(&path);
        let folder = folder.parent().unwrap_or(root);
        for (line, target) in links(&text) {
            if !folder.join(target).exists() {
                found.push(format!("{}:{line} leads to `{target}`, not there", path.display()));
            }
        }
    }
    Ok(found)
}

/// The pages that people read: those at the root and in `docs/`.
fn markdown(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = source::files(root)?;
    pages.retain(|path| {
        let is_ours = path.parent() == Some(Path::new("")) || path.starts_with("docs");
        is_ours && path.extension().is_some_and(|e| e == "md")
    });
    Ok(pages)
}

/// The links of a page that lead to files of the repository, with their lines from 1.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") {
                found.push((i + 1, target));
            }
        }
    }
    found
}

/// Every page that is made, wholly or in part: its path from `root` and its whole text.
fn pages(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut pages = vec![(PathBuf::from("docs/schema.md"), gpuwhy_schema::docs::markdown())];
    if root.join("crates/cli/Cargo.toml").exists() {
        pages.push((PathBuf::from("docs/cli.md"), help_pages(root)?));
    }
    for path in markdown(root)? {
        if pages.iter().any(|(made, _)| *made == path) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let made = bench::fill(&text, |wanted| bench::table(root, wanted))
            .with_context(|| format!("cannot fill the tables of `{}`", path.display()))?;
        if made != text {
            pages.push((path, made));
        }
    }
    Ok(pages)
}

/// The help pages of the program and of each of its commands: the page `docs/cli.md`.
fn help_pages(root: &Path) -> Result<String> {
    let program = built(root)?;
    let mut page = String::from(
        "# The commands\n\nMade by `cargo xtask docs` from the programs' own help; do not edit.\n",
    );
    add_help(&mut page, root, &program, &mut Vec::new())?;
    Ok(page)
}

/// Adds the help of a command, and of its subcommands.
fn add_help(page: &mut String, root: &Path, program: &Path, path: &mut Vec<String>) -> Result<()> {
    let out = Command::new(program)
        .args(&*path)
        .arg("--help")
        .current_dir(root)
        // The width of somebody's terminal is not part of the page.
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .output()
        .with_context(|| format!("cannot run `{}`", program.display()))?;
    let name = ["gpuwhy".to_owned()].into_iter().chain(path.iter().cloned());
    let name = name.collect::<Vec<_>>().join(" ");
    if !out.status.success() {
        bail!("`{name} --help` failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let help = String::from_utf8(out.stdout)
        .with_context(|| format!("`{name} --help` printed what is not UTF-8"))?;
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    page.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", text.trim_end()));
    for command in commands(&help) {
        path.push(command.to_owned());
        add_help(page, root, program, path)?;
        path.pop();
    }
    Ok(())
}

/// The commands that a help page lists and that have a page here. `query` is the SQL engine's program,
/// which not every build has; docs/query.md describes it.
fn commands(help: &str) -> Vec<&str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        // Descriptions that take several lines are indented further.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| !matches!(*name, "help" | "query"))
        .collect()
}

/// A `gpuwhy` with its companion programs beside it: the one that GPUWHY_BIN names, or one that Cargo
/// builds now, which compiles more than a build of the whole workspace left behind, as other features
/// are on.
fn built(root: &Path) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("GPUWHY_BIN") {
        return Ok(named.into());
    }
    let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let packages = ["gpuwhy", "gpuwhy-bench", "gpuwhy-probe"];
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    let status = cargo()
        .args(["build", "--quiet"])
        .args(packages)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("gpuwhy does not build");
    }
    let out = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run `cargo metadata`")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).context("`cargo metadata` printed no JSON")?;
    let target = metadata["target_directory"].as_str().context("no `target_directory`")?;
    Ok(Path::new(target).join("debug/gpuwhy"))
}

/// The first line, from 1, at which the texts differ, as it is and as it should be.
fn first_difference<'a>(is: &'a str, should: &'a str) -> Option<(usize, &'a str, &'a str)> {
    if is == should {
        return None;
    }
    let (mut a, mut b) = (is.lines(), should.lines());
    let mut line = 1;
    loop {
        match (a.next(), b.next()) {
            (x, y) if x == y && x.is_some() => line += 1,
            (x, y) => return Some((line, x.unwrap_or("(the end)"), y.unwrap_or("(the end)"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_found_and_links_to_the_world_are_not() {
        let text = "[a](docs/a.md)\n[b](https://x.y/z) [c](../c.h#part) [d](#here)\n";
        assert_eq!(links(text), [(1, "docs/a.md"), (2, "../c.h")]);
    }

    #[test]
    fn the_commands_of_a_help_page_are_its_list() {
        let help = "About\n\nCommands:\n  record  Record a trace\n          at once\n  query   SQL\n  help    \
                    Print\n\nOptions:\n  -h, --help\n";
        assert_eq!(commands(help), ["record"]);
    }

    #[test]
    fn a_stale_page_is_told_by_its_first_wrong_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some((2, "b", "c")));
        assert_eq!(first_difference("a\n", "a\nc\n"), Some((2, "(the end)", "c")));
        assert_eq!(first_difference("a", "a\n"), Some((2, "(the end)", "(the end)")));
    }
}
