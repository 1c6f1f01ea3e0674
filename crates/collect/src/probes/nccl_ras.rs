//! What NCCL's own RAS knows: which rank is behind, which does not answer.
//!
//! *What it sees*: RAS is a thread in every process with NCCL of version 2.24 or newer; one of them on
//! each host listens at localhost:28028, and knows of the whole job. During an incident, or when a
//! step has been open for [`HANG_AFTER`], it is asked, every [`EVERY`] at most. *Why it matters*: in a
//! hang all ranks look alike, since all wait; the rank that has not called the operation that the
//! others are in is the one to examine, and it may be on another node. *What fools it*:
//!
//! - RAS asks the ranks one after the other while they run: a count that is one off means nothing in a
//!   job that makes progress.
//! - RAS counts calls, not the work that the GPU has done: a job can hang with all counts equal.
//! - With two jobs on one host, the kernel chooses the one whose RAS answers.
//! - A job in another network namespace (a container with its own) listens at a localhost that is not
//!   ours. The note of the source lists such processes.
//!
//! **It is asked only if the user wants it** (`Config::nccl_ras`): answering has crashed jobs.
//! NVIDIA/nccl issue 1669 (2.26.2, while communicators are being created), 1762 (before 2.29.2, with
//! ranks that do not answer), 2346 (2.29.7, while communicators come and go). Exchanging the protocol's
//! version, as `gpuwhy doctor` does, runs none of that code.

pub(crate) mod answer;
pub(crate) mod client;

use std::fs;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use gpuwhy_schema::{Attr, Lane, Mark, Ns, SourceId, SourceState, names, sources};

use crate::config::{RasAddress, Target};
use crate::context::Context;
use crate::error::{CollectError, error_chain};
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys;
use answer::{Answer, Problem, Statement};
use client::{DEFAULT_ADDRESS, Format, RasError, Timeouts, status};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.nccl_ras.is_some(),
    hang_after: Some(HANG_AFTER),
    ..ProbeSpec::new(
        "nccl_ras",
        &sources::NCCL_RAS,
        "which rank NCCL's own RAS finds behind, during incidents",
        start,
    )
};

/// Between two queries.
const EVERY: Ns = Ns::secs(10);
/// A step that has been open for longer than this hangs.
const HANG_AFTER: Ns = Ns::secs(10);
/// Processes that the source's note lists.
const LISTED: usize = 8;

struct NcclRas {
    address: RasAddress,
    /// The port that a target's environment names.
    port: Option<u16>,
    client: Option<Client>,
    /// Whether a query has not been answered yet.
    pending: bool,
    last_query: Option<Ns>,
    /// Whether there is an incident.
    detail: bool,
    /// Whether a step hangs.
    hang: bool,
    rows: RasRows,
}

/// The thread that asks; if it hangs, its timeouts end that.
struct Client {
    addresses: SyncSender<String>,
    answers: Receiver<(Ns, String, Result<Answer, RasError>)>,
}

/// Asks nothing yet.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut probe = NcclRas {
        address: start.config.nccl_ras.clone().unwrap_or_default(),
        port: None,
        client: None,
        pending: false,
        last_query: None,
        detail: false,
        hang: false,
        rows: RasRows::new(start.source),
    };
    for &target in &start.config.targets {
        probe.add_target(target, start.cx)?;
    }
    Ok(Box::new(probe))
}

impl NcclRas {
    fn address(&self) -> String {
        match (&self.address, self.port) {
            (RasAddress::At(address), _) => address.clone(),
            // Only the port: a target's environment must not send us to another host.
            (RasAddress::Local, Some(port)) => format!("localhost:{port}"),
            (RasAddress::Local, None) => DEFAULT_ADDRESS.to_owned(),
        }
    }

    fn query(&mut self) -> Result<(), CollectError> {
        let address = self.address();
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(Client::start()?),
        };
        self.pending = client.addresses.try_send(address).is_ok();
        Ok(())
    }
}

impl Client {
    fn start() -> Result<Client, CollectError> {
        let (addresses, queries) = sync_channel::<String>(1);
        let (sender, answers) = sync_channel(1);
        let run = move || {
            let mut format = Format::Json;
            while let Ok(address) = queries.recv() {
                let at = sys::monotonic();
                let answer = status(&address, format, Timeouts::DEFAULT);
                // Where a job has too many ranks for JSON, the text names the odd ones.
                if answer.as_ref().is_ok_and(|a| a.cut) {
                    format = Format::Text;
                }
                if sender.send((at, address, answer)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gpuwhy-ras".into()).spawn(run);
        let action = || "start a thread that asks NCCL's RAS".into();
        thread.map_err(|source| CollectError::System { action: action(), source })?;
        Ok(Client { addresses, answers })
    }
}

impl Probe for NcclRas {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if let Some(client) = &self.client {
            match client.answers.try_recv() {
                Ok((at, address, answer)) => {
                    self.pending = false;
                    self.rows.answer(at, &address, answer, cx);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.client = None,
            }
        }
        let is_due = self.last_query.is_none_or(|last| now - last >= EVERY);
        if (self.detail || self.hang) && !self.pending && is_due {
            self.last_query = Some(now);
            self.query()?;
        }
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.rows.recorded
    }

    fn dropped(&self) -> u64 {
        self.rows.dropped
    }

    fn add_target(&mut self, target: Target, cx: &mut Context) -> Result<(), CollectError> {
        let pid = target.pid();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        self.port = self.port.or_else(|| ras_port(&environment));
        let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        if let (Some(theirs), Some(ours)) = (network(&pid.to_string()), network("self"))
            && theirs != ours
        {
            self.rows.add_unreachable(pid, cx);
        }
        Ok(())
    }

    fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        self.detail = on;
        Ok(())
    }

    fn step_hangs(&mut self, hangs: bool) {
        self.hang = hangs;
    }
}

/// The port that NCCL_RAS_ADDR names in an environment as /proc has it.
fn ras_port(environment: &[u8]) -> Option<u16> {
    let set = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"NCCL_RAS_ADDR="))?;
    str::from_utf8(set).ok()?.rsplit_once(':')?.1.parse().ok()
}

/// Turns answers into rows.
struct RasRows {
    source: SourceId,
    recorded: u64,
    dropped: u64,
    /// Processes in other network namespaces.
    unreachable: Vec<i32>,
}

impl RasRows {
    fn new(source: SourceId) -> RasRows {
        RasRows { source, recorded: 0, dropped: 0, unreachable: Vec::new() }
    }

    fn add_unreachable(&mut self, pid: i32, cx: &mut Context) {
        if self.unreachable.len() < LISTED && !self.unreachable.contains(&pid) {
            self.unreachable.push(pid);
            self.update_source(None, cx);
        }
    }

    /// Writes what keeps the source from seeing all, if anything does.
    fn update_source(&mut self, problem: Option<String>, cx: &mut Context) {
        let pids: Vec<String> = self.unreachable.iter().map(i32::to_string).collect();
        let unreachable = (!pids.is_empty()).then(|| {
            format!(
                "processes in another network namespace, whose RAS cannot be asked from here: {}",
                pids.join(", ")
            )
        });
        let notes: Vec<String> = problem.into_iter().chain(unreachable).collect();
        cx.catalog.update_source(self.source, |s| {
            s.state = if notes.is_empty() { SourceState::Ok } else { SourceState::Degraded };
            s.note = (!notes.is_empty()).then(|| notes.join("; ").as_str().into());
        });
    }

    fn answer(
        &mut self,
        at: Ns,
        address: &str,
        answer: Result<Answer, RasError>,
        cx: &mut Context,
    ) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.update_source(Some(error_chain(&error)), cx),
        };
        let cut = format!("the answer of NCCL's RAS at {address} is incomplete");
        self.update_source(answer.cut.then_some(cut), cx);
        self.dropped += answer.left_out;
        let track = cx.catalog.track(cx.host, None, Lane::marks(names::NCCL_RAS), self.source);
        let mut mark = |name: &str, value: Option<f64>, attrs: &[(&str, String)]| {
            let id = cx.ids.next_id();
            cx.rows.mark.push(Mark { id, ts: at, track, name: name.into(), value });
            cx.rows.attr.extend(attrs.iter().map(|(key, value)| Attr {
                id,
                key: (*key).into(),
                value: value.as_str().into(),
            }));
            self.recorded += 1;
        };
        for statement in &answer.statements {
            let (name, attrs) = describe(statement);
            mark(&name, statement.peer.rank.map(f64::from), &attrs);
        }
        if answer.statements.is_empty() && !answer.cut {
            let version = answer.version.unwrap_or_default();
            let communicators = answer.communicators.to_string();
            let attrs = [("nccl", version), ("communicators", communicators)];
            mark("all ranks agree", None, &attrs);
        }
    }
}

/// A statement as a mark: its name and what else is known.
fn describe(statement: &Statement) -> (String, Vec<(&'static str, String)>) {
    let mut attrs = Vec::new();
    let name = match &statement.problem {
        Problem::Missing => "does not answer".to_owned(),
        Problem::Dead => "considered dead".to_owned(),
        Problem::Counts { op, at, most } => {
            attrs.push(("at", at.to_string()));
            attrs.push(("most_at", most.to_string()));
            format!("{} in {op}", if at < most { "behind" } else { "ahead" })
        }
        Problem::Status(status) => format!("status {status}"),
        Problem::Error(error) => format!("error: {error}"),
        Problem::Timeouts => "timeouts".to_owned(),
    };
    if let Some(communicator) = statement.communicator {
        attrs.push(("communicator", format!("{communicator:016x}")));
    }
    if statement.peer.rank.is_none() && statement.ranks > 1 {
        attrs.push(("ranks", statement.ranks.to_string()));
    }
    attrs.extend(statement.peer.pid.map(|pid| ("pid", pid.to_string())));
    attrs.extend(statement.peer.node.clone().map(|node| ("node", node)));
    (name, attrs)
}

#[cfg(test)]
mod tests;
