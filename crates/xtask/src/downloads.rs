//! What is downloaded is what somebody has looked at: packages of Python and npm by their hashes,
//! programs of Cargo by their lock files, images by their digests.

use std::path::Path;

use anyhow::{Context, Result};

use crate::source;

/// Every download that anything else under the same name could take the place of.
pub fn run(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in source::files(root)? {
        let name = path.display().to_string();
        let file = name.rsplit('/').next().unwrap_or(&name);
        let is_script = file.ends_with(".sh") || file == "Makefile";
        let is_image = file.starts_with("Dockerfile") || file.ends_with(".yaml");
        if is_script || is_image {
            let text = std::fs::read_to_string(root.join(&path))
                .with_context(|| format!("cannot read `{name}`"))?;
            found.extend(check(&name, &text));
        }
    }
    Ok(found)
}

fn check(name: &str, text: &str) -> Vec<String> {
    let says = |(line, why): (usize, &str)| format!("{name}:{line}: {why}");
    commands(text)
        .filter_map(|(line, command)| Some((line, unpinned(&command)?)))
        .map(says)
        .collect()
}

/// The commands of a text, each with the number of its first line; lines that end in `\` go on.
fn commands(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (at, first) = lines.next()?;
        let mut command = first.to_owned();
        while command.ends_with('\\') {
            command.pop();
            command += lines.next().map_or("", |(_, more)| more.trim());
        }
        Some((at + 1, command))
    })
}

/// Why a command may bring something else tomorrow than today, if it may.
fn unpinned(command: &str) -> Option<&'static str> {
    let code = command.trim_start();
    if code.starts_with('#') {
        return None;
    }
    let has = |what: &str| code.contains(what);
    if (has("pip install") || has("pip download")) && !has("--require-hashes") {
        return Some("pip takes any file under a name without --require-hashes");
    }
    if has("npm install") {
        return Some("`npm ci` takes packages by the hashes of package-lock.json only");
    }
    if has("cargo install") && !has("--locked") {
        return Some("`cargo install` takes the newest dependencies without --locked");
    }
    if (has("curl ") || has("wget ")) && !has("sha256sum") {
        return Some("a download without its hash");
    }
    let image = code.strip_prefix("FROM ").or_else(|| code.strip_prefix("image: "));
    let image = image.or_else(|| code.strip_prefix("- image: "))?.split_whitespace().next()?;
    (!image.contains("@sha256:") && !image.contains("${"))
        .then_some("an image without its digest: a tag may be moved")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_that_may_be_another_file_tomorrow_is_named_with_its_line() {
        let text = "true\npython3 -m pip install \\\n    --quiet duckdb\nnpm install x\ncargo install y\n\
                    curl -O https://host/file\nFROM rust:1.95\n  image: registry.example/x:1\n";
        let lines: Vec<String> = check("a.sh", text)
            .iter()
            .map(|found| found.split(": ").next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(lines, ["a.sh:2", "a.sh:4", "a.sh:5", "a.sh:6", "a.sh:7", "a.sh:8"]);
    }

    #[test]
    fn what_is_pinned_passes() {
        let text = "# npm install x\npip install \\\n  --require-hashes -r x.txt\nnpm ci\n\
                    cargo install --locked y@1\nFROM ${RUST_IMAGE} AS build\nimage: r/x@sha256:0123\n";
        assert_eq!(check("a.sh", text), [""; 0]);
    }
}
