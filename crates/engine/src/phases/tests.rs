use gpuwhy_diagnose::detect::Expected;

use super::*;
use crate::phase_table;

const MS: i64 = 1_000_000;

/// A phase of a second, from 1 s on.
fn second(kind: &'static str, spent: Spent) -> Phase {
    let (from_ns, to_ns) = (1000 * MS, 2000 * MS);
    Phase { name: "step".into(), kind, from_ns, to_ns, spent, series: 0 }
}

fn in_calls(name: &'static str, ms: f64) -> Spent {
    Spent { kernels_ms: 100.0, calls_ms: [(name, ms), ("MPI", 20.0)].into(), ..Spent::default() }
}

fn program(phases: Vec<Phase>) -> Program {
    Program {
        process: "train".into(),
        pid: Some(7),
        rank: Some(1),
        mostly: mostly(&second("whole", Spent::default()), &phases),
        phases,
        entity: EntityId::default(),
        waits: Vec::new(),
    }
}

#[test]
fn calls_that_take_most_of_the_time_are_told_by_what_they_do() {
    let told = |name| most_of(&second("whole", in_calls(name, 700.0))).join("; ");
    let says = |what: &str| {
        format!("70 % of the time goes to {what}: 700.0 ms of 1.00 s; kernels run 10 % of it")
    };
    for (name, what) in [
        ("synchronising", "waiting for the GPU in calls that synchronise"),
        ("copying", "calls that copy"),
        ("allocating", "calls that allocate or free memory"),
        ("freeing", "calls that allocate or free memory"),
        ("MPI", "calls of MPI"),
        ("launching", "calls that launch"),
        ("reading and writing", "OS calls that read or write"),
        ("sleeping", "OS calls that sleep"),
        ("waiting for events", "OS calls that wait for events, such as poll"),
        ("waiting for threads", "OS calls that wait for threads or processes"),
        ("sending and receiving", "OS calls that send or receive"),
        ("other OS calls", "other OS calls"),
        ("loading", "calls that load code"),
    ] {
        let one = Spent { kernels_ms: 100.0, calls_ms: [(name, 700.0)].into(), ..Spent::default() };
        assert_eq!(most_of(&second("whole", one)).join("; "), says(what), "{name}");
    }
    assert_eq!(told("synchronising"), says("waiting for the GPU in calls that synchronise"));
    assert_eq!(most_of(&second("whole", in_calls("copying", 499.0))), Vec::<String>::new());
}

#[test]
fn a_wait_for_kernels_that_run_is_said_to_be_for_them_and_one_in_mpi_is_not() {
    let told = |name| {
        let calls_ms = [(name, 900.0)].into();
        most_of(&second("work", Spent { kernels_ms: 800.0, calls_ms, ..Spent::default() }))
    };
    let kernels = "900.0 ms of 1.00 s; kernels run 80 % of it";
    assert_eq!(
        told("synchronising"),
        [format!(
            "90 % of the time of `step` goes to waiting for the GPU in calls that synchronise: {kernels}, which such \
             calls wait for"
        )]
    );
    assert_eq!(
        told("MPI"),
        [format!("90 % of the time of `step` goes to calls of MPI: {kernels}")]
    );
}

#[test]
fn copies_and_moved_pages_are_told_and_pages_count_as_copies_only_once() {
    let spent = |managed_ms| Spent {
        copies_ms: 600.0,
        copies_alone_ms: 400.0,
        managed_ms,
        ..Spent::default()
    };
    assert_eq!(
        most_of(&second("whole", spent(0.0))),
        ["60 % of the time goes to copies: 600.0 ms of 1.00 s, 400.0 ms of it while no kernel ran"]
    );
    assert_eq!(
        most_of(&second("whole", spent(500.0))),
        [
            "50 % of the time goes to moving managed memory: 500.0 ms of 1.00 s; kernels run 0 % of it"
        ]
    );
}

#[test]
fn a_program_of_which_nothing_takes_most_tells_of_its_long_phases_of_work() {
    let short = Phase { to_ns: 1100 * MS, ..second("work", in_calls("copying", 90.0)) };
    let phases = vec![
        second("set_up", in_calls("copying", 900.0)),
        short,
        second("work", in_calls("launching", 600.0)),
    ];
    let told: Vec<String> = program(phases).mostly().collect();
    assert_eq!(
        told,
        [
            "rank 1, train (pid 7): 60 % of the time of `step` goes to calls that launch: 600.0 ms of 1.00 s; kernels \
          run 10 % of it"
        ]
    );
}

#[test]
fn the_text_of_a_phase_has_the_largest_shares_first_and_leaves_out_the_small_ones() {
    let calls_ms = [("copying", 300.0), ("launching", 9.0), ("MPI", 400.0)].into();
    let spent = Spent {
        kernels_ms: 250.0,
        copies_ms: 500.0,
        managed_ms: 10.0,
        calls_ms,
        ..Spent::default()
    };
    assert_eq!(
        second("work", spent).text(),
        "GPU: copies 50 %, kernels 25 %, managed memory 1 %; thread: MPI 40 %, copying 30 %"
    );
    let none = second("work", Spent::default()).text();
    assert_eq!(none, "less than 1 % in any call or on a GPU");
}

#[test]
fn phases_are_learned_in_a_fifth_of_the_shortest_series_and_no_longer_than_elsewhere() {
    let step = |name: &str, from: i64, to: i64| Step {
        id: Id(1),
        ts: Ns::millis(from),
        dur: Ns::millis(to - from),
        thread: EntityId::default(),
        series: None,
        rank: None,
        name: name.into(),
        size: None,
        ran: None,
        expected: Expected::default(),
    };
    let usual = Detection { learn_for: Ns::secs(10), hang: Ns::secs(5), ..Detection::default() };
    let of = |units: &[Step]| detection(&usual, units);
    let both =
        [step("a", 0, 10), step("b", 100, 200), step("b", 900, 1100), step("a", 9000, 20_000)];
    assert_eq!(of(&both).learn_for, Ns::millis(200));
    assert_eq!(of(&[step("a", 0, 1), step("a", 100_000, 200_000)]).learn_for, usual.learn_for);
    assert_eq!(of(&[]).learn_for, usual.learn_for);
    assert_eq!(of(&both).hang, usual.min_lost);
    assert_eq!(detection(&Detection { hang: Ns(1), ..usual }, &both).hang, Ns(1));
    assert_eq!(of(&both).min_lost, usual.min_lost);
}

#[test]
fn a_table_of_phases_counts_its_rows_over_all_programs() {
    let one = || {
        program(vec![
            second("set_up", Spent::default()),
            second("work", in_calls("launching", 600.0)),
        ])
    };
    let table =
        phase_table::of(&[one(), one()], "the first call", |ns| (ns - 1000 * MS) as f64 / 1e9);
    let ids: Vec<_> = table.rows.iter().filter_map(|row| row.id.clone()).collect();
    assert_eq!(ids, ["phase-1", "phase-2", "phase-3", "phase-4"]);
    assert!(table.title.starts_with("Phases of programs"), "{}", table.title);
    assert!(table.note.starts_with("Times count from the first call."), "{}", table.note);
    assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()));
    let row = format!("{:?}", table.rows[1].cells);
    for part in ["rank 1, train (pid 7)", "step", "work", "thread: launching 60 %, MPI 2 %"] {
        assert!(row.contains(part), "{part} is not in {row}");
    }
    assert!(format!("{:?}", table.rows[2].cells[2]).contains("set-up"));
}
