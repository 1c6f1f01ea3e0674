//! Comparison with the output of NVIDIA's `nsys stats` for the same reports, digit by digit.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gpuwhy_schema::{Rows, TrackId, names};

use super::report::Report;
use super::tests::rows;
use crate::csv;

/// One line of a summary, as `nsys stats` prints it.
fn summary(values: &[i64]) -> BTreeMap<&'static str, String> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    let sum: i128 = sorted.iter().map(|v| i128::from(*v)).sum();
    let mean = sum as f64 / n as f64;
    let median = (sorted[(n - 1) / 2] as f64 + sorted[n / 2] as f64) / 2.0;
    let squares: f64 = sorted.iter().map(|v| (*v as f64 - mean).powi(2)).sum();
    let std = if n < 2 { 0.0 } else { (squares / (n - 1) as f64).sqrt() };
    BTreeMap::from([
        ("count", n.to_string()),
        ("total", sum.to_string()),
        ("min", sorted[0].to_string()),
        ("max", sorted[n - 1].to_string()),
        ("mean", format!("{mean:.1}")),
        ("median", format!("{median:.1}")),
        ("std", format!("{std:.1}")),
    ])
}

/// Compares sums of ours, by name, with a file of theirs.
fn compare(path: &Path, name: &str, count: &str, ours: &BTreeMap<String, Vec<i64>>) -> usize {
    if !path.exists() {
        return 0;
    }
    let theirs = csv(path);
    let mut compared = 0;
    let mut seen = Vec::new();
    for line in &theirs {
        let key = match line.get("Style") {
            Some(style) => format!("{style} {}", line[name]),
            None => line[name].clone(),
        };
        let values = ours.get(&key).unwrap_or_else(|| panic!("{}: no {key:?}", path.display()));
        let summary = summary(values);
        let columns = [
            (count, "count"),
            ("Total Time (ns)", "total"),
            ("Min (ns)", "min"),
            ("Max (ns)", "max"),
            ("Avg (ns)", "mean"),
            ("Med (ns)", "median"),
            ("StdDev (ns)", "std"),
        ];
        for (column, statistic) in columns {
            let (theirs, ours) = (&line[column], &summary[statistic]);
            let close = || {
                // The last printed digit of a mean or deviation may be rounded the other way.
                let (a, b): (f64, f64) = (theirs.parse().unwrap(), ours.parse().unwrap());
                theirs.contains('.') && (a - b).abs() < 0.11
            };
            assert!(theirs == ours || close(), "{}: {key}: {column}", path.display());
            compared += 1;
        }
        seen.push(key);
    }
    let missing: Vec<&String> = ours.keys().filter(|k| !seen.contains(k)).collect();
    assert!(missing.is_empty(), "{}: not among theirs: {missing:?}", path.display());
    compared
}

fn by_name(rows: &Rows, track: impl Fn(&str) -> Option<String>) -> BTreeMap<String, Vec<i64>> {
    let tracks: HashMap<TrackId, String> =
        rows.track.iter().filter_map(|t| Some((t.id, track(&t.name)?))).collect();
    let mut out: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for span in &rows.span {
        if let (Some(prefix), Some(dur)) = (tracks.get(&span.track), span.dur) {
            out.entry(format!("{prefix}{}", span.name)).or_default().push(dur.0);
        }
    }
    out
}

#[test]
fn every_number_of_nvidias_own_summaries_is_ours() {
    let Some(data) = crate::shared_data() else { return };
    let stats = data.join("nsys/nsys_stats");
    let mut compared = 0;
    for dir in std::fs::read_dir(&stats).unwrap() {
        let dir = dir.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let file = match name.strip_prefix("jacobi_mpi8_") {
            Some(rank) => format!("jacobi_mpi8/{rank}.sqlite"),
            None => format!("{name}.sqlite"),
        };
        let report = Report::open(data.join("nsys").join(file)).unwrap();
        let (rows, _) = rows(&[report]);
        let is = |wanted: &'static str| move |lane: &str| (lane == wanted).then(String::new);
        let kernels: std::collections::HashSet<_> = rows.kernel.iter().map(|k| k.id).collect();
        let on_streams = |kernel: bool| {
            let mut some = Rows { track: rows.track.clone(), ..Rows::default() };
            some.span
                .extend(rows.span.iter().filter(|s| kernels.contains(&s.id) == kernel).cloned());
            by_name(&some, is(names::STREAM))
        };
        compared +=
            compare(&dir.join("cuda_gpu_kern_sum.csv"), "Name", "Instances", &on_streams(true));
        compared += compare(
            &dir.join("cuda_gpu_mem_time_sum.csv"),
            "Operation",
            "Count",
            &on_streams(false),
        );
        let calls = by_name(&rows, is(names::CUDA_CALLS));
        compared += compare(&dir.join("cuda_api_sum.csv"), "Name", "Num Calls", &calls);
        let calls = by_name(&rows, is(names::OS_CALLS));
        compared += compare(&dir.join("osrt_sum.csv"), "Name", "Num Calls", &calls);
        let ranges = by_name(&rows, |lane| {
            let style = |style: &str, domain: &str| match domain.strip_prefix('.') {
                Some(domain) => Some(format!("{style} {domain}:")),
                None => domain.is_empty().then(|| format!("{style} ")),
            };
            match lane.strip_prefix(names::NVTX_RANGES) {
                Some(domain) => style("StartEnd", domain),
                None => style("PushPop", lane.strip_prefix(names::NVTX)?),
            }
        });
        compared += compare(&dir.join("nvtx_sum.csv"), "Range", "Instances", &ranges);
        compared += sizes(&dir.join("cuda_gpu_mem_size_sum.csv"), &rows);
    }
    println!("{compared} numbers compared");
    assert!(compared > 5000, "{compared}");
}

/// Sizes are printed in MB to three decimals.
fn sizes(path: &Path, rows: &Rows) -> usize {
    let of: HashMap<_, _> = rows.copy.iter().map(|c| (c.id, c.bytes)).collect();
    let mut ours: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for span in &rows.span {
        if let Some(bytes) = of.get(&span.id) {
            ours.entry(span.name.to_string()).or_default().push(*bytes);
        }
    }
    if !path.exists() {
        return 0;
    }
    let mut compared = 0;
    for line in csv(path) {
        let values = &ours[&line["Operation"]];
        assert_eq!(line["Count"], values.len().to_string(), "{}", path.display());
        let mb = |bytes: u64| format!("{:.3}", bytes as f64 / 1e6);
        for (column, bytes) in [
            ("Total (MB)", values.iter().sum::<u64>()),
            ("Min (MB)", *values.iter().min().unwrap()),
            ("Max (MB)", *values.iter().max().unwrap()),
        ] {
            assert_eq!(
                line[column],
                mb(bytes),
                "{}: {} {column}",
                path.display(),
                line["Operation"]
            );
            compared += 1;
        }
        compared += 1;
    }
    compared
}
