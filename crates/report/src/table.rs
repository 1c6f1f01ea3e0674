//! Tables of a page: numbers to the right, names cut with the whole name on hover, and never more rows than a
//! page can bear. What is left out is said below the table.
//!
//! A table is complete without a script; the script (`script/tables.js`) makes its columns sortable.

use std::fmt::Write;

use crate::html::esc;

/// Rows of a table.
pub const ROWS: usize = 300;
/// Characters of a name that are shown, and that are kept for whoever points at it.
const SHOWN: usize = 140;
const KEPT: usize = 600;
/// Characters of text that stand on one line.
const WORDS: usize = 40;

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What links lead to: `gaps`.
    pub id: &'static str,
    /// Its heading.
    pub title: String,
    /// What it means and how to read it.
    pub note: String,
    /// The names of its columns, with their units.
    pub columns: Vec<&'static str>,
    /// In their first order.
    pub rows: Vec<Row>,
    /// How many more rows there are than were given here.
    pub left_out: usize,
    /// What to say below it.
    pub below: Vec<String>,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// What a mark of the time line leads to: `gap-1`. The row leads back to the mark.
    pub id: Option<String>,
    /// One cell a column.
    pub cells: Vec<Cell>,
}

/// What a cell holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A name of any length.
    Name(String),
    /// A whole number.
    Count(u64),
    /// A number with this many decimals.
    Number(f64, usize),
    /// A number with its sign.
    Signed(f64, usize),
    /// Parts of a whole, each with the name of its look and its share.
    Parts(Vec<(&'static str, f64)>),
    /// A stretch of time, as a button that brings it into view; ns of page time.
    Show(i64, i64),
    /// Not known, or none.
    Nothing,
}

impl Cell {
    /// Milliseconds, seconds or microseconds, to a thousandth.
    pub fn thousandths(value: f64) -> Cell {
        Cell::Number(value, 3)
    }

    /// The value if there is one.
    pub fn or_nothing(value: Option<f64>) -> Cell {
        value.map_or(Cell::Nothing, Cell::thousandths)
    }

    /// Whether it is read from the right.
    fn is_number(&self) -> bool {
        matches!(self, Cell::Count(_) | Cell::Number(..) | Cell::Signed(..) | Cell::Nothing)
    }
}

/// `name` as far as a table shows it, and whether that is not all.
pub fn shortened(name: &str, most: usize) -> (String, bool) {
    if name.chars().nth(most).is_none() {
        return (name.to_owned(), false);
    }
    (name.chars().take(most - 1).chain(['…']).collect(), true)
}

/// A name of any length: short, with more of it on hover.
pub fn name(out: &mut String, name: &str) {
    let (short, is_cut) = shortened(name, SHOWN);
    if is_cut {
        let (kept, _) = shortened(name, KEPT);
        let _ = write!(out, "<span title=\"{}\">{}</span>", esc(&kept), esc(&short));
    } else {
        out.push_str(&esc(&short));
    }
}

impl Table {
    /// The table as a section; nothing if it has no rows.
    pub fn write(&self, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let _ = writeln!(out, "<section id=\"{}\">\n<h2>{}</h2>", self.id, esc(&self.title));
        if !self.note.is_empty() {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", esc(&self.note));
        }
        let _ = write!(
            out,
            "<div class=\"wide\"><table data-sort aria-label=\"{}\"><thead><tr>",
            esc(&self.title)
        );
        if self.marked() {
            out.push_str("<th scope=\"col\" class=\"n\">mark");
        }
        let shown = self.shown();
        for (at, column) in self.columns.iter().enumerate().filter(|(at, _)| shown.contains(at)) {
            // A column is one of numbers if any of its cells is a number.
            let is_number = self.is_of_numbers(at);
            let _ = write!(
                out,
                "<th scope=\"col\"{}>{}",
                if is_number { " class=\"n\"" } else { "" },
                // A unit stays with the word before it.
                esc(column).replace(", ", ",&nbsp;")
            );
        }
        out.push_str("</tr></thead><tbody>\n");
        self.rows.iter().take(ROWS).for_each(|row| self.row(out, row, &shown));
        out.push_str("</tbody></table></div>\n");
        let left_out = self.left_out + self.rows.len().saturating_sub(ROWS);
        if left_out > 0 {
            let shown = self.rows.len().min(ROWS);
            let _ = writeln!(
                out,
                "<p class=\"note\">{shown} of {} rows; the page leaves out {left_out}.</p>",
                shown + left_out
            );
        }
        for line in &self.below {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", esc(line));
        }
        out.push_str("</section>\n");
    }

    /// The columns in which something stands.
    fn shown(&self) -> Vec<usize> {
        let says = |at: usize| {
            self.rows.iter().any(|row| row.cells.get(at).is_some_and(|of| *of != Cell::Nothing))
        };
        (0..self.columns.len()).filter(|at| says(*at)).collect()
    }

    fn marked(&self) -> bool {
        self.rows.iter().any(|row| row.id.is_some())
    }

    fn is_of_numbers(&self, at: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.cells.get(at));
        cells.clone().all(Cell::is_number) && cells.any(|cell| *cell != Cell::Nothing)
    }

    fn row(&self, out: &mut String, row: &Row, shown: &[usize]) {
        match &row.id {
            Some(id) => {
                let number = id.rsplit('-').next().unwrap_or(id);
                let _ = write!(
                    out,
                    "<tr id=\"{0}\"><td class=\"n\"><a href=\"#at-{0}\" title=\"show it on the time line\">{1}</a>",
                    esc(id),
                    esc(number)
                );
            }
            None if self.marked() => out.push_str("<tr><td class=\"n\">–"),
            None => out.push_str("<tr>"),
        }
        shown.iter().filter_map(|at| row.cells.get(*at)).for_each(|of| cell(out, of));
        out.push_str("</tr>\n");
    }
}

/// A stretch of time as a button that brings it into view.
pub(crate) fn goto(from: i64, to: i64) -> String {
    format!(
        "<button class=\"goto\" data-from=\"{from}\" data-to=\"{to}\">{:.3}–{:.3} s</button>",
        from as f64 / 1e9,
        to as f64 / 1e9
    )
}

fn cell(out: &mut String, cell: &Cell) {
    let _ = match cell {
        Cell::Text(text) if text.chars().nth(WORDS).is_none() => {
            write!(out, "<td class=\"w\">{}", esc(text))
        }
        Cell::Text(text) => write!(out, "<td class=\"text\">{}", esc(text)),
        Cell::Name(text) => {
            out.push_str("<td class=\"name\">");
            name(out, text);
            Ok(())
        }
        Cell::Count(count) => write!(out, "<td class=\"n\">{count}"),
        Cell::Number(value, digits) if value.is_finite() => {
            let text = format!("{value:.digits$}");
            let is_zero = text.bytes().all(|b| matches!(b, b'-' | b'0' | b'.'));
            write!(
                out,
                "<td class=\"n\">{}",
                text.strip_prefix('-').filter(|_| is_zero).unwrap_or(&text)
            )
        }
        Cell::Signed(value, digits) if value.is_finite() => {
            write!(out, "<td class=\"n\">{value:+.digits$}")
        }
        Cell::Parts(parts) => {
            parts_of(out, parts);
            Ok(())
        }
        Cell::Show(from, to) => write!(out, "<td>{}", goto(*from, *to)),
        Cell::Nothing | Cell::Number(..) | Cell::Signed(..) => write!(out, "<td class=\"n\">–"),
    };
}

/// Shares side by side, as long as they are; their numbers stand in the cells beside.
fn parts_of(out: &mut String, parts: &[(&'static str, f64)]) {
    const WIDTH: f64 = 160.0;
    out.push_str("<td><svg class=\"shares\" viewBox=\"0 0 160 10\" width=\"160\" height=\"10\" aria-hidden=\"true\">");
    let mut at = 0.0;
    for (look, share) in parts.iter().filter(|(_, share)| share.is_finite()) {
        let width = (WIDTH * share.clamp(0.0, 1.0)).min(WIDTH - at).max(0.0);
        let _ = write!(
            out,
            "<rect class=\"{look}\" x=\"{at:.1}\" y=\"0\" width=\"{width:.1}\" height=\"10\"/>"
        );
        at += width;
    }
    out.push_str("</svg>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(table: &Table) -> String {
        let mut out = String::new();
        table.write(&mut out);
        out
    }

    fn table(rows: usize) -> Table {
        Table {
            id: "kernels",
            title: "Kernels".into(),
            columns: vec!["total, ms", "name"],
            rows: (0..rows)
                .map(|i| Row {
                    id: None,
                    cells: vec![Cell::thousandths(i as f64), Cell::Name(format!("<k{i}>"))],
                })
                .collect(),
            ..Table::default()
        }
    }

    #[test]
    fn ten_thousand_rows_are_a_few_and_how_many_are_left_out() {
        let html = html(&table(10_000));
        assert_eq!(html.matches("<tr>").count(), ROWS + 1);
        assert!(html.contains("300 of 10000 rows; the page leaves out 9700."), "{html}");
        assert!(html.len() < 60_000, "{} bytes", html.len());
    }

    #[test]
    fn a_long_name_is_cut_and_whole_on_hover_and_never_an_element() {
        let mut one = table(1);
        one.rows[0].cells[1] = Cell::Name(format!("<img src=x>{}", "k".repeat(5000)));
        let html = html(&one);
        assert!(!html.contains("<img") && html.contains("<span title=\"&lt;img src=x&gt;kkk"));
        assert!(html.len() < 1600, "{}", html.len());
    }

    #[test]
    fn numbers_stand_to_the_right_and_unknown_ones_are_dashes() {
        let mut one = table(2);
        one.rows[1].cells[0] = Cell::Number(f64::NAN, 3);
        let html = html(&one);
        assert!(
            html.contains("<th scope=\"col\" class=\"n\">total,&nbsp;ms<th scope=\"col\">name")
        );
        assert!(html.contains("<td class=\"n\">0.000<td") && html.contains("<td class=\"n\">–<td"));
        assert_eq!(self::html(&table(0)), "");
        one.rows[1].cells[0] = Cell::thousandths(-0.0001);
        assert!(!self::html(&one).contains("-0"), "a zero has no sign");
    }

    #[test]
    fn a_column_in_which_nothing_stands_is_not_shown() {
        let mut two = table(2);
        two.columns.insert(1, "never known");
        two.rows.iter_mut().for_each(|row| row.cells.insert(1, Cell::Nothing));
        let html = html(&two);
        assert!(!html.contains("never known") && !html.contains('–'), "{html}");
        assert_eq!(html.matches("<td").count(), 4);
    }

    #[test]
    fn a_row_with_a_mark_leads_to_it() {
        let mut one = table(2);
        one.rows[0].id = Some("gap-7".into());
        let html = html(&one);
        assert!(html.contains("<tr id=\"gap-7\"><td class=\"n\"><a href=\"#at-gap-7\""), "{html}");
        assert!(html.contains("<tr><td class=\"n\">–<td"), "{html}");
    }
}
