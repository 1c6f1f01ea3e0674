//! What is said of a recording without steps, as tables of a page.

use gpuwhy_report::table::{Cell, Row, Table};
use gpuwhy_schema::Ns;

use super::Threads;

impl Threads {
    /// Where the time of threads went, and who took the CPUs.
    pub fn table(&self) -> Table {
        let share =
            |of: Option<&f64>| of.map_or(Cell::Nothing, |share| Cell::Number(100.0 * share, 1));
        let thread = |t: &super::ThreadTime| {
            let of = |doing: &[&str]| {
                let all: Vec<&f64> = doing.iter().filter_map(|d| t.shares.get(d)).collect();
                let sum: f64 = all.iter().copied().sum();
                share((!all.is_empty()).then_some(&sum))
            };
            Row {
                id: None,
                cells: vec![
                    Cell::Name(t.name()),
                    of(&["running", "interrupted"]),
                    of(&["runnable"]),
                    of(&["throttled", "stopped"]),
                    of(&["disk", "uninterruptible"]),
                    of(&["futex"]),
                    of(&["socket", "poll"]),
                    of(&["timer"]),
                    of(&["driver", "asleep"]),
                    Cell::Text(t.waited()),
                ],
            }
        };
        Table {
            id: "threads",
            title: "Where the time of the busiest threads went".into(),
            note: "Shares of the time in which each thread was recorded.".into(),
            columns: vec![
                "thread",
                "running, %",
                "waiting for a CPU, %",
                "throttled or stopped, %",
                "disk, %",
                "futex, %",
                "socket or poll, %",
                "timer, %",
                "other sleep, %",
                "waited",
            ],
            rows: self.threads.iter().map(thread).collect(),
            ..Table::default()
        }
    }

    /// When any of it was not as usual; page time begins at `start`.
    pub fn table_of_changes(&self, start: Ns) -> Table {
        let row = |change: &super::Change| Row {
            id: None,
            cells: vec![
                Cell::Show(change.from_ns - start.0, change.to_ns - start.0),
                Cell::Name(change.who.clone()),
                Cell::Text(change.text()),
            ],
        };
        Table {
            id: "changes",
            title: "What changed, against the recording's own usual".into(),
            note: self.not_known.join("; "),
            columns: vec!["when", "who", "what was not as usual"],
            rows: self.changes.iter().map(row).collect(),
            ..Table::default()
        }
    }

    /// Who took the CPUs.
    pub fn table_of_cpus(&self) -> Table {
        let row = |taken: &super::Taken| Row {
            id: None,
            cells: vec![Cell::Name(taken.name()), Cell::Number(taken.cpus, 2)],
        };
        Table {
            id: "cpus",
            title: "Who took the CPUs".into(),
            columns: vec!["command", "CPUs"],
            rows: self.cpus.iter().map(row).collect(),
            ..Table::default()
        }
    }
}
