//! Where the time of a request to a language model went, from its arrival to its last token.
//!
//! # What it sees
//! The request's own row, and which steps of the engine it was part of: a row `batch_request` says since which batch it
//! takes part, and as what. Its life is cut at the begins and ends of these steps, so the pieces sum to it.
//!
//! # Why it matters
//! A slow answer has reasons that no single step shows: it waited in the queue, it was sent back there for want of
//! memory, its tokens shared their steps with somebody's long prompt, or the engine did something else between two
//! steps.
//!
//! # What fools it
//! An engine that schedules ahead computes a batch in the step after the one that it is written at: pieces are then
//! a step early. What a step would have taken without the prompts of others is by prices that were learned of steps
//! ([the caller's](Split)); where they are not known, all of the step is the request's own.

use gpuwhy_schema::{Id, Ns};

/// What a piece of a request's life was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Piece {
    /// It was with the process that talks to users, and not yet with the engine.
    Front,
    /// It waited to be scheduled for the first time.
    Queue,
    /// A step computed its prompt.
    Prompt,
    /// A step computed a token of its answer.
    Answer,
    /// A step took longer, as it computed prompts of others too.
    OthersPrompts,
    /// A step took longer than such steps do.
    Slower,
    /// It ran, and the engine was between two steps, or in one without it.
    Between,
    /// It had been sent back to the queue for want of memory.
    Preempted,
    /// It paused, for something that it needs.
    Paused,
    /// The engine had ended it, and the process that talks to users had not.
    Back,
}

impl Piece {
    /// All of them, in the order of a life.
    pub const ALL: [Piece; 10] = [
        Piece::Front,
        Piece::Queue,
        Piece::Prompt,
        Piece::Answer,
        Piece::OthersPrompts,
        Piece::Slower,
        Piece::Between,
        Piece::Preempted,
        Piece::Paused,
        Piece::Back,
    ];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Piece::Front => "front",
            Piece::Queue => "queue",
            Piece::Prompt => "prompt",
            Piece::Answer => "answer",
            Piece::OthersPrompts => "others_prompts",
            Piece::Slower => "slower",
            Piece::Between => "between",
            Piece::Preempted => "preempted",
            Piece::Paused => "paused",
            Piece::Back => "back",
        }
    }

    /// Whether it is work that the request asked for itself.
    pub const fn is_own(self) -> bool {
        matches!(self, Piece::Prompt | Piece::Answer)
    }
}

/// What a request did since a batch, until the next row of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It takes so many tokens of each batch, and had so many computed before the first of them.
    Runs {
        /// Tokens of each batch.
        tokens: u64,
        /// Computed before.
        computed: u64,
    },
    /// It was sent back to the queue.
    Preempted,
    /// It is not in the batches, for another reason.
    Pauses,
}

/// A step of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStep {
    /// Its span.
    pub id: Id,
    /// When it began,
    pub ts: Ns,
    /// and ended.
    pub end: Ns,
}

/// A request, as its engine saw it.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// When it came to the process that talks to users; the engine's own time where nothing else is known,
    pub came: Ns,
    /// and to the engine.
    pub began: Ns,
    /// When the engine ended it,
    pub ended: Ns,
    /// and the process that talks to users.
    pub gone: Ns,
    /// Tokens of its prompt.
    pub prompt: u64,
    /// What it did since which batch, in the order of their times.
    pub parts: Vec<(Ns, Part)>,
}

/// What a step should take: with all that was to be done in it, and without the prompts of others; ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// With all.
    pub expected: f64,
    /// Without the prompts of others.
    pub without: f64,
}

/// A piece of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// What it was.
    pub piece: Piece,
    /// When it began; pieces of one step lie one after another.
    pub ts: Ns,
    /// How long it was.
    pub dur: Ns,
    /// The step, if it was one.
    pub step: Option<Id>,
}

/// A token of an answer: from the end of the step before to the end of the one that computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The end of the step before,
    pub from: Ns,
    /// and of the one that computed it.
    pub to: Ns,
}

/// A request's life in pieces, which lie one after another and sum to it.
///
/// `steps` are those of its engine, in the order of their begins; `split` says what one of them should take, if this
/// request takes so many tokens of it.
pub fn spent(
    life: &Life,
    steps: &[EngineStep],
    mut split: impl FnMut(&EngineStep, u64) -> Option<Split>,
) -> Vec<Spent> {
    let mut out = Vec::new();
    let mut put = |piece, ts: Ns, dur: Ns, step| {
        if dur > Ns::ZERO {
            out.push(Spent { piece, ts, dur, step });
        }
    };
    let came = life.came.min(life.began);
    let (began, ended) = (life.began, life.ended.max(life.began));
    put(Piece::Front, came, began.saturating_sub(came), None);
    let mut at = began;
    // What the time until the next step is.
    let mut meanwhile = Piece::Queue;
    for (n, (since, part)) in life.parts.iter().enumerate() {
        let until = life.parts.get(n + 1).map_or(ended, |(ts, _)| (*ts).min(ended));
        let (tokens, mut computed) = match *part {
            Part::Runs { tokens, computed } => (tokens, computed),
            Part::Preempted | Part::Pauses => {
                let from = (*since).clamp(at, ended);
                put(meanwhile, at, from.saturating_sub(at), None);
                at = from;
                let preempted = *part == Part::Preempted;
                meanwhile = if preempted { Piece::Preempted } else { Piece::Paused };
                continue;
            }
        };
        let first = steps.partition_point(|step| step.ts < *since);
        for step in steps[first..].iter().take_while(|step| step.ts < until) {
            let (from, to) = (step.ts.clamp(at, ended), step.end.clamp(at, ended));
            put(meanwhile, at, from.saturating_sub(at), None);
            let own = if computed < life.prompt { Piece::Prompt } else { Piece::Answer };
            let mut from = from;
            for (piece, dur) in pieces(own, to.saturating_sub(from), step, split(step, tokens)) {
                put(piece, from, dur, Some(step.id));
                from = from.saturating_add(dur);
            }
            at = at.max(to);
            meanwhile = Piece::Between;
            computed = computed.saturating_add(tokens);
        }
    }
    put(meanwhile, at, ended.saturating_sub(at), None);
    put(Piece::Back, ended, life.gone.max(ended).saturating_sub(ended), None);
    out
}

/// What the time in a step was, of which `dur` is the request's: its own, that of prompts of others, and what the step
/// took longer than it should.
fn pieces(own: Piece, dur: Ns, step: &EngineStep, split: Option<Split>) -> [(Piece, Ns); 3] {
    let whole = step.end.saturating_sub(step.ts).0.max(1) as f64;
    let (mut mine, mut others) = (whole, 0.0);
    if let Some(Split { expected, without }) = split {
        let expected = expected.max(1.0);
        let without = without.clamp(0.0, expected);
        // A step that was faster than it should be was so for all.
        let scale = (whole / expected).min(1.0);
        (mine, others) = (without * scale, (expected - without) * scale);
    }
    let share = |of: f64| Ns((dur.0 as f64 * of / whole) as i64);
    let (mine, others) = (share(mine), share(others));
    [
        (own, mine),
        (Piece::OthersPrompts, others),
        (Piece::Slower, dur.saturating_sub(mine).saturating_sub(others)),
    ]
}

/// The token of a request's answer that took longest after the one before; none if it had fewer than two.
pub fn longest_gap(spent: &[Spent]) -> Option<Gap> {
    let mut ends: Vec<Ns> = Vec::new();
    for one in spent.chunk_by(|a, b| a.step.is_some() && a.step == b.step) {
        let is_answer = one.iter().any(|piece| piece.piece == Piece::Answer);
        let last = one.last().map(|piece| piece.ts.saturating_add(piece.dur));
        // The step that ends the prompt computes the first token.
        let begins = ends.is_empty() && one.iter().any(|piece| piece.piece == Piece::Prompt);
        match last {
            Some(end) if is_answer => ends.push(end),
            Some(end) if begins => ends = vec![end],
            Some(end) if ends.len() == 1 && one.iter().any(|p| p.piece == Piece::Prompt) => {
                ends[0] = end;
            }
            _ => {}
        }
    }
    let gaps = ends.windows(2).map(|pair| Gap { from: pair[0], to: pair[1] });
    gaps.max_by_key(|gap| gap.to.saturating_sub(gap.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: i64) -> Ns {
        Ns::millis(n)
    }

    fn step(n: u64, from: i64, to: i64) -> EngineStep {
        EngineStep { id: Id(n), ts: ms(from), end: ms(to) }
    }

    fn life(parts: &[(i64, Part)]) -> Life {
        Life {
            came: ms(0),
            began: ms(5),
            ended: ms(200),
            gone: ms(203),
            prompt: 100,
            parts: parts.iter().map(|(at, part)| (ms(*at), *part)).collect(),
        }
    }

    /// Pieces in ms, with the number of the step.
    fn of(spent: &[Spent]) -> Vec<(&'static str, i64, u64)> {
        let one = |s: &Spent| (s.piece.as_str(), s.dur.0 / 1_000_000, s.step.map_or(0, |id| id.0));
        spent.iter().map(one).collect()
    }

    const PROMPT: Part = Part::Runs { tokens: 100, computed: 0 };
    const ANSWERS: Part = Part::Runs { tokens: 1, computed: 100 };

    #[test]
    fn a_life_is_cut_at_its_steps_and_the_pieces_sum_to_it() {
        let life = life(&[(20, PROMPT), (60, ANSWERS)]);
        let steps = [step(1, 8, 18), step(2, 20, 50), step(3, 60, 80), step(4, 82, 200)];
        let spent = spent(&life, &steps, |_, _| None);
        assert_eq!(
            of(&spent),
            [
                ("front", 5, 0),
                ("queue", 15, 0),
                ("prompt", 30, 2),
                ("between", 10, 0),
                ("answer", 20, 3),
                ("between", 2, 0),
                ("answer", 118, 4),
                ("back", 3, 0),
            ]
        );
        assert_eq!(spent.iter().map(|s| s.dur.0).sum::<i64>(), ms(203).0);
        let gap = longest_gap(&spent).unwrap();
        assert_eq!((gap.from, gap.to), (ms(80), ms(200)));
    }

    #[test]
    fn a_step_is_parted_into_own_others_prompts_and_what_was_slower() {
        let life = life(&[(20, ANSWERS)]);
        let steps = [step(1, 20, 60), step(2, 60, 80)];
        let split = |step: &EngineStep, tokens: u64| {
            assert_eq!(tokens, 1);
            let (expected, without) = if step.id == Id(1) { (30e6, 10e6) } else { (40e6, 40e6) };
            Some(Split { expected, without })
        };
        let spent = spent(&life, &steps, split);
        let found = of(&spent);
        let first = [("answer", 10, 1), ("others_prompts", 20, 1), ("slower", 10, 1)];
        assert_eq!(found[2..5], first);
        // Faster than expected is nobody's loss.
        assert_eq!(found[5..], [("answer", 20, 2), ("between", 120, 0), ("back", 3, 0)]);
    }

    #[test]
    fn a_request_that_is_sent_back_waits_until_it_runs_again() {
        let again = Part::Runs { tokens: 100, computed: 0 };
        let life = life(&[(10, PROMPT), (60, Part::Preempted), (120, again), (160, ANSWERS)]);
        let steps = [
            step(1, 10, 40),
            step(2, 40, 60),
            step(3, 62, 100),
            step(4, 120, 150),
            step(5, 160, 200),
        ];
        let found = of(&spent(&life, &steps, |_, _| None));
        let expected = [
            ("front", 5, 0),
            ("queue", 5, 0),
            ("prompt", 30, 1),
            ("answer", 20, 2),
            ("preempted", 60, 0),
            ("prompt", 30, 4),
            ("between", 10, 0),
            ("answer", 40, 5),
            ("back", 3, 0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn times_that_cannot_be_are_no_negative_pieces() {
        let odd = Life {
            came: ms(50),
            began: ms(40),
            ended: ms(30),
            gone: ms(10),
            prompt: 0,
            parts: vec![(ms(90), ANSWERS), (ms(0), Part::Pauses), (ms(35), PROMPT)],
        };
        let spent = spent(&odd, &[step(1, 0, 100), step(2, 95, 90)], |_, _| None);
        assert!(spent.iter().all(|piece| piece.dur > Ns::ZERO), "{spent:?}");
    }
}
