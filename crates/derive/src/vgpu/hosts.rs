//! On which of several hosts virtual machines would wait less.
//!
//! # How
//! A machine wants a GPU for some share of the time, and CPUs for some: what it used of the time in which it used it or
//! had nothing to do ([`Guest`]). Two machines of a host are in each other's way as often as both want the same thing:
//! the product of their shares; of CPUs, divided by how many the host has. What these products cost is measured, as the
//! waits of all hosts over their sum ([`Costs`]), so that waits for GPUs and for CPUs can be added up. A move of a
//! machine to another host, or a swap of two, is worth what it takes off the waits ([`advise`]).
//!
//! # What fools it
//! Machines that want a thing at the same times, or never: hosts have clocks of their own, so that only averages can be
//! compared. A scheduler that withholds an idle device, which no move of others changes. Hosts whose CPUs or GPUs are not alike. Whether a machine can be moved at all is not asked.

/// What a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// CPUs.
    pub cpus: usize,
    /// Whether it has a GPU.
    pub has_gpu: bool,
}

/// A machine and what it wants, each as a share of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// The place of its host.
    pub host: usize,
    /// Of CPUs, in sum over its virtual CPUs.
    pub cpu: f64,
    /// Of a GPU.
    pub gpu: f64,
}

/// What machines are in each other's way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contention {
    /// For CPUs.
    pub cpu: f64,
    /// For the GPU.
    pub gpu: f64,
}

/// Waits that a unit of contention costs, as a share of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of CPUs.
    pub cpu: f64,
    /// Of GPUs.
    pub gpu: f64,
}

/// A machine goes to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The place of the machine.
    pub guest: usize,
    /// The place of the host that it goes to.
    pub to: usize,
    /// The place of the machine that comes to its host.
    pub instead: Option<usize>,
}

/// A further change must take this share off what there was at first.
const WORTH: f64 = 0.1;
/// Changes at most.
const CHANGES: usize = 8;

/// The contention on each host.
pub fn contention(hosts: &[Host], guests: &[Guest]) -> Vec<Contention> {
    let mut out = vec![Contention::default(); hosts.len()];
    for (at, one) in guests.iter().enumerate() {
        let Some(host) = hosts.get(one.host) else { continue };
        for other in guests.iter().skip(at + 1).filter(|other| other.host == one.host) {
            out[one.host].cpu += one.cpu * other.cpu / host.cpus.max(1) as f64;
            out[one.host].gpu += one.gpu * other.gpu;
        }
    }
    out
}

/// What a unit of contention costs, from the waits of each host as a share of its time; 1 where there is none.
pub fn costs(contention: &[Contention], waits: &[Contention]) -> Costs {
    let sum = |of: &[Contention], what: fn(&Contention) -> f64| of.iter().map(what).sum::<f64>();
    let cost = |what: fn(&Contention) -> f64| match sum(contention, what) {
        none if none <= f64::EPSILON => 1.0,
        some => sum(waits, what) / some,
    };
    Costs { cpu: cost(|one| one.cpu), gpu: cost(|one| one.gpu) }
}

/// The waits that are foretold, as a share of the time, in sum over the hosts.
fn waits(hosts: &[Host], guests: &[Guest], costs: Costs) -> f64 {
    let all = contention(hosts, guests);
    all.iter().map(|one| one.cpu * costs.cpu + one.gpu * costs.gpu).sum()
}

/// The changes that take most off the waits, the best first. No machine with requests goes to a host without a GPU, and none
/// to a host whose machines would want more CPUs than it has.
pub fn advise(hosts: &[Host], guests: &[Guest], costs: Costs) -> Vec<Change> {
    let mut now = guests.to_vec();
    let first = waits(hosts, &now, costs);
    let (mut out, mut left) = (Vec::new(), first);
    while out.len() < CHANGES {
        let Some((best, after)) = best(hosts, &now, costs) else { break };
        if left - after < WORTH * first.max(f64::MIN_POSITIVE) {
            break;
        }
        make(&mut now, best);
        out.push(best);
        left = after;
    }
    out
}

/// Makes a change.
pub fn make(guests: &mut [Guest], change: Change) {
    let from = guests[change.guest].host;
    guests[change.guest].host = change.to;
    if let Some(other) = change.instead {
        guests[other].host = from;
    }
}

fn fits(hosts: &[Host], guests: &[Guest], host: usize) -> bool {
    let mut own = guests.iter().filter(|one| one.host == host);
    let wants: f64 = own.clone().map(|one| one.cpu).sum();
    wants <= hosts[host].cpus as f64 && (hosts[host].has_gpu || own.all(|one| one.gpu == 0.0))
}

/// The best single change and the waits after it.
fn best(hosts: &[Host], guests: &[Guest], costs: Costs) -> Option<(Change, f64)> {
    let mut out: Option<(Change, f64)> = None;
    let mut tried = guests.to_vec();
    for guest in 0..guests.len() {
        let moves = (0..hosts.len()).map(|to| Change { guest, to, instead: None });
        let swaps = (guest + 1..guests.len()).map(|other| Change {
            guest,
            to: guests[other].host,
            instead: Some(other),
        });
        let from = guests[guest].host;
        for change in moves.chain(swaps).filter(|one| one.to != from) {
            tried.copy_from_slice(guests);
            make(&mut tried, change);
            // A host that is too full already may get rid of a machine.
            let gets_one = change.instead.map(|_| from);
            let mut gets = [Some(change.to), gets_one].into_iter().flatten();
            if !gets.all(|host| fits(hosts, &tried, host)) {
                continue;
            }
            let after = waits(hosts, &tried, costs);
            if out.is_none_or(|(_, least)| after < least - 1e-12) {
                out = Some((change, after));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Costs = Costs { cpu: 1.0, gpu: 1.0 };

    fn host(cpus: usize) -> Host {
        Host { cpus, has_gpu: true }
    }

    fn guest(host: usize, cpu: f64, gpu: f64) -> Guest {
        Guest { host, cpu, gpu }
    }

    #[test]
    fn two_that_render_are_parted_and_each_gets_one_that_computes() {
        let hosts = [host(4), host(4)];
        let guests =
            [guest(0, 0.1, 0.9), guest(0, 0.1, 0.8), guest(1, 0.9, 0.0), guest(1, 1.9, 0.1)];
        let found = advise(&hosts, &guests, EVEN);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].guest <= 1 && found[0].instead.is_some_and(|other| other >= 2));
        let mut after = guests.to_vec();
        make(&mut after, found[0]);
        assert!(waits(&hosts, &after, EVEN) < 0.3 * waits(&hosts, &guests, EVEN));
    }

    #[test]
    fn no_machine_goes_to_where_it_does_not_fit() {
        let guests = [guest(0, 0.2, 0.9), guest(0, 0.2, 0.9), guest(1, 1.9, 0.0)];
        let without = Host { has_gpu: false, ..host(4) };
        assert_eq!(advise(&[host(4), without], &guests, EVEN), []);
        // Its CPUs are in use.
        assert_eq!(advise(&[host(2), host(2)], &guests, EVEN), []);
        let found = advise(&[host(2), host(3)], &guests, EVEN);
        assert_eq!(found, [Change { guest: 0, to: 1, instead: None }]);
        assert_eq!(advise(&[host(4)], &guests[..2], EVEN), []);
    }

    #[test]
    fn what_contention_costs_is_what_hosts_waited() {
        let hosts = [host(2), host(2)];
        let guests = [guest(0, 1.0, 0.5), guest(0, 0.8, 0.4), guest(1, 0.5, 0.0)];
        let found = contention(&hosts, &guests);
        assert!((found[0].cpu - 0.4).abs() < 1e-9 && (found[0].gpu - 0.2).abs() < 1e-9);
        assert_eq!(found[1], Contention::default());
        let waits = [Contention { cpu: 0.1, gpu: 0.3 }, Contention { cpu: 0.1, gpu: 0.0 }];
        let of = costs(&found, &waits);
        assert!((of.cpu - 0.5).abs() < 1e-9 && (of.gpu - 1.5).abs() < 1e-9, "{of:?}");
        assert_eq!(costs(&found[1..], &waits[1..]).gpu, 1.0);
    }
}
