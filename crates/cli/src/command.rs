//! The command behind `--` of `record` and `watch`: what is typed for it, and how its fate stays its own.
//!
//! Once it has begun, nothing that happens to the recording ends this program before it, and its status is
//! ours. A bug in the recording is no exception: a panic ends the recording and not the command.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use gpuwhy_engine::launch::{self, Instrumentation, MarkRing, RunAs, Supervised};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::args::stop_flag;
use crate::exit;
use crate::sink::Sink;

/// What the help of `record` and `watch` says of exit codes.
pub const EXIT_CODES: &str = "\
Exit status: that of the command, or 128 + N if signal N ended it; 127 if there is no such command, 126 \
if it cannot be executed; 0 without a command.\n\
1 (failed), 2 (wrong usage) and 5 (a privilege is missing) with a message of gpuwhy mean that the command \
has not begun. Once it runs, nothing that happens to gpuwhy changes its status: a full disk costs rows, \
which are counted, and signals that are sent to gpuwhy are passed on.";

/// Arguments for a command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The command")]
pub struct CommandArgs {
    /// Run the command as this user, if gpuwhy itself runs as root
    #[arg(long, value_name = "NAME|UID[:GID]", requires = "command")]
    pub user: Option<RunAs>,
    /// Exit with 0 if a slowdown was found and decided and with 3 if not, whatever the command's status
    #[arg(long)]
    pub exit_with_verdict: bool,
    /// The command to run and record
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl CommandArgs {
    /// Whether there is a command.
    pub fn is_there(&self) -> bool {
        !self.command.is_empty()
    }

    /// Fails, before anything is made, if the command cannot be started as asked.
    pub fn check(&self) -> Result<()> {
        let Some(program) = self.command.first() else { return Ok(()) };
        launch::check_program(program)?;
        match &self.user {
            Some(user) => user.check()?,
            None => {
                if let Some(caller) = launch::root_by_sudo() {
                    terminal::note(format_args!(
                        "gpuwhy: the command runs as root; with --user {caller} it runs as that user"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Starts the command, which waits until recording has begun.
    pub fn start(&self, ring: &MarkRing, observed: &Instrumentation) -> Result<Option<Supervised>> {
        if self.command.is_empty() {
            return Ok(None);
        }
        let own = std::env::current_exe().context("cannot find gpuwhy's own binary")?;
        let user = self.user.as_ref();
        if let Some(user) = user {
            ring.give_to(user)?;
        }
        Ok(Some(Supervised::start(&own, &self.command, ring.path(), observed, user)?))
    }
}

/// A recording under way, and the command that is recorded, if there is one.
pub struct Session {
    command: Option<Supervised>,
    stop: Arc<AtomicBool>,
    end: Option<Instant>,
    notes: Sink,
    /// What went wrong last: it is told once.
    trouble: Option<String>,
    failed: Option<anyhow::Error>,
}

impl Session {
    /// Recording has begun: the command may.
    pub fn begin(
        args: &CommandArgs,
        mut command: Option<Supervised>,
        observed: &Instrumentation,
        lasts: Option<Duration>,
    ) -> Result<Session> {
        if let Some(user) = &args.user {
            observed.give_to(user)?;
        }
        let stop = match &mut command {
            Some(command) => {
                command.release()?;
                Arc::default()
            }
            None => stop_flag()?,
        };
        let notes = Sink::stderr(command.is_some());
        let end = lasts.map(|d| Instant::now() + d);
        Ok(Session { command, stop, end, notes, trouble: None, failed: None })
    }

    /// Whether the recording is to end: the command has, or the time is over, or somebody said so.
    pub fn is_over(&mut self) -> bool {
        self.failed.is_some()
            || self.command.as_mut().is_some_and(|command| command.try_wait().is_some())
            || self.stop.load(Ordering::Relaxed)
            || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Does a part of the recording. Beside a command, an error is told and the next try comes in a
    /// moment; else it ends the recording.
    pub fn shield(&mut self, part: impl FnOnce() -> Result<()>) {
        let error = match catch_unwind(AssertUnwindSafe(part)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => {
                self.fail(anyhow!("the recording ended by a bug of gpuwhy's, which is above"));
                return;
            }
        };
        if self.command.is_none() {
            self.fail(error);
            return;
        }
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            self.say(&format!("the recording is incomplete: {text}"));
            self.trouble = Some(text);
        }
        std::thread::sleep(Duration::from_millis(200));
    }

    fn fail(&mut self, error: anyhow::Error) {
        if self.command.is_some() {
            let goes_on = if self.is_outlived() { "; the command goes on" } else { "" };
            self.say(&format!("{error:#}{goes_on}"));
        }
        self.failed.get_or_insert(error);
    }

    /// Ends the recording by `close`, which a bug may keep from returning.
    pub fn close<T>(
        &mut self,
        close: impl FnOnce() -> (T, Option<gpuwhy_engine::Error>),
    ) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(close)) {
            Ok((closed, None)) => Some(closed),
            Ok((closed, Some(error))) => {
                let error = anyhow::Error::from(error).context(
                    "the trace is not complete; whatever opens it next recovers what is there",
                );
                self.fail(error);
                Some(closed)
            }
            Err(_) => {
                self.fail(anyhow!(
                    "the trace was not completed by a bug of gpuwhy's, which is above"
                ));
                None
            }
        }
    }

    /// Tells users something on standard error.
    pub fn say(&mut self, text: &str) {
        let _ = self.notes.show(Screen::new(false).block("    ", format_args!("gpuwhy: {text}")));
    }

    /// The command's exit status, if it has ended.
    pub fn command_status(&mut self) -> Option<i32> {
        let status = self.command.as_mut()?.try_wait()?;
        Some(i32::from(status.code))
    }

    /// Whether the command went on when the recording ended.
    pub fn is_outlived(&mut self) -> bool {
        self.command.is_some() && self.command_status().is_none()
    }

    /// Waits for the command, whose status is ours unless there is a `verdict`.
    pub fn end(mut self, verdict: Option<ExitCode>) -> Result<ExitCode> {
        let status = self.command.as_mut().map(|command| command.wait());
        self.notes.release();
        match (verdict, status) {
            (Some(verdict), _) => Ok(verdict),
            (None, Some(status)) => Ok(ExitCode::from(status.code)),
            (None, None) => self.failed.map_or(Ok(ExitCode::SUCCESS), Err),
        }
    }
}

/// The exit code of an error that came before the command began, if shells have one for it.
pub fn started(ran: Result<ExitCode>) -> Result<ExitCode> {
    let error = match ran {
        Ok(code) => return Ok(code),
        Err(error) => error,
    };
    let code = error.downcast_ref().and_then(gpuwhy_engine::Error::exit_code);
    let Some(code) = code else { return Err(error) };
    terminal::fail(format_args!("gpuwhy: {error:#}"));
    Ok(exit::not_started(code))
}
