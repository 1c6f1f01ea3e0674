//! Programs of kernels that stand by (`gpuwhy probe run --stand-by`): switched on while an incident lasts whose steps wait for
//! their GPU's own work, which nothing outside of the kernels explains.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpuwhy_wire::images::switch_on;

/// For how long at a time. It is asked for again while the incident lasts.
const TIME: Duration = Duration::from_secs(3);
/// When so much of that is left.
const AGAIN: Duration = Duration::from_secs(1);
/// So much in all, and this share of the watch.
const ALWAYS: Duration = Duration::from_secs(30);
const SHARE: f64 = 0.05;
/// From which share of what the steps lost on it is their GPU's own work.
const LOSS: f64 = 0.5;

/// Who stands by, and for how long they were on.
#[derive(Debug)]
pub struct Standby {
    /// Where they wait.
    folder: Option<PathBuf>,
    began: Instant,
    /// Until when they were asked to be on.
    until: Option<Instant>,
    spent: Duration,
}

impl Standby {
    /// Those in the folder of the agent's socket.
    pub fn new(folder: Option<PathBuf>) -> Standby {
        let began = Instant::now();
        Standby { folder, began, until: None, spent: Duration::ZERO }
    }

    /// Hears which share of what steps lose now is their GPU's own work.
    pub fn hear(&mut self, of_gpu: f64) {
        let Some(folder) = self.folder.clone() else { return };
        self.decide(of_gpu, Instant::now(), |time| switch_on(&folder, time) > 0);
    }

    fn decide(&mut self, of_gpu: f64, now: Instant, ask: impl FnOnce(Duration) -> bool) {
        let is_on = self.until.is_some_and(|until| until > now + AGAIN);
        let most = ALWAYS + now.duration_since(self.began).mul_f64(SHARE);
        if of_gpu < LOSS || is_on || self.spent + TIME > most {
            return;
        }
        if ask(TIME) {
            // What was left of the last time is not asked for twice.
            let left = self.until.map_or(Duration::ZERO, |u| u.saturating_duration_since(now));
            self.spent += TIME - left;
        }
        // Also where nobody is there: not asked at each tick.
        self.until = Some(now + TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds at which those who stand by are asked, if a tick comes every 0.2 s and from 1 s until `calm` so much of what steps
    /// lose is their GPU's.
    fn asked(of_gpu: f64, calm: f64, seconds: f64, anybody: bool) -> Vec<f64> {
        let mut standby = Standby::new(Some(PathBuf::new()));
        let (began, mut times) = (standby.began, Vec::new());
        for tick in 0..(seconds * 5.0) as u32 {
            let at = f64::from(tick) / 5.0;
            let of_gpu = if (1.0..calm).contains(&at) { of_gpu } else { 0.0 };
            standby.decide(of_gpu, began + Duration::from_secs_f64(at), |time| {
                assert_eq!(time, TIME);
                times.push(at);
                anybody
            });
        }
        times
    }

    #[test]
    fn they_are_on_while_steps_wait_for_their_gpu_and_within_a_budget() {
        assert_eq!(asked(0.9, 6.0, 60.0, true), [1.0, 3.0, 5.0], "until it is calm");
        assert_eq!(asked(0.4, f64::MAX, 60.0, true), [0.0; 0], "something else is slow");
        assert_eq!(asked(0.9, 4.0, 60.0, false), [1.0, 3.0], "nobody stands by");
        // 30 s, and a twentieth of what has passed.
        let times = asked(0.9, f64::MAX, 600.0, true);
        let all = 2.0 * times.len() as f64 + 1.0;
        assert!((45.0..=62.0).contains(&all), "{all} s: {times:?}");
        assert!(times[16..].windows(2).all(|two| two[1] - two[0] > 20.0), "{times:?}");
    }
}
