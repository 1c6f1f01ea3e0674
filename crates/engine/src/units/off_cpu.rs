//! For how long the threads of steps were on a CPU in them: what steps of unknown length are compared by.

use std::collections::{HashMap, HashSet};

use gpuwhy_diagnose::detect::{self, Detection, Step};
use gpuwhy_schema::{EntityId, Ns, State, ThreadState};

use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::state_tracks;

/// A step is known where this share of it is.
const SEEN: f64 = 0.9;

/// Whether a thread is off its CPU in this state.
pub(crate) fn is_off_cpu(state: ThreadState) -> bool {
    use ThreadState as S;
    match state {
        S::Runnable | S::Throttled | S::Sleep | S::DiskWait | S::Uninterruptible | S::Stopped => {
            true
        }
        S::Unknown | S::Running | S::Softirq | S::Hardirq => false,
    }
}

/// Says of busy periods, and of the steps of threads whose steps are of several kinds, for how long these ran in them.
/// States are many, and of most programs nobody has to read them.
///
/// # Errors
/// The trace cannot be read.
pub(crate) fn fill(source: &TraceSource, steps: &mut [Step]) -> Result<()> {
    let busy_periods = steps.iter().filter(|step| step.is_busy_period());
    let mut threads: HashSet<EntityId> = busy_periods.map(|step| step.thread).collect();
    if steps.iter().any(|step| !threads.contains(&step.thread)) {
        threads.extend(detect::of_several_kinds(steps, &Detection::default()));
    }
    if threads.is_empty() {
        return Ok(());
    }
    let mut of: HashMap<EntityId, Vec<usize>> = HashMap::new();
    for (i, step) in steps.iter().enumerate().filter(|(_, step)| threads.contains(&step.thread)) {
        of.entry(step.thread).or_default().push(i);
    }
    // What was seen of each step, and what of that its thread was off its CPU.
    let mut seen = vec![(0i64, 0i64); steps.len()];
    let tracks = state_tracks(source);
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let Some(list) = tracks.get(&row.track).and_then(|thread| of.get(thread)) else {
                continue;
            };
            let Some((state, dur)) = ThreadState::from_code(row.value).zip(row.dur) else {
                continue;
            };
            let end = row.ts.saturating_add(dur);
            // Steps of a thread end in their order; those that hold others began before these.
            let first = list.partition_point(|&i| steps[i].end() <= row.ts);
            for &i in
                list[first..].iter().take_while(|&&i| steps[i].ts < end || steps[i].end() <= end)
            {
                let within =
                    end.min(steps[i].end()).saturating_sub(row.ts.max(steps[i].ts)).0.max(0);
                seen[i].0 += within;
                seen[i].1 += if is_off_cpu(state) { within } else { 0 };
            }
        }
    }
    for (step, (seen, off)) in steps.iter_mut().zip(seen) {
        if seen > 0 && seen as f64 >= SEEN * step.dur.0 as f64 {
            step.ran = Some(Ns(step.dur.0 - off.min(step.dur.0)));
        }
    }
    Ok(())
}
