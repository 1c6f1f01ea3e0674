//! What is told of requests, as text.

use gpuwhy_schema::text::Screen;

use super::{Met, Pieces, Report, RequestReport, SloReport, Times, Wasted, in_order};

/// Findings of a request that are told.
const FINDINGS: usize = 3;

impl Report {
    /// It, for a terminal.
    pub fn text(&self) -> Screen {
        let mut out = Screen::new(false);
        if self.requests == 0 {
            out.line(format_args!(
                "the trace holds no request that an engine has ended ({} had not ended); see docs/llm.md",
                self.unfinished
            ));
            return out;
        }
        out.line(format_args!(
            "{} requests, {} that had not ended, {} without a step",
            self.requests, self.unfinished, self.without_steps
        ));
        out.end();
        out.line(format_args!(
            "  {:<22}{:>10}{:>10}{:>10}{:>10}",
            "ms", "mean", "median", "p99", "most"
        ));
        for (what, of) in [
            ("to the first token", self.ttft_ms),
            ("each later token", self.tpot_ms),
            ("all of it", self.total_ms),
            ("not its own work", self.late_ms),
        ] {
            spread(&mut out, what, of);
        }
        out.end();
        out.line(format_args!("  {:<22}{:>10}{:>17}", "ms a request", "all", "the latest 1 %"));
        for (piece, ms) in in_order(&self.pieces_ms) {
            let latest = self.latest_ms.get(piece).copied().unwrap_or(0.0);
            out.line(format_args!("  {:<22}{ms:>10.1}{latest:>17.1}", words(piece)));
        }
        if self.priced_share < 0.9 {
            out.end().line(format_args!(
                "what a step should take is known of {:.0} % of the steps: of the others, what prompts of others and slowness \
                 cost is not told apart",
                100.0 * self.priced_share
            ));
        }
        wasted(&mut out, &self.wasted);
        self.slos.iter().for_each(|one| slo(&mut out, one));
        for one in &self.told {
            request(&mut out, one, self.from_s);
        }
        if self.findings == 0 {
            out.end().line(format_args!(
                "the trace holds no findings; `gpuwhy diagnose {}` says why steps were slow",
                self.trace
            ));
        }
        out
    }
}

/// What a piece is called.
fn words(piece: &'static str) -> &'static str {
    match piece {
        "front" => "before the engine",
        "queue" => "in the queue",
        "prompt" => "its prompt",
        "answer" => "its answer",
        "others_prompts" => "prompts of others",
        "slower" => "steps were slower",
        "between" => "between steps",
        "preempted" => "sent back to the queue",
        "paused" => "paused",
        "back" => "after the engine",
        other => other,
    }
}

fn spread(out: &mut Screen, what: &str, of: Option<Times>) {
    if let Some(Times { mean, p50, p99, max }) = of {
        out.line(format_args!("  {what:<22}{mean:>10.1}{p50:>10.1}{p99:>10.1}{max:>10.1}"));
    }
}

/// Pieces in one line, those of a tenth of a millisecond and more.
fn line(pieces: &Pieces) -> String {
    let said = in_order(pieces).filter(|(_, ms)| *ms >= 0.1);
    let said: Vec<String> = said.map(|(piece, ms)| format!("{} {ms:.1}", words(piece))).collect();
    said.join(", ")
}

fn wasted(out: &mut Screen, of: &Wasted) {
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    if of.proposed > 0 || of.submitted > 0 {
        let (proposed, submitted, accepted) = (of.proposed, of.submitted, of.accepted);
        out.end().line(format_args!(
            "drafts: {proposed} made in {:.1} ms, {submitted} submitted, {accepted} kept ({:.1} % of those submitted)",
            of.draft_ms,
            percent(accepted, submitted)
        ));
    }
    if of.unmade > 0 {
        out.end().line(format_args!(
            "{} drafts were submitted that nobody had made ({:.1} % of those submitted): the engine pads them, or loses some",
            of.unmade,
            percent(of.unmade, of.submitted)
        ));
    }
    if of.padded > of.tokens {
        out.end().line(format_args!(
            "padding: {} tokens were computed for {} ({:.1} % for nothing)",
            of.padded,
            of.tokens,
            percent(of.padded - of.tokens, of.padded)
        ));
    }
}

fn slo(out: &mut Screen, one: &SloReport) {
    let SloReport { what, at_most_ms, of, violated, .. } = one;
    let share = 100.0 * *violated as f64 / (*of).max(1) as f64;
    out.end();
    out.line(format_args!(
        "{what} at most {at_most_ms:.1} ms: {violated} of {of} requests took longer ({share:.2} %)"
    ));
    if *violated > 0 {
        out.line(format_args!("  ms a request: {}", line(&one.pieces_ms)));
    }
    for (cause, n) in one.findings.iter().take(FINDINGS) {
        out.line(format_args!("  {n} of them met: {cause}"));
    }
}

/// A request; times are told from `began` on, s.
fn request(out: &mut Screen, one: &RequestReport, began: f64) {
    let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    let ms = |of: Option<f64>| of.map_or("?".to_owned(), |ms| format!("{ms:.1}"));
    let trace = one.trace.as_ref().map_or(String::new(), |trace| format!(", trace {trace}"));
    out.end();
    out.line(format_args!(
        "{}{trace}: {} tokens given ({} from a cache), {} made in {} steps, {}",
        one.key,
        number(one.prompt_tokens),
        number(one.cached_tokens),
        number(one.output_tokens),
        one.steps,
        one.outcome.as_deref().unwrap_or("ended"),
    ));
    out.line(format_args!(
        "  came at {:.3} s, took {:.1} ms; first token after {} ms, then {} ms each; {:.1} ms were not its own work",
        one.came_s - began,
        one.total_ms,
        ms(one.ttft_ms),
        ms(one.tpot_ms),
        one.late_ms
    ));
    out.line(format_args!("  ms: {}", line(&one.pieces_ms)));
    if let Some(gap) = &one.longest_gap {
        out.line(format_args!(
            "  longest between two tokens: {:.1} ms at {:.3} s: {}",
            gap.ms,
            gap.from_s - began,
            line(&gap.pieces_ms)
        ));
    }
    for Met { cause, from_s, late_ms } in one.met.iter().take(FINDINGS) {
        let at = from_s - began;
        out.line(format_args!("  {late_ms:.1} ms of that in what was found at {at:.3} s: {cause}"));
    }
}
