//! How much time a series loses in a second, whatever its steps are like.
//!
//! # What it sees
//! Steps of one name are of several kinds where a name says little: the statements of a database take 15 µs or
//! 1 ms, and now and then 50. By such a tail no single step is unusual. What they lose together in a second is: the
//! time beyond the median, summed. It is compared with what earlier seconds lost. Where the thread's states are
//! recorded and its steps are its own work, of whatever length, the time that it was off its CPU in them is summed as
//! well: a loop over batches of unknown sizes has no usual duration, but it usually runs.
//!
//! # Why it matters
//! Forty statements of 300 ms among 26,000 of 15 µs are what a user waits for.
//!
//! # What fools it
//! Work that comes in bursts less often than seconds are remembered. A series of few steps a second has no seconds
//! to compare; steps are judged one by one there.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

use super::merge::HUNG;
use super::{Against, By, COMPARED, Signature, Slowed, Step, StepNo};
use crate::baseline::Fit;
use crate::stats::{median_and_mad, sorted};

/// The length of a window.
const WINDOW: i64 = 1_000_000_000;
/// Windows that are remembered: a quarter of an hour.
const REMEMBERED: usize = 900;
/// And that are needed.
const NEEDED: usize = 20;
/// A window of fewer steps is not judged.
const STEPS: usize = 20;
/// Of a window, those steps are looked at that hold this share of its loss,
const CARRIED: f64 = 0.9;
/// the longest ones, at most so many.
const CARRIERS: usize = 64;
/// A window that loses so many scales more than the median one is anomalous,
const SCALES: f64 = 5.0;
/// where the scale is at least this share of the median;
const LEAST_SCALE: f64 = 0.15;
/// if it loses as much more than any but one of those remembered,
const BEYOND: f64 = 1.25;
/// and more than the median by a fifth of what the steps take in a second usually, by this many ns at least, and no more
/// is asked for than a twentieth of the time.
const LEAST: (f64, f64) = (5e6, 5e7);
const LEAST_SHARE: f64 = 0.2;
/// Two in a row are an anomaly; one is, from so many times the limit on.
const ALONE: f64 = 4.0;
/// An anomaly of so few windows is a burst.
const SHORT: usize = 3;
/// So many bursts are kept, in case somebody else is to blame for one.
const SHORT_KEPT: usize = 16;
/// The first of two is a part of it if it lost at least this share of what the second did.
const LIKE: f64 = 0.25;
/// It goes on with windows that lie this share of the way from the median one to the limit, or more: they are not usual,
/// and raise no limit.
const GOES_ON: f64 = 0.5;
/// It ends after this many windows that do not.
const CALM: usize = 3;

/// What the steps of a series lose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Loses {
    /// What they take beyond the median one.
    #[default]
    BeyondMedian,
    /// What their thread is off its CPU.
    OffCpu,
}

/// A thread that is off its CPU for more than this share of its steps waits by itself: for a device, or for others.
const OWN_WORK: f64 = 0.9;
/// What it is off its CPU is worth a finding from this share of its steps on.
const LEAST_OFF_CPU: f64 = 0.1;
/// If steps take longer by this share of it at least.
const LONGER: f64 = 0.5;

/// The present window.
#[derive(Debug, Default)]
struct Window {
    /// Its number.
    at: i64,
    loss: f64,
    /// Each step that lost something: what it lost, and its number.
    steps: Vec<(f64, StepNo)>,
    count: usize,
    /// What all steps took, and the latest of them.
    took: f64,
    latest: VecDeque<StepNo>,
    /// An anomaly of single steps was open meanwhile.
    tainted: bool,
}

/// An anomaly that has begun and not ended.
#[derive(Clone, Debug)]
struct Open {
    fit: Fit,
    threshold: Ns,
    usual: Vec<StepNo>,
    /// How many of these came in a second.
    usual_a_second: f64,
    slow: Vec<StepNo>,
    score: f64,
    calm: usize,
    /// What its windows lost.
    losses: Vec<f64>,
    /// What its steps are measured by.
    by: By,
}

/// What a series lost in each second, and what it loses now.
#[derive(Debug, Default)]
pub(super) struct Surge {
    loses: Loses,
    window: Window,
    /// How many steps the window before had, and what they took.
    count: usize,
    took: f64,
    /// What earlier windows lost, oldest first.
    past: VecDeque<f64>,
    /// The mean step of each of them that was learned, and what all of its steps took.
    means: VecDeque<f64>,
    taken: VecDeque<f64>,
    /// Of short anomalies that are remembered: their steps, and what their windows lost.
    short: VecDeque<(Vec<StepNo>, Vec<f64>)>,
    /// The steps that held most of it, with the numbers of their windows. Of what threads are off their CPUs, any.
    carriers: VecDeque<(i64, StepNo)>,
    /// The window before was anomalous: what it lost, and its steps.
    hot: Option<(f64, Vec<StepNo>)>,
    open: Option<Open>,
}

impl Surge {
    /// Of what threads are off their CPUs in steps that are their own work.
    pub fn off_cpu() -> Surge {
        Surge { loses: Loses::OffCpu, ..Surge::default() }
    }

    /// Takes a step; returns an anomaly that ended before it. `elsewhere`: the step belongs to an anomaly of single
    /// steps.
    pub fn step(&mut self, no: StepNo, step: &Step, fit: Fit, elsewhere: bool) -> Option<Slowed> {
        let at = step.end().0.div_euclid(WINDOW);
        let mut ended = None;
        if at > self.window.at {
            // Seconds of which nothing is known: no steps, or it is not known what their thread did.
            let is_gap = at - self.window.at > CALM as i64;
            ended = self.finish(fit, &step.signature());
            if is_gap {
                ended = ended.or(self.close(&step.signature()));
                self.hot = None;
            }
            self.window = Window { at, ..Window::default() };
        }
        let window = &mut self.window;
        window.tainted |= elsewhere;
        window.count += 1;
        window.took += step.dur.0 as f64;
        let without = match self.loses {
            Loses::BeyondMedian => fit.center.exp(),
            Loses::OffCpu => {
                if window.latest.len() == COMPARED {
                    window.latest.pop_front();
                }
                window.latest.push_back(no);
                step.ran.unwrap_or(step.dur).0 as f64
            }
        };
        let lost = step.dur.0 as f64 - without;
        if lost > 0.0 {
            window.loss += lost;
            window.steps.push((lost, no));
            if window.steps.len() >= 2 * CARRIERS {
                longest_first(&mut window.steps);
                window.steps.truncate(CARRIERS);
            }
        }
        ended
    }

    /// Judges the window that is over.
    fn finish(&mut self, fit: Fit, signature: &Signature) -> Option<Slowed> {
        let mut window = std::mem::take(&mut self.window);
        (self.count, self.took) = (window.count, window.took);
        let latest = std::mem::take(&mut window.latest);
        if window.tainted {
            self.hot = None;
            return self.close(signature);
        }
        if window.count < STEPS {
            return self.cool(signature);
        }
        let (at, loss, carriers) = (window.at, window.loss, carriers(window));
        let usual: Vec<StepNo> = match self.loses {
            Loses::BeyondMedian => carriers.clone(),
            Loses::OffCpu => latest.into(),
        };
        let Some((median, limit)) = self.limit(fit) else {
            self.learn(at, loss, usual);
            return self.cool(signature);
        };
        let score = loss / limit;
        let share = if self.open.is_some() { GOES_ON } else { 1.0 };
        if loss <= median + share * (limit - median) || !self.takes_longer(loss) {
            if let Some((once, _)) = self.hot.take() {
                self.remember(once);
            }
            self.learn(at, loss, usual);
            return self.cool(signature);
        }
        if let Some(open) = &mut self.open {
            open.slow.extend(carriers);
            open.score = open.score.max(score);
            open.calm = 0;
            open.losses.push(loss);
            return None;
        }
        let before = self.hot.take();
        if before.is_none() && score < ALONE {
            self.hot = Some((loss, carriers));
            return None;
        }
        // A second before it that lost much less was a little unusual by chance, and does not date it.
        let before = before.filter(|(first, _)| *first >= LIKE * loss);
        let (first, mut slow) = before.unwrap_or_default();
        slow.extend(carriers);
        let losses = [first, loss].into_iter().filter(|loss| *loss > 0.0).collect();
        let usual: Vec<StepNo> = self.carriers.iter().map(|(_, no)| *no).collect();
        let usual_a_second = self.carriers_a_second();
        let threshold = Ns((fit.center.exp() + limit / STEPS as f64).min(9e18) as i64);
        let score = score.max(first / limit);
        let by = if self.loses == Loses::OffCpu { By::Cpu } else { By::Alike };
        self.open =
            Some(Open { fit, threshold, usual, usual_a_second, slow, score, calm: 0, losses, by });
        None
    }

    /// A window in which nothing was the matter.
    fn cool(&mut self, signature: &Signature) -> Option<Slowed> {
        let open = self.open.as_mut()?;
        open.calm += 1;
        if open.calm >= CALM { self.close(signature) } else { None }
    }

    fn remember(&mut self, loss: f64) {
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
        }
        self.past.push_back(loss);
    }

    fn learn(&mut self, at: i64, loss: f64, carriers: Vec<StepNo>) {
        self.remember(loss);
        for (list, new) in
            [(&mut self.means, self.took / self.count.max(1) as f64), (&mut self.taken, self.took)]
        {
            if list.len() == REMEMBERED {
                list.pop_front();
            }
            list.push_back(new);
        }
        self.carriers.extend(carriers.into_iter().map(|no| (at, no)));
        let over = self.carriers.len().saturating_sub(COMPARED);
        self.carriers.drain(..over);
    }

    /// Whether steps take longer by what their thread is off its CPU, or by half of it at least: who waits for a device or
    /// for others by running loses nothing if somebody takes its CPU meanwhile.
    fn takes_longer(&self, loss: f64) -> bool {
        if self.loses == Loses::BeyondMedian {
            return true;
        }
        let (usual, _) = median_and_mad(&sorted(self.means.iter().copied()));
        let longer = loss / (self.took - loss).max(1.0);
        self.took / self.count.max(1) as f64 >= usual * (1.0 + LONGER * longer)
    }

    /// What all steps of a second take usually.
    fn usually_taken(&self) -> f64 {
        median_and_mad(&sorted(self.taken.iter().copied())).0
    }

    /// How many of the carriers that are remembered came in a second.
    fn carriers_a_second(&self) -> f64 {
        let ends = self.carriers.front().zip(self.carriers.back());
        let windows = ends.map_or(1, |(first, last)| last.0 - first.0 + 1);
        self.carriers.len() as f64 / windows as f64
    }

    /// Whether it judges seconds: enough are known, of enough steps each.
    pub fn is_able(&self) -> bool {
        self.past.len() >= NEEDED && self.count >= STEPS
    }

    /// What the median window loses, and what one may lose; none as long as too few are known.
    fn limit(&self, fit: Fit) -> Option<(f64, f64)> {
        if self.past.len() < NEEDED {
            return None;
        }
        let all = sorted(self.past.iter().copied());
        let (median, scale) = median_and_mad(&all);
        let most_but_one = all[all.len() - 2];
        let scale = scale.max(LEAST_SCALE * median);
        let least = match self.loses {
            Loses::BeyondMedian => {
                let taken = self.count as f64 * fit.center.exp() + median;
                (LEAST_SHARE * taken).clamp(LEAST.0, LEAST.1)
            }
            Loses::OffCpu if median > (1.0 - OWN_WORK) * self.usually_taken() => return None,
            Loses::OffCpu => LEAST.1.max(LEAST_OFF_CPU * self.took),
        };
        let limit = (median + SCALES * scale).max(BEYOND * most_but_one).max(median + least);
        Some((median, limit))
    }

    /// The anomaly that has begun and not ended, as far as it is known.
    pub fn present(&self, signature: &Signature) -> Option<Slowed> {
        self.open.clone().map(|open| open.slowed(signature.clone()))
    }

    /// Ends the anomaly that has begun, if one has. A short one is remembered: what comes again and again is
    /// usual here, unless somebody else is to [blame](Self::blame).
    pub fn close(&mut self, signature: &Signature) -> Option<Slowed> {
        let open = self.open.take()?;
        if open.losses.len() <= SHORT {
            open.losses.iter().for_each(|loss| self.remember(*loss));
            if self.short.len() == SHORT_KEPT {
                self.short.pop_front();
            }
            self.short.push_back((open.slow.clone(), open.losses.clone()));
        }
        Some(open.slowed(signature.clone()))
    }

    /// Who is to blame for these steps is somebody else: what they lost is not what is usual here.
    pub fn blame(&mut self, steps: &[StepNo]) {
        let past = &mut self.past;
        self.short.retain(|(slow, losses)| {
            let blamed = slow.iter().any(|no| steps.contains(no));
            for loss in losses.iter().filter(|_| blamed) {
                if let Some(at) = past.iter().position(|one| one == loss) {
                    past.remove(at);
                }
            }
            !blamed
        });
    }

    /// Whether an anomaly has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Forgets steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        self.carriers.retain(|(_, no)| *no >= first);
        self.window.steps.retain(|(_, no)| *no >= first);
        if let Some((_, steps)) = &mut self.hot {
            steps.retain(|no| *no >= first);
        }
        if let Some(open) = &mut self.open {
            open.usual.retain(|no| *no >= first);
            open.slow.retain(|no| *no >= first);
            if open.slow.is_empty() {
                self.open = None;
            }
        }
    }
}

impl Open {
    fn slowed(self, signature: Signature) -> Slowed {
        let Open { fit, threshold, usual, usual_a_second, mut slow, score, losses, by, .. } = self;
        slow.sort_unstable();
        let slow_a_second = slow.len() as f64 / losses.len().max(1) as f64;
        let as_often = if by == By::Cpu { 1.0 } else { (usual_a_second / slow_a_second).min(1.0) };
        let (alone_from, against, follows) = (HUNG, Against::Lately, None);
        Slowed {
            signature,
            fit,
            threshold,
            usual,
            slow,
            score,
            alone_from,
            against,
            as_often,
            by,
            follows,
        }
    }
}

fn longest_first(steps: &mut [(f64, StepNo)]) {
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
}

/// The longest steps of a window, as many as hold most of its loss, in their order.
fn carriers(mut window: Window) -> Vec<StepNo> {
    longest_first(&mut window.steps);
    let mut left = CARRIED * window.loss;
    let mut held: Vec<StepNo> = Vec::new();
    for (lost, no) in window.steps.into_iter().take(CARRIERS) {
        if left <= 0.0 {
            break;
        }
        left -= lost;
        held.push(no);
    }
    held.sort_unstable();
    held
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityId, Id};

    use super::*;

    fn step(n: u64, ts: Ns, dur: Ns, ran: Option<Ns>) -> Step {
        let (id, thread, rank, name) = (Id::new(1, n), EntityId(1), None, "step".into());
        Step {
            id,
            ts,
            dur,
            thread,
            series: None,
            rank,
            name,
            size: None,
            ran,
            expected: Default::default(),
        }
    }

    /// Steps of 1 ms, each fiftieth takes 21 ms, which a series that is told so does not know for a kind; in the
    /// seconds 40 to 48 each third waits 3 ms.
    #[test]
    fn steps_that_wait_often_are_not_compared_with_the_few_that_always_take_long() {
        let fit = Fit { center: 1e6f64.ln(), scale: 0.01, tail_from: 1e6f64.ln(), tail_mean: 0.01 };
        let (mut surge, mut at) = (Surge::default(), Ns::ZERO);
        let mut told = Vec::new();
        for n in 0..60_000u64 {
            let waits = n % 3 == 0 && (40..48).contains(&(at.0 / WINDOW));
            let ms = 1 + if n % 50 == 0 { 20 } else { 0 } + if waits { 3 } else { 0 };
            let step = step(n, at, Ns::millis(ms), None);
            at = step.end();
            told.extend(surge.step(StepNo(n), &step, fit, false));
        }
        let [one] = &told[..] else { panic!("{} told", told.len()) };
        // Some 14 a second took 21 ms before; of 570 a second that do something now, 190 wait and 11 take long.
        assert!((0.2..0.4).contains(&one.as_often), "{}", one.as_often);
        assert!((4.0..8.0).contains(&one.instead_of(21.0, 1.0)), "{}", one.instead_of(21.0, 1.0));
    }

    /// What is told of two minutes of steps that come 120 times a second and take 5 µs, and so many µs more by the
    /// second.
    fn told_of(more: impl Fn(i64) -> i64) -> Vec<Slowed> {
        let center = 5e3f64.ln();
        let fit = Fit { center, scale: 0.3, tail_from: center, tail_mean: 0.3 };
        let mut surge = Surge::default();
        let mut told = Vec::new();
        for n in 0..14_400u64 {
            let at = Ns(n as i64 * WINDOW / 120);
            let dur = Ns(5_000 + (n % 5) as i64 * 500 + more(at.0 / WINDOW) * 1_000);
            told.extend(surge.step(StepNo(n), &step(n, at, dur, None), fit, false));
        }
        told
    }

    #[test]
    fn a_server_that_has_little_to_do_is_slower_long_before_a_twentieth_of_its_time_is_lost() {
        let during = |second| (40..48).contains(&second);
        // 24 ms of each of these seconds.
        let [one] = &told_of(|second| if during(second) { 200 } else { 0 })[..] else {
            panic!("it was not told once")
        };
        assert_eq!(one.slow.len(), 8 * CARRIERS);
        // 4 ms of each matter to nobody.
        assert!(told_of(|second| if during(second) { 33 } else { 0 }).is_empty());
    }

    #[test]
    fn seconds_of_an_anomaly_that_lose_a_little_less_neither_end_it_nor_become_usual() {
        // Every other second loses two thirds of the limit.
        let more = |second| match (second % 40 < 8, second % 2) {
            _ if second < 40 => 0,
            (true, 0) => 100,
            (true, _) => 30,
            (false, _) => 0,
        };
        let first_two = |second| if second % 40 == 1 && second > 40 { 100 } else { more(second) };
        assert_eq!(told_of(first_two).len(), 2);
    }

    /// A hundred steps a second; each runs and waits as many ms as `does` says of its second, which may have none.
    fn off_cpu(does: impl Fn(i64) -> Option<(f64, f64)>) -> (Surge, Vec<Slowed>) {
        let fit = Fit { center: 1e6f64.ln(), scale: 1.0, tail_from: 2e6f64.ln(), tail_mean: 0.5 };
        let (mut surge, mut told) = (Surge::off_cpu(), Vec::new());
        for n in 0..20_000u64 {
            let at = Ns::millis(10 * n as i64);
            if let Some((runs, waits)) = does(at.0 / WINDOW) {
                let ns = |ms: f64| Ns((ms * 1e6) as i64);
                let step = step(n, at, ns(runs + waits), Some(ns(runs)));
                told.extend(surge.step(StepNo(n), &step, fit, false));
            }
        }
        (surge, told)
    }

    #[test]
    fn who_waits_by_itself_is_not_judged_by_it_in_seconds_with_much_to_do_either() {
        let (surge, told) = off_cpu(|second| match second {
            60..70 => Some((6.0, 3.9)),
            _ => Some((0.5, 0.5)),
        });
        assert!(told.is_empty() && !surge.is_open());
    }

    #[test]
    fn what_is_not_known_ends_what_has_begun() {
        let (surge, told) = off_cpu(|second| match second {
            60..68 | 150..158 => Some((4.0, 4.0)),
            68..150 => None,
            _ => Some((4.0, 0.01)),
        });
        assert!(told.len() == 2 && !surge.is_open());
        assert!(told[0].slow.iter().all(|no| no.0 < 6_800));
    }
}
