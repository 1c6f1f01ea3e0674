//! What a live judgement reports, as text.

use gpuwhy_diagnose::verdict::Outcome;
use gpuwhy_schema::text::Screen;

use super::{Ended, Event};

impl Event {
    /// It as text; nothing for events that only programs read.
    pub fn text(&self) -> Screen {
        let mut screen = Screen::new(false);
        match self {
            Event::Slow(slow) => screen.line(format_args!(
                "{}  slower since {:.1} s ago: {} ({})",
                wall_clock(slow.at_ns),
                (slow.at_ns - slow.since_ns) as f64 / 1e9,
                slow.what,
                slow.series.join(", ")
            )),
            Event::Verdict(verdict) => {
                let sign = match verdict.finding.outcome {
                    Outcome::Decided => "VERDICT",
                    Outcome::InsufficientEvidence => "undecided",
                };
                screen.line(format_args!(
                    "{}  {sign}, {:.1} s after the onset: {}",
                    wall_clock(verdict.at_ns),
                    (verdict.at_ns - verdict.finding.from_ns) as f64 / 1e9,
                    verdict.finding.summary
                ))
            }
            Event::Over(verdict) => {
                screen.line(format_args!(
                    "{}  over: {}",
                    wall_clock(verdict.at_ns),
                    verdict.finding.summary
                ));
                if let Some(without) = &verdict.counterfactual {
                    screen.line(format_args!("          {without}"));
                }
                for place in verdict.places() {
                    screen.line(format_args!("          {place}"));
                }
                &mut screen
            }
            Event::Broken(broken) => {
                screen.line(format_args!(
                    "{}  PROMISE BROKEN: {}: {} of {} in {:.1} s took longer than {} ms, says {}",
                    wall_clock(broken.at_ns),
                    broken.what,
                    broken.over,
                    broken.of,
                    (broken.at_ns - broken.since_ns) as f64 / 1e9,
                    broken.bound_ms,
                    broken.address
                ));
                for one in &broken.because {
                    screen.line(format_args!("          {one}"));
                }
                &mut screen
            }
            Event::Correlator(news) => {
                screen.line(format_args!("{}  {}", wall_clock(news.at_ns), news.text()))
            }
            Event::Shed(shed) => {
                screen.line(format_args!("{}  {}", wall_clock(shed.at_ns), shed.says))
            }
            Event::Status(_) => &mut screen,
            Event::Trouble(trouble) => {
                screen.line(format_args!("{}  {}", wall_clock(trouble.at_ns), trouble.says))
            }
            Event::Ended(ended) => ended_text(&mut screen, ended),
        };
        screen
    }
}

fn ended_text<'a>(screen: &'a mut Screen, ended: &Ended) -> &'a mut Screen {
    screen.line(format_args!(
        "{}: watched for {:.0} s, {}, {} findings; {:.2} s of CPU in the kernel and \
         {:.2} s here ({:.2} % of the machine), {} MiB",
        ended.trace,
        ended.seconds,
        ended.compared(),
        ended.findings,
        ended.bpf_seconds.unwrap_or(0.0),
        ended.cpu_seconds,
        100.0 * ended.machine_share,
        ended.rss_bytes >> 20
    ));
    if ended.exact_left_out_seconds >= 1.0 {
        screen.line(format_args!(
            "all rows are kept of {:.0} s around incidents, and of {:.0} s more not: --all-rows",
            ended.exact_seconds, ended.exact_left_out_seconds
        ));
    }
    if ended.as_before > 0 {
        screen.line(format_args!(
            "{} more slowdowns, no larger than others of the hour before for which nobody could be named, were not told",
            ended.as_before
        ));
    }
    if let Some(hint) = ended.hint() {
        screen.line(hint);
    }
    screen
}

/// A time of the trace clock as the wall clock has it, to the tenth of a second, UTC.
pub fn wall_clock(at_ns: i64) -> String {
    let ago = gpuwhy_collect::now().0 - at_ns;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = now.map_or(0, |d| d.as_nanos() as i64) - ago;
    let s = at.div_euclid(1_000_000_000);
    let tenth = at.rem_euclid(1_000_000_000) / 100_000_000;
    format!("{:02}:{:02}:{:02}.{tenth}", s / 3600 % 24, s / 60 % 60, s % 60)
}
