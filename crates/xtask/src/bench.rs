//! Tables of benchmark results, made from `bench/results/NAME.json`, so that a number in the docs
//! is the number that was measured.
//!
//! A page says where it wants which table, and closes it with `<!-- /bench -->`:
//!
//! ```text
//! <!-- bench:overhead -->                                      the figures, and how they were made
//! <!-- bench:overhead workloads: workload, rss_mib -->         these columns of the rows `workloads`
//! <!-- bench:injectors trials by injector: slowed, excess -->  the same, one line for each injector
//! ```
//!
//! What each key means comes from `bench/keys.toml`, and a key without a meaning is an error. The format
//! of the files is described in `docs/measurements.md`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const OPEN: &str = "<!-- bench:";
const CLOSE: &str = "<!-- /bench -->";

/// `text` with what lies between the markers replaced by what `table` makes of the opening one.
pub fn fill(text: &str, table: impl Fn(&Wanted<'_>) -> Result<String>) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = marker(rest, OPEN) {
        let (wanted, body) = rest[at + OPEN.len()..]
            .split_once(" -->")
            .context("`<!-- bench:` without its ` -->`")?;
        let Some(end) = marker(body, CLOSE) else {
            bail!("`{OPEN}{wanted} -->` is never closed by `{CLOSE}`");
        };
        out.push_str(&rest[..rest.len() - body.len()]);
        let table = Wanted::parse(wanted)
            .and_then(|wanted| table(&wanted))
            .with_context(|| format!("cannot make `bench:{wanted}`"))?;
        let _ = write!(out, "\n{}\n", table.trim_end());
        rest = &body[end..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Where a marker stands at the beginning of a line: elsewhere it is only spoken of.
fn marker(text: &str, marker: &str) -> Option<usize> {
    text.match_indices(marker).map(|(at, _)| at).find(|&at| at == 0 || text[..at].ends_with('\n'))
}

/// What a page asks for.
pub struct Wanted<'a> {
    /// The benchmark.
    name: &'a str,
    /// Rows instead of figures.
    rows: Option<Table<'a>>,
}

struct Table<'a> {
    /// Where the rows stand in the file.
    key: &'a str,
    /// The column whose values become one line each.
    by: Option<&'a str>,
    columns: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Result<Wanted<'a>> {
        let (name, rows) = text.split_once(' ').map_or((text, None), |(n, r)| (n, Some(r)));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            bail!("`{name}` is no name of a benchmark");
        }
        let rows = match rows {
            None => None,
            Some(rows) => {
                let (key, columns) = rows.split_once(':').context("rows without `: COLUMN, …`")?;
                let (key, by) = key.split_once(" by ").map_or((key, None), |(k, b)| (k, Some(b)));
                Some(Table { key, by, columns: columns.split(',').map(str::trim).collect() })
            }
        };
        Ok(Wanted { name, rows })
    }
}

/// What `wanted` asks of `bench/results/NAME.json`, or the sentence that there is none yet.
pub fn table(root: &Path, wanted: &Wanted<'_>) -> Result<String> {
    let name = wanted.name;
    let path = root.join(format!("bench/results/{name}.json"));
    if !path.exists() {
        // Once is enough.
        let yet = format!("Not measured yet; `make bench-{name}` measures it.");
        return Ok(if wanted.rows.is_none() { yet } else { String::new() });
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `bench/results/{name}.json`"))?;
    let result: Value = serde_json::from_str(&text)
        .with_context(|| format!("`bench/results/{name}.json` is not JSON"))?;
    let path = root.join("bench/keys.toml");
    let text = std::fs::read_to_string(&path).context("cannot read `bench/keys.toml`")?;
    let keys = Keys { all: text.parse().context("`bench/keys.toml` is not TOML")?, name };
    match &wanted.rows {
        None => figures(&result, &keys),
        Some(table) => rows(&result, table, &keys),
    }
}

/// What the keys of a result mean.
struct Keys<'a> {
    all: toml::Table,
    name: &'a str,
}

impl Keys<'_> {
    /// The meaning of a key in a section of this result, or in all results.
    fn meaning(&self, section: &str, key: &str) -> Result<&str> {
        let own = self.all.get(self.name).and_then(|result| result.get(section));
        let sections = [own, self.all.get("all")].into_iter().flatten();
        let found = sections.filter_map(toml::Value::as_table).find_map(|table| {
            // The longest pattern is the most particular one.
            let fits = table.iter().filter(|(pattern, _)| fits(key, pattern));
            fits.max_by_key(|(pattern, _)| pattern.len()).and_then(|(_, text)| text.as_str())
        });
        let name = self.name;
        found.with_context(|| {
            format!("`bench/keys.toml` does not define `{key}` of [{name}.{section}]")
        })
    }
}

/// Whether a key is `pattern`, in which one `*` stands for any text.
fn fits(key: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => key == pattern,
        Some((head, tail)) => {
            key.len() >= head.len() + tail.len() && key.starts_with(head) && key.ends_with(tail)
        }
    }
}

fn figures(result: &Value, keys: &Keys<'_>) -> Result<String> {
    let made = |key: &str| {
        result["made"][key].as_str().with_context(|| format!("`made.{key}` is not text"))
    };
    let (command, machine, date) = (made("command")?, made("machine")?, made("date")?);
    let mut out = format!("`{command}`, commit {}, {date}, on {machine}.\n", made("commit")?);
    // Parts that are measured one by one, each at a commit of its own.
    for (part, of) in result["parts"].as_object().into_iter().flatten() {
        let [command, commit, date] = ["command", "commit", "date"].map(|k| cell(&of["made"][k]));
        writeln!(
            out,
            "- {part}: `{command}`, commit {commit}, {date}, {} s",
            cell(&of["seconds"])
        )?;
    }
    let Some(figures) = result["figures"].as_object() else { return Ok(out) };
    out.push_str("\n| figure | value | spread | n | what it is |\n|---|---|---|---|---|\n");
    for (name, figure) in figures {
        let value = figure.get("value").with_context(|| format!("`{name}` has no `value`"))?;
        let n = figure.get("n").map(cell).unwrap_or_default();
        let meaning = keys.meaning("figures", name)?;
        writeln!(out, "| {name} | {} | {} | {n} | {meaning} |", cell(value), spread(figure))?;
    }
    Ok(out)
}

fn rows(result: &Value, table: &Table<'_>, keys: &Keys<'_>) -> Result<String> {
    let Some(rows) = result[table.key].as_array() else {
        ensure!(result["parts"].is_object(), "no rows `{}`", table.key);
        return Ok("Not measured yet.\n".into());
    };
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut head: Vec<String> = table.by.into_iter().map(str::to_owned).collect();
    head.extend(table.columns.iter().map(|c| c.replace('_', " ")));
    let mut out = line(&head);
    let _ = writeln!(out, "|{}", "---|".repeat(head.len()));
    // Groups in the order in which they first appear; without a group each row is its own.
    let mut groups: Vec<(String, Vec<&Value>)> = Vec::new();
    for row in rows {
        match table.by.map(|by| cell(&row[by])) {
            None => groups.push((String::new(), vec![row])),
            Some(key) => match groups.iter_mut().find(|(k, _)| *k == key) {
                Some((_, members)) => members.push(row),
                None => groups.push((key, vec![row])),
            },
        }
    }
    for (key, members) in groups {
        let mut cells: Vec<String> = table.by.map(|_| key).into_iter().collect();
        for column in &table.columns {
            let values: Vec<&Value> = members
                .iter()
                .map(|row| row.get(column).with_context(|| format!("a row without `{column}`")))
                .collect::<Result<_>>()?;
            cells.push(if table.by.is_some() { summary(&values) } else { cell(values[0]) });
        }
        out.push_str(&line(&cells));
    }
    out.push('\n');
    let columns = table.by.iter().chain(&table.columns);
    let meanings = columns.map(|key| {
        let title = key.replace('_', " ");
        Ok(format!("*{title}*: {}", keys.meaning(table.key, key)?))
    });
    out.push_str(&meanings.collect::<Result<Vec<_>>>()?.join("; "));
    out.push_str(".\n");
    Ok(out)
}

/// Several values as one cell: how many are true, the median and range of numbers, distinct texts.
fn summary(values: &[&Value]) -> String {
    let said: Vec<&Value> = values.iter().copied().filter(|v| !v.is_null()).collect();
    let yes = said.iter().filter(|v| v.as_bool() == Some(true)).count();
    if !said.is_empty() && said.iter().all(|v| v.is_boolean()) {
        return format!("{yes}/{}", said.len());
    }
    let mut numbers: Vec<f64> = said.iter().filter_map(|v| v.as_f64()).collect();
    if !numbers.is_empty() && numbers.len() == said.len() {
        numbers.sort_by(f64::total_cmp);
        let (low, high) = (numbers[0], numbers[numbers.len() - 1]);
        return format!("{} [{}, {}]", short(numbers[numbers.len() / 2]), short(low), short(high));
    }
    let mut texts: Vec<String> = said.iter().map(|v| cell(v)).collect();
    texts.dedup();
    texts.join(", ")
}

fn spread(figure: &Value) -> String {
    match figure["spread"].as_array().map(Vec::as_slice) {
        Some([low, high]) => format!("[{}, {}]", cell(low), cell(high)),
        _ => String::new(),
    }
}

/// A value as a cell; a figure with its spread behind it.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.replace('|', "\\|").replace('\n', " "),
        Value::Number(n) => {
            n.as_i64().map_or_else(|| short(n.as_f64().unwrap_or(0.0)), |n| n.to_string())
        }
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(figure) if figure.contains_key("value") => {
            let spread = spread(value);
            let space = if spread.is_empty() { "" } else { " " };
            format!("{}{space}{spread}", cell(&figure["value"]))
        }
        Value::Object(parts) => {
            let parts: Vec<String> =
                parts.iter().map(|(k, v)| format!("{k} {}", cell(v))).collect();
            parts.join(" ")
        }
    }
}

/// A number with three significant digits; whole numbers keep all of theirs.
fn short(x: f64) -> String {
    // Zero has no sign in a table, and what rounds to it has none either.
    if x.abs() < 1e-12 {
        return "0".to_owned();
    }
    if !x.is_finite() {
        return x.to_string();
    }
    let digits = 2 - x.abs().log10().floor() as i32;
    let text = format!("{x:.*}", digits.clamp(0, 12) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(wanted: &Wanted<'_>) -> Result<String> {
        Ok(format!("table of {}", wanted.name))
    }

    #[test]
    fn what_lies_between_the_markers_is_replaced() {
        let page = "# T\n<!-- bench:a -->\nold\n<!-- /bench -->\nend, `<!-- bench:` is prose\n";
        let made = fill(page, named).unwrap();
        let expected = page.replace("old", "table of a");
        assert_eq!(made, expected);
        assert_eq!(fill(&made, named).unwrap(), expected);
    }

    #[test]
    fn a_marker_that_is_never_closed_is_an_error() {
        let error = fill("<!-- bench:a -->\n", named).unwrap_err();
        assert!(error.to_string().contains("never closed"), "{error}");
        assert!(fill("<!-- bench:a/../b -->\n<!-- /bench -->\n", named).is_err());
    }

    fn check(wanted: &str, expected: &str) {
        let result = json!({
            "made": {
                "command": "gpuwhy bench x", "machine": "2 x CPU", "date": "2026-11-21",
                "commit": "0123456789ab",
            },
            "figures": {"ns": {"value": 142.3456, "spread": [130, 160.25], "n": 5}},
            "trials": [
                {"injector": "a|b", "right": true, "culprit": null, "ms": 3.0, "says": "x"},
                {"injector": "c", "right": false, "culprit": true, "ms": 12.344, "says": "y"},
                {"injector": "c", "right": true, "culprit": false, "ms": 1, "says": "y"},
            ],
        });
        let wanted = Wanted::parse(wanted).unwrap();
        let text = "[all]\nms = \"time, ms\"\n[x.figures]\n\"n*\" = \"time, ns\"\n[x.trials]\n\
                    injector = \"fault\"\nright = \"whether\"\nculprit = \"who\"\nsays = \"text\"\n";
        let keys = Keys { all: text.parse().unwrap(), name: "x" };
        let made = match &wanted.rows {
            None => figures(&result, &keys),
            Some(table) => rows(&result, table, &keys),
        };
        assert_eq!(made.unwrap_or_else(|e| format!("error: {e}")), expected);
    }

    #[test]
    fn figures_come_with_their_making() {
        check(
            "x",
            "`gpuwhy bench x`, commit 0123456789ab, 2026-11-21, on 2 x CPU.\n\n\
             | figure | value | spread | n | what it is |\n|---|---|---|---|---|\n\
             | ns | 142 | [130, 160] | 5 | time, ns |\n",
        );
    }

    #[test]
    fn rows_are_listed_or_summed_up() {
        check(
            "x trials: injector, right, ms",
            "| injector | right | ms |\n|---|---|---|\n| a\\|b | yes | 3 |\n| c | no | 12.3 |\n\
             | c | yes | 1 |\n\n*injector*: fault; *right*: whether; *ms*: time, ms.\n",
        );
        check(
            "x trials by injector: right, culprit, ms, says",
            "| injector | right | culprit | ms | says |\n|---|---|---|---|---|\n\
             | a\\|b | 1/1 |  | 3 [3, 3] | x |\n| c | 1/2 | 1/2 | 12.3 [1, 12.3] | y |\n\n\
             *injector*: fault; *right*: whether; *culprit*: who; *ms*: time, ms; *says*: text.\n",
        );
    }

    #[test]
    fn a_column_or_rows_that_are_not_there_are_named() {
        check("x trials: nerve", "error: a row without `nerve`");
        check("x kills: ms", "error: no rows `kills`");
    }

    #[test]
    fn a_part_has_its_own_commit_and_may_be_missing() {
        let made = json!({"command": "b", "commit": "c", "date": "d", "machine": "m"});
        let part = json!({"made": {"command": "x", "commit": "y", "date": "z"}, "seconds": 2.5});
        let result = json!({"made": made, "parts": {"disk": part}});
        let keys = Keys { all: toml::Table::new(), name: "x" };
        let said = figures(&result, &keys).unwrap();
        assert!(said.contains("- disk: `x`, commit y, z, 2.5 s"), "{said}");
        let table = Table { key: "kills", by: None, columns: vec!["ms"] };
        assert_eq!(rows(&result, &table, &keys).unwrap(), "Not measured yet.\n");
    }

    #[test]
    fn a_key_that_is_not_defined_is_named() {
        let keys = Keys { all: toml::Table::new(), name: "x" };
        let error = keys.meaning("figures", "ece_raw").unwrap_err().to_string();
        assert_eq!(error, "`bench/keys.toml` does not define `ece_raw` of [x.figures]");
        assert!(fits("top1_darzi", "top1_*") && !fits("top1", "top1_*"));
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!(
            (short(-0.0), short(-1e-17), short(0.0838)),
            ("0".into(), "0".into(), "0.0838".into())
        );
    }

    #[test]
    fn a_bench_that_nobody_ran_says_how() {
        let nowhere = tempfile::tempdir().unwrap();
        let say = |wanted| table(nowhere.path(), &Wanted::parse(wanted).unwrap()).unwrap();
        assert_eq!(say("overhead"), "Not measured yet; `make bench-overhead` measures it.");
        assert_eq!(say("overhead workloads: workload"), "");
    }
}
