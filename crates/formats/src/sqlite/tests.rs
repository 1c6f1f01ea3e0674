use super::build::Builder;
use super::*;

fn text(text: &str) -> Value<'_> {
    Value::Text(text.as_bytes())
}

/// A database of one table `t(id, a, b)`.
fn database(rows: &[Vec<Value<'_>>]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT)";
    builder.table_of("t", sql, rows).unwrap();
    builder.table_of("empty", "CREATE TABLE empty (x)", &[]).unwrap();
    builder.finish().unwrap();
    (dir, path)
}

type Row = (i64, Option<i64>, Option<String>);

fn read(path: &Path) -> Result<Vec<Row>> {
    let database = Database::open(path)?;
    let table = database.table("T").expect("names have no case");
    let wanted = [table.column("id"), table.column("a"), table.column("B")];
    let mut rows = Vec::new();
    database.scan(table, &database.leaves(table)?, wanted, |_, [id, a, b]| {
        rows.push((id.int().unwrap(), a.int(), b.text().map(str::to_owned)));
        Ok(())
    })?;
    Ok(rows)
}

#[test]
fn numbers_of_every_size_come_back() {
    let numbers = [0, 1, -1, 127, -128, 128, 40_000, -40_000, 8_388_607, -8_388_609, 1 << 40]
        .into_iter()
        .chain([i64::MAX, i64::MIN, (1 << 47) - 1, -(1 << 47), 1 << 47]);
    let rows: Vec<Vec<Value<'_>>> =
        numbers.clone().map(|n| vec![Value::Null, Value::Int(n), Value::Null]).collect();
    let (_dir, path) = database(&rows);
    let back: Vec<Option<i64>> = read(&path).unwrap().into_iter().map(|r| r.1).collect();
    assert_eq!(back, numbers.map(Some).collect::<Vec<_>>());
}

#[test]
fn many_rows_lie_on_many_pages_and_long_texts_beyond_theirs() {
    let long = "x".repeat(3 * 4096 + 17);
    let rows: Vec<Vec<Value<'_>>> = (0..20_000)
        .map(|i| {
            let b = if i % 1000 == 7 { text(&long) } else { text("short") };
            vec![Value::Null, Value::Int(i), b]
        })
        .collect();
    let (_dir, path) = database(&rows);
    let back = read(&path).unwrap();
    assert_eq!(back.len(), 20_000);
    for (i, (id, a, b)) in back.into_iter().enumerate() {
        assert_eq!((id, a), (i as i64 + 1, Some(i as i64)));
        assert_eq!(b.unwrap().len(), if i % 1000 == 7 { long.len() } else { 5 });
    }
    let database = Database::open(&path).unwrap();
    let table = database.table("t").unwrap();
    let leaves = database.leaves(table).unwrap();
    assert!(leaves.len() > 50);
    // Threads share a table by its leaves.
    let mut count = 0;
    for part in leaves.chunks(7) {
        let each = |_, _: [Value<'_>; 1]| {
            count += 1;
            Ok(())
        };
        database.scan(table, part, [table.column("a")], each).unwrap();
    }
    assert_eq!(count, 20_000);
    let empty = database.table("empty").unwrap();
    assert_eq!(database.leaves(empty).unwrap().len(), 1);
}

#[test]
fn columns_that_are_missing_are_null() {
    let (_dir, path) = database(&[vec![Value::Null, Value::Int(5)]]);
    assert_eq!(read(&path).unwrap(), [(1, Some(5), None)]);
    let database = Database::open(&path).unwrap();
    let table = database.table("t").unwrap();
    assert_eq!(table.column("c"), None);
    let leaves = database.leaves(table).unwrap();
    database
        .scan(table, &leaves, [None, Some(1)], |_, values| {
            assert_eq!(values, [Value::Null, Value::Int(5)]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn many_definitions_need_more_than_the_first_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    for i in 0..60 {
        let sql = format!("CREATE TABLE t{i} (a INTEGER, {} TEXT)", "b".repeat(200));
        builder.table_of(&format!("t{i}"), &sql, &[vec![Value::Int(i)]]).unwrap();
    }
    builder.finish().unwrap();
    let database = Database::open(&path).unwrap();
    assert_eq!(database.tables().count(), 60);
    let table = database.table("t59").unwrap();
    let leaves = database.leaves(table).unwrap();
    database
        .scan(table, &leaves, [Some(0)], |_, [a]| {
            assert_eq!(a, Value::Int(59));
            Ok(())
        })
        .unwrap();
}

fn outcome(path: &Path) -> String {
    match read(path) {
        Ok(rows) => format!("{} rows", rows.len()),
        Err(e) => e.to_string().replace(&path.parent().unwrap().display().to_string(), "."),
    }
}

#[test]
fn other_files_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let with = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        outcome(&path)
    };
    assert_eq!(
        with(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "`./x.sqlite` is not an SQLite database: it is a Git LFS pointer; `git lfs pull` brings the file itself"
    );
    assert_eq!(
        with(b""),
        "`./x.sqlite` is not an SQLite database: it does not begin with `SQLite format 3`"
    );
    assert_eq!(with(MAGIC), "`./x.sqlite` is damaged, its header: it is cut off");
    assert!(outcome(dir.path()).contains("it is not a regular file"));
}

#[test]
fn a_database_that_is_cut_off_or_not_finished_is_refused() {
    let rows: Vec<Vec<Value<'_>>> =
        (0..5000).map(|i| vec![Value::Null, Value::Int(i), text("some text")]).collect();
    let (_dir, path) = database(&rows);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = outcome(&path);
    assert!(
        error.contains("x.sqlite` is damaged, byte") && error.contains("is cut off"),
        "{error}"
    );
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(outcome(&path), "5000 rows");
    for (suffix, word) in [("-wal", "wal_checkpoint"), ("-journal", "was not finished")] {
        let beside = path.with_file_name(format!("x.sqlite{suffix}"));
        std::fs::write(&beside, b"some").unwrap();
        assert!(outcome(&path).contains(word), "{}", outcome(&path));
        std::fs::remove_file(&beside).unwrap();
    }
}

#[test]
fn any_damage_is_an_error_or_other_values_but_never_more() {
    let long = "y".repeat(9000);
    let rows: Vec<Vec<Value<'_>>> = (0..3000)
        .map(|i| vec![Value::Null, Value::Int(i), text(if i % 100 == 0 { &long } else { "z" })])
        .collect();
    let (_dir, path) = database(&rows);
    let whole = std::fs::read(&path).unwrap();
    let mut state = 7u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    let mut refused = 0;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            // Mostly in the headers of pages, where damage matters most.
            let page = random(bytes.len() / 4096);
            let at = page * 4096 + if random(2) == 0 { random(16) } else { random(4096) };
            bytes[at] = random(256) as u8;
        }
        std::fs::write(&path, &bytes).unwrap();
        match read(&path) {
            Ok(rows) => assert!(rows.len() <= 3000 * 8, "{}", rows.len()),
            Err(e) => {
                assert!(e.to_string().contains("x.sqlite"), "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused} of 300 were refused");
}

#[test]
fn the_databases_of_a_profiler_are_read_as_its_own_library_reads_them() {
    let Some(data) = crate::shared_data() else { return };
    // Counts of rows, by SQLite itself.
    let known = [
        ("nsys/jacobi_mpi8/rank3.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL", 2002),
        ("nsys/jacobi_mpi8/rank3.sqlite", "SAMPLING_CALLCHAINS", 280_109),
        ("nsys/jacobi_mpi8/rank3.sqlite", "StringIds", 5949),
        ("nsys/nvfuser_h200_nvtx.sqlite", "NVTX_EVENTS", 13_513),
        ("nsys/mordred_rtx6000_old.sqlite", "OSRT_CALLCHAINS", 13_155),
    ];
    for (file, table, rows) in known {
        let database = Database::open(data.join(file)).unwrap();
        let table = database.table(table).unwrap();
        let mut count = 0;
        let last = table.columns.len() - 1;
        let leaves = database.leaves(table).unwrap();
        database
            .scan(table, &leaves, [Some(0), Some(last)], |_, [first, _]| {
                assert_ne!(first, Value::Null);
                count += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(count, rows, "{file} {}", table.name);
    }
}
