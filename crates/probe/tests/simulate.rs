//! `gpuwhy probe run --simulate`: a kernel with and without a probe, on a machine without a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn probe(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_gpuwhy-probe");
    Command::new(program).args(args).output().expect("gpuwhy-probe starts")
}

/// CUDA kernels, as nvcc made PTX of them.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpubpf/tests/kernels/basic.ptx")
}

/// `saxpy(y, x, a, n)` on 300 numbers in three blocks of 128.
fn saxpy(more: &[&str]) -> Output {
    let path = kernels();
    let launch = ["--kernel", "saxpy", "--grid", "3", "--block", "128"];
    let params = ["random-f32:300", "random-f32:300", "f32:2", "u32:300"];
    let params = params.iter().flat_map(|param| ["--param", *param]);
    let mut args = vec!["run", "--simulate", path.to_str().unwrap()];
    args.extend(launch);
    args.extend(params);
    args.extend(more);
    probe(&args)
}

/// The skeleton's probe, which counts warps and loads.
fn object(folder: &Path) -> PathBuf {
    let dir = folder.join("counts");
    probe(&["new", dir.to_str().unwrap()]);
    let built = Command::new("make").arg("-C").arg(&dir).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    dir.join("probe.bpf.o")
}

#[test]
fn a_kernel_computes_the_same_with_a_probe_that_counts_its_warps() {
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path());
    let out = folder.path().join("y");
    let save = format!("0={}", out.display());
    let output = saxpy(&["--object", object.to_str().unwrap(), "--json", "--save", &save]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["changed_parameters"], serde_json::json!([]));
    let count = |name: &str| document[name]["instructions_of_warps"].as_u64().unwrap();
    assert!(count("with_programs") > count("as_it_is"), "{document}");
    let maps = document["maps"].as_array().unwrap();
    // Key 0 counts warps, on whichever SM they ran: 3 blocks of 4.
    let warps: u64 = maps[0]["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["key"] == serde_json::json!([0, 0, 0, 0]))
        .map(|entry| entry["bytes"][0].as_u64().unwrap())
        .sum();
    assert_eq!(warps, 12, "{document}");

    // What was saved is a*x + y of what the kernel was given, which are the same numbers for x and y.
    let output = probe(&[
        "run",
        "--simulate",
        kernels().to_str().unwrap(),
        "--kernel",
        "saxpy",
        "--block",
        "1",
        "--param",
        "random-f32:300",
        "--param",
        "random-f32:300",
        "--param",
        "f32:2",
        "--param",
        "u32:0",
        "--save",
        &format!("1={}", folder.path().join("x").display()),
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let floats = |path: PathBuf| -> Vec<f32> {
        let bytes = fs::read(path).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let (x, y) = (floats(folder.path().join("x")), floats(out));
    assert_eq!(y.len(), 300);
    assert!(x.iter().zip(&y).all(|(x, y)| (3.0 * x - y).abs() < 1e-6));
}

#[test]
fn the_page_shows_what_a_probe_counted_and_cost() {
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path());
    let output = saxpy(&["--object", object.to_str().unwrap(), "--sms", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("saxpy\n"), "{text}");
    assert!(text.contains("instructions of warps"), "{text}");
    assert!(text.contains("The kernel left the same in the memory that it was given."), "{text}");
    assert!(text.contains("  [0] on SM 0  12\n"), "{text}");
}

#[test]
fn what_cannot_be_run_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (object, path) = (object(folder.path()), kernels());
    let path = path.to_str().unwrap();
    for (args, code, says) in [
        (vec!["run", "--", "true"], 2, "--object"),
        (vec!["simulate"], 2, "<KERNELS>"),
        (vec!["run", "--simulate", path], 1, "say which with --kernel: "),
        (
            vec!["run", "--simulate", path, "--kernel", "saxpi"],
            1,
            "it has no kernel like `saxpi`; it has ",
        ),
        (
            vec!["run", "--simulate", path, "--kernel", "saxpy"],
            1,
            "0 parameters are given; it has 4",
        ),
        (
            vec!["run", "--simulate", path, "--kernel", "saxpy", "--save", "3=x"],
            1,
            "parameter 3 has no memory",
        ),
        (
            vec!["run", "--simulate", path, "--kernel", "saxpy", "--param", "u8:1"],
            2,
            "`u8` is none of",
        ),
        (vec!["run", "--simulate", "/nowhere.ptx"], 1, "cannot read `/nowhere.ptx`"),
    ] {
        let output = probe(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(says), "{args:?}: {said}");
    }
    // Reads and writes beyond what it was given are found, with their place.
    let output = probe(&[
        "run",
        "--simulate",
        path,
        "--kernel",
        "saxpy",
        "--block",
        "128",
        "--param",
        "zeros:16",
        "--param",
        "zeros:16",
        "--param",
        "f32:2",
        "--param",
        "u32:100",
        "--object",
        object.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("as it is"), "{said}");
}

#[test]
fn a_kernel_that_steals_computes_the_same_in_any_order_and_what_it_costs_is_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let (probes, dir) = (object(folder.path()), folder.path().join("reversed"));
    probe(&["new", dir.to_str().unwrap(), "--tool", "reversed"]);
    let built = Command::new("make").arg("-C").arg(&dir).output().unwrap();
    assert!(built.status.success());
    let order = dir.join("probe.bpf.o");
    let (probes, order) = (probes.to_str().unwrap(), order.to_str().unwrap());
    // One block at a time, so that there is something to be stolen.
    let few = ["--steal", "--sms", "1", "--shared", "200000", "--json"];
    for (objects, named) in [
        (vec![], Value::Null),
        (vec![order], "reversed".into()),
        (vec![probes, order], "reversed".into()),
    ] {
        let with: Vec<&str> = objects.iter().flat_map(|object| ["--object", *object]).collect();
        let output = saxpy(&[&few[..], &with].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["changed_parameters"], serde_json::json!([]), "{document:#}");
        assert_eq!(document["order"], named, "{document:#}");
        let of = |column: &str, what: &str| document[column][what].as_u64().unwrap();
        assert_eq!(
            (of("as_it_is", "blocks_of_the_launch"), of("stealing", "blocks_of_the_launch")),
            (3, 1)
        );
        assert!(
            of("stealing", "atomic_operations") >= 4,
            "three blocks, and the last number: {document:#}"
        );
        assert!(of("stealing", "cycles") > of("as_it_is", "cycles"), "{document:#}");
    }
    let said = String::from_utf8(saxpy(&["--steal", "--object", order]).stdout).unwrap();
    assert!(said.contains("as it is      stealing  stealing in the order of `reversed`"), "{said}");
    let refused = folder.path().join("refused.ptx");
    let kernel = "@%p1 ret;\n bar.sync 0;\n ret;\n}\n";
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry leaves() {{\n .reg .pred %p<2>;\n .reg .b32 \
         %r<2>;\n mov.u32 %r1, %tid.x;\n setp.gt.u32 %p1, %r1, 40;\n {kernel}"
    );
    fs::write(&refused, &text).unwrap();
    let path = refused.to_str().unwrap();
    for (text, says) in [
        (&text, "leaves may not steal: line 10, `bar.sync 0;`: some threads"),
        (
            &text.replace("8.0", "8.6").replace("sm_90", "sm_100").replace("@%p1 ret;", ""),
            "would ask the hardware",
        ),
    ] {
        fs::write(&refused, text).unwrap();
        let output = probe(&["simulate", path, "--steal", "--block", "64"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_map_that_is_not_pinned_there_or_not_in_the_programs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path());
    let of = |map: &str| saxpy(&["--object", object.to_str().unwrap(), "--map", map]);
    for (map, says) in
        [("counts=/nowhere", "cannot open the BPF map `/nowhere`"), ("counts", "write NAME=PINNED")]
    {
        let output = of(map);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(says), "{map}: {said}");
    }
}
