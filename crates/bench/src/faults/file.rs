//! The result file: all sessions and trials, and what they score.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::results::{Row, Session};
use super::score;
use crate::result::{self, Figure, Made};

/// What the file holds.
#[derive(Serialize, Deserialize)]
pub struct Results {
    made: Made,
    figures: BTreeMap<String, Figure>,
    /// The same for every method of judgement.
    judges: Vec<score::Judge>,
    classes: Vec<score::OfClass>,
    confusion: Vec<score::Confused>,
    ablation: Vec<score::Ablated>,
    reliability: Vec<score::Bin>,
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Their trials.
    pub trials: Vec<Row>,
}

/// Scores all that there is, and writes it.
pub fn save(path: &Path, sessions: &[Session], trials: &[Row]) -> Result<()> {
    let results = Results {
        made: Made::now(),
        figures: score::figures(sessions, trials),
        judges: score::judges(trials),
        classes: score::classes(trials),
        confusion: score::confusion(trials),
        ablation: score::ablation(trials),
        reliability: score::reliability(trials),
        sessions: sessions.to_vec(),
        trials: Vec::new(),
    };
    // One line a trial: it is read by programs, and hundreds of them lie in the repository.
    let rows: Vec<String> = trials.iter().map(line).collect::<Result<_, _>>()?;
    let rows = format!("\"trials\": [\n{}\n]", rows.join(",\n"));
    let text = serde_json::to_string_pretty(&results)?.replace("\"trials\": []", &rows);
    result::write_text(path, &(text + "\n"))
}

/// A trial as a short line: no field that says nothing, and six digits of what was measured.
fn line(row: &Row) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(row)?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    shorten(&mut value);
    serde_json::to_string(&value)
}

fn shorten(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|f| format!("{f:.5e}").parse().ok());
            if let Some(short) = short.and_then(serde_json::Number::from_f64) {
                *number = short;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}
