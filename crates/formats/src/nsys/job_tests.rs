//! Who is who among several reports, and which reports belong together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpuwhy_schema::{ClockError, Entity, EntityId, EntityKind, Rows, names};

use super::align::align;
use super::job::{self, lines};
use super::tests::rows;
use crate::sqlite::Value;
use crate::sqlite::build::Builder;

/// The rank that spends least in collectives, by the rows of a trace.
fn waited_for(rows: &Rows) -> i64 {
    let entities: BTreeMap<EntityId, &Entity> = rows.entity.iter().map(|e| (e.id, e)).collect();
    let rank = |id: EntityId| {
        let mut at = entities[&id];
        while at.kind != EntityKind::Rank {
            at = entities[&at.parent.unwrap()];
        }
        at.number.unwrap()
    };
    let tracks: BTreeMap<_, _> = rows
        .track
        .iter()
        .filter(|t| &*t.name == names::MPI_CALLS)
        .map(|t| (t.id, rank(t.entity)))
        .collect();
    let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
    for span in rows.span.iter().filter(|s| &*s.name == "MPI_Allreduce") {
        *sums.entry(tracks[&span.track]).or_default() += span.dur.unwrap().0;
    }
    assert_eq!(sums.len(), 3);
    sums.into_iter().min_by_key(|(_, sum)| *sum).unwrap().0
}

#[test]
fn ranks_come_from_the_reports_whatever_their_names_and_their_order() {
    let Some(data) = crate::shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    for order in [[2, 3, 4], [4, 3, 2], [3, 4, 2], [3, 2, 4]] {
        let paths: Vec<PathBuf> = order
            .iter()
            .enumerate()
            .map(|(i, rank)| {
                let from = data.join(format!("nsys/jacobi_mpi8/rank{rank}.sqlite"));
                let to = dir.path().join(format!("report{}.sqlite", i + 1));
                let _ = std::fs::remove_file(&to);
                std::os::unix::fs::symlink(from, &to).unwrap();
                to
            })
            .collect();
        let reports = job::open(&paths).unwrap();
        let ranks: Vec<_> = reports.iter().map(|r| r.identity.rank.unwrap()).collect();
        assert_eq!(ranks, order);
        let (rows, alignment) = rows(&reports);
        assert_eq!(waited_for(&rows), 3, "{order:?}");
        let says = lines(&reports, &alignment);
        assert_eq!(says[0], "ranks 2, 3, 4 of 8, by the names of threads");
        assert_eq!(
            says[1],
            "3 reports merged because they were captured at the same time; of job slurm 165592; of \
             host prm-dgx-05; in container singularity multi_gpu.simg"
        );
        assert!(
            says[2].starts_with(
                "3 files aligned by the ends of collectives: 1001 x MPI_Allreduce end "
            ),
            "{says:?}"
        );
        let config = &rows.source[0].config;
        let rank =
            format!("file=report1.sqlite schema=3.7.2 rank={} rank_by=the_names_of", order[0]);
        assert!(config.starts_with(&rank) && config.contains(" world_size=8 "), "{config}");
        assert!(config.contains(" aligned_by=MPI_Allreduce error_ns="), "{config}");
    }
}

#[test]
fn the_same_report_twice_is_refused_under_any_name() {
    let Some(data) = crate::shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let old = data.join("nsys/mordred_rtx6000_old.sqlite");
    let new = data.join("nsys/gomory_rtx3090x2_r19.sqlite");
    for from in [&old, &new] {
        let copy = dir.path().join("report2.sqlite");
        std::fs::copy(from, &copy).unwrap();
        for paths in [vec![from.clone(), from.clone()], vec![from.clone(), copy.clone()]] {
            let error = job::open(&paths).unwrap_err().to_string();
            assert!(error.contains("they are the same report, given twice"), "{error}");
        }
        std::fs::remove_file(&copy).unwrap();
    }
}

#[test]
fn captures_of_different_years_are_refused() {
    let Some(data) = crate::shared_data() else { return };
    let file = |name: &str| data.join("nsys").join(name);
    let error = |a: &str, b: &str| job::open(&[file(a), file(b)]).unwrap_err().to_string();
    // Session starts of 2021-06-21 and 2025-03-12, by SQLite itself.
    let years = error("jacobi_mpi8/rank2.sqlite", "nvfuser_h200_nvtx.sqlite");
    assert!(years.contains("1360 days lie between"), "{years}");
    let hour = error("nsysai_mfu_2gpu_before.sqlite", "nsysai_mfu_2gpu_after.sqlite");
    assert!(hour.contains("4677 s lie between"), "{hour}");
}

/// A report with one call of a thread of each of these processes, which are named as given.
fn report(path: &Path, pids: &[(i64, &str)]) {
    report_in(path, pids, "");
}

/// The same, with this environment: `A=1;B=2`.
fn report_in(path: &Path, pids: &[(i64, &str)], environment: &'static str) {
    let text = |text: &'static str| Value::Text(text.as_bytes());
    let mut builder = Builder::create(path).unwrap();
    let strings: Vec<Vec<Value<'_>>> = pids
        .iter()
        .enumerate()
        .map(|(i, (_, name))| vec![Value::Int(i as i64), Value::Text(name.as_bytes())])
        .collect();
    builder.table_of("StringIds", "CREATE TABLE StringIds (id, value)", &strings).unwrap();
    let threads: Vec<Vec<Value<'_>>> = pids
        .iter()
        .enumerate()
        .map(|(i, (pid, _))| vec![Value::Int(pid << 24 | pid), Value::Int(i as i64)])
        .collect();
    let sql = "CREATE TABLE ThreadNames (globalTid, nameId)";
    builder.table_of("ThreadNames", sql, &threads).unwrap();
    let calls: Vec<Vec<Value<'_>>> = pids
        .iter()
        .map(|(pid, _)| vec![Value::Int(1), Value::Int(*pid), Value::Int(pid << 24 | pid)])
        .collect();
    let sql = "CREATE TABLE OSRT_API (start, end, globalTid)";
    builder.table_of("OSRT_API", sql, &calls).unwrap();
    let env =
        [vec![text("Hostname"), text("node1")], vec![text("DeviceEnvironment"), text(environment)]];
    let sql = "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)";
    builder.table_of("TARGET_INFO_SYSTEM_ENV", sql, &env).unwrap();
    builder.finish().unwrap();
}

fn named(rows: &Rows, kind: EntityKind) -> Vec<String> {
    rows.entity.iter().filter(|e| e.kind == kind).map(|e| e.name.to_string()).collect()
}

#[test]
fn reports_without_ranks_are_called_by_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["report7.sqlite", "report4.sqlite"].map(|name| dir.path().join(name));
    report(&paths[0], &[(42, "worker")]);
    report(&paths[1], &[(43, "worker")]);
    let reports = job::open(&paths).unwrap();
    let (rows, alignment) = rows(&reports);
    assert!(named(&rows, EntityKind::Rank).is_empty());
    assert_eq!(
        named(&rows, EntityKind::Process),
        ["pid 42 (file report7)", "pid 43 (file report4)"]
    );
    let says = lines(&reports, &alignment);
    assert_eq!(says[0], "file report7 names no rank: it is called by its name");
    assert!(
        says[2].starts_with(
            "2 reports merged although not all say when they were captured; no report"
        ),
        "{says:?}"
    );
    let nothing = "2 files aligned by nothing: report7, report4 do not say when they began: ";
    assert!(says.last().unwrap().starts_with(nothing), "{says:?}");
    assert_eq!(align(&reports).unwrap().error, ClockError::Unknown);
    assert!(rows.source[0].config.ends_with(" aligned_by=nothing error_ns=unknown"));
}

#[test]
fn a_report_of_several_ranks_tells_them_apart_by_their_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank9.sqlite");
    report(&path, &[(42, "MPI Rank 0"), (43, "MPI Rank 1"), (44, "mpirun")]);
    let reports = job::open(&[path]).unwrap();
    let (rows, alignment) = rows(&reports);
    assert_eq!(named(&rows, EntityKind::Rank), ["rank 0", "rank 1"]);
    let says = lines(&reports, &alignment);
    assert_eq!(says, ["file rank9 holds ranks 0, 1, by the names of threads"]);
}

#[test]
fn two_reports_of_one_rank_are_refused_or_lose_a_rank_that_only_their_names_say() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.sqlite", "b.sqlite"].map(|name| dir.path().join(name));
    report(&paths[0], &[(42, "MPI Rank 3")]);
    report(&paths[1], &[(43, "MPI Rank 3")]);
    let error = job::open(&paths).unwrap_err().to_string();
    assert!(error.contains("both are of rank 3 (by the names of threads"), "{error}");
    let paths = ["a_rank0.sqlite", "b_rank0.sqlite"].map(|name| dir.path().join(name));
    report(&paths[0], &[(42, "x")]);
    report(&paths[1], &[(43, "x")]);
    let reports = job::open(&paths).unwrap();
    let (rows, alignment) = rows(&reports);
    assert!(named(&rows, EntityKind::Rank).is_empty());
    let says = lines(&reports, &alignment).join("\n");
    assert!(says.contains("rank 0 by the file's name is also another report's: no rank"), "{says}");
}

#[test]
fn reports_of_different_jobs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.sqlite", "b.sqlite"].map(|name| dir.path().join(name));
    let together = |a: &'static str, b: &'static str| {
        report_in(&paths[0], &[(42, "MPI Rank 0")], a);
        report_in(&paths[1], &[(43, "MPI Rank 1")], b);
        let opened = job::open(&paths);
        opened.err().map_or_else(String::new, |e| {
            let why = e.to_string();
            why[why.find("as one trace: ").unwrap() + 14..].replace("; import each on its own", "")
        })
    };
    let slurm = "SLURM_JOB_ID=17;SLURM_STEP_ID=0";
    assert_eq!(
        together(slurm, "SLURM_JOB_ID=18"),
        "the one is of job slurm 17, the other of job slurm 18"
    );
    assert_eq!(
        together("SLURM_JOB_ID=17;PMIX_NAMESPACE=5", "SLURM_JOB_ID=17;PMIX_NAMESPACE=6"),
        "the one is of launch pmix 5, the other of launch pmix 6"
    );
    assert_eq!(
        together("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=4"),
        "their jobs have 2 and 4 ranks"
    );
    // Parts of one job, steps of one, and a report that does not say.
    let parts = "SLURM_JOB_ID=18;SLURM_HET_JOB_ID=17";
    assert_eq!(together("SLURM_JOB_ID=17;SLURM_HET_JOB_ID=17", parts), "");
    assert_eq!(together(slurm, "SLURM_JOB_ID=17;SLURM_STEP_ID=1"), "");
    assert_eq!(together(slurm, ""), "");
}

#[test]
fn processes_belong_to_their_container_and_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sqlite");
    report_in(&path, &[(42, "MPI Rank 0")], "SLURM_JOB_ID=17;HOSTNAME=3f4e8a90bc12");
    let (rows, _) = rows(&job::open(&[path]).unwrap());
    let mut at = rows.entity.iter().find(|e| e.kind == EntityKind::Process);
    let mut above = Vec::new();
    while let Some(entity) = at {
        above.push(format!("{} {}", entity.kind, entity.name));
        at = entity.parent.and_then(|id| rows.entity.iter().find(|e| e.id == id));
    }
    let owners = ["rank rank 0", "container id 3f4e8a90bc12", "job slurm 17", "host node1"];
    assert_eq!(above[1..], owners);
}
