//! What a correlator makes of what connections say, without sockets and with a clock of the test's own.

mod common;

use common::steps;
use gpuwhy_fleet::protocol::Question;
use gpuwhy_fleet::{Action, Center, Conn, FleetEvent, Limits};
use gpuwhy_schema::Ns;
use serde_json::{Value, json};

struct World {
    center: Center,
    now: Ns,
    told: Vec<FleetEvent>,
    closed: Vec<Conn>,
    asked: Vec<(Conn, Question)>,
    refused: Vec<(Conn, String)>,
}

impl World {
    fn new(limits: Limits) -> World {
        let mut next = 0;
        let ids = move || {
            next += 1;
            format!("{next:032x}")
        };
        World {
            center: Center::new(limits, Box::new(ids)),
            now: Ns::secs(1),
            told: vec![],
            closed: vec![],
            asked: vec![],
            refused: vec![],
        }
    }

    fn act(&mut self) {
        for action in self.center.actions() {
            match action {
                Action::Tell(event) => self.told.push(event),
                Action::Close(conn) => self.closed.push(conn),
                Action::Send(conn, line) => {
                    let line: Value = serde_json::from_str(&line).unwrap();
                    match line["says"].as_str().unwrap() {
                        "question" => {
                            self.asked.push((conn, serde_json::from_value(line).unwrap()));
                        }
                        "refused" => {
                            self.refused.push((conn, line["why"].as_str().unwrap().to_owned()));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn connect(&mut self, conn: Conn) {
        self.center.connected(conn, "192.0.2.1:99", Box::new(|name| name != "root"), self.now);
    }

    fn say(&mut self, conn: Conn, what: impl ToString) {
        self.center.line(conn, what.to_string().trim_end().as_bytes(), self.now);
        self.act();
    }

    fn join(&mut self, conn: Conn, name: &str) {
        self.connect(conn);
        let session = format!("s{conn}");
        self.say(conn, json!({"says": "hello", "version": 2, "node": name, "session": session}));
    }

    /// Why a connection was refused last.
    fn why(&self) -> &str {
        &self.refused.last().expect("somebody was refused").1
    }

    fn pass(&mut self, time: Ns) {
        let until = self.now + time;
        while self.now < until {
            self.now += Ns::millis(50).min(until.saturating_sub(self.now));
            self.center.tick(self.now);
            self.act();
        }
    }

    /// `n` steps of ranks 0, 1, … on connections 1, 2, …, of which rank 1 is late by `late` ms.
    fn steps(&mut self, ranks: u32, from: u64, n: u64, late: f64) {
        for seq in from..from + n {
            let noise = (seq * 7919 % 100) as f64 / 400.0;
            for rank in 0..ranks {
                let own = if rank == 1 { 49.0 + late + noise } else { 49.0 };
                self.say(u64::from(rank) + 1, steps("job", rank, seq, own, 49.0 + late + noise));
            }
            self.pass(Ns::millis(50));
        }
    }

    fn stragglers(&self) -> Vec<(Option<u32>, u32)> {
        let straggler = |event: &FleetEvent| match event {
            FleetEvent::Straggler(report) => Some((report.rank, report.epoch)),
            _ => None,
        };
        self.told.iter().filter_map(straggler).collect()
    }

    fn complaints(&self) -> Vec<String> {
        let why = |event: &FleetEvent| match event {
            FleetEvent::Refused { why, .. } => Some(why.clone()),
            _ => None,
        };
        self.told.iter().filter_map(why).collect()
    }
}

#[test]
fn a_connection_says_hello_first_and_once() {
    let mut world = World::new(Limits::default());
    world.connect(1);
    world.say(1, steps("job", 0, 0, 1.0, 1.0));
    assert!(world.why().contains("first message is not hello"));
    world.join(2, "a");
    world.say(2, json!({"says": "hello", "version": 2, "node": "b", "session": "s"}));
    assert!(world.why().contains("second time"));
    world.connect(3);
    world.say(3, json!({"says": "hello", "version": 1, "node": "c"}));
    assert!(world.why().contains("update the older one"), "{}", world.why());
    assert_eq!(world.closed, [1, 2, 3]);
    assert_eq!(world.center.nodes(), 0);
}

#[test]
fn a_name_belongs_to_one_connection_and_to_its_certificate() {
    let mut world = World::new(Limits { nodes: 2, ..Limits::default() });
    world.join(1, "a");
    world.join(2, "a");
    assert!(world.why().contains("another node is connected"));
    world.join(3, "root");
    assert!(world.why().contains("certificate"));
    for name in ["", "a b", "\u{1b}[2J"] {
        world.join(4, name);
        assert!(world.why().contains("name"), "{name:?}");
    }
    // Its connection broke, and it comes back before that was noticed.
    world.connect(5);
    world.say(5, json!({"says": "hello", "version": 2, "node": "a", "session": "s1"}));
    assert!(world.closed.contains(&1) && world.center.knows(5));
    world.join(6, "b");
    world.join(7, "c");
    assert!(world.why().contains("as many as are allowed"));
    assert_eq!(world.center.nodes(), 2);
}

#[test]
fn who_says_nothing_is_closed_and_so_is_who_falls_silent() {
    let mut world = World::new(Limits::default());
    world.connect(1);
    world.join(2, "a");
    world.pass(Ns::secs(6));
    assert_eq!(world.closed, [1]);
    world.pass(Ns::secs(15));
    assert_eq!(world.closed, [1, 2]);
    assert!(matches!(world.told.as_slice(), [.., FleetEvent::Refused { .. }]), "{:?}", world.told);
}

#[test]
fn an_answer_counts_from_whom_was_asked_what_was_asked_while_it_was() {
    let mut world = World::new(Limits::default());
    (1..=3).for_each(|conn| world.join(conn, &format!("node{conn}")));
    world.steps(3, 0, 200, 0.0);
    world.steps(3, 200, 40, 30.0);
    assert_eq!(world.stragglers(), [(Some(1), 0)]);
    let (conn, question) = world.asked[0].clone();
    assert_eq!((conn, question.rank), (2, 1));
    let answer = |id: &str| json!({"says": "answer", "id": id, "finding": {"outcome": "decided", "class": "block_io"}});
    let cause = |world: &World| world.told.iter().any(|e| matches!(e, FleetEvent::Cause(_)));
    world.say(1, answer(&question.id));
    world.say(2, answer(&"0".repeat(32)));
    world.say(2, answer(""));
    assert!(!cause(&world) && world.complaints().len() == 2, "{:?}", world.complaints());
    // Too late: no fault, but no cause either; by then the question was asked anew.
    world.steps(3, 240, 240, 30.0);
    assert!(world.asked.len() >= 2 && world.asked.iter().all(|(conn, _)| *conn == 2));
    let complaints = world.complaints().len();
    world.say(2, answer(&question.id));
    assert!(!cause(&world) && world.complaints().len() == complaints);
    let last = world.asked.last().unwrap().1.id.clone();
    world.say(2, answer(&last));
    assert!(cause(&world));
}

#[test]
fn a_node_that_never_answers_is_asked_three_times() {
    let mut world = World::new(Limits::default());
    (1..=3).for_each(|conn| world.join(conn, &format!("node{conn}")));
    world.steps(3, 0, 200, 0.0);
    world.steps(3, 200, 1200, 30.0);
    assert_eq!(world.asked.len(), 3);
}

#[test]
fn who_forges_answers_is_sent_away_and_does_not_come_back_at_once() {
    let mut world = World::new(Limits::default());
    world.join(1, "forger");
    for n in 0..8 {
        world.say(1, json!({"says": "answer", "id": format!("{n:032x}"), "finding": null}));
    }
    assert_eq!(world.closed, [1]);
    world.join(2, "forger");
    assert!(world.why().contains("sent away"));
    world.pass(Ns::secs(61));
    world.join(3, "forger");
    assert!(world.center.knows(3));
}

#[test]
fn a_rank_is_its_first_nodes_as_long_as_that_reports_it() {
    let mut world = World::new(Limits::default());
    (1..=3).for_each(|conn| world.join(conn, &format!("node{conn}")));
    for seq in 0..400 {
        let late = if seq < 300 { 0.0 } else { 30.0 };
        for rank in 0..2 {
            let own = if rank == 1 { 49.0 + late } else { 49.0 };
            world.say(u64::from(rank) + 1, steps("job", rank, seq, own, 49.0 + late));
        }
        // The third claims that both are on time.
        world.say(3, steps("job", 0, seq, 49.0, 49.0));
        world.say(3, steps("job", 1, seq, 49.0, 49.0));
        world.pass(Ns::millis(50));
    }
    assert_eq!(world.stragglers(), [(Some(1), 0)]);
    let told = world.complaints();
    assert!(told[0].contains("reported by node1 too") && told.len() <= 2, "{told:?}");
    // A rank whose node is gone may be another's.
    world.center.closed(1);
    world.say(3, steps("job", 0, 400, 49.0, 49.0));
    assert_eq!(world.complaints().len(), told.len());
}

#[test]
fn a_node_that_claims_a_rank_before_its_own_node_comes_takes_nothing_from_it() {
    let mut world = World::new(Limits::default());
    world.join(9, "liar");
    // It says that its steps take an hour, which once kept a rank for it for four hours.
    let claim = |world: &mut World, seq: u64| {
        world.say(9, steps("job", 1, seq * 7919 % 500, 3.6e6, 3.6e6));
    };
    (0..3).for_each(|seq| claim(&mut world, seq));
    (1..=4).for_each(|conn| world.join(conn, &format!("node{conn}")));
    for seq in 0..460 {
        world.steps(4, seq, 1, if seq < 400 { 0.0 } else { 30.0 });
        claim(&mut world, seq);
    }
    let ranks: Vec<Option<u32>> = world.stragglers().iter().map(|told| told.0).collect();
    assert_eq!(ranks, [Some(1)], "{:?}", world.told);
    assert!(world.complaints().iter().any(|why| why.contains("rank 1 is reported by liar too")));
    // Its own node is asked, and not the liar.
    world.pass(Ns::secs(1));
    assert_eq!(world.asked.first().map(|(conn, _)| *conn), Some(2));
}

#[test]
fn jobs_do_not_mix_and_restarts_are_told_apart() {
    let mut world = World::new(Limits::default());
    (1..=4).for_each(|conn| world.join(conn, &format!("node{conn}")));
    for seq in 0..300u64 {
        for conn in 1..=4u64 {
            let (job, rank) = (["a", "b"][(conn as usize - 1) / 2], (conn as u32 - 1) % 2);
            // Job `a` is restarted at step 200, and is slower in the end; job `b` goes on.
            let seq = if job == "a" && seq >= 200 { seq - 200 } else { seq };
            let late = if job == "a" && world.now > Ns::secs(14) { 30.0 } else { 0.0 };
            let own = if rank == 1 { 49.0 + late } else { 49.0 };
            world.say(conn, steps(job, rank, seq, own, 49.0 + late));
        }
        world.pass(Ns::millis(50));
    }
    let FleetEvent::Straggler(report) =
        world.told.iter().find(|e| matches!(e, FleetEvent::Straggler(_))).unwrap()
    else {
        unreachable!()
    };
    assert_eq!((&*report.job, report.epoch, report.rank), ("a", 1, Some(1)));
    assert_eq!(world.stragglers().len(), 1);
}

#[test]
fn what_a_node_may_fill_is_bounded() {
    let mut world = World::new(Limits { jobs: 6, ..Limits::default() });
    world.join(1, "a");
    world.join(2, "b");
    for job in 0..20 {
        world.say(1, steps(&format!("a{job}"), 0, 0, 1.0, 1.0));
        world.say(2, steps(&format!("b{job}"), 0, 0, 1.0, 1.0));
    }
    let told = world.complaints();
    assert!(told.iter().any(|why| why.contains("more than 4 jobs")), "{told:?}");
    assert!(told.iter().any(|why| why.contains("there are 6 jobs")), "{told:?}");
    for rank in 0..200 {
        world.say(1, steps("a0", rank, 0, 1.0, 1.0));
    }
    assert!(world.complaints().iter().any(|why| why.contains("more than 64 ranks")));
    world.say(1, steps("\u{1b}[2J", 0, 0, 1.0, 1.0));
    assert!(world.complaints().iter().any(|why| why.contains("name of its job")));
    // Nothing of it ends the connection: it is left out.
    assert!(world.center.knows(1) && world.center.knows(2));
}

#[test]
fn a_flood_of_lines_is_read_slowly_and_then_not_at_all() {
    let mut world = World::new(Limits::default());
    world.join(1, "flood");
    world.join(2, "honest");
    let (mut taken, mut refused_at) = (0, None);
    for tenth in 0..300 {
        for _ in 0..100 {
            if world.center.may_read(1, world.now) {
                taken += 1;
                world.center.read(1, 100, world.now);
                world.say(1, json!({"says": "alive"}));
            }
        }
        world.say(2, json!({"says": "alive"}));
        world.pass(Ns::millis(100));
        if world.closed.contains(&1) {
            refused_at.get_or_insert(tenth);
            break;
        }
    }
    assert!(refused_at.is_some_and(|tenth| tenth >= 100), "{refused_at:?}");
    assert!(taken < 2000 + 200 * 20, "{taken} lines");
    assert!(world.center.knows(2));
    assert_eq!(world.complaints().len(), 1, "told once");
}
