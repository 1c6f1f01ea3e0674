//! `engine_software`: the program itself did more.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Statements};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "The program's own threads compute for longer, with nobody in their way.",
    takes: &[Takes::all(PartKind::Run), Takes::all(PartKind::Allocate), Takes::all(PartKind::Load)],
    evidence: "For it: `state` rows of the step's threads that run longer than usual, at one place of their steps \
               and not at the others, on a CPU that nobody took from them, while no other process began to take \
               more of the CPUs (`cpu_time`). Where a process outside of the workload served a call of the step, its \
               rows count as well, and it is named. Stack samples say in which functions. In a profile of another \
               tool: calls that allocate memory or load code, which slow steps make and usual ones do not. \
               Against it: a program that was slower wherever it ran, or beside a process that began to run. The \
               same work takes longer then if the clock, a cache, memory bandwidth or the other thread of a core \
               is what is short, and no recorded row tells that from more work. One or two long steps may be a \
               habit of the program, as a checkpoint is, and a busy period in which more messages arrived, or of which none \
               are known, may have had more to do. A program that reads files again, since they are no more in memory, runs for that. In each of these the confidence is multiplied by 0.4, so that the class is suspected and not decided.",
    verify: Verify {
        culprit: None,
        otherwise: "count what its threads execute while steps are slow and while they are not: `perf stat -e \
                    instructions,cycles,cache-misses -p PID -- sleep 5`; as many instructions a step are the same work, \
                    slowed by the CPU or by a neighbour",
    },
    fooled_by: "A neighbour that is not seen: another virtual machine, or a device that copies. A program that does \
                more of everything, which looks like a slower CPU and is not decided.",
    statements,
    trust,
    ..ClassSpec::new(Class::EngineSoftware)
};

/// How far the class is trusted where the same work may have taken longer.
const SAME_WORK: f64 = 0.4;
/// That matters if time on CPUs is at least this share of the excess.
const MATTERS: f64 = 0.5;

/// Files had to be read again if waits for that are this share of the excess: what a program runs to do so is no work of its
/// own making.
const READ_AGAIN: f64 = 0.1;

/// Whether steps waited for data of files that had been in memory, for as much as that of the excess.
fn reads_again(incident: &Incident<'_>) -> bool {
    incident.growth(PartKind::CacheMiss) >= READ_AGAIN * incident.excess
}

/// Whether most of the excess was spent on CPUs by the program's own code.
fn is_run(incident: &Incident<'_>) -> bool {
    incident.growth(PartKind::Run) > MATTERS * incident.excess
}

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    if !is_run(incident) {
        return;
    }
    if reads_again(incident) {
        out.contradicting.push(Evidence::of(format!(
            "it waited {:.3} ms a step more for data of files that had been in memory before: what it runs to read them again \
             is not told from its other work",
            incident.growth(PartKind::CacheMiss) / 1e6
        )));
    }
    match incident.on_cpu.doubt() {
        Some(doubt) => {
            out.contradicting.push(Evidence::of(doubt.says(incident.on_cpu)));
            if doubt.is_of_speed() {
                out.contradicting.push(Evidence::of(
                    "not known: the same work may have taken longer on the CPU, by memory bandwidth, a cache, the \
                     other thread of a core or the clock, and no counter was recorded that would tell",
                ));
            }
        }
        None => out.supporting.push(Evidence::of(format!(
            "{}; nobody else began to take as much of the CPUs as would slow it so",
            incident.on_cpu.places()
        ))),
    }
}

fn trust(incident: &Incident<'_>) -> f64 {
    let is_open = incident.on_cpu.doubt().is_some() || reads_again(incident);
    if is_run(incident) && is_open { SAME_WORK } else { 1.0 }
}
