//! `docs/schema.md` and the golden text, both made from the declarations.

use std::fmt::Write;

use arrow_schema::DataType;

use crate::VERSION;

fn type_name(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Int64 => "i64",
        DataType::UInt64 => "u64",
        DataType::UInt32 => "u32",
        DataType::Float64 => "f64",
        DataType::Boolean => "bool",
        DataType::Utf8 => "text",
        _ => "?",
    }
}

/// One line a column: what `validate` compares a trace with, and what a reviewer sees change.
pub fn golden() -> String {
    let mut out = format!("version {VERSION}\n");
    for table in crate::tables::table_docs() {
        let _ = writeln!(out, "{} ({})", table.name, table.time);
        for c in &table.columns {
            let null = if c.nullable { "?" } else { "" };
            let _ = writeln!(out, "  {}: {}{null}", c.name, type_name(&c.data_type));
        }
    }
    out
}

/// The page `docs/schema.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# The tables of a trace\n\n\
         Made by `cargo xtask docs` from `crates/schema`; do not edit.\n\n",
    );
    let _ = writeln!(
        out,
        "Schema version {VERSION}. Times are `i64` nanoseconds on the trace clock \
         (CLOCK_MONOTONIC of the reference host). `id`s of spans and marks are \
         `shard 16 | sequence 48` in a `u64`. In `entity`, `track`, `source`, `stack` and `frame` \
         the last row of an id is the valid one. A type with `?` may be null.\n"
    );
    let mut group = "";
    for table in crate::tables::table_docs() {
        if table.group != group {
            group = table.group;
            let _ = writeln!(out, "## {group}\n");
        }
        let doc: Vec<&str> = table.doc.lines().map(str::trim).collect();
        let _ = writeln!(out, "### `{}`\n\n{}\n", table.name, doc.join("\n").trim());
        let _ =
            writeln!(out, "Time: {}.\n\n| column | type | meaning |\n|---|---|---|", table.time);
        for c in &table.columns {
            let null = if c.nullable { "?" } else { "" };
            let doc = c.doc.replace('|', "\\|");
            let _ = writeln!(out, "| `{}` | {}{null} | {doc} |", c.name, type_name(&c.data_type));
        }
        out.push('\n');
    }
    out.push_str("## Words\n\nColumns of few words, and the codes of state tracks.\n\n");
    macro_rules! words {
        ($($name:ident),+) => {$(
            let _ = writeln!(out, "### {}\n\n| word | meaning |\n|---|---|", stringify!($name));
            for word in crate::$name::ALL {
                let _ = writeln!(out, "| `{}` | {} |", word.as_str(), word.doc());
            }
            out.push('\n');
        )+};
    }
    words!(EntityKind, Shape, Measure, Discipline, SourceState, LinkKind, WakeContext);
    words!(IoOp, Direction, CopyKind, Migration, PartKind, Class);
    let _ = writeln!(out, "### ThreadState\n\n| code | word | meaning |\n|---|---|---|");
    for state in crate::ThreadState::ALL {
        let _ = writeln!(out, "| {} | `{}` | {} |", state.code(), state.as_str(), state.doc());
    }
    out
}
