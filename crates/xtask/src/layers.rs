//! Each crate uses only what its row allows, and nothing depends upward or sideways.
//!
//! The table below is the one place where the arrows between crates are declared;
//! `ARCHITECTURE.md` explains them. Arrows are read from `cargo metadata`, so what is checked is
//! what Cargo builds. Two promises that manifests cannot show are checked in the text: the pure
//! crates name no file, clock, process or thread, and every crate takes the workspace's lints.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::source;

/// What one crate may use.
struct Row {
    /// The crate's folder; libraries among the packages are called `gpuwhy-` and this.
    name: &'static str,
    /// Ours that it may use.
    uses: &'static [&'static str],
    /// Ours that its tests may use besides.
    tests: &'static [&'static str],
    /// All that it may use of others', where that is a promise.
    others: Option<&'static [&'static str]>,
    /// Whether it opens no file and reads no clock.
    pure: bool,
}

const fn row(name: &'static str, uses: &'static [&'static str]) -> Row {
    Row { name, uses, tests: &[], others: None, pure: false }
}

const ROWS: &[Row] = &[
    // Floor 1.
    Row {
        others: Some(&["arrow-array", "arrow-schema", "thiserror"]),
        pure: true,
        ..row("schema", &[])
    },
    // `loom` is compiled into its own test build only.
    Row { others: Some(&["libc", "loom"]), ..row("wire", &[]) },
    Row { others: Some(&["arrow-ipc", "parquet", "thiserror"]), ..row("guard", &[]) },
    Row { others: Some(&["memchr"]), pure: true, ..row("tracepoint", &["schema"]) },
    // eBPF to PTX, from bytes to text; no file, no process.
    Row {
        others: Some(&["cpp_demangle", "lz4_flex", "object", "thiserror", "zstd"]),
        pure: true,
        ..row("gpubpf", &[])
    },
    // Floor 2. What one derives reaches the other as rows, in tests too.
    Row { pure: true, ..row("derive", &["schema"]) },
    Row { pure: true, ..row("diagnose", &["schema"]) },
    // Floor 3: these three never see each other.
    row("store", &["schema", "guard"]),
    Row {
        tests: &["testkit", "standin", "gpubpf"],
        ..row("collect", &["schema", "tracepoint", "wire"])
    },
    row("formats", &["schema", "guard", "tracepoint"]),
    // Judgement on one side, the network on the other; of hosts it knows nothing.
    row("fleet", &["schema", "diagnose"]),
    // Floor 4.
    Row { pure: true, ..row("report", &["schema"]) },
    row(
        "engine",
        &["schema", "wire", "derive", "diagnose", "store", "collect", "formats", "fleet", "report"],
    ),
    // Floor 5. The query engine is half an hour of compiling, so no crate of ours uses the one that
    // carries it; `engine` runs its program.
    row("query", &["schema", "store", "derive"]),
    Row {
        tests: &["inject", "standin", "testkit"],
        ..row(
            "cli",
            &["schema", "wire", "diagnose", "store", "collect", "formats", "fleet", "engine"],
        )
    },
    // Its simulated device shares maps with the kernel.
    Row {
        tests: &["interpose", "standin", "testkit"],
        ..row("probe", &["schema", "wire", "gpubpf", "collect"])
    },
    row(
        "bench",
        &["schema", "store", "collect", "diagnose", "formats", "fleet", "engine", "testkit"],
    ),
    // In other people's processes.
    Row {
        others: Some(&["libc", "loom"]),
        tests: &["standin", "testkit"],
        ..row("inject", &["wire"])
    },
    // Between programs and their GPU driver.
    Row { others: Some(&["libc"]), ..row("interpose", &["wire"]) },
    // `pyo3` is Python's C interface.
    Row { others: Some(&["pyo3"]), ..row("python", &["wire"]) },
    // Beside the house.
    row("testkit", &["schema", "wire"]),
    // It executes kernels in the simulator.
    row("standin", &["testkit", "gpubpf"]),
    row("xtask", &["schema"]),
];

/// Crates of others' that only some of ours may use.
const KEPT: &[(&str, &[&str], &str)] = &[
    ("libbpf-rs", &["collect"], "only `collect` speaks to the kernel's BPF"),
    ("libbpf-sys", &["collect"], "only `collect` speaks to the kernel's BPF"),
    ("libbpf-cargo", &["collect"], "only `collect` speaks to the kernel's BPF"),
    (
        "parquet",
        &["formats", "guard", "store"],
        "of ours only `store` knows how a trace lies on disk",
    ),
    ("nvml-wrapper", &["collect"], "only `collect` asks NVML"),
    ("prost", &["formats"], "only `formats` knows other people's files"),
    ("flate2", &["formats"], "only `formats` knows other people's files"),
    ("datafusion", &["query"], "the core builds without the query engine"),
    ("ballista", &["query"], "the core builds without the query engine"),
    ("ballista-core", &["query"], "the core builds without the query engine"),
    ("clap", &["bench", "cli", "probe", "query", "testkit"], "only programs have command lines"),
    (
        "anyhow",
        &["bench", "cli", "probe", "query", "testkit", "xtask"],
        "errors of libraries are types",
    ),
];

/// What a pure crate may not name.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "File::open",
    "libc",
];

/// A dependency as the manifest states it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Normal,
    Build,
    Dev,
}

/// A package of the workspace.
struct Crate {
    /// Its folder under `crates/`.
    name: String,
    dependencies: Vec<(String, Kind)>,
}

/// Everything that breaks a layer; an error if the workspace cannot be read.
pub fn run(root: &Path) -> Result<Vec<String>> {
    let crates = workspace(root)?;
    let mut found: Vec<String> = crates.iter().flat_map(arrows).collect();
    let map = root.join("ARCHITECTURE.md");
    let map = std::fs::read_to_string(&map)
        .with_context(|| format!("cannot read `{}`", map.display()))?;
    for krate in &crates {
        if !map.contains(&format!("`crates/{}`", krate.name)) {
            let name = &krate.name;
            found.push(format!("`crates/{name}` has no place in the code map of ARCHITECTURE.md"));
        }
        found.extend(lints(root, &krate.name)?);
    }
    for path in source::files(root)? {
        let pure =
            ROWS.iter().any(|r| r.pure && path.starts_with(format!("crates/{}/src", r.name)));
        if pure && path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(root.join(&path))
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            found.extend(impurities(&path.display().to_string(), &text));
        }
    }
    Ok(found)
}

/// The packages of the workspace, by `cargo metadata`.
fn workspace(root: &Path) -> Result<Vec<Crate>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run `cargo metadata`")?;
    if !out.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    parse(&out.stdout)
}

fn parse(metadata: &[u8]) -> Result<Vec<Crate>> {
    let metadata: Value = serde_json::from_slice(metadata).context("not JSON")?;
    let packages = metadata["packages"].as_array().context("`packages` is not there")?;
    let text = |value: &Value, what: &str| -> Result<String> {
        Ok(value[what].as_str().with_context(|| format!("`{what}` is not text"))?.to_owned())
    };
    packages
        .iter()
        .map(|package| {
            let manifest = text(package, "manifest_path")?;
            let name = Path::new(&manifest).parent().and_then(Path::file_name);
            let name = name.context("a manifest without a folder")?.to_string_lossy();
            let dependencies = package["dependencies"].as_array().context("no `dependencies`")?;
            let dependencies = dependencies
                .iter()
                .map(|d| {
                    let kind = match d["kind"].as_str() {
                        None => Kind::Normal,
                        Some("dev") => Kind::Dev,
                        Some(_) => Kind::Build,
                    };
                    Ok((text(d, "name")?, kind))
                })
                .collect::<Result<_>>()?;
            Ok(Crate { name: name.into_owned(), dependencies })
        })
        .collect()
}

/// The arrows of one crate that its row does not allow.
fn arrows(krate: &Crate) -> Vec<String> {
    let Crate { name, dependencies } = krate;
    let Some(row) = ROWS.iter().find(|row| row.name == *name) else {
        return vec![format!(
            "`{name}` is not in the table of crates/xtask/src/layers.rs: add a row that says \
             what it may use, and its sentence to ARCHITECTURE.md"
        )];
    };
    let list = |words: &[&str]| match words {
        [] => "nothing".to_owned(),
        words => words.join(", "),
    };
    let mut found = Vec::new();
    for (dependency, kind) in dependencies {
        if let Some(ours) = dependency.strip_prefix("gpuwhy-") {
            let in_tests = *kind == Kind::Dev && row.tests.contains(&ours);
            if !row.uses.contains(&ours) && !in_tests {
                let tests = if *kind == Kind::Dev { " in tests" } else { "" };
                let may = list(row.uses);
                found.push(format!("`{name}` uses `{ours}`{tests}; of ours it may use {may}"));
            }
            continue;
        }
        if *kind == Kind::Dev {
            continue;
        }
        if let Some((_, who, why)) = KEPT.iter().find(|(kept, ..)| kept == dependency)
            && !who.contains(&name.as_str())
        {
            found.push(format!("`{name}` uses `{dependency}`: {why}"));
        }
        if let Some(others) = row.others
            && !others.contains(&dependency.as_str())
        {
            let may = list(others);
            found.push(format!("`{name}` uses `{dependency}`; of others' it may use {may}"));
        }
    }
    found
}

/// Files, clocks, processes and threads that the code of a pure crate names. Its tests may.
fn impurities(path: &str, text: &str) -> Vec<String> {
    let code = source::code_only(text);
    let tests = code.find("#[cfg(test)]\nmod ").unwrap_or(code.len());
    let code = &code[..tests];
    let mut found: Vec<(usize, &str)> = IMPURE
        .iter()
        .flat_map(|word| source::lines_with_word(code, word).into_iter().map(move |l| (l, *word)))
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(line, _)| *line);
    let say = |(line, word)| {
        format!("{path}:{line}: `{word}` in a crate that opens no file and reads no clock")
    };
    found.into_iter().map(say).collect()
}

/// A crate whose manifest does not take the workspace's lints escapes all of them.
fn lints(root: &Path, name: &str) -> Result<Vec<String>> {
    let path = root.join(format!("crates/{name}/Cargo.toml"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    if text.contains("[lints]\nworkspace = true") || text.contains("lints.workspace = true") {
        return Ok(Vec::new());
    }
    Ok(vec![format!("crates/{name}/Cargo.toml lacks `[lints] workspace = true`")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `arrow` is `crate -> dependency`, with `(dev)` or `(build)` behind it where that is so.
    fn check(arrow: &str, expected: &str) {
        let (name, dependency) = arrow.split_once(" -> ").unwrap();
        let (dependency, kind) = match dependency.split_once(' ') {
            None => (dependency, Kind::Normal),
            Some((d, "(dev)")) => (d, Kind::Dev),
            Some((d, "(build)")) => (d, Kind::Build),
            Some((_, kind)) => panic!("{kind}"),
        };
        let dependencies = vec![(dependency.to_owned(), kind)];
        let found = arrows(&Crate { name: name.to_owned(), dependencies });
        assert_eq!(found.join("\n"), expected, "of {arrow}");
    }

    #[test]
    fn arrows_of_the_table_pass() {
        check("derive -> gpuwhy-schema", "");
        check("store -> parquet", "");
        check("collect -> libbpf-cargo (build)", "");
        check("collect -> gpuwhy-testkit (dev)", "");
        check("schema -> insta (dev)", "");
        check("bench -> gpuwhy-testkit", "");
        check("cli -> gpuwhy-testkit (dev)", "");
    }

    #[test]
    fn arrows_upward_and_sideways_are_named() {
        check(
            "engine -> gpuwhy-testkit",
            "`engine` uses `testkit`; of ours it may use schema, wire, derive, diagnose, store, collect, \
             formats, fleet, report",
        );
        check("schema -> gpuwhy-wire", "`schema` uses `wire`; of ours it may use nothing");
        check("derive -> gpuwhy-store", "`derive` uses `store`; of ours it may use schema");
        check("diagnose -> gpuwhy-derive", "`diagnose` uses `derive`; of ours it may use schema");
        check(
            "collect -> gpuwhy-formats (build)",
            "`collect` uses `formats`; of ours it may use schema, tracepoint, wire",
        );
        check(
            "formats -> gpuwhy-collect (dev)",
            "`formats` uses `collect` in tests; of ours it may use schema, guard, tracepoint",
        );
        check(
            "collect -> gpuwhy-testkit",
            "`collect` uses `testkit`; of ours it may use schema, tracepoint, wire",
        );
    }

    #[test]
    fn crates_of_others_stay_where_they_are_kept() {
        check(
            "diagnose -> libbpf-rs",
            "`diagnose` uses `libbpf-rs`: only `collect` speaks to the kernel's BPF",
        );
        check("store -> anyhow", "`store` uses `anyhow`: errors of libraries are types");
        check("wire -> serde", "`wire` uses `serde`; of others' it may use libc, loom");
    }

    #[test]
    fn a_crate_without_a_row_is_told_where_to_add_one() {
        check(
            "telepathy -> libc",
            "`telepathy` is not in the table of crates/xtask/src/layers.rs: add a row that says \
             what it may use, and its sentence to ARCHITECTURE.md",
        );
    }

    #[test]
    fn a_pure_crate_names_no_clock() {
        let text = "// std::fs is spoken of only\nuse std::time::Instant;\nlet t = Instant::now();\n\
                    #[cfg(test)]\nmod tests { use std::fs; }\n";
        assert_eq!(
            impurities("x.rs", text),
            [
                "x.rs:2: `std::time::Instant` in a crate that opens no file and reads no clock",
                "x.rs:3: `Instant::now` in a crate that opens no file and reads no clock",
            ]
        );
    }

    #[test]
    fn the_table_has_no_cycle_and_knows_its_own_names() {
        let at = |name: &str| ROWS.iter().position(|row| row.name == name);
        // Repeatedly taking away rows that use nothing that is left must take away all of them.
        let mut left: Vec<&Row> = ROWS.iter().collect();
        while let Some(i) =
            left.iter().position(|r| r.uses.iter().all(|u| left.iter().all(|l| l.name != *u)))
        {
            left.swap_remove(i);
        }
        assert!(
            left.is_empty(),
            "a cycle among {:?}",
            left.iter().map(|r| r.name).collect::<Vec<_>>()
        );
        for row in ROWS {
            for used in row.uses.iter().chain(row.tests) {
                assert!(at(used).is_some(), "`{}` may use `{used}`, which has no row", row.name);
            }
        }
    }

    #[test]
    fn this_workspace_keeps_its_layers() {
        let found = run(&crate::root().unwrap()).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
