//! `network`: bytes took longer: a full link, a shaped link, loss.

use gpuwhy_schema::{Class, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Pointer, Statements};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Exchanges between ranks or reads from a store take longer, while neither side is busy.",
    takes: &[Takes::all(PartKind::Network)],
    readings: &[names::NIC_CARRIER_DOWNS],
    evidence: "For it: `message` rows whose bytes were handed over long before they arrived, the counters \
               of network devices by process, how often these lost their carrier, and TCP retransmissions. \
               Against it: that the waits are those of a server's requests for the answers of others, of whom \
               nothing more is known; the confidence is multiplied by 0.4 then.",
    verify: Verify {
        culprit: Some(Verify::PAUSE),
        otherwise: "look for a shaper, a full link or one that goes down: `tc -s qdisc show`, `ip -s link`",
    },
    fooled_by: "Traffic that bypasses the kernel, such as RDMA; a peer outside of the trace that answers \
                late.",
    statements,
    trust,
    ..ClassSpec::new(Class::Network)
};

/// How far the class is trusted where requests of a server wait for others: whom it asked may have been late.
const OF_REQUESTS: f64 = 0.4;

fn trust(incident: &Incident<'_>) -> f64 {
    if incident.on_cpu.is_of_busy_periods() { OF_REQUESTS } else { 1.0 }
}

/// Devices that are named at most.
const NAMED: usize = 4;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    if incident.on_cpu.is_of_busy_periods() {
        out.contradicting.push(Evidence::of(
            "whom it asked may have answered late: what that one did is not known, or it is not on this host",
        ));
    }
    for (link, downs) in incident.readings.links_down(incident.from, incident.to).take(NAMED) {
        let times = if downs == 1.0 { "once".to_owned() } else { format!("{downs:.0} times") };
        let rows = Pointer::new("counter", Some(link.track()), incident.from, incident.to);
        let says = format!("{} lost its carrier {times}", link.name);
        out.supporting.push(Evidence { says, rows: Some(rows) });
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Measure;

    use super::*;
    use crate::classes::scene::Scene;

    #[test]
    fn a_device_that_lost_its_carrier_meanwhile_is_told() {
        let downs = |readings: &[(i64, f64)], told: &[&str]| {
            let scene = Scene::new().counter(names::NIC_CARRIER_DOWNS, Measure::Delta, readings);
            scene.check(Class::Network, told, &[]);
        };
        // From 10 to 12 s; read up to a second later.
        downs(&[(9, 3.0), (11, 1.0), (13, 2.0)], &["gpu 0 lost its carrier 3 times"]);
        downs(&[(12, 1.0)], &["gpu 0 lost its carrier once"]);
        downs(&[(9, 3.0), (15, 1.0)], &[]);
    }
}
