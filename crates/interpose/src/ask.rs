//! The controller, if there is one.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use gpuwhy_wire::images::{Answer, Ask, Asker, Outcome, PROBES_ENV, PROBES_WAIT_ENV, Plan};
use gpuwhy_wire::is_off;

/// How long a load waits for its answer, unless the environment says otherwise.
const WAIT: Duration = Duration::from_secs(5);

/// The controller's socket, and how long to wait for it.
fn controller() -> Option<&'static (PathBuf, Duration)> {
    static CONTROLLER: OnceLock<Option<(PathBuf, Duration)>> = OnceLock::new();
    let found = CONTROLLER.get_or_init(|| {
        let path = std::env::var_os(PROBES_ENV).filter(|path| !path.is_empty() && !is_off())?;
        // Nothing of ours is printed among the program's own output.
        #[cfg(not(test))]
        std::panic::set_hook(Box::new(|_| {}));
        let wait = std::env::var(PROBES_WAIT_ENV).ok().and_then(|ms| ms.parse().ok());
        Some((path.into(), wait.map_or(WAIT, Duration::from_millis)))
    });
    found.as_ref()
}

/// The plan that the controller answers with to what is asked about a file, if it does.
pub fn plan(asker: &Asker, wait: Duration, ask: Ask, file: &File) -> Option<Plan> {
    asker.say(ask, Some(file)).ok()?;
    let (Answer::Plan, Some(plan)) = asker.answer(wait).ok()? else { return None };
    Plan::read(plan).ok()
}

/// Tells the controller what became of an image, if it is still there.
pub fn say(image: u64, outcome: Outcome) {
    if let Some((asker, _)) = connect() {
        let _ = asker.say(Ask::Loaded { image, outcome }, None);
    }
}

/// Connects to the controller, if there is one.
pub fn connect() -> Option<(Asker, Duration)> {
    let (path, wait) = controller()?;
    Some((Asker::connect(path).ok()?, *wait))
}
