//! Kernels that steal work in programs that do not know of it: what they print is what they print alone, and which launches stole
//! is told.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use super::common::{folder, said, skeleton, text};
use super::{Place, compile};

/// A program whose blocks are uneven, and its kernel that steals.
fn place() -> Place {
    let place = Place::new();
    compile(&place.dir, "uneven", "uneven.c", &["-ldl"]);
    place
}

/// What was found of the image, if the program printed what it does alone.
fn stolen(place: &Place, options: &[&str], words: &[&str]) -> (Value, String) {
    told(place, place.stealing(options, words), words)
}

fn told(place: &Place, mut command: Command, words: &[&str]) -> (Value, String) {
    let (alone, output) = (place.alone(words), command.output().unwrap());
    let of = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(alone.status.success(), "{words:?}: {}", said(&alone));
    assert_eq!(of(&output), of(&alone), "{words:?}: {}", said(&output));
    assert_eq!(output.status.code(), alone.status.code(), "{}", said(&output));
    let found: Value =
        serde_json::from_slice(&fs::read(place.dir.join("found.json")).unwrap()).unwrap();
    (found["images"][0]["stealing"].clone(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The launches of the one kernel that steals: those that did, and those that did not by why.
fn launches(stealing: &Value) -> Vec<(String, u64)> {
    let kernel = &stealing["kernels"][0];
    let all = kernel["launches"].as_object().unwrap_or_else(|| panic!("{stealing:#}"));
    let some = all.iter().map(|(why, count)| (why.clone(), count.as_u64().unwrap()));
    some.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn launches_in_each_form_steal_where_they_may_and_the_others_are_told() {
    let place = place();
    for load in ["module", "library"] {
        for (how, count, wanted) in [
            ("each", "5", &[("stolen", 5)][..]),
            ("buffer", "3", &[("stolen", 3)]),
            ("config", "3", &[("stolen", 3)]),
            ("cluster", "3", &[("unsuitable", 3)]),
            ("rows", "2", &[("unsuitable", 2)]),
            ("few", "2", &[("all_blocks_at_once", 2)]),
            // There is no room for what its threads tell each other.
            ("full", "2", &[("refused", 2)]),
            // A captured launch, which the graph's launches repeat.
            ("graph", "3", &[("in_graphs", 1)]),
            ("streams", "70", &[("no_record", 6), ("stolen", 64)]),
            ("destroyed", "70", &[("stolen", 70)]),
        ] {
            let (stealing, told) =
                stolen(&place, &["--steal", "uneven"], &["./uneven", load, how, count]);
            let wanted: Vec<(String, u64)> =
                wanted.iter().map(|(why, n)| ((*why).to_owned(), *n)).collect();
            assert_eq!(launches(&stealing), wanted, "{load}, {how}: {told}");
        }
    }
}

/// Another stream may get the handle of one that was destroyed while its work goes on, so its record is not used again.
#[test]
fn a_stream_that_is_destroyed_with_work_on_it_keeps_its_record() {
    let place = place();
    let words = ["./uneven", "module", "busy", "70"];
    let mut command = place.stealing(&["--steal", "*"], &words);
    // Each launch begins 5 s after its call, when its stream has gone.
    command.env("GPUWHY_STANDIN_LATE", "uneven_with_policy:0:5000000");
    let (stealing, told) = told(&place, command, &words);
    let wanted = [("no_record".to_owned(), 6), ("stolen".to_owned(), 64)];
    assert_eq!(launches(&stealing), wanted, "{told}");
}

/// Whatever the driver has against them, the program's own kernel is launched in their place.
#[test]
fn launches_that_the_driver_refuses_are_made_as_the_program_asked_for_them() {
    let place = place();
    for (how, count) in [("each", "5"), ("buffer", "3"), ("config", "3")] {
        let words = ["./uneven", "module", how, count];
        let mut command = place.stealing(&["--steal", "uneven"], &words);
        command.env("GPUWHY_STANDIN_REFUSES_LAUNCHES", "uneven_with_policy");
        let (stealing, told) = told(&place, command, &words);
        let wanted = [("refused".to_owned(), count.parse().unwrap())];
        assert_eq!(launches(&stealing), wanted, "{how}: {told}");
        assert!(told.contains("that the driver refused so did not"), "{told}");
    }
}

#[test]
fn a_kernel_that_may_not_steal_is_refused_with_its_line_and_the_reason() {
    let place = place();
    let (stealing, told) = stolen(&place, &["--steal", "*"], &["./uneven", "module", "other", "2"]);
    let line = "other does not steal: line 52, `bar.sync 0;`: some threads of a block may return, or go elsewhere, while \
                others wait at this barrier";
    assert!(told.contains(line), "{told}");
    assert!(told.contains("uneven steals in order: 0 launches did"), "{told}");
    assert_eq!(stealing["refused"][0]["readable"], "other", "{stealing:#}");
    // Named alone, nothing of the image steals.
    let (_, told) = stolen(&place, &["--steal", "other"], &["./uneven", "module", "other", "2"]);
    assert!(told.contains("no kernel of it steals") && told.contains(line), "{told}");
}

/// Probes count what they count otherwise, and an order that a program says is not more than an order.
#[test]
fn programs_order_the_blocks_and_probes_count_each_block_once() {
    let place = place();
    let (keep, dir) = folder();
    for tool in ["reversed", "strided", "longest"] {
        let object = skeleton(&dir, tool);
        let options = ["--steal", "uneven", "--object", text(&object)];
        let (stealing, told) = stolen(&place, &options, &["./uneven", "library", "each", "3"]);
        assert_eq!(launches(&stealing), [("stolen".to_owned(), 3)], "{told}");
        assert!(told.contains(&format!("in the order of `{tool}`")), "{told}");
    }
    let options = ["--steal", "uneven", "--object", text(&place.object)];
    let (stealing, _) = stolen(&place, &options, &["./uneven", "module", "each", "2"]);
    assert_eq!(launches(&stealing), [("stolen".to_owned(), 2)]);
    let found: Value =
        serde_json::from_slice(&fs::read(place.dir.join("found.json")).unwrap()).unwrap();
    // 150 blocks of one warp, twice; each thread loads one word.
    assert_eq!(super::counted(&found), [[300, 300 * 128]], "{found:#}");
    drop(keep);
}

#[test]
fn nothing_steals_while_it_is_switched_off_or_not_named() {
    let place = place();
    let words = ["./uneven", "module", "each", "3"];
    let (stealing, told) = stolen(&place, &["--steal", "uneven", "--off"], &words);
    assert_eq!(launches(&stealing), [], "{told}");
    let object = ["--object", text(&place.object)];
    let (stealing, _) = stolen(&place, &object, &words);
    assert_eq!(stealing["kernels"], serde_json::json!([]));
    let (_keep, dir) = folder();
    let reversed = skeleton(&dir, "reversed");
    let output = place.stealing(&["--object", text(&reversed)], &words).output().unwrap();
    assert!(said(&output).contains("name them with --steal"), "{}", said(&output));
}
