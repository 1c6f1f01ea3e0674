use gpuwhy_schema::{
    Batch, Cause, Class, Discipline, EntityKind, Lane, Lanes, Rows, SourceId, TrackId,
};
use gpuwhy_store::Writer;

use super::*;

/// A trace of an engine whose steps take 5 ms, and 50 µs for each token of a prompt; of three requests that answer all the
/// time, the prompt of a fourth comes into the steps from time to time, and one step takes a second.
struct World {
    rows: Rows,
    engine: EntityId,
    steps: TrackId,
    requests: TrackId,
    now: Ns,
    n: u64,
}

const REQUEST: u64 = 1 << 40;

impl World {
    fn new() -> World {
        let mut lanes = Lanes::default();
        let engine = lanes.entity(EntityKind::Process, "7@1", |e| e.name = "engine".into());
        let thread = lanes.entity(EntityKind::Thread, "7/7@1", |e| e.parent = Some(engine));
        let source = SourceId(1);
        let of = |name| Lane::spans(name, Discipline::Overlap);
        let steps = lanes.track(thread, None, of(names::STEPS), source);
        let requests = lanes.track(engine, None, of(names::REQUESTS), source);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        World { rows, engine, steps, requests, now: Ns::secs(1), n: 0 }
    }

    fn span(&mut self, id: Id, ts: Ns, dur: Option<Ns>, track: TrackId) {
        let name = "x".into();
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name });
    }

    /// A step in which so many requests get a token and so many tokens of one prompt are computed.
    fn step(&mut self, answers: u64, prompt: u64, takes: Option<i64>) -> Id {
        self.n += 1;
        let id = Id::new(1, self.n);
        let noise = (self.n % 5) as i64 * 20_000;
        let dur = takes.map_or(Ns(5_000_000 + 50_000 * prompt as i64 + noise), Ns::millis);
        let (ts, thread) = (self.now, EntityId(self.engine.0 + 1));
        self.span(id, ts, Some(dur), self.steps);
        let seq = self.n;
        self.rows.step.push(schema::Step { id, ts, thread, seq, size: None, rank: None });
        let prompts = u64::from(prompt > 0);
        let of = ("vllm engine".into(), self.engine);
        self.rows.batch.push(Batch {
            prefill_tokens: Some(prompt),
            prefill_requests: Some(prompts),
            context: Some(100 * answers),
            drafts: Some(0),
            ..Batch::bare((id, ts), of, self.n, (answers + prompt, answers + prompts))
        });
        self.now = ts + dur + Ns::millis(1);
        id
    }

    fn takes_part(&mut self, request: u64, batch: Id, state: &str, tokens: u64, computed: u64) {
        let ts = self.rows.batch.iter().find(|row| row.id == batch).unwrap().ts;
        let (request, state) = (Id(REQUEST + request), state.into());
        self.rows.batch_request.push(BatchRequest { batch, ts, request, state, tokens, computed });
    }

    fn request(&mut self, number: u64, came: Ns, ended: Ns, first_token: Ns, made: u64) {
        let id = Id(REQUEST + number);
        self.span(id, came, Some(ended - came), self.requests);
        self.rows.request.push(Request {
            id,
            ts: came,
            key: format!("cmpl-{number}").as_str().into(),
            prompt_tokens: Some(100),
            output_tokens: Some(made),
            scheduled: None,
            first_token: Some(first_token),
            outcome: Some("stop".into()),
            instance: Some(self.engine),
            cached_tokens: Some(0),
            trace: (number == 2).then(|| "4bf92f3577b34da6".into()),
        });
    }

    fn told(self, options: &Options) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        let mut writer = Writer::create(&path, Default::default()).unwrap();
        let mut rows = self.rows;
        writer.append(&mut rows).unwrap();
        writer.finish().unwrap();
        requests(&path, options).unwrap()
    }
}

/// Every fifth step computes 400 tokens of somebody's prompt too, and step 301 of 400 takes a second.
fn served() -> World {
    let mut world = World::new();
    let came = world.now - Ns::millis(30);
    let mut first = None;
    for n in 0..400 {
        let takes = (n == 300).then_some(1000);
        let prompt = if n % 5 == 4 { 400 } else { 0 };
        let (from, id) = (world.now, world.step(3, prompt, takes));
        match n {
            0 => (1..4).for_each(|r| world.takes_part(r, id, "runs", 100, 0)),
            1 => (1..4).for_each(|r| world.takes_part(r, id, "runs", 1, 100)),
            _ => {}
        }
        first.get_or_insert(world.now - Ns::millis(1));
        if n == 300 {
            let (id, ts, dur, track) = (Id(9), from, Ns::secs(1), world.steps);
            let (detector, baseline) = ("x".into(), "{}".into());
            let score = 9.0;
            world.rows.finding.push(schema::Finding {
                id,
                ts,
                dur,
                track,
                detector,
                score,
                baseline,
            });
            world.rows.cause.push(Cause {
                finding: id,
                rank: 1,
                class: Class::CpuThrottling,
                culprit: None,
                excess_ns: Ns::millis(995),
                confidence: 0.9,
                evidence: "[]".into(),
            });
        }
    }
    let ended = world.now;
    for number in 1..4 {
        world.request(number, came, ended, first.unwrap(), 400);
    }
    world
}

#[test]
fn the_life_of_a_request_is_told_in_pieces_that_sum_to_it() {
    let report = served().told(&Options { worst: 1, ..Options::default() });
    assert_eq!((report.requests, report.unfinished, report.without_steps), (3, 0, 0));
    let [one] = &report.told[..] else { panic!("{report:?}") };
    let sum: f64 = one.pieces_ms.values().sum();
    assert!((sum - one.total_ms).abs() < 1e-6, "{sum} {}", one.total_ms);
    assert!((one.pieces_ms["queue"] - 30.0).abs() < 0.1, "{:?}", one.pieces_ms);
    // 80 prompts of 400 tokens.
    let others = one.pieces_ms["others_prompts"];
    assert!((1_500.0..1_620.0).contains(&others), "{:?}", one.pieces_ms);
    let slower = one.pieces_ms["slower"];
    assert!((960.0..1080.0).contains(&slower), "{:?}", one.pieces_ms);
    assert_eq!(one.steps, 400);
    assert!((one.ttft_ms.unwrap() - 35.0).abs() < 0.5, "{:?}", one.ttft_ms);
}

#[test]
fn the_longest_time_between_two_tokens_is_told_with_what_was_found_then() {
    let report = served().told(&Options { worst: 1, order: Order::Gap, ..Options::default() });
    let gap = report.told[0].longest_gap.as_ref().unwrap();
    assert!((gap.ms - 1001.0).abs() < 0.1, "{gap:?}");
    assert!(gap.pieces_ms["slower"] > 990.0, "{gap:?}");
    let met = &report.told[0].met[0];
    assert_eq!(met.cause, "cpu_throttling 0.90");
    assert!((990.0..1001.0).contains(&met.late_ms), "{met:?}");
    let text = report.text().as_str().to_owned();
    assert!(text.contains("in what was found at"), "{text}");
}

#[test]
fn a_request_is_found_by_its_name_and_by_its_trace() {
    let by = |named: &str| {
        let options = Options { named: Some(named.into()), ..Options::default() };
        served().told(&options).told.into_iter().map(|one| one.key).collect::<Vec<_>>()
    };
    assert_eq!(by("cmpl-3"), ["cmpl-3"]);
    assert_eq!(by("4bf92f35"), ["cmpl-2"]);
    assert_eq!(by("nobody"), [""; 0]);
}

#[test]
fn promises_are_counted_with_where_the_time_went() {
    let slos = ["ttft=30ms", "gap=2s"].map(|slo| slo.parse().unwrap()).to_vec();
    let report = served().told(&Options { slos, ..Options::default() });
    let [first, gap] = &report.slos[..] else { panic!("{:?}", report.slos) };
    assert_eq!((first.what, first.of, first.violated), ("ttft", 3, 3));
    assert_eq!(first.findings, [("cpu_throttling 0.90".to_owned(), 3)]);
    assert!((first.pieces_ms["queue"] - 30.0).abs() < 0.1, "{first:?}");
    assert_eq!((gap.what, gap.violated, gap.pieces_ms.len()), ("gap", 0, 0));
    assert!("ttft".parse::<Slo>().is_err() && "luck=1s".parse::<Slo>().is_err());
}

#[test]
fn drafts_and_padding_that_served_nothing_are_counted() {
    let mut world = served();
    for batch in world.rows.batch.iter_mut().take(10) {
        batch.proposed = Some(8);
        (batch.drafts, batch.accepted) = (Some(6), Some(3));
        batch.padded = Some(batch.tokens + 5);
    }
    let report = world.told(&Options::default());
    let Wasted { proposed, submitted, accepted, tokens, padded, .. } = report.wasted;
    assert_eq!((proposed, submitted, accepted, padded - tokens), (80, 60, 30, 50));
    let text = report.text().as_str().to_owned();
    assert!(text.contains("80 made in 0.0 ms, 60 submitted, 30 kept (50.0 %"), "{text}");
    assert!(text.contains("% for nothing"), "{text}");
    assert!(!text.contains("nobody had made"), "{text}");
}

/// StriaTrace's "ghost tokens" (its case 3).
#[test]
fn drafts_that_nobody_made_are_told() {
    let told = |made: &[u64]| {
        let mut world = served();
        for (batch, made) in world.rows.batch.iter_mut().zip(made) {
            (batch.proposed, batch.drafts, batch.accepted) = (Some(*made), Some(4), Some(0));
        }
        let report = world.told(&Options::default());
        (report.wasted.unmade, report.text().as_str().to_owned())
    };
    let (unmade, text) = told(&[4, 1, 0, 6]);
    assert_eq!(unmade, 7);
    assert!(text.contains("7 drafts were submitted that nobody had made (43.8 %"), "{text}");
    assert_eq!(told(&[0, 0]).0, 0, "how many are made is not known");
}

#[test]
fn a_trace_without_requests_says_so() {
    let report = World::new().told(&Options::default());
    assert!(report.text().as_str().to_owned().contains("holds no request"), "{report:?}");
}
