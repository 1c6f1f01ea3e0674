//! A correlator that runs out of open files. On its own, as the limit is that of the whole process.

mod common;

use std::net::TcpStream;

use common::{Fleet, until};
use gpuwhy_fleet::{FleetEvent, Limits};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn nodes_can_join_again_after_descriptors_had_run_out() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(64), maximum: before.maximum };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect(fleet.correlator.address()) {
        held.push(stream);
    }
    let cannot = |e: &FleetEvent| matches!(e, FleetEvent::Refused { why, .. } if why.contains("trying again"));
    until(|| fleet.find(cannot));
    // Others give their descriptors back; ours suffice again.
    drop(held);
    until(|| {
        fleet.turn();
        let open = std::fs::read_dir("/proc/self/fd").map_or(64, Iterator::count);
        (open < 32).then_some(())
    });
    let _node = fleet.node("late");
    fleet.until_nodes(1);
    let told = fleet.told.iter().filter(|e| cannot(e)).count();
    assert_eq!(told, 1, "once: {:?}", fleet.told);
    setrlimit(Resource::Nofile, before).unwrap();
}
