//! Which virtual CPUs would wait less on other CPUs, and when a machine uses what.
//!
//! # How
//! A virtual CPU wants a CPU for some share of the time: what it ran of the time in which it ran or had halted
//! ([`Load::wants`]). Two that share a CPU are in each other's way as often as both want it, the product of their
//! shares. A move, or a swap of two, is worth what it takes off the sum of these products; the best is advised, and the
//! next after it ([`advise`]). Waits and preemptions are foretold in proportion to that sum.
//!
//! # What fools it
//! Virtual CPUs that want a CPU at the same times, or never at the same times. CPUs that are not alike, and memory that
//! is nearer to some.

/// A virtual CPU, or what the host does on a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Whose it is; `None` of the host, which is not moved.
    pub machine: Option<usize>,
    /// The place of the CPU that it is on.
    pub cpu: usize,
    /// The share of the time that it wants a CPU, 0 to 1.
    pub wants: f64,
}

/// A virtual CPU goes to another CPU, and perhaps another one comes instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The place of the virtual CPU in the list.
    pub load: usize,
    /// The place of the CPU that it goes to.
    pub to: usize,
    /// The place of the one that comes to its CPU.
    pub instead: Option<usize>,
}

/// What is advised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// In their order.
    pub moves: Vec<Move>,
    /// How much machines are in each other's way: the sum of products, before and after.
    pub contention: (f64, f64),
}

/// A further move must take this share off what there was at first.
const WORTH: f64 = 0.1;
/// Moves at most.
const MOVES: usize = 8;

/// How much machines are in each other's way on the CPUs where they are; the host's threads count as in everybody's.
pub fn contention(loads: &[Load]) -> f64 {
    let mut sum = 0.0;
    for (at, one) in loads.iter().enumerate() {
        for other in loads.iter().skip(at + 1).filter(|other| other.cpu == one.cpu) {
            let both_hosts = one.machine.is_none() && other.machine.is_none();
            sum += if both_hosts { 0.0 } else { one.wants * other.wants };
        }
    }
    sum
}

/// The moves that take most off the contention on so many CPUs, the best first.
pub fn advise(loads: &[Load], cpus: usize) -> Advice {
    let mut now = loads.to_vec();
    let first = contention(&now);
    let mut out = Advice { moves: Vec::new(), contention: (first, first) };
    while out.moves.len() < MOVES {
        let Some((best, after)) = best(&now, cpus) else { break };
        if out.contention.1 - after < WORTH * first.max(f64::MIN_POSITIVE) {
            break;
        }
        make(&mut now, best);
        out.moves.push(best);
        out.contention.1 = after;
    }
    out
}

fn make(loads: &mut [Load], change: Move) {
    let from = loads[change.load].cpu;
    loads[change.load].cpu = change.to;
    if let Some(other) = change.instead {
        loads[other].cpu = from;
    }
}

/// The best single change and the contention after it.
fn best(loads: &[Load], cpus: usize) -> Option<(Move, f64)> {
    let mut out: Option<(Move, f64)> = None;
    let movable = |at: &usize| loads[*at].machine.is_some();
    let mut tried = loads.to_vec();
    for load in (0..loads.len()).filter(movable) {
        let moves = (0..cpus).map(|to| Move { load, to, instead: None });
        let swaps = (load + 1..loads.len()).filter(movable);
        let swaps = swaps.map(|other| Move { load, to: loads[other].cpu, instead: Some(other) });
        for change in moves.chain(swaps).filter(|one| one.to != loads[load].cpu) {
            tried.copy_from_slice(loads);
            make(&mut tried, change);
            let after = contention(&tried);
            if out.is_none_or(|(_, least)| after < least - 1e-12) {
                out = Some((change, after));
            }
        }
    }
    out
}

/// What a machine uses much of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uses {
    /// Its virtual CPUs run, or would.
    pub cpu: bool,
    /// It has requests to a GPU that wait or run.
    pub gpu: bool,
}

/// From and to which share of a CPU a machine uses much of it.
pub const CPU: (f64, f64) = (0.6, 0.4);
/// The same of the time with requests to a GPU.
pub const GPU: (f64, f64) = (0.6, 0.4);

/// Phases of a machine, from its shares of CPU and GPU in windows of equal length: from which window to which, and what it
/// uses much of. A phase begins at the higher bound and ends below the lower one.
pub fn phases(shares: &[(f64, f64)]) -> Vec<(usize, usize, Uses)> {
    let mut out: Vec<(usize, usize, Uses)> = Vec::new();
    let mut now = Uses::default();
    for (at, &(cpu, gpu)) in shares.iter().enumerate() {
        let next = |is: bool, share: f64, (on, off): (f64, f64)| {
            if is { share >= off } else { share >= on }
        };
        now = Uses { cpu: next(now.cpu, cpu, CPU), gpu: next(now.gpu, gpu, GPU) };
        match out.last_mut() {
            Some(last) if last.2 == now => last.1 = at + 1,
            _ => out.push((at, at + 1, now)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(machine: usize, cpu: usize, wants: f64) -> Load {
        Load { machine: Some(machine), cpu, wants }
    }

    #[test]
    fn two_that_compute_are_parted_and_each_gets_one_that_renders() {
        let loads = [load(0, 0, 1.0), load(1, 0, 0.9), load(2, 1, 0.1), load(3, 1, 0.1)];
        let advice = advise(&loads, 2);
        assert_eq!(advice.moves.len(), 1);
        let parted = advice.moves[0];
        assert!(parted.load <= 1 && parted.instead.is_some_and(|other| other >= 2), "{parted:?}");
        assert!((advice.contention.0 - 0.91).abs() < 1e-9);
        assert!((advice.contention.1 - 0.19).abs() < 1e-9, "{advice:?}");
    }

    #[test]
    fn nobody_moves_to_where_the_host_works_nor_for_little() {
        let host = Load { machine: None, cpu: 1, wants: 1.0 };
        let alone = [load(0, 0, 0.5), load(1, 0, 0.4), host];
        assert_eq!(advise(&alone, 2).moves, []);
        // A third CPU is free.
        let to_free = advise(&alone, 3);
        assert_eq!((to_free.moves.len(), to_free.moves[0].to), (1, 2));
        assert_eq!(to_free.contention.1, 0.0);
        assert_eq!(advise(&[], 4), Advice::default());
    }

    #[test]
    fn a_phase_goes_on_between_its_bounds() {
        let shares = [(0.5, 0.0), (0.7, 0.0), (0.5, 0.5), (0.39, 0.6), (0.5, 0.4), (0.5, 0.3)];
        let uses = |cpu, gpu| Uses { cpu, gpu };
        assert_eq!(
            phases(&shares),
            [
                (0, 1, uses(false, false)),
                (1, 3, uses(true, false)),
                (3, 5, uses(false, true)),
                (5, 6, uses(false, false)),
            ]
        );
    }
}
