//! How the house is built: lines of each crate, sizes of files and functions, circles between files,
//! documented items, and how many files a typical addition touches.
//!
//! `cargo xtask house` prints it, `cargo xtask house --check` says which limit is broken (`make test`
//! runs that), and `make bench-house` writes it to `bench/results/house.json`, from which the table in
//! `ARCHITECTURE.md` is made. Tests are left out of all figures: `#[cfg(test)]` modules, `tests/`,
//! `benches/` and `examples/`.

mod additions;
mod graph;
mod measure;
mod tree;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::source;
use measure::Counted;
use tree::Module;

/// The most lines that a function may have.
const FUNCTION_LINES: usize = 80;
/// The most lines that the crate of the command line may have.
const CLI_LINES: usize = 3000;
/// The least share of public items that say what they are.
const DOCUMENTED: f64 = 0.9;
/// Functions that are one table, line by line, and no story: file and name.
const TABLES: &[(&str, &str)] = &[];

/// What is known of one crate.
struct Crate {
    name: String,
    /// Its files, relative to the root of the repository.
    files: Vec<(String, Counted)>,
    /// Lines of C.
    c_lines: usize,
    circles: Vec<Vec<String>>,
}

impl Crate {
    fn lines(&self) -> usize {
        self.c_lines + self.files.iter().map(|(_, counted)| counted.lines).sum::<usize>()
    }

    fn functions(&self) -> impl Iterator<Item = (&str, &str, usize, usize)> {
        self.files.iter().flat_map(|(file, counted)| {
            let functions = counted.functions.iter();
            functions.map(move |(name, line, lines)| (&**file, &**name, *line, *lines))
        })
    }
}

/// All that is measured.
pub struct House {
    crates: Vec<Crate>,
    additions: Vec<additions::Addition>,
}

/// Measures the repository at `root`.
pub fn measure(root: &Path) -> Result<House> {
    let files = source::files(root)?;
    let names: BTreeSet<String> = files
        .iter()
        .filter(|path| path.starts_with("crates") && path.ends_with("Cargo.toml"))
        .filter_map(|path| Some(path.parent()?.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let crates = names.into_iter().map(|name| one(root, name)).collect::<Result<_>>()?;
    Ok(House { crates, additions: additions::find(root)? })
}

fn one(root: &Path, name: String) -> Result<Crate> {
    let folder = root.join("crates").join(&name);
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).ok();
    let mut files = BTreeSet::new();
    let mut circles = Vec::new();
    for first in ["src/lib.rs", "src/main.rs"].into_iter().filter(|f| folder.join(f).is_file()) {
        let tree = tree::parse(first, &read).with_context(|| format!("in crates/{name}"))?;
        circles.extend(graph::circles(&tree));
        each_file(&tree, &mut |file| _ = files.insert(file.to_owned()));
    }
    let mut counted = Vec::new();
    for file in files {
        let text = read(&file).unwrap_or_default();
        let path = format!("crates/{name}/{file}");
        let one = measure::rust(&text).with_context(|| format!("cannot parse `{path}`"))?;
        counted.push((path, one));
    }
    let is_c = |path: &&std::path::PathBuf| {
        path.starts_with(format!("crates/{name}/src"))
            && path.extension().is_some_and(|e| e == "c" || e == "h")
    };
    let c_lines = source::files(root)?
        .iter()
        .filter(is_c)
        .filter_map(|path| std::fs::read_to_string(root.join(path)).ok())
        .map(|text| text.lines().count())
        .sum();
    Ok(Crate { name, files: counted, c_lines, circles })
}

fn each_file(module: &Module, take: &mut dyn FnMut(&str)) {
    take(&module.file);
    module.children.iter().for_each(|child| each_file(child, take));
}

/// The value at a share of sorted values.
fn quantile(sorted: &[usize], share: f64) -> usize {
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0)
}

fn spread(mut values: Vec<usize>) -> [usize; 3] {
    values.sort_unstable();
    [quantile(&values, 0.5), quantile(&values, 0.9), values.last().copied().unwrap_or(0)]
}

fn slashed(three: [usize; 3]) -> String {
    three.map(|n| n.to_string()).join("/")
}

impl House {
    fn function_lines(&self) -> Vec<usize> {
        let all = self.crates.iter().flat_map(Crate::functions);
        all.filter(|(file, name, ..)| !is_table(file, name)).map(|(.., lines)| lines).collect()
    }

    fn documented(&self) -> f64 {
        let all = || self.crates.iter().flat_map(|c| &c.files).map(|(_, counted)| counted);
        let public: usize = all().map(|c| c.public).sum();
        let silent: usize = all().map(|c| c.undocumented.len()).sum();
        1.0 - silent as f64 / public.max(1) as f64
    }

    fn circles(&self) -> impl Iterator<Item = (&str, &Vec<String>)> {
        self.crates.iter().flat_map(|c| c.circles.iter().map(move |circle| (&*c.name, circle)))
    }

    fn lines_of(&self, name: &str) -> usize {
        self.crates.iter().find(|c| c.name == name).map_or(0, Crate::lines)
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let mut out = String::from(
            "crate         lines  files  lines of a file   functions  lines of a function  documented  circles\n\
             \u{20}                          p50/p90/max                  p50/p90/max\n",
        );
        for row in self.rows() {
            let text = |key: &str| match &row[key] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let _ = writeln!(
                out,
                "{:<12}{:>7}{:>7}{:>17}{:>12}{:>21}{:>11}%{:>9}",
                text("crate"),
                text("lines"),
                text("files"),
                text("file_lines"),
                text("functions"),
                text("function_lines"),
                text("documented"),
                text("circles"),
            );
        }
        for (krate, circle) in self.circles() {
            let _ = writeln!(out, "circle in {krate}: {}", circle.join(" "));
        }
        for addition in &self.additions {
            let _ = writeln!(out, "{addition}");
        }
        out
    }

    fn rows(&self) -> Vec<Value> {
        let mut rows: Vec<Value> = self.crates.iter().map(|c| row(&c.name, &[c])).collect();
        rows.push(row("all", &self.crates.iter().collect::<Vec<_>>()));
        rows
    }

    /// Which limits are broken, and where.
    pub fn broken(&self) -> Vec<String> {
        let mut found = Vec::new();
        let lines = self.lines_of("cli");
        if lines > CLI_LINES {
            found.push(format!("crates/cli has {lines} lines, {CLI_LINES} at most: what is no command line belongs in `engine`"));
        }
        for (file, name, line, lines) in self.crates.iter().flat_map(Crate::functions) {
            if lines > FUNCTION_LINES && !is_table(file, name) {
                found.push(format!(
                    "{file}:{line}: `{name}` has {lines} lines, {FUNCTION_LINES} at most"
                ));
            }
        }
        for (krate, circle) in self.circles() {
            found.push(format!(
                "crates/{krate}: these files use each other in a circle: {}",
                circle.join(", ")
            ));
        }
        let share = self.documented();
        if share < DOCUMENTED {
            found.push(format!(
                "{:.1} % of public items are documented, {} % at least",
                100.0 * share,
                100.0 * DOCUMENTED
            ));
        }
        found
    }

    /// Public items without a word, by file and line.
    pub fn undocumented(&self) -> Vec<String> {
        let all = self.crates.iter().flat_map(|c| &c.files);
        all.flat_map(|(file, counted)| {
            counted.undocumented.iter().map(move |(name, line)| format!("{file}:{line}: {name}"))
        })
        .collect()
    }

    /// What `bench/results/house.json` holds, apart from how it was made.
    pub fn json(&self) -> Value {
        let [p50, p90, max] = spread(self.function_lines());
        let n = self.function_lines().len();
        let mut figures = json!({
            "cli_lines": { "value": self.lines_of("cli") },
            "function_p50": { "value": p50, "n": n },
            "function_p90": { "value": p90, "n": n },
            "function_max": { "value": max, "n": n },
            "circles": { "value": self.circles().count() },
            "documented_share": { "value": self.documented() },
        });
        for addition in &self.additions {
            figures[format!("{}_files_touched", addition.what)] =
                json!({ "value": addition.code.len() });
        }
        let additions: Vec<Value> = self.additions.iter().map(additions::Addition::json).collect();
        json!({ "figures": figures, "crates": self.rows(), "additions": additions })
    }
}

fn is_table(file: &str, name: &str) -> bool {
    TABLES.contains(&(file, name))
}

fn row(name: &str, crates: &[&Crate]) -> Value {
    let files = || crates.iter().flat_map(|c| &c.files).map(|(_, counted)| counted);
    let functions = crates.iter().flat_map(|c| c.functions());
    let functions: Vec<usize> = functions
        .filter(|(file, name, ..)| !is_table(file, name))
        .map(|(.., lines)| lines)
        .collect();
    let public: usize = files().map(|c| c.public).sum();
    let silent: usize = files().map(|c| c.undocumented.len()).sum();
    json!({
        "crate": name,
        "lines": crates.iter().map(|c| c.lines()).sum::<usize>(),
        "files": files().count(),
        "file_lines": slashed(spread(files().map(|c| c.lines).collect())),
        "functions": functions.len(),
        "function_lines": slashed(spread(functions)),
        "documented": (100.0 * (1.0 - silent as f64 / public.max(1) as f64)).round(),
        "circles": crates.iter().map(|c| c.circles.len()).sum::<usize>(),
    })
}
