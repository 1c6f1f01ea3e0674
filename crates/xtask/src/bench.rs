//! Tables of benchmark results, made from `bench/results/NAME.json`, so that a number in the docs
//! is the number that was measured.
//!
//! A page says `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` where it wants the table. The
//! format of the files is described in `docs/benchmarks.md`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// `text` with what lies between the markers replaced by the table of that name.
pub fn fill(text: &str, table: impl Fn(&str) -> Result<String>) -> Result<String> {
    const OPEN: &str = "<!-- bench:";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = marker(rest, OPEN) {
        let name = rest[at + OPEN.len()..].split_once(" -->").map(|(name, _)| name);
        let name =
            name.filter(|n| n.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)));
        let name = name.context("`<!-- bench:` without a name and ` -->`")?;
        let body = at + OPEN.len() + name.len() + " -->".len();
        let close = format!("<!-- /bench:{name} -->");
        let Some(end) = marker(&rest[body..], &close) else {
            bail!("`<!-- bench:{name} -->` is never closed by `{close}`");
        };
        out.push_str(&rest[..body]);
        out.push('\n');
        out.push_str(table(name)?.trim_end());
        out.push('\n');
        rest = &rest[body + end..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Where a marker stands at the beginning of a line: elsewhere it is only spoken of.
fn marker(text: &str, marker: &str) -> Option<usize> {
    text.match_indices(marker).map(|(at, _)| at).find(|&at| at == 0 || text[..at].ends_with('\n'))
}

/// The table of `bench/results/NAME.json`, or the sentence that there is none yet.
pub fn table(root: &Path, name: &str) -> Result<String> {
    let path = root.join(format!("bench/results/{name}.json"));
    if !path.exists() {
        return Ok(format!("Not measured yet; `make bench-{name}` measures it."));
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `bench/results/{name}.json`"))?;
    let result: Value = serde_json::from_str(&text)
        .with_context(|| format!("`bench/results/{name}.json` is not JSON"))?;
    render(&result).with_context(|| format!("`bench/results/{name}.json` lacks a part"))
}

fn render(result: &Value) -> Result<String> {
    let text = |key: &str| result[key].as_str().with_context(|| format!("`{key}` is not text"));
    let mut out = format!("`{}` on {}, {}", text("command")?, text("machine")?, text("date")?);
    match result["commit"].as_str() {
        Some(commit) => writeln!(out, ", commit {}.\n", commit.get(..12).unwrap_or(commit))?,
        None => out.push_str(".\n\n"),
    }
    if let Some(figures) = result["figures"].as_object() {
        out.push_str("| figure | value | spread | goal |\n|---|---|---|---|\n");
        let none = Map::new();
        let part = |key: &str| result[key].as_object().unwrap_or(&none).clone();
        let (units, spreads, goals) = (part("units"), part("spread"), part("goals"));
        for (figure, value) in figures {
            let unit = units.get(figure).and_then(Value::as_str).unwrap_or("");
            let spread = match spreads.get(figure).and_then(Value::as_array).map(Vec::as_slice) {
                Some([low, high]) => format!("{} to {}", cell(low), cell(high)),
                Some(_) => bail!("`spread.{figure}` is not a pair"),
                None => String::new(),
            };
            let goal = goals.get(figure).map(cell).unwrap_or_default();
            let value = format!("{} {unit}", cell(value));
            writeln!(out, "| {figure} | {} | {spread} | {goal} |", value.trim_end())?;
        }
    }
    for table in result["tables"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let columns = table["columns"].as_array().context("a table without `columns`")?;
        if let Some(title) = table["title"].as_str() {
            writeln!(out, "\n{title}\n")?;
        }
        let line = |cells: &[Value]| {
            let cells: Vec<String> = cells.iter().map(cell).collect();
            format!("| {} |", cells.join(" | "))
        };
        writeln!(out, "{}\n|{}", line(columns), "---|".repeat(columns.len()))?;
        for row in table["rows"].as_array().context("a table without `rows`")? {
            let row = row.as_array().context("a row that is not an array")?;
            if row.len() != columns.len() {
                bail!("a row of {} cells under {} columns", row.len(), columns.len());
            }
            writeln!(out, "{}", line(row))?;
        }
    }
    for note in result["notes"].as_array().map(Vec::as_slice).unwrap_or_default() {
        writeln!(out, "\n{}", note.as_str().context("a note that is not text")?)?;
    }
    Ok(out)
}

/// A value as a cell: numbers with at most four significant digits, text with its bars escaped.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('|', "\\|").replace('\n', " "),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(x)) if x != 0.0 && x.is_finite() => {
                let digits = 3 - x.abs().log10().floor() as i32;
                let text = format!("{x:.*}", digits.clamp(0, 12) as usize);
                match text.contains('.') {
                    true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                    false => text,
                }
            }
            (None, x) => x.unwrap_or_default().to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_lies_between_the_markers_is_replaced() {
        let page = "# T\n<!-- bench:a -->\nold\n<!-- /bench:a -->\nend, `<!-- bench:` is prose\n";
        let made = fill(page, |name| Ok(format!("table of {name}\n"))).unwrap();
        assert_eq!(
            made,
            "# T\n<!-- bench:a -->\ntable of a\n<!-- /bench:a -->\nend, `<!-- bench:` is prose\n"
        );
        assert_eq!(fill(&made, |name| Ok(format!("table of {name}\n"))).unwrap(), made);
    }

    #[test]
    fn a_marker_that_is_never_closed_is_an_error() {
        let error = fill("<!-- bench:a -->\n", |_| Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("never closed"), "{error}");
    }

    #[test]
    fn a_result_becomes_a_table_with_its_making() {
        let result = json!({
            "command": "make bench-x", "machine": "2 cores", "date": "2026-11-21",
            "commit": "0123456789abcdef",
            "figures": {"ns_per_event": 142.3456, "machine_share": 0.00312},
            "units": {"ns_per_event": "ns"}, "spread": {"ns_per_event": [130, 160.25]},
            "goals": {"ns_per_event": "at most 200"},
            "tables": [{"title": "By workload", "columns": ["workload", "ns"],
                        "rows": [["a|b", 1], ["c", null]]}],
            "notes": ["Quiet."],
        });
        assert_eq!(
            render(&result).unwrap(),
            "`make bench-x` on 2 cores, 2026-11-21, commit 0123456789ab.\n\n\
             | figure | value | spread | goal |\n|---|---|---|---|\n\
             | machine_share | 0.00312 |  |  |\n\
             | ns_per_event | 142.3 ns | 130 to 160.2 | at most 200 |\n\
             \nBy workload\n\n| workload | ns |\n|---|---|\n| a\\|b | 1 |\n| c |  |\n\
             \nQuiet.\n"
        );
    }

    #[test]
    fn a_result_without_its_making_is_refused() {
        let error = render(&json!({"figures": {}})).unwrap_err();
        assert_eq!(error.to_string(), "`command` is not text");
    }

    #[test]
    fn a_bench_that_nobody_ran_says_how() {
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(
            table(nowhere.path(), "overhead").unwrap(),
            "Not measured yet; `make bench-overhead` measures it."
        );
    }
}
