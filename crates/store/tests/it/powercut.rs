//! The power goes at every moment of a recording.

use crate::disk::{Draw, Keeps};
use crate::power;

#[test]
fn what_a_power_cut_leaves_at_any_moment_is_the_trace_as_it_was_at_some_moment() {
    let tmp =
        tempfile::tempdir_in(if cfg!(target_os = "linux") { "/dev/shm" } else { "." }).unwrap();
    let recording = power::record(&tmp.path().join("recorded")).unwrap();
    let mut draw = Draw(7);
    let mut broken = Vec::new();
    let moments = recording.ops.len() + 1;
    let critical = recording.critical();
    // The moments that matter most, several times, and some of all; the benchmark tries thousands.
    let often = critical.iter().flat_map(|&moment| [(moment, Keeps::Any); 6]);
    let others = (0..50).map(|n| ((n * 83) % moments, Keeps::ALL[n % Keeps::ALL.len()]));
    for (number, (moment, keeps)) in often.chain(others).enumerate() {
        let state = recording.cut(moment, keeps, &mut draw);
        let path = tmp.path().join(number.to_string());
        if let Some(why) = power::broken(&state, &path, keeps, &mut draw) {
            broken.push(format!("before operation {moment}, {keeps:?}: {why}"));
        }
    }
    assert!(broken.is_empty(), "{} states are broken:\n{}", broken.len(), broken.join("\n"));
}
