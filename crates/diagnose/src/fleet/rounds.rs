//! The same step on all ranks, and which of them were reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpuwhy_schema::{Name, Ns};

/// Rounds that are remembered.
const ROUNDS: usize = 4096;
/// Rounds of which only one node reported anything: beyond this, the oldest of them go first, so that one
/// node with made-up step numbers does not displace what the others agree on.
const LONELY: usize = 1024;
/// What a report takes in memory besides its phases, roughly.
const REPORT_BYTES: usize = 128;

/// What one rank reported of one step.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub rank: u32,
    pub node: u64,
    pub name: Name,
    pub size: Option<i64>,
    pub dur: Ns,
    pub waited: Ns,
    pub phases: Box<[(Name, Ns)]>,
}

impl Report {
    fn bytes(&self) -> usize {
        REPORT_BYTES + self.phases.len() * size_of::<(Name, Ns)>()
    }
}

/// One step of all ranks.
#[derive(Debug)]
pub(super) struct Round {
    pub epoch: u32,
    pub seq: u64,
    /// What was reported of it, by seat.
    pub reports: BTreeMap<u32, Report>,
    /// When the first and the latest of them arrived, by our own clock.
    pub first: Ns,
    pub last: Ns,
    /// The median of their durations when it was closed, or judged.
    pub took: Option<Ns>,
    /// Whether it was reported from all seats that take part, and looked at.
    pub judged: bool,
}

impl Round {
    /// Whether it was reported from all of these seats.
    pub fn has(&self, seats: &[u32]) -> bool {
        self.reports.len() >= seats.len() && seats.iter().all(|s| self.reports.contains_key(s))
    }

    /// How long a rank waited: no longer than the step took, whatever it says.
    pub fn waited(&self, report: &Report) -> Ns {
        report.waited.clamp(Ns::ZERO, self.took.unwrap_or(report.dur).max(Ns::ZERO))
    }

    fn is_lonely(&self) -> bool {
        let mut nodes = self.reports.values().map(|report| report.node);
        let first = nodes.next();
        nodes.all(|node| Some(node) == first)
    }

    /// Name and size that most say, and the median of the durations: of these seats, if it was reported from all
    /// of them.
    pub fn consensus(&self, seats: &[u32]) -> Option<(Name, Option<i64>, Ns)> {
        let reports: Vec<&Report> = if !seats.is_empty() && self.has(seats) {
            seats.iter().filter_map(|seat| self.reports.get(seat)).collect()
        } else {
            self.reports.values().collect()
        };
        let mut said: HashMap<(&Name, Option<i64>), usize> = HashMap::new();
        for report in &reports {
            *said.entry((&report.name, report.size)).or_default() += 1;
        }
        let ((name, size), _) =
            said.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0)))?;
        let mut took: Vec<Ns> = reports.iter().map(|report| report.dur).collect();
        let middle = took.len() / 2;
        let (_, median, _) = took.select_nth_unstable(middle);
        Some((name.clone(), size, *median))
    }
}

/// The rounds that are remembered, by their numbers in the order in which they were first heard of.
#[derive(Debug)]
pub(super) struct Rounds {
    by_number: BTreeMap<u64, Round>,
    numbers: HashMap<(u32, u64), u64>,
    /// Those that are not closed.
    open: BTreeSet<u64>,
    lonely: BTreeSet<u64>,
    next: u64,
    bytes: usize,
    limit: usize,
}

impl Rounds {
    pub fn new(limit: usize) -> Rounds {
        Rounds {
            by_number: BTreeMap::new(),
            numbers: HashMap::new(),
            open: BTreeSet::new(),
            lonely: BTreeSet::new(),
            next: 0,
            bytes: 0,
            limit,
        }
    }

    /// Puts a report into its round; the round's number.
    pub fn add(&mut self, at: (u32, u64), seat: u32, report: Report, now: Ns) -> u64 {
        let number = *self.numbers.entry(at).or_insert_with(|| {
            let number = self.next;
            self.next += 1;
            let (epoch, seq) = at;
            let reports = BTreeMap::new();
            let round =
                Round { epoch, seq, reports, first: now, last: now, took: None, judged: false };
            self.by_number.insert(number, round);
            self.open.insert(number);
            number
        });
        if let Some(round) = self.by_number.get_mut(&number) {
            round.last = now;
            self.bytes += report.bytes();
            if let Some(old) = round.reports.insert(seat, report) {
                self.bytes -= old.bytes();
            }
            if round.reports.len() == 1 {
                self.lonely.insert(number);
            } else if self.lonely.contains(&number) && !round.is_lonely() {
                self.lonely.remove(&number);
            }
        }
        self.trim();
        number
    }

    /// Sets how many bytes rounds may take.
    pub fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
        self.trim();
    }

    fn trim(&mut self) {
        while self.by_number.len() > 1 && (self.by_number.len() > ROUNDS || self.bytes > self.limit)
        {
            let number = match self.lonely.first() {
                Some(&lonely) if self.lonely.len() > LONELY => lonely,
                _ => match self.by_number.first_key_value() {
                    Some((&oldest, _)) => oldest,
                    None => return,
                },
            };
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        self.open.remove(&number);
        self.lonely.remove(&number);
        if let Some(round) = self.by_number.remove(&number) {
            self.numbers.remove(&(round.epoch, round.seq));
            self.bytes -= round.reports.values().map(Report::bytes).sum::<usize>();
        }
    }

    pub fn get(&self, number: u64) -> Option<&Round> {
        self.by_number.get(&number)
    }

    /// Closes a round, with the median of its durations; false if it was closed.
    pub fn close(&mut self, number: u64, took: Ns) -> bool {
        if let Some(round) = self.by_number.get_mut(&number) {
            round.took = Some(took);
        }
        self.open.remove(&number)
    }

    /// Notes that a round was looked at, with the median of its durations.
    pub fn judge(&mut self, number: u64, took: Ns) {
        if let Some(round) = self.by_number.get_mut(&number) {
            (round.took, round.judged) = (Some(took), true);
        }
    }

    /// Whether a round is not closed.
    pub fn is_open(&self, number: u64) -> bool {
        self.open.contains(&number)
    }

    /// The numbers of the rounds that are not closed.
    pub fn open_ones(&self) -> Vec<u64> {
        self.open.iter().copied().collect()
    }

    /// The oldest round that is not closed and began before `before`.
    pub fn overdue(&self, before: Ns) -> Option<u64> {
        let number = *self.open.first()?;
        (self.get(number)?.first < before).then_some(number)
    }

    /// The rounds with these numbers, in their order.
    pub fn range(
        &self,
        numbers: impl std::ops::RangeBounds<u64>,
    ) -> impl DoubleEndedIterator<Item = &Round> {
        self.by_number.range(numbers).map(|(_, round)| round)
    }
}
