//! What NCCL's own RAS knows: which rank is behind, which does not answer.
//!
//! *What it sees*: RAS is a thread in every process with NCCL of version 2.24 or newer; one of them a
//! host listens at localhost:28028, and knows of the whole job. While something is the matter, or a step
//! has been open for [`HANGS`], it is asked, every [`EVERY`] at most. *Why it matters*: in a hang all
//! ranks wait alike; who has not called the operation that the others are in is the one to look at, and
//! it may be on another node. *What fools it*:
//!
//! - Ranks are asked one after the other while they run: a count that is one off means nothing in a job
//!   that goes on.
//! - Counts are those of calls, not of what the GPU has done: a job can hang with all counts equal.
//! - With two jobs on one host, whose RAS answers is the kernel's choice.
//! - A job in another network namespace (a container with its own) listens at a localhost that is not
//!   ours. The note of the source names such processes.
//!
//! **Nothing is asked unless the user wished it** ([`crate::Config::ras`]): answering has crashed jobs.
//! NVIDIA/nccl issue 1669 (2.26.2, while communicators are being made), 1762 (before 2.29.2, with ranks
//! that do not answer), 2346 (2.29.7, while communicators come and go). To greet it, as `gpuwhy doctor`
//! does, runs none of that code.

pub(crate) mod answer;
pub(crate) mod ask;

use std::fs;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use gpuwhy_schema::{Attr, Lane, Mark, Ns, SourceId, SourceState, names};

use crate::recorder::Target;
use crate::{CollectError, Context, Probe, Start};
use answer::{Answer, Says, What};
use ask::{Form, Patience, Silence, USUAL, ask};

/// Between two questions.
const EVERY: Ns = Ns::secs(10);
/// A step that has been open for so long hangs.
pub(crate) const HANGS: Ns = Ns::secs(10);
/// Processes that are named in the source's note.
const NAMED: usize = 8;

/// Where to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RasAt {
    /// On this host, at the port of a target's NCCL_RAS_ADDR or at the usual one.
    #[default]
    Usual,
    /// `HOST:PORT`.
    Named(String),
}

impl FromStr for RasAt {
    type Err = String;

    /// `HOST:PORT`, or nothing for the usual one.
    fn from_str(text: &str) -> Result<RasAt, String> {
        match text.rsplit_once(':') {
            None if text.is_empty() => Ok(RasAt::Usual),
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(RasAt::Named(text.to_owned()))
            }
            _ => Err("write HOST:PORT, as in localhost:28028".into()),
        }
    }
}

struct NcclRas {
    at: RasAt,
    /// The port that a target's environment names.
    port: Option<u16>,
    asker: Option<Asker>,
    asking: bool,
    asked: Option<Ns>,
    /// Whether it is worth asking.
    detail: bool,
    hang: bool,
    book: Book,
}

/// The thread that asks; one that hangs ends with its patience.
struct Asker {
    questions: SyncSender<String>,
    answers: Receiver<(Ns, String, Result<Answer, Silence>)>,
}

/// Starts the probe; it asks nobody anything yet.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let at = start.config.ras.clone().unwrap_or_default();
    let mut probe = NcclRas {
        at,
        port: None,
        asker: None,
        asking: false,
        asked: None,
        detail: false,
        hang: false,
        book: Book { source: start.source, recorded: 0, dropped: 0, elsewhere: Vec::new() },
    };
    for &target in &start.config.targets {
        probe.add_target(target, start.cx)?;
    }
    Ok(Box::new(probe))
}

impl NcclRas {
    fn address(&self) -> String {
        match (&self.at, self.port) {
            (RasAt::Named(address), _) => address.clone(),
            // No other host's: what a target says of itself is not to send us anywhere.
            (RasAt::Usual, Some(port)) => format!("localhost:{port}"),
            (RasAt::Usual, None) => USUAL.to_owned(),
        }
    }

    fn ask(&mut self) -> Result<(), CollectError> {
        let question = self.address();
        let asker = match &mut self.asker {
            Some(asker) => asker,
            none => none.insert(Asker::begin()?),
        };
        self.asking = asker.questions.try_send(question).is_ok();
        Ok(())
    }
}

impl Asker {
    fn begin() -> Result<Asker, CollectError> {
        let (questions, asked) = sync_channel::<String>(1);
        let (teller, answers) = sync_channel(1);
        let run = move || {
            let mut form = Form::Json;
            while let Ok(address) = asked.recv() {
                let at = crate::context::now();
                let answer = ask(&address, form, Patience::USUAL);
                // A job whose ranks do not fit is better told in text, which names the odd ones.
                if answer.as_ref().is_ok_and(|a| a.cut) {
                    form = Form::Text;
                }
                if teller.send((at, address, answer)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gpuwhy-ras".into()).spawn(run);
        let what = || "start a thread that asks NCCL's RAS".into();
        thread.map_err(|source| CollectError::System { what: what(), source })?;
        Ok(Asker { questions, answers })
    }
}

impl Probe for NcclRas {
    fn name(&self) -> &'static str {
        "nccl_ras"
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if let Some(asker) = &self.asker {
            match asker.answers.try_recv() {
                Ok((at, address, answer)) => {
                    self.asking = false;
                    self.book.answer(at, &address, answer, cx);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.asker = None,
            }
        }
        let due = self.asked.is_none_or(|asked| now - asked >= EVERY);
        if (self.detail || self.hang) && !self.asking && due {
            self.asked = Some(now);
            self.ask()?;
        }
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.book.recorded
    }

    fn dropped(&self) -> u64 {
        self.book.dropped
    }

    fn add_target(&mut self, target: Target, cx: &mut Context) -> Result<(), CollectError> {
        let Target::Pid(pid) = target;
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        self.port = self.port.or_else(|| port_of(&environment));
        let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        if let (Some(theirs), Some(ours)) = (network(&pid.to_string()), network("self"))
            && theirs != ours
        {
            self.book.elsewhere(pid, cx);
        }
        Ok(())
    }

    fn detail(&mut self, wanted: bool) -> Result<(), CollectError> {
        self.detail = wanted;
        Ok(())
    }

    fn hangs(&mut self, hangs: bool) {
        self.hang = hangs;
    }
}

/// The port that NCCL_RAS_ADDR names in an environment as /proc has it.
fn port_of(environment: &[u8]) -> Option<u16> {
    let set = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"NCCL_RAS_ADDR="))?;
    str::from_utf8(set).ok()?.rsplit_once(':')?.1.parse().ok()
}

/// The rows that follow from answers.
struct Book {
    source: SourceId,
    recorded: u64,
    dropped: u64,
    /// Processes in other network namespaces.
    elsewhere: Vec<i32>,
}

impl Book {
    fn elsewhere(&mut self, pid: i32, cx: &mut Context) {
        if self.elsewhere.len() < NAMED && !self.elsewhere.contains(&pid) {
            self.elsewhere.push(pid);
            self.state(None, cx);
        }
    }

    /// What keeps the source from seeing all, if anything does.
    fn state(&mut self, trouble: Option<String>, cx: &mut Context) {
        let pids: Vec<String> = self.elsewhere.iter().map(i32::to_string).collect();
        let elsewhere = (!pids.is_empty()).then(|| {
            format!(
                "processes in another network namespace, whose RAS cannot be asked from here: {}",
                pids.join(", ")
            )
        });
        let notes: Vec<String> = trouble.into_iter().chain(elsewhere).collect();
        cx.lanes.update_source(self.source, |s| {
            s.state = if notes.is_empty() { SourceState::Ok } else { SourceState::Degraded };
            s.note = (!notes.is_empty()).then(|| notes.join("; ").as_str().into());
        });
    }

    fn answer(&mut self, at: Ns, address: &str, answer: Result<Answer, Silence>, cx: &mut Context) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(silence) => {
                let why = std::error::Error::source(&silence).map(|why| format!(": {why}"));
                self.state(Some(format!("{silence}{}", why.unwrap_or_default())), cx);
                return;
            }
        };
        let cut = format!("the answer of NCCL's RAS at {address} was cut");
        self.state(answer.cut.then_some(cut), cx);
        self.dropped += answer.left_out;
        let track = cx.lanes.track(cx.host, None, Lane::marks(names::NCCL_RAS), self.source);
        let mut tell = |name: &str, value: Option<f64>, attrs: &[(&str, String)]| {
            let id = cx.ids.next_id();
            cx.rows.mark.push(Mark { id, ts: at, track, name: name.into(), value });
            cx.rows.attr.extend(attrs.iter().map(|(key, value)| Attr {
                id,
                key: (*key).into(),
                value: value.as_str().into(),
            }));
            self.recorded += 1;
        };
        for says in &answer.says {
            let (name, attrs) = told(says);
            tell(&name, says.peer.rank.map(f64::from), &attrs);
        }
        if answer.says.is_empty() && !answer.cut {
            let version = answer.version.unwrap_or_default();
            let communicators = answer.communicators.to_string();
            let attrs = [("nccl", version), ("communicators", communicators)];
            tell("all ranks agree", None, &attrs);
        }
    }
}

/// A statement as a mark: its name and what else is known.
fn told(says: &Says) -> (String, Vec<(&'static str, String)>) {
    let mut attrs = Vec::new();
    let name = match &says.what {
        What::Missing => "does not answer".to_owned(),
        What::Dead => "considered dead".to_owned(),
        What::Counts { op, at, most } => {
            attrs.push(("at", at.to_string()));
            attrs.push(("most_at", most.to_string()));
            format!("{} in {op}", if at < most { "behind" } else { "ahead" })
        }
        What::Status(status) => format!("status {status}"),
        What::Error(error) => format!("error: {error}"),
        What::Timeouts => "timeouts".to_owned(),
    };
    if let Some(communicator) = says.communicator {
        attrs.push(("communicator", format!("{communicator:016x}")));
    }
    if says.peer.rank.is_none() && says.ranks > 1 {
        attrs.push(("ranks", says.ranks.to_string()));
    }
    attrs.extend(says.peer.pid.map(|pid| ("pid", pid.to_string())));
    attrs.extend(says.peer.node.clone().map(|node| ("node", node)));
    (name, attrs)
}

#[cfg(test)]
mod tests;
