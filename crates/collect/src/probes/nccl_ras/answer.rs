//! Reads the answers of NCCL's RAS: JSON where NCCL offers it (2.28), else its text (2.24).
//!
//! *Sources of the format*: the text as NVIDIA's user guide shows it (troubleshooting/ras.html) and
//! as jobs printed it (NVIDIA/nccl issues 1730 and 1911); all possible lines and members, from
//! `src/ras/client_support.cc` of NCCL 2.24 to 2.30, and the same words in libnccl 2.27.7 to 2.32.3.
//! Both formats grow with every version: what is unknown is skipped.
//!
//! An answer may hold anything, as any program may listen at that port, and it may end anywhere. What
//! is kept of it has limits, and statements beyond them are counted. Nothing here depends on sockets or
//! rows, so that the fuzzer can compile this file alone.

use std::collections::BTreeMap;

/// Statements that are kept.
const STATEMENTS: usize = 256;
/// Ranks that are named in a comparison; of the rest only the number is kept.
const NAMED: usize = 16;
/// Ranks of one communicator that are read.
const RANKS: usize = 1 << 16;
/// Operations of a rank; NCCL has five that it counts.
const OPERATIONS: usize = 64;
/// Characters of a word: an operation, a node, a status.
const WORD: usize = 64;
/// Levels of nested objects and lists.
const DEPTH: usize = 16;

/// What an answer states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The version of NCCL: `2.28.9+cuda12.9`.
    pub version: Option<String>,
    /// How many communicators there are.
    pub communicators: u64,
    /// What is not as it should be.
    pub statements: Vec<Statement>,
    /// Statements beyond the limit.
    pub left_out: u64,
    /// Whether the answer ended before it was complete.
    pub cut: bool,
}

/// A problem of one rank or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The problem.
    pub problem: Problem,
    /// The communicator, by the number that NCCL gives it.
    pub communicator: Option<u64>,
    /// The rank that has it; without a number it is one of `ranks`.
    pub peer: Peer,
    /// How many ranks have it.
    pub ranks: u64,
}

/// Where a rank is, as far as the answer tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The rank.
    pub rank: Option<u32>,
    /// Its process, in the process's own pid namespace.
    pub pid: Option<i64>,
    /// Its node, by address.
    pub node: Option<String>,
}

/// What is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Problem {
    /// It has not answered.
    #[default]
    Missing,
    /// It is considered dead: unreachable for a minute.
    Dead,
    /// It has called an operation another number of times than most ranks.
    Counts {
        /// The operation, `AllReduce`.
        op: String,
        /// How often it has.
        at: u64,
        /// How often most have.
        most: u64,
    },
    /// Its status differs from that of most ranks.
    Status(String),
    /// It had an error.
    Error(String),
    /// Processes did not answer in time, `ranks` of them.
    Timeouts,
}

/// Reads an answer of either format. `complete` says whether the stream ended behind it.
pub fn read(bytes: &[u8], complete: bool) -> Answer {
    let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
    let mut answer = match first {
        Some(b'{') => JsonReader::read(bytes),
        _ => TextReader::read(&String::from_utf8_lossy(bytes)),
    };
    answer.cut |= !complete;
    answer
}

impl Answer {
    fn add(&mut self, problem: Problem, communicator: Option<u64>, peer: Peer, ranks: u64) {
        if self.statements.len() >= STATEMENTS {
            self.left_out += 1;
            return;
        }
        self.statements.push(Statement { problem, communicator, peer, ranks });
    }

    /// Adds the ranks whose value is not that of most. `groups`: each value with how many ranks have
    /// it, and those of them that are known.
    fn add_differing<V: Ord + Clone>(
        &mut self,
        communicator: Option<u64>,
        groups: &BTreeMap<V, (u64, Vec<Peer>)>,
        problem: impl Fn(&V, &V) -> Problem,
    ) {
        // Of two values that equally many have, the greater one: ranks that are behind are of interest.
        let Some((most, _)) = groups.iter().max_by_key(|(_, (ranks, _))| *ranks) else { return };
        for (value, (ranks, peers)) in groups.iter().filter(|(value, _)| *value != most) {
            let named = peers.len().min(NAMED) as u64;
            for peer in peers.iter().take(NAMED) {
                self.add(problem(value, most), communicator, peer.clone(), 1);
            }
            if *ranks > named {
                self.add(problem(value, most), communicator, Peer::default(), ranks - named);
            }
        }
    }
}

fn word(text: &str) -> String {
    text.chars().take(WORD).collect()
}

/// Adds ranks to those of a value.
fn add_to_group<V: Ord>(
    groups: &mut BTreeMap<V, (u64, Vec<Peer>)>,
    value: V,
    ranks: u64,
    peer: Option<Peer>,
) {
    // Bounded by the lines of an answer, or by the ranks that are read.
    let group = groups.entry(value).or_default();
    group.0 = group.0.saturating_add(ranks);
    if let Some(peer) = peer
        && group.1.len() < NAMED
    {
        group.1.push(peer);
    }
}

/// Reads the text, line by line.
#[derive(Default)]
struct TextReader {
    answer: Answer,
    communicator: Option<u64>,
    section: Section,
    /// The last value of a group, which the ranks listed after it have.
    value: String,
    counts: BTreeMap<u64, (u64, Vec<Peer>)>,
    statuses: BTreeMap<String, (u64, Vec<Peer>)>,
}

/// The last heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Nothing,
    /// The table of communicators.
    Table,
    Missing,
    Dead,
    Counts(String),
    Status,
    Errors,
}

impl TextReader {
    fn read(text: &str) -> Answer {
        let mut reader = TextReader::default();
        let (mut has_warnings, mut last) = (false, "");
        for line in text.lines() {
            reader.line(line.trim_end());
            has_warnings |= line.trim_end() == "Warnings";
            last = line;
        }
        reader.end_section();
        // "Warnings" is always the last section.
        reader.answer.cut = !has_warnings && !last.starts_with("No communicator data");
        reader.answer
    }

    fn line(&mut self, line: &str) {
        let section = self.section.clone();
        let text = line.trim_start();
        if let Some(version) = text.strip_prefix("NCCL version ") {
            self.answer.version = version.split(' ').next().map(word);
        } else if text.starts_with("Group ") && text.contains("Comms") {
            self.begin(Section::Table);
        } else if section == Section::Table && text.starts_with('#') && !text.contains('(') {
            // The second line of the table's heading.
        } else if let Some(rest) = text.strip_prefix('#') {
            // "#0-0 (fa93daea854b060b) MISMATCH"
            self.begin(Section::Nothing);
            let hash = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            self.communicator = hash.and_then(|(hash, _)| u64::from_str_radix(hash, 16).ok());
        } else if matches!(text, "INCOMPLETE" | "DEAD" | "TIMEOUT" | "Errors" | "Warnings") {
            self.begin(Section::Nothing);
            self.communicator = None;
        } else if text.starts_with("Missing communicator data from ") {
            self.begin(Section::Missing);
        } else if text.contains(" considered dead ") {
            self.begin(Section::Dead);
        } else if text.starts_with("Initialization error") || text.starts_with("Asynchronous error")
        {
            self.begin(Section::Errors);
        } else if text == "Communicator ranks have different status" {
            self.begin(Section::Status);
        } else if let Some(op) = text
            .strip_prefix("Communicator ranks have different ")
            .and_then(|rest| rest.strip_suffix(" operation counts"))
        {
            self.begin(Section::Counts(word(op)));
        } else if let Some(rest) = text.strip_prefix("Encountered ") {
            let ranks = number(rest).unwrap_or(0);
            self.answer.add(Problem::Timeouts, None, Peer::default(), ranks);
        } else if let Some(rest) = text.strip_prefix("Process ") {
            self.process(&section, rest);
        } else if let Some(rest) = text.strip_prefix("Rank ") {
            self.rank(&section, rest);
        } else if section == Section::Table {
            // "    0         1        32         8       256       256   RUNNING      OK"
            let mut words = text.split_whitespace();
            if words.next().and_then(number).is_some() {
                let comms = words.next().and_then(number).unwrap_or(0);
                self.answer.communicators = self.answer.communicators.saturating_add(comms);
            }
        } else if let Some((ranks, rest)) = text.split_once(" ranks ")
            && let Some(ranks) = number(ranks)
        {
            self.ranks(&section, ranks, rest);
        }
    }

    /// Another heading: adds what was gathered under the last one.
    fn begin(&mut self, section: Section) {
        self.end_section();
        self.section = section;
        self.value.clear();
    }

    fn end_section(&mut self) {
        let (counts, statuses) =
            (std::mem::take(&mut self.counts), std::mem::take(&mut self.statuses));
        if let Section::Counts(op) = &self.section {
            self.answer.add_differing(self.communicator, &counts, |at, most| Problem::Counts {
                op: op.clone(),
                at: *at,
                most: *most,
            });
        }
        let status = |status: &String, _: &String| Problem::Status(status.clone());
        self.answer.add_differing(self.communicator, &statuses, status);
    }

    /// "30 ranks have launched up to operation 640", "2 ranks have status INIT", "3 ranks reported
    /// System error".
    fn ranks(&mut self, section: &Section, ranks: u64, rest: &str) {
        match section {
            Section::Counts(_) => {
                if let Some(at) = launched(rest) {
                    self.value = at.to_string();
                    add_to_group(&mut self.counts, at, ranks, None);
                }
            }
            Section::Status => {
                if let Some(status) = rest.strip_prefix("have status ") {
                    self.value = word(status);
                    add_to_group(&mut self.statuses, word(status), ranks, None);
                }
            }
            Section::Errors => {
                if let Some(error) = rest.strip_prefix("reported ") {
                    self.value = word(error);
                }
            }
            _ => {}
        }
    }

    /// "12 -- GPU 4 managed by process 323032 on node 10.137.190.124", and with what that rank has
    /// before the dashes.
    fn rank(&mut self, section: &Section, rest: &str) {
        let (front, place) = rest.split_once(" -- ").unwrap_or((rest, ""));
        let (rank, has) = front.split_once(' ').unwrap_or((front, ""));
        let Some(rank) = number(rank).and_then(|rank| u32::try_from(rank).ok()) else { return };
        let (_, process) = place.split_once("process ").unwrap_or_default();
        let peer = Peer { rank: Some(rank), ..peer_of(process) };
        match section {
            Section::Missing => self.answer.add(Problem::Missing, self.communicator, peer, 1),
            Section::Dead => self.answer.add(Problem::Dead, self.communicator, peer, 1),
            Section::Counts(_) => match launched(has) {
                Some(at) => add_to_group(&mut self.counts, at, 1, Some(peer)),
                None => {
                    if let Ok(at) = self.value.parse() {
                        add_to_group(&mut self.counts, at, 0, Some(peer));
                    }
                }
            },
            Section::Status => match has.strip_prefix("has status ") {
                Some(status) => add_to_group(&mut self.statuses, word(status), 1, Some(peer)),
                None if !self.value.is_empty() => {
                    add_to_group(&mut self.statuses, self.value.clone(), 0, Some(peer));
                }
                None => {}
            },
            Section::Errors => {
                let error = has.strip_prefix("reported ").map_or_else(|| self.value.clone(), word);
                self.answer.add(Problem::Error(error), self.communicator, peer, 1);
            }
            Section::Nothing | Section::Table => {}
        }
    }

    /// "3487984 on node 172.16.64.213 managing GPUs 0-3"
    fn process(&mut self, section: &Section, rest: &str) {
        let problem = match section {
            Section::Missing => Problem::Missing,
            Section::Dead => Problem::Dead,
            _ => return,
        };
        self.answer.add(problem, self.communicator, peer_of(rest), 1);
    }
}

/// How many operations were launched: "have launched up to operation 640", "has not launched any operations".
fn launched(text: &str) -> Option<u64> {
    if text.ends_with("not launched any operations") {
        return Some(0);
    }
    number(text.split_once("launched up to operation ")?.1)
}

/// A process and its node: "323032 on node 10.137.190.124", and whatever follows.
fn peer_of(text: &str) -> Peer {
    let mut words = text.split(' ');
    let pid = words.next().and_then(number).and_then(|pid| i64::try_from(pid).ok());
    let node = text.split_once(" on node ").and_then(|(_, rest)| rest.split(' ').next());
    Peer { rank: None, pid, node: node.map(word) }
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

/// Reads the JSON, member by member, so that what precedes a cut is used.
struct JsonReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The members that contain the present value, outermost first.
    path: Vec<String>,
    answer: Answer,
    communicator: Communicator,
    rank: Rank,
}

#[derive(Default)]
struct Communicator {
    hash: Option<u64>,
    ranks: Vec<Rank>,
    missing: Vec<Rank>,
}

/// A rank that has answered, or one that has not.
#[derive(Default)]
struct Rank {
    peer: Peer,
    init_state: i64,
    async_error: i64,
    finalizing: bool,
    aborting: bool,
    dead: bool,
    unresponsive: bool,
    counts: Vec<(String, u64)>,
}

/// The answer ends too early, or is no JSON.
struct Malformed;

enum Scalar {
    Number(i64),
    Bool(bool),
    Text(String),
    Other,
}

impl JsonReader<'_> {
    fn read(bytes: &[u8]) -> Answer {
        let mut json = JsonReader {
            bytes,
            at: 0,
            path: Vec::new(),
            answer: Answer::default(),
            communicator: Communicator::default(),
            rank: Rank::default(),
        };
        // A communicator that is cut off is ignored: comparing the counts of only some ranks would
        // mislead.
        json.answer.cut = json.value().is_err();
        json.answer
    }

    fn peek(&mut self) -> Result<u8, Malformed> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().ok_or(Malformed)
    }

    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.peek()? != byte {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<(), Malformed> {
        match self.peek()? {
            b'{' => {
                self.at += 1;
                self.members()?;
                self.object_ends();
            }
            b'[' => {
                self.at += 1;
                // A list has no name of its own; an empty one counts its level.
                self.enter(String::new())?;
                self.elements()?;
                self.path.pop();
            }
            b'"' => {
                let text = self.string()?;
                self.scalar(Scalar::Text(text));
            }
            _ => {
                let from = self.at;
                let ends = |b: &u8| b.is_ascii_whitespace() || b",]}".contains(b);
                let len = self.bytes[from..].iter().position(ends).ok_or(Malformed)?;
                self.at += len;
                let word = str::from_utf8(&self.bytes[from..self.at]).map_err(|_| Malformed)?;
                let value = match word {
                    "true" => Scalar::Bool(true),
                    "false" => Scalar::Bool(false),
                    "" => return Err(Malformed),
                    _ => word.parse().map_or(Scalar::Other, Scalar::Number),
                };
                self.scalar(value);
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: String) -> Result<(), Malformed> {
        if self.path.len() >= DEPTH {
            return Err(Malformed);
        }
        self.path.push(name);
        Ok(())
    }

    fn members(&mut self) -> Result<(), Malformed> {
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek()? != b'"' {
                return Err(Malformed);
            }
            let name = self.string()?;
            self.expect(b':')?;
            self.enter(name)?;
            self.value()?;
            self.path.pop();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(Malformed),
            }
        }
    }

    fn elements(&mut self) -> Result<(), Malformed> {
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value()?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(Malformed),
            }
        }
    }

    /// A string, of which the first characters are kept. Escapes are left as they are: NCCL writes
    /// none in the strings that are used.
    fn string(&mut self) -> Result<String, Malformed> {
        let from = self.at + 1;
        let mut to = from;
        loop {
            match self.bytes.get(to).ok_or(Malformed)? {
                b'"' => break,
                b'\\' => to += 2,
                _ => to += 1,
            }
        }
        self.at = to + 1;
        // Four bytes a character at most.
        let kept = self.bytes.get(from..to.min(from + 4 * WORD)).ok_or(Malformed)?;
        Ok(word(&String::from_utf8_lossy(kept)))
    }

    /// The names that lead to the present value: `communicators ranks status`.
    fn place(&self) -> [&str; 4] {
        let mut names = self.path.iter().map(String::as_str).filter(|name| !name.is_empty());
        std::array::from_fn(|_| names.next().unwrap_or(""))
    }

    fn scalar(&mut self, value: Scalar) {
        let place = self.place();
        match (place, value) {
            (["nccl_version", "", ..], Scalar::Text(text)) => self.answer.version = Some(text),
            (["communicators_count", "", ..], Scalar::Number(n)) => {
                self.answer.communicators = u64::try_from(n).unwrap_or(0);
            }
            (["ras", "timeouts_count", "", _], Scalar::Number(n)) => {
                if let Some(n) = u64::try_from(n).ok().filter(|n| *n > 0) {
                    self.answer.add(Problem::Timeouts, None, Peer::default(), n);
                }
            }
            (["communicators", "hash", "", _], Scalar::Text(text)) => {
                let hash = text.strip_prefix("0x").unwrap_or(&text);
                self.communicator.hash = u64::from_str_radix(hash, 16).ok();
            }
            (["communicators", "ranks" | "missing_ranks", what, inner], value) => {
                let (what, inner) = (what.to_owned(), inner.to_owned());
                self.rank.member(&what, &inner, value);
            }
            _ => {}
        }
    }

    fn object_ends(&mut self) {
        let rank = |this: &mut Self| std::mem::take(&mut this.rank);
        match self.place() {
            ["communicators", "ranks", "", _] => {
                let rank = rank(self);
                if self.communicator.ranks.len() < RANKS {
                    self.communicator.ranks.push(rank);
                }
            }
            ["communicators", "missing_ranks", "", _] => {
                let rank = rank(self);
                if self.communicator.missing.len() < RANKS {
                    self.communicator.missing.push(rank);
                }
            }
            ["communicators", "", ..] => {
                let communicator = std::mem::take(&mut self.communicator);
                communicator.add_to(&mut self.answer);
            }
            _ => {}
        }
    }
}

impl Rank {
    fn member(&mut self, what: &str, inner: &str, value: Scalar) {
        match (what, inner, value) {
            ("rank", "", Scalar::Number(n)) => self.peer.rank = u32::try_from(n).ok(),
            ("pid", "", Scalar::Number(n)) => self.peer.pid = Some(n).filter(|pid| *pid > 0),
            ("host", "", Scalar::Text(node)) => {
                self.peer.node = Some(node).filter(|node| node != "unknown");
            }
            ("status", "init_state", Scalar::Number(n)) => self.init_state = n,
            ("status", "async_error", Scalar::Number(n)) => self.async_error = n,
            ("status", "finalize_called" | "destroy_flag", Scalar::Bool(yes)) => {
                self.finalizing |= yes
            }
            ("status", "abort_flag", Scalar::Bool(yes)) => self.aborting = yes,
            ("status", "considered_dead", Scalar::Bool(yes)) => self.dead = yes,
            ("status", "unresponsive", Scalar::Bool(yes)) => self.unresponsive = yes,
            ("collective_counts", op, Scalar::Number(n))
                if !op.is_empty() && self.counts.len() < OPERATIONS =>
            {
                self.counts.push((op.to_owned(), u64::try_from(n).unwrap_or(0)));
            }
            _ => {}
        }
    }

    /// In the words of the text format.
    fn status(&self) -> &'static str {
        match (self.aborting, self.finalizing, self.init_state) {
            (true, ..) => "ABORT",
            (_, true, _) => "FINALIZE",
            (.., 0) => "RUNNING",
            _ => "INIT",
        }
    }
}

/// `ncclSuccess` and `ncclInProgress`.
const NO_ERROR: [i64; 2] = [0, 7];

impl Communicator {
    fn add_to(self, answer: &mut Answer) {
        let hash = self.hash;
        let mut statuses = BTreeMap::new();
        let mut counts: BTreeMap<&str, BTreeMap<u64, (u64, Vec<Peer>)>> = BTreeMap::new();
        for rank in &self.ranks {
            add_to_group(&mut statuses, rank.status(), 1, Some(rank.peer.clone()));
            for (op, at) in &rank.counts {
                add_to_group(counts.entry(op).or_default(), *at, 1, Some(rank.peer.clone()));
            }
            for error in [rank.init_state, rank.async_error] {
                if !NO_ERROR.contains(&error) {
                    let problem = Problem::Error(error_name(error));
                    answer.add(problem, hash, rank.peer.clone(), 1);
                }
            }
        }
        for rank in self.missing {
            let problem = match (rank.dead, rank.unresponsive) {
                (true, _) => Problem::Dead,
                (false, true) => Problem::Missing,
                // It has answered, but does not know the communicator.
                (false, false) => Problem::Status("NOCOMM".to_owned()),
            };
            answer.add(problem, hash, rank.peer, 1);
        }
        answer.add_differing(hash, &statuses, |status, _| Problem::Status((*status).to_owned()));
        for (op, groups) in &counts {
            answer.add_differing(hash, groups, |at, most| Problem::Counts {
                op: (*op).to_owned(),
                at: *at,
                most: *most,
            });
        }
    }
}

/// `ncclResult_t` in the words of the text format.
fn error_name(code: i64) -> String {
    match code {
        1 => "Unhandled CUDA error",
        2 => "System error",
        3 => "Internal error",
        4 => "Invalid argument",
        5 => "Invalid usage",
        6 => "Remote process error",
        8 => "Timeout",
        _ => return format!("error {code}"),
    }
    .to_owned()
}
