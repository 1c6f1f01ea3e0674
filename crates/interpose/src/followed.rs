//! What the maps of one place tell of its launches while they run, by our own clock.

use gpuwhy_wire::images::{Plan, State};
use gpuwhy_wire::now;

use crate::calls::Call;
use crate::driver::{Clock, Stream};
use crate::late::{Gap, Lateness, Offset};
use crate::ring;
use crate::tail::{Tail, Tails};
use crate::types::Code;

/// How often clocks are compared, ns: for tails, whose edges are known to 65 us; and for launches.
const COMPARE_NS: u64 = 10_000_000_000;
const COMPARE_OFTEN_NS: u64 = 1_000_000_000;
/// A comparison that took longer does not count, ns.
const PROMPT_NS: u64 = 1_000_000;
/// What clocks may drift apart between two comparisons, ns.
const DRIFT_NS: u64 = 50_000;

/// The launches of a device, and its clock.
#[derive(Debug)]
pub struct Followed {
    clock: Clock,
    offset: Offset,
    /// When they were compared.
    compared: u64,
    tails: Option<Tails>,
    late: Option<Lateness>,
}

impl Followed {
    /// In the calling thread's context; `None` if no map of the image tells of launches.
    pub fn new(plan: &Plan, stream: &Stream) -> Result<Option<Followed>, Code> {
        if plan.running.is_none() && plan.launches.is_none() {
            return Ok(None);
        }
        let clock = Clock::new(stream)?;
        let (add, took) = clock.offset(stream)?;
        let (offset, compared) = (Offset { add: add as u64, wrong: took + DRIFT_NS }, now());
        let at = compared.wrapping_sub(offset.add);
        let tails = plan.running.map(|running| Tails::new(running, at));
        let late = plan.launches.map(|launches| Lateness::new(launches, &plan.kernels));
        Ok(Some(Followed { clock, offset, compared, tails, late }))
    }

    /// A kernel of the image was launched.
    pub fn call(&mut self, kernel: usize, call: Call) {
        if let Some(late) = &mut self.late {
            late.call(kernel, call);
        }
    }

    /// Programs were switched on or off.
    pub fn switched(&mut self) {
        if let Some(tails) = &mut self.tails {
            tails.forget();
        }
    }

    /// Calls were lost.
    pub fn calls_lost(&mut self) {
        if let Some(late) = &mut self.late {
            late.calls_lost();
        }
    }

    /// Reads the maps as they were copied at `at`, and tells what has ended. `whole`: every call that was made until then
    /// was told.
    pub fn read(&mut self, at: u64, plan: &Plan, state: &State, whole: bool) {
        let add = self.offset.add;
        if let Some((tails, running)) = self.tails.as_mut().zip(plan.running) {
            let bin = |bin: u32| state.number(running.at + 8 * u64::from(bin));
            // Without the other array a word that is never one.
            let ended = |bin: u32| match running.ends {
                0 => 0,
                ends => state.number(ends + 8 * u64::from(bin)),
            };
            for Tail { from, to, most, site } in tails.read(at.wrapping_sub(add), bin, ended) {
                let name = site.and_then(|site| plan.name(site));
                ring::tail(from.wrapping_add(add), to.wrapping_add(add), most, name);
            }
        }
        if let Some((late, launches)) = self.late.as_mut().zip(plan.launches) {
            let slot = |slot, word| state.number(launches.word(slot, word));
            for Gap { from, to, site } in late.read(whole, self.tails.as_ref(), self.offset, slot) {
                ring::gap(from, to, plan.name(site));
            }
            late.tell(state, plan.state_bytes);
        }
    }

    /// Nothing more comes.
    pub fn finish(&mut self, plan: &Plan, state: &State) {
        if let Some(late) = &mut self.late {
            late.finish(self.offset);
            late.tell(state, plan.state_bytes);
        }
    }

    /// Compares the clocks again, when it is time.
    pub fn compare(&mut self, at: u64, stream: &Stream) {
        let every = if self.late.is_some() { COMPARE_OFTEN_NS } else { COMPARE_NS };
        if at.saturating_sub(self.compared) > every {
            self.compared = at;
            // A device that was busy tells its clock too late.
            match self.clock.offset(stream) {
                Ok((add, took)) if took < PROMPT_NS => {
                    self.offset = Offset { add: add as u64, wrong: took + DRIFT_NS };
                }
                _ => {}
            }
        }
    }
}
