//! What is said of a recording without steps, for people.

use super::{Change, Changed, ThreadTime, Threads, WaitedFor};

/// A smaller share of a thread's time is not listed.
const LISTED: f64 = 0.01;

/// What a thread does, in words.
pub(super) fn words(doing: &str) -> &str {
    match doing {
        "runnable" => "waiting for a CPU",
        "throttled" => "out of CPU quota",
        "disk" => "waiting for a disk",
        "futex" => "waiting in a futex",
        "socket" => "waiting in a pipe or socket",
        "poll" => "waiting in poll",
        "timer" => "sleeping for a time",
        "driver" => "waiting in a driver's call",
        "asleep" => "asleep",
        "uninterruptible" => "uninterruptible",
        other => other,
    }
}

/// How one waits for somebody: behind a process that has the CPU, else for a thread.
pub(super) fn waiting(doing: &str) -> &'static str {
    match doing {
        "runnable" => "for a CPU behind",
        "futex" => "in a futex for",
        "socket" => "in a pipe or socket for",
        "poll" => "in poll for",
        _ => "for",
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

impl ThreadTime {
    /// Who it is.
    pub fn name(&self) -> String {
        let tid = self.tid.map(|tid| format!(" (tid {tid})")).unwrap_or_default();
        match self.tid == self.pid || self.process.is_empty() {
            true => format!("{}{tid}", self.thread),
            false => {
                let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                format!("{}{tid} of {}{pid}", self.thread, self.process)
            }
        }
    }

    /// Where its time went, the largest shares first.
    pub fn spent(&self) -> String {
        let mut shares: Vec<(&str, f64)> =
            self.shares.iter().map(|(doing, share)| (*doing, *share)).collect();
        shares.retain(|(_, share)| *share >= LISTED);
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let each =
            shares.iter().map(|(doing, share)| format!("{} {}", words(doing), percent(*share)));
        let mut out = each.collect::<Vec<_>>().join(", ");
        if self.seen < 0.95 {
            out += &format!(" of the {} of the recording in which it was seen", percent(self.seen));
        }
        out
    }

    /// For whom it waited; empty if that is not known.
    pub fn waited(&self) -> String {
        let each = self.waited_for.iter().map(|w: &WaitedFor| {
            let times = if w.times == 1 { "once".into() } else { format!("{} times", w.times) };
            format!("{} {} {} ({times})", waiting(w.doing), w.whom, percent(w.share))
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

impl Change {
    /// What was not as usual.
    pub fn text(&self) -> String {
        let one = |c: &Changed| match &*c.what {
            "CPUs" => format!("took {:.2} CPUs instead of {:.2}", c.then, c.usual),
            doing => {
                format!("{} {} instead of {}", words(doing), percent(c.then), percent(c.usual))
            }
        };
        let mut out = self.what.iter().map(one).collect::<Vec<_>>().join(", ");
        let whom =
            |c: &Changed| format!("{} {} instead of {}", c.what, percent(c.then), percent(c.usual));
        let whom: Vec<String> = self.waited_for.iter().map(whom).collect();
        if !whom.is_empty() {
            out += &format!("; {}", whom.join(", "));
        }
        out
    }
}

impl Threads {
    /// All of it, in lines.
    pub fn text(&self) -> Vec<String> {
        let seconds = |ns: i64| ns.saturating_sub(self.from_ns) as f64 / 1e9;
        let mut out = Vec::new();
        if !self.threads.is_empty() {
            let length = seconds(self.to_ns);
            out.push(format!("Where the time of the busiest threads went, in {length:.1} s"));
        }
        for thread in &self.threads {
            out.push(format!("  {}: {}", thread.name(), thread.spent()));
            if !thread.waited_for.is_empty() {
                out.push(format!("      waited {}", thread.waited()));
            }
        }
        if !self.cpus.is_empty() {
            out.push("Who took the CPUs".into());
        }
        for taken in &self.cpus {
            out.push(format!("  {}: {:.2} CPUs", taken.name(), taken.cpus));
        }
        if !self.changes.is_empty() {
            out.push(format!(
                "What changed, against the recording's own usual, in windows of {:.0} ms",
                self.window_ms
            ));
        }
        for change in &self.changes {
            let (from, to) = (seconds(change.from_ns), seconds(change.to_ns));
            out.push(format!("  {from:.2} s to {to:.2} s: {}: {}", change.who, change.text()));
        }
        if self.changes.is_empty() && self.compared {
            out.push(format!(
                "Nothing changed by much for long, in windows of {:.0} ms.",
                self.window_ms
            ));
        }
        out.extend(self.comes_and_goes.iter().map(|what| format!("  comes and goes: {what}")));
        out.extend(self.not_known.iter().map(|what| format!("  not known: {what}")));
        out
    }
}
