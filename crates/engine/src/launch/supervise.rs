//! A command whose fate does not depend on its recorder: signals reach it, and its status is kept.
//!
//! It stays in our process group, so that what a terminal sends (^C, ^Z, a hang-up) reaches it without us;
//! what somebody sends to us alone is passed on, by a thread that does nothing else, so that no slow disk
//! and no long judgement delays it. A signal of which this program would die does not end it while the
//! command runs.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuwhy_collect::set_ignored;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, wait,
    waitid, waitpid,
};
use signal_hook::consts::signal::*;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Sent};

use super::command::{Gate, GatedCommand};
use super::exec::is_ignored;
use super::instrument::Instrumentation;
use super::user::RunAs;
use crate::error::{Error, Result};

/// Signals that would end or stop this program, and can be passed on instead. Real-time signals come
/// besides. Missing are those that tell of a bug of our own (SIGSEGV, SIGABRT and their like).
const FORWARDED: &[i32] = &[
    SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGVTALRM, SIGPROF, SIGXCPU,
    SIGXFSZ, SIGIO, STKFLT, PWR, SIGTSTP, SIGCONT,
];
/// Their numbers differ on some processors, none of which this is built for.
const STKFLT: i32 = 16;
const PWR: i32 = 30;
/// The first two real-time signals belong to the C library.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;
/// A request to end that comes this long after the command's end is meant for us.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandStatus {
    /// Its exit status, or 128 + N if signal N ended it, as shells count.
    pub code: u8,
    /// The signal, if one ended it.
    pub signal: Option<i32>,
}

impl CommandStatus {
    fn of(status: WaitStatus) -> CommandStatus {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => CommandStatus { code: code as u8, signal: None },
            (None, signal) => CommandStatus { code: signal.map_or(255, |s| 128 | s as u8), signal },
        }
    }
}

/// What the thread that passes signals on knows of the command.
#[derive(Debug)]
enum Phase {
    Runs(i32),
    Ended(CommandStatus, Instant),
}

/// The command, its gate, and the thread that passes signals on.
pub struct Supervised {
    pid: Pid,
    gate: Gate,
    released: bool,
    phase: Arc<Mutex<Phase>>,
    signals: Handle,
}

impl Supervised {
    /// Starts `command` behind its gate, as [`GatedCommand::spawn`] does, with our standard output.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        launcher: &Path,
        command: &[OsString],
        ring: &Path,
        instrumentation: &Instrumentation,
        user: Option<&RunAs>,
    ) -> Result<Supervised> {
        let failed = |source: io::Error| Error::Signals { source };
        // Before there is a command: a signal that comes now is passed on when there is one. What
        // our caller has us ignore, `nohup` for one, is not ours to hear, and the command inherits it.
        let wanted = FORWARDED.iter().copied().chain(REAL_TIME).filter(|&s| !is_ignored(s));
        let mut signals: SignalsInfo<WithOrigin> = SignalsInfo::new(wanted).map_err(failed)?;
        let output = Stdio::inherit();
        let gated = GatedCommand::spawn(launcher, command, ring, instrumentation, user, output)?;
        // From now on, what we write reaches a terminal also from the background, where the terminal
        // would else stop the whole job.
        set_ignored(SIGTTOU, true);
        let number = gated.child.id() as i32;
        let pid = Pid::from_raw(number).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let phase = Arc::new(Mutex::new(Phase::Runs(number)));
        let handle = signals.handle();
        let shared = phase.clone();
        let thread = std::thread::Builder::new().name("gpuwhy-signals".into());
        thread
            .spawn(move || signals.forever().for_each(|origin| pass_on(&origin, &shared)))
            .map_err(failed)?;
        Ok(Supervised { pid, gate: gated.gate(), released: false, phase, signals: handle })
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Lets it begin.
    ///
    /// # Errors
    /// The gate cannot be opened.
    pub fn release(&mut self) -> Result<()> {
        self.gate.open()?;
        self.released = true;
        Ok(())
    }

    /// How it ended, if it has. Where a terminal has stopped it, this program stops too: only then does
    /// the shell take its terminal back.
    pub fn try_wait(&mut self) -> Option<CommandStatus> {
        let ended = self.look();
        if ended == Some(Look::Stopped) && is_stopped(self.pid()) {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        match ended {
            Some(Look::Ended(status)) => Some(status),
            _ => None,
        }
    }

    fn look(&mut self) -> Option<Look> {
        // Under the lock: a pid that was waited for may be anybody's.
        let mut phase = lock(&self.phase);
        if let Phase::Ended(status, _) = *phase {
            return Some(Look::Ended(status));
        }
        let flags = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let status = loop {
            // As the first process of a container we are also the heir of all orphans.
            let found = match getpid().is_init() {
                true => wait(flags),
                false => waitpid(Some(self.pid), flags),
            };
            match found {
                Ok(Some((pid, status))) if pid == self.pid => break status,
                Ok(Some(_)) | Err(Errno::INTR) => {}
                // Nobody knows how it ended.
                Err(Errno::CHILD) => {
                    let status = CommandStatus { code: 255, signal: None };
                    *phase = Phase::Ended(status, Instant::now());
                    return Some(Look::Ended(status));
                }
                Ok(None) | Err(_) => return None,
            }
        };
        if let Some(signal) = status.stopping_signal() {
            return [SIGTSTP, SIGTTIN, SIGTTOU].contains(&signal).then_some(Look::Stopped);
        }
        let status = CommandStatus::of(status);
        *phase = Phase::Ended(status, Instant::now());
        Some(Look::Ended(status))
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> CommandStatus {
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            let whom = match getpid().is_init() {
                true => WaitId::All,
                false => WaitId::Pid(self.pid),
            };
            // It stays to be waited for, under the lock.
            let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            if waitid(whom, flags).is_err_and(|error| error != Errno::INTR) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// What was found of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// A terminal stopped it.
    Stopped,
    /// It has ended.
    Ended(CommandStatus),
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The recording could not begin, so the command must not.
        if !self.released && self.try_wait().is_none() {
            let _ = kill_process(self.pid, Signal::KILL);
            self.wait();
        }
        self.signals.close();
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a signal on, if it did not reach the command by itself.
fn pass_on(origin: &Origin, phase: &Mutex<Phase>) {
    let signal = origin.signal;
    let pid = match *lock(phase) {
        Phase::Runs(pid) => pid,
        Phase::Ended(status, at) => {
            let asks_to_end = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal);
            if asks_to_end && at.elapsed() > AFTERWARDS {
                // Who asks again does not want to wait for the trace; it can be recovered.
                std::process::exit(i32::from(status.code));
            }
            return;
        }
    };
    let wanted = match signal {
        SIGCONT => is_stopped(pid),
        _ => true,
    };
    if wanted && was_sent_to_us_alone(origin, pid) && matches!(*lock(phase), Phase::Runs(_)) {
        let _ = gpuwhy_collect::signal(pid, signal);
    }
}

/// Whether a signal was sent by somebody who meant us. A terminal and the kernel send to the whole group,
/// and what the command itself sends, to its group or to everybody, is not to come back to it.
fn was_sent_to_us_alone(origin: &Origin, command: i32) -> bool {
    match origin.cause {
        Cause::Sent(Sent::User | Sent::Queue | Sent::TKill) => {}
        Cause::Kernel => return false,
        _ => return true,
    }
    // The senders of another pid namespace have no number here.
    let mut sender = origin.process.map_or(0, |process| process.pid);
    for _ in 0..256 {
        if sender == command {
            return false;
        }
        if sender <= 1 {
            return true;
        }
        sender = stat(sender).map_or(0, |stat| stat.parent);
    }
    true
}

fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

struct Stat {
    state: u8,
    parent: i32,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(after_name + 2..)?).ok()?;
    let mut words = rest.split(' ');
    let state = *words.next()?.as_bytes().first()?;
    Some(Stat { state, parent: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_stat_whatever_its_name() {
        let own = stat(std::process::id() as i32).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id() as i32);
        assert!(!is_stopped(std::process::id() as i32) && stat(-1).is_none());
    }
}
