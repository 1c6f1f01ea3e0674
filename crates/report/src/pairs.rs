//! Two runs as stacked bars, one above the other: what time went into in each.
//!
//! Parts differ in colour and hatching, and a table behind the picture has the numbers.

use std::fmt::Write;

use crate::bars::{BLUE, GREEN, GREY, Hatch, ORANGE, PURPLE, SKY, VERMILLION, YELLOW, pattern};
use crate::html::esc;
use crate::table::shortened;

/// Pairs that are drawn; the table has more.
const DRAWN: usize = 12;
const LEFT: f64 = 60.0;
const WIDTH: f64 = 1180.0;
/// What is left to the right for the sum, px.
const SUM: f64 = 110.0;
const BAR: f64 = 24.0;
/// Height of a pair with its name, px.
const PAIR: f64 = 84.0;

/// What a part is, which decides how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The work itself.
    Own,
    /// Waiting for one's own work.
    Predecessor,
    /// Waiting for somebody else's, by the number of that one.
    Other(usize),
    /// Waiting while nothing ran.
    Idle,
    /// Waiting for what it depends on.
    Dependency,
    /// Waiting for the host.
    Host,
    /// Nothing to do.
    Nothing,
}

/// A part in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is.
    pub kind: Kind,
    /// What it is called.
    pub label: String,
    /// In the base, ms.
    pub base_ms: f64,
    /// In the run, ms.
    pub run_ms: f64,
}

/// Two bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// Of whom.
    pub name: String,
    /// From the left.
    pub parts: Vec<Part>,
}

/// Pairs of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// What links lead to: `latency-bars`.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// What is shown.
    pub note: String,
    /// The pairs, in their order.
    pub pairs: Vec<Pair>,
}

/// Colour and lines of a part.
fn look(kind: Kind) -> (&'static str, Hatch) {
    const COLOURS: [&str; 4] = [VERMILLION, ORANGE, YELLOW, PURPLE];
    const HATCHES: [Hatch; 6] =
        [Hatch::None, Hatch::Up, Hatch::Down, Hatch::Dots, Hatch::Across, Hatch::Cross];
    match kind {
        Kind::Own => (GREEN, Hatch::None),
        Kind::Predecessor => (GREEN, Hatch::Upright),
        Kind::Other(at) => (COLOURS[at % 4], HATCHES[at / 4 % 6]),
        Kind::Idle => (BLUE, Hatch::None),
        Kind::Dependency => (SKY, Hatch::Up),
        Kind::Host => (GREY, Hatch::None),
        Kind::Nothing => ("none", Hatch::Down),
    }
}

/// What fills a kind, by an id that no two kinds of one picture share.
fn fill(of: &Pairs, kind: Kind) -> String {
    let number = match kind {
        Kind::Own => 0,
        Kind::Predecessor => 1,
        Kind::Idle => 2,
        Kind::Dependency => 3,
        Kind::Host => 4,
        Kind::Nothing => 5,
        Kind::Other(at) => 6 + at,
    };
    format!("{}-{number}", of.id)
}

impl Pairs {
    /// The picture as a section; nothing if no bar has a length.
    pub fn write(&self, out: &mut String) {
        let long = |pair: &&Pair| longest(pair) > 0.0;
        let pairs: Vec<&Pair> = self.pairs.iter().filter(long).collect();
        if pairs.is_empty() {
            return;
        }
        let drawn = &pairs[..pairs.len().min(DRAWN)];
        let mut kinds: Vec<(Kind, &str)> = Vec::new();
        for part in drawn.iter().flat_map(|pair| &pair.parts) {
            let shown = part.base_ms > 0.0 || part.run_ms > 0.0;
            if shown && !kinds.iter().any(|(kind, _)| *kind == part.kind) {
                kinds.push((part.kind, &part.label));
            }
        }
        let _ = write!(
            out,
            "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n<p class=\"legend\">",
            self.id,
            self.title,
            esc(&self.note)
        );
        for (kind, label) in &kinds {
            let (label, _) = shortened(label, 60);
            let _ = write!(
                out,
                "<span><svg class=\"swatch\" width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"seg\" \
                 width=\"14\" height=\"14\" fill=\"url(#{})\"/></svg> {}</span>",
                fill(self, *kind),
                esc(&label)
            );
        }
        let height = PAIR * drawn.len() as f64;
        let _ = write!(
            out,
            "</p>\n<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}. The table \
             below says the same.\">\n<defs>",
            self.title
        );
        for (kind, _) in &kinds {
            let (colour, hatch) = look(*kind);
            out.push_str(&pattern(&fill(self, *kind), colour, hatch));
        }
        out.push_str("</defs>\n");
        for (at, pair) in drawn.iter().enumerate() {
            self.pair(out, pair, at as f64 * PAIR);
        }
        out.push_str("</svg>\n");
        let left_out = pairs.len() - drawn.len();
        if left_out > 0 {
            let _ = writeln!(out, "<p class=\"note\">{left_out} more are in the table only.</p>");
        }
        out.push_str("</section>\n");
    }

    fn pair(&self, out: &mut String, pair: &Pair, top: f64) {
        let scale = (WIDTH - LEFT - SUM) / longest(pair);
        let (name, _) = shortened(&pair.name, 120);
        let _ = writeln!(
            out,
            "<text class=\"pair-name\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
            top + 14.0,
            esc(&name)
        );
        let base = pair.parts.iter().map(|part| (part, part.base_ms));
        self.bar(out, ("base", top + 26.0, scale), base);
        let run = pair.parts.iter().map(|part| (part, part.run_ms));
        self.bar(out, ("run", top + 54.0, scale), run);
    }

    fn bar<'a>(
        &self,
        out: &mut String,
        (title, y, scale): (&str, f64, f64),
        parts: impl Iterator<Item = (&'a Part, f64)>,
    ) {
        let middle = y + BAR / 2.0;
        let _ = write!(
            out,
            "<text class=\"bar-name\" x=\"{}\" y=\"{middle:.1}\">{title}</text>",
            LEFT - 8.0
        );
        let (mut x, mut sum) = (LEFT, 0.0);
        for (part, value) in parts {
            let width = value * scale;
            sum += value;
            if width >= 0.4 {
                self.segment(out, part, value, (x, y, width));
                x += width;
            }
        }
        let _ = writeln!(
            out,
            "<text class=\"bar-sum\" x=\"{:.1}\" y=\"{middle:.1}\">{sum:.*} ms</text>",
            x + 8.0,
            digits(sum),
        );
    }

    /// A part with its ms where there is room.
    fn segment(&self, out: &mut String, part: &Part, value: f64, (x, y, width): (f64, f64, f64)) {
        let _ = write!(
            out,
            "<g><title>{}: {value:.3} ms</title><rect class=\"seg\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{BAR}\" fill=\"url(#{})\"/>",
            esc(&part.label),
            fill(self, part.kind)
        );
        let words = format!("{value:.*}", digits(value));
        if width > 9.0 * words.len() as f64 + 8.0 {
            let _ = write!(
                out,
                "<text class=\"seg-name\" x=\"{:.1}\" y=\"{:.1}\">{words}</text>",
                x + width / 2.0,
                y + BAR / 2.0
            );
        }
        out.push_str("</g>");
    }
}

/// Decimals of ms, for three digits or more.
fn digits(ms: f64) -> usize {
    match ms {
        ms if ms >= 100.0 => 0,
        ms if ms >= 10.0 => 1,
        ms if ms >= 1.0 => 2,
        _ => 3,
    }
}

/// The longer bar of a pair, ms.
fn longest(pair: &Pair) -> f64 {
    let sum = |of: fn(&Part) -> f64| pair.parts.iter().map(of).filter(|ms| ms.is_finite()).sum();
    f64::max(sum(|part| part.base_ms), sum(|part| part.run_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: Kind, label: &str, base_ms: f64, run_ms: f64) -> Part {
        Part { kind, label: label.into(), base_ms, run_ms }
    }

    fn written(pairs: Vec<Pair>) -> String {
        let mut out = String::new();
        Pairs { id: "bars", title: "Latency", note: "ms".into(), pairs }.write(&mut out);
        out
    }

    #[test]
    fn both_runs_have_one_scale_and_a_part_of_one_is_drawn_in_one() {
        let parts = vec![
            part(Kind::Own, "execution", 20.0, 20.0),
            part(Kind::Other(0), "behind <vm2>", 0.0, 80.0),
        ];
        let out = written(vec![Pair { name: "vm1".into(), parts }]);
        // 1010 px are 100 ms.
        assert_eq!(out.matches("width=\"202.0\"").count(), 2, "{out}");
        assert_eq!(out.matches("width=\"808.0\"").count(), 1, "{out}");
        assert!(out.contains(">20.0 ms</text>") && out.contains(">100 ms</text>"), "{out}");
        assert!(out.contains("behind &lt;vm2&gt;") && !out.contains("<vm2>"), "{out}");
    }

    #[test]
    fn what_has_no_length_is_not_drawn_and_more_than_fit_are_counted() {
        let none = Pair { name: "a".into(), parts: vec![part(Kind::Own, "execution", 0.0, 0.0)] };
        assert_eq!(written(vec![none]), "");
        let one = Pair { name: "a".into(), parts: vec![part(Kind::Own, "execution", 1.0, 2.0)] };
        let out = written(vec![one; DRAWN + 3]);
        assert_eq!(out.matches("pair-name").count(), DRAWN);
        assert!(out.contains("3 more are in the table only"), "{out}");
    }

    #[test]
    fn no_two_parts_look_alike() {
        let mut kinds = vec![
            Kind::Own,
            Kind::Predecessor,
            Kind::Idle,
            Kind::Dependency,
            Kind::Host,
            Kind::Nothing,
        ];
        kinds.extend((0..24).map(Kind::Other));
        for (at, one) in kinds.iter().enumerate() {
            for other in &kinds[at + 1..] {
                assert_ne!(look(*one), look(*other), "{one:?} and {other:?}");
            }
        }
    }
}
