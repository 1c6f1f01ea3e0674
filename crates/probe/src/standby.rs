//! Programs that stand by: off until `gpuwhy watch` asks for them, and off again some seconds later.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuwhy_wire::SOCKET_ENV;
use gpuwhy_wire::images::StandBy;

use crate::desk::Controller;

/// How often it is looked whether they are to be off again.
const LOOK: Duration = Duration::from_millis(100);
/// The most of the command's time that they are on, whoever asks: so much, and this share of it.
const ALWAYS: Duration = Duration::from_secs(60);
const SHARE: f64 = 0.1;

/// How often and for how long they were on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct On {
    times: usize,
    all: Duration,
}

/// Where `gpuwhy watch` finds those that stand by.
pub(crate) fn wait() -> Result<StandBy> {
    let Some(socket) = std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty()) else {
        bail!(
            "--stand-by waits for `gpuwhy watch`, under which this has to run: gpuwhy watch -o t.trace -- gpuwhy probe run \
             --stand-by …"
        );
    };
    let folder = Path::new(&socket).parent().unwrap_or(Path::new("/"));
    StandBy::wait_in(folder).with_context(|| format!("cannot stand by in `{}`", folder.display()))
}

/// When they are on.
#[derive(Debug)]
struct Turns {
    began: Instant,
    ended: On,
    /// Since when and until when they are on.
    now: Option<(Instant, Instant)>,
}

impl Turns {
    /// How often and for how long they were on until now.
    fn on(&self, now: Instant) -> On {
        let lasts = self.now.map_or(Duration::ZERO, |(since, _)| now.duration_since(since));
        On { all: self.ended.all + lasts, ..self.ended }
    }

    /// What they are to be now, if that is another than before; `asked` is for how long they are asked for.
    fn turn(&mut self, asked: Option<Duration>, now: Instant) -> Option<bool> {
        let on = self.on(now);
        let most = ALWAYS + now.duration_since(self.began).mul_f64(SHARE);
        let time = asked.unwrap_or_default().min(most.saturating_sub(on.all));
        let was_on = self.now.is_some();
        if time > Duration::ZERO {
            self.ended.times += usize::from(!was_on);
            self.now = Some((self.now.map_or(now, |(since, _)| since), now + time));
        } else if self.now.is_some_and(|(_, until)| until <= now) {
            self.ended.all = on.all;
            self.now = None;
        }
        (self.now.is_some() != was_on).then_some(!was_on)
    }
}

/// Switches the programs as they are asked for, until `stop`.
pub(crate) fn serve(waits: &StandBy, controller: &Controller, stop: &AtomicBool) -> On {
    let mut turns = Turns { began: Instant::now(), ended: On::default(), now: None };
    while !stop.load(Relaxed) {
        let asked = waits.asked(LOOK);
        if let Some(on) = turns.turn(asked, Instant::now()) {
            controller.switch(on);
        }
    }
    turns.on(Instant::now())
}

/// What became of them, in words.
pub(crate) fn told(on: On) -> String {
    match on.times {
        0 => "the programs stood by, and nobody asked for them".to_owned(),
        1 => format!("the programs stood by, and were on once, for {:.1} s", on.all.as_secs_f64()),
        n => format!(
            "the programs stood by, and were on {n} times, for {:.1} s in all",
            on.all.as_secs_f64()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_often_they_were_on_is_told() {
        let on = |times, ms| told(On { times, all: Duration::from_millis(ms) });
        assert_eq!(on(0, 0), "the programs stood by, and nobody asked for them");
        assert!(on(1, 2950).ends_with("once, for 3.0 s"), "{}", on(1, 2950));
        assert!(on(3, 9000).ends_with("3 times, for 9.0 s in all"));
    }

    #[test]
    fn whoever_asks_they_are_on_for_no_longer_than_the_bound() {
        let began = Instant::now();
        let mut turns = Turns { began, ended: On::default(), now: None };
        let at = |tenth: u64| began + Duration::from_millis(100 * tenth);
        assert_eq!(turns.turn(None, at(0)), None);
        // Once, and off again.
        let three = Some(Duration::from_secs(3));
        assert_eq!(turns.turn(three, at(1)), Some(true));
        assert_eq!((turns.turn(None, at(30)), turns.turn(None, at(31))), (None, Some(false)));
        assert_eq!(turns.on(at(40)), On { times: 1, all: Duration::from_secs(3) });
        // At each tenth of a second for ten minutes, without a pause.
        for tenth in 50..6000 {
            turns.turn(three, at(tenth));
            let most = ALWAYS + Duration::from_millis(100 * tenth).mul_f64(SHARE);
            assert!(turns.on(at(tenth)).all <= most + LOOK, "{:?} at {tenth}", turns.on(at(tenth)));
        }
        assert!(turns.on(at(6000)).all > Duration::from_secs(100));
    }
}
