//! `own_sleep`: the program slept because it asked to.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Statements};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer by a steady time, while nothing of the machine is busy.",
    takes: &[Takes::all(PartKind::Timer)],
    evidence: "For it: `state` rows of the step's thread, or of one that it waited for, that sleep in \
               `nanosleep` or `clock_nanosleep`. The culprit is the process whose thread slept. \
               Against it: of busy periods, that most of usual ones is such sleep too, and slow ones have less than twice as \
               much: a thread that paces itself sleeps for as long as it has nothing to do; and that slow steps hold three such \
               sleeps or more beyond those of usual ones: it looks for something again and again, and what that is was not seen. \
               The confidence is multiplied by 0.4 then.",
    verify: Verify {
        culprit: Some(
            "see where it sleeps: `gdb -p {pid} -batch -ex 'thread apply all backtrace'`, or `py-spy dump \
                       --pid {pid}`",
        ),
        otherwise: "look for waits, retries and rate limits in the program",
    },
    fooled_by: "A program that waits for something else by sleeping once or twice in a step, and what that is was not seen.",
    has_culprit: true,
    statements,
    trust,
    ..ClassSpec::new(Class::OwnSleep)
};

/// How far the class is trusted where a thread may pace itself, or polls.
const PACED: f64 = 0.4;
/// It does if it sleeps for this share of its usual busy periods,
const MOSTLY: f64 = 0.5;
/// unless it sleeps for so many times as long.
const LONGER: f64 = 2.0;

/// Usual ns a step of sleep, if that may be pacing.
fn paced(incident: &Incident<'_>) -> Option<f64> {
    let (usual, slow) = incident.kinds.get(&PartKind::Timer).copied()?;
    let all: f64 = incident.kinds.values().map(|(usual, _)| usual).sum();
    let paced =
        incident.on_cpu.is_of_busy_periods() && usual >= MOSTLY * all && slow < LONGER * usual;
    paced.then_some(usual)
}

/// A program polls if its slow steps hold so many sleeps more than usual ones: one that sleeps of its own accord does so once.
const POLLS: f64 = 3.0;

/// Whether the program may sleep because it waits for something, and looks for it again and again.
fn polls(incident: &Incident<'_>) -> bool {
    incident.sleeps.slow >= incident.sleeps.usual + POLLS
}

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    if polls(incident) {
        out.contradicting.push(Evidence::of(format!(
            "a slow step holds {:.1} such sleeps, a usual one {:.1}: it looks for something again and again, a lock of a \
             file or a database, say, and what that is was not seen",
            incident.sleeps.slow, incident.sleeps.usual
        )));
    }
    if let Some(usual) = paced(incident) {
        out.contradicting.push(Evidence::of(format!(
            "{:.3} ms of usual busy periods are such sleep too: a thread that paces itself sleeps for as long as it has \
             nothing to do",
            usual / 1e6
        )));
    }
}

fn trust(incident: &Incident<'_>) -> f64 {
    if polls(incident) || paced(incident).is_some() { PACED } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuwhy_schema::Ns;

    use super::super::Counts;
    use super::*;
    use crate::gpu::Readings;
    use crate::on_cpu::{OnCpu, Work};

    /// How far it is trusted that a program slept for so long, usually and now, in ms, and ran for 1 ms.
    fn trusted(usual: f64, slow: f64, work: Work) -> f64 {
        trusted_of(usual, slow, Counts { usual: 0.0, slow: 1.0 }, work)
    }

    /// The same of one that slept so often.
    fn trusted_of(usual: f64, slow: f64, sleeps: Counts, work: Work) -> f64 {
        let kinds = BTreeMap::from([
            (PartKind::Timer, (usual * 1e6, slow * 1e6)),
            (PartKind::Run, (1e6, 1e6)),
        ]);
        let (readings, on_cpu) = (Readings::default(), OnCpu::default().of_work(work));
        let excess = (slow - usual) * 1e6;
        let (from, to) = (Ns::ZERO, Ns::secs(1));
        let (readings, kinds, on_cpu) = (&readings, &kinds, &on_cpu);
        trust(&Incident { from, to, readings, kinds, sleeps, on_cpu, excess })
    }

    #[test]
    fn busy_periods_of_a_thread_that_paces_itself_are_longer_where_it_has_less_to_do() {
        assert_eq!(trusted(3.0, 4.5, Work::Any), PACED);
        assert_eq!(trusted(3.0, 4.5, Work::Asked((1.0, 1.0))), PACED);
    }

    #[test]
    fn who_sleeps_again_and_again_waits_for_something() {
        let of = |usual, slow| trusted_of(0.0, 20.0, Counts { usual, slow }, Work::Any);
        assert_eq!((of(0.0, 5.0), of(0.0, 2.0)), (PACED, 1.0));
        assert_eq!((of(8.0, 9.0), of(8.0, 12.0)), (1.0, PACED));
    }

    #[test]
    fn who_began_to_sleep_or_sleeps_much_longer_or_marked_its_steps_does_not_pace_itself() {
        assert_eq!(trusted(0.3, 1.0, Work::Any), 1.0);
        assert_eq!(trusted(3.0, 30.0, Work::Any), 1.0);
        assert_eq!(trusted(3.0, 4.5, Work::Marked), 1.0);
    }
}
