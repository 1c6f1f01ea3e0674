//! Several nodes: `gpuwhy fleet`, which makes keys; the options of `watch` that connect nodes; and the
//! correlator, `watch --join`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Subcommand;
use gpuwhy_engine::fleet::{NodeLink, NodeOptions};
use gpuwhy_fleet::protocol::is_name;
use gpuwhy_fleet::{Correlator, Credentials, FleetEvent, Limits};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::args::{host_port, stop_flag};

/// The heading of options for jobs on several nodes.
const NODES: &str = "Several nodes";

/// Arguments of `fleet`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a secret that the correlator and all nodes share: one file, to be copied to every host
    Key {
        /// The file to make; only its owner can read it
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Add a new key to the file, to replace the old one without a gap
        #[arg(long)]
        add: bool,
    },
    /// Make certificates, with which a node can report under its own name only
    Certificates {
        /// The directory to make or to add to; its authority signs
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// The host names and addresses by which nodes reach the correlator
        #[arg(long, value_name = "HOST", value_delimiter = ',')]
        correlator: Vec<String>,
        /// The names of nodes
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        node: Vec<String>,
    },
}

/// Makes keys.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Key { file, add: true } => {
            gpuwhy_fleet::add_secret(file)?;
            terminal::say(format_args!(
                "added a key to {}; its first lines say how to go on",
                file.display()
            ))?;
        }
        Command::Key { file, add: false } => {
            gpuwhy_fleet::make_secret(file)?;
            let file = file.display();
            let mut screen = Screen::new(false);
            screen
                .line(format_args!("made {file}; copy it to every host, with mode 600, then"))
                .line(format_args!("  gpuwhy watch --join 0.0.0.0:7777 --fleet-key {file}"))
                .line(format_args!("  gpuwhy watch --to HOST:7777 --fleet-key {file} -- CMD"));
            terminal::show(&screen)?;
        }
        Command::Certificates { dir, correlator, node } => {
            if correlator.is_empty() && node.is_empty() {
                bail!("say for whom: --correlator HOST, --node NAME");
            }
            for path in gpuwhy_fleet::make_certificates(dir, correlator, node)? {
                terminal::say(path.display())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Options of `watch` for several nodes.
#[derive(Debug, clap::Args)]
pub struct Nodes {
    /// Report steps and findings to the correlator at this address, and answer its questions
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port, help_heading = NODES)]
    pub to: Option<String>,
    /// Be the correlator: record nothing here, but join what nodes report at this address, name the
    /// rank that comes late, and ask its node why. Without a key only this host can be listened at
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_parser = host_port,
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:7777",
        help_heading = NODES,
        conflicts_with_all = ["to", "pids", "steps", "command"]
    )]
    pub join: Option<String>,
    /// The secret that correlator and nodes share; `gpuwhy fleet key FILE` makes it
    #[arg(long, value_name = "FILE", help_heading = NODES)]
    fleet_key: Option<PathBuf>,
    /// The authority that signed the other side's certificate, PEM
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["tls_cert", "tls_key"],
        conflicts_with = "fleet_key",
        help_heading = NODES
    )]
    tls_ca: Option<PathBuf>,
    /// Our certificate, PEM; a node reports under a name in it
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = NODES)]
    tls_cert: Option<PathBuf>,
    /// The key of our certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = NODES)]
    tls_key: Option<PathBuf>,
    /// Neither encrypt nor ask who it is: whoever reaches the port can report and be asked
    #[arg(long, conflicts_with_all = ["fleet_key", "tls_ca"], help_heading = NODES)]
    insecure: bool,
    /// The name of this node at the correlator; the host name by default
    #[arg(long, value_name = "NAME", requires = "to", value_parser = name, help_heading = NODES)]
    node: Option<String>,
    /// The job whose ranks run here; by default what SLURM_JOB_ID, TORCHELASTIC_RUN_ID, PBS_JOBID or
    /// LSB_JOBID say
    #[arg(long, value_name = "NAME", requires = "to", value_parser = name, help_heading = NODES)]
    job: Option<String>,
    /// The most nodes that the correlator takes
    #[arg(long, value_name = "N", default_value_t = 2048, requires = "join", help_heading = NODES)]
    max_nodes: usize,
    /// Shift the times that are reported to the correlator by this many seconds, for tests
    #[arg(long, value_name = "S", default_value_t = 0, hide = true, allow_negative_numbers = true)]
    skew: i64,
    /// The phase of a step in which ranks wait for each other
    #[arg(long, value_name = "PHASE", default_value = "allreduce", help_heading = NODES)]
    collective: String,
}

/// The name of a node or a job.
fn name(text: &str) -> Result<String, String> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    Err("use letters, digits, `.`, `-` and `_`, at most 64 of them".into())
}

impl Nodes {
    fn credentials(&self) -> Credentials {
        if let Some(path) = &self.fleet_key {
            return Credentials::Secret(path.clone());
        }
        match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (Some(ca), Some(cert), Some(key)) => {
                Credentials::Certificates { ca: ca.clone(), cert: cert.clone(), key: key.clone() }
            }
            _ => Credentials::None { anywhere: self.insecure },
        }
    }

    fn warn(&self) {
        if self.insecure {
            terminal::note(
                "gpuwhy: --insecure: what nodes report is neither encrypted nor authenticated; `gpuwhy fleet key` \
                 makes a key",
            );
        }
    }

    /// The connection to the correlator, if there is to be one.
    pub fn link(&self) -> Result<Option<NodeLink>> {
        let Some(to) = &self.to else { return Ok(None) };
        self.warn();
        let options = NodeOptions {
            to: to.clone(),
            node: self.node.clone(),
            job: self.job.clone(),
            credentials: self.credentials(),
            collective: self.collective.clone(),
            skew: self.skew,
        };
        Ok(Some(NodeLink::connect(options)?))
    }

    /// Joins what nodes report, until a signal or `duration` ends it; `tell` prints what happens.
    pub fn correlate(
        &self,
        address: &str,
        duration: Option<Duration>,
        mut tell: impl FnMut(&FleetEvent) -> Result<()>,
    ) -> Result<ExitCode> {
        self.warn();
        let limits = Limits { nodes: self.max_nodes, ..Limits::default() };
        let mut correlator = Correlator::listen(address, &self.credentials(), limits)?;
        if correlator.limits().nodes < self.max_nodes {
            terminal::note(format_args!(
                "gpuwhy: the limit of open files allows {} nodes, not {}; `ulimit -n` shows it",
                correlator.limits().nodes,
                self.max_nodes
            ));
        }
        terminal::note(format_args!("waiting for nodes at {}", correlator.address()));
        let stop = stop_flag()?;
        let end = duration.map(|d| Instant::now() + d);
        while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
            for event in correlator.poll(Duration::from_millis(50))? {
                tell(&event)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// An event as text, or the connection's address and what was wrong with it.
pub fn text(event: &FleetEvent) -> Result<String, (&str, &str)> {
    Ok(match event {
        FleetEvent::Refused { from, why } => return Err((from, why)),
        FleetEvent::Joined { node, from } => format!("{node} has joined from {from}"),
        FleetEvent::Left { node } => format!("{node} has left"),
        FleetEvent::Node { node, finding } => {
            format!("{node}: {}", finding["summary"].as_str().unwrap_or("a finding"))
        }
        FleetEvent::Straggler(report) => format!("STRAGGLER: {}", report.text()),
        FleetEvent::Cause(report) => format!("CAUSE: {}", report.text()),
        FleetEvent::Over(report) => format!("over: {}", report.text()),
    })
}
