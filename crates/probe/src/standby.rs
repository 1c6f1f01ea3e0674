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

/// Switches the programs as they are asked for, until `stop`.
pub(crate) fn serve(waits: &StandBy, controller: &Controller, stop: &AtomicBool) -> On {
    let (began, mut on) = (Instant::now(), On::default());
    // Since when and until when they are on.
    let mut now_on: Option<(Instant, Instant)> = None;
    while !stop.load(Relaxed) {
        let asked = waits.asked(LOOK);
        let now = Instant::now();
        let most = ALWAYS + now.duration_since(began).mul_f64(SHARE);
        if let Some(time) = asked.filter(|_| on.all < most) {
            if now_on.is_none() {
                on.times += 1;
                controller.switch(true);
            }
            let since = now_on.map_or(now, |(since, _)| since);
            now_on = Some((since, now + time));
        }
        if let Some((since, _)) = now_on.filter(|(_, until)| *until <= now) {
            on.all += now.duration_since(since);
            now_on = None;
            controller.switch(false);
        }
    }
    on.all += now_on.map_or(Duration::ZERO, |(since, _)| since.elapsed());
    on
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
}
