//! Virtual functions of AMD GPUs on the host (driver GIM): how long each had its GPU.
//!
//! *What it sees*: what the host's driver counts of each function, once a second: the time between a world switch that loaded
//! it and the one that saved it (`total_active_time` of `amdsmi_get_vf_data`, in ms). *Why it matters*: the driver gives the GPU
//! to one function at a time, by slices, and the host sees nothing else of what its machines do there. *What fools it*:
//!
//! - A function that has the GPU need not work.
//! - Which machine a function was given to is not told, nor who waited.
//! - Times are whole milliseconds: of a slice that is shorter, only many together are right.
//!
//! **Never run on hardware**: no machine of our tests has such a GPU. What is tested is this code over a stand-in of the library.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gpuwhy_schema::{EntityId, Ns, SourceId, sources};

use super::drm_clients::{device_entity, engine_of, share_track};
use super::xe_pmu::function;
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::rounds::{Polled, Readings, Rounds};
use crate::sys::{self, AmdSmi};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |_| library().is_some(),
    ..ProbeSpec::new(
        "amd_functions",
        &sources::AMD_FUNCTIONS,
        "how long virtual functions of AMD GPUs (SR-IOV, driver GIM) had each GPU",
        start,
    )
};

/// Names a library in another place.
const LIBRARY: &str = "GPUWHY_AMDSMI";
/// Where the driver's installer puts it, and what says that the driver is there.
const USUAL: &str = "/usr/lib/libamdsmi.so";
const DRIVER: &str = "/sys/bus/pci/drivers/gim";
/// Between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Functions of a GPU: `AMDSMI_MAX_VF_COUNT`.
const FUNCTIONS: u32 = 32;

fn library() -> Option<OsString> {
    let usual = || Path::new(DRIVER).exists().then(|| USUAL.into());
    sys::library_from_env(LIBRARY).or_else(usual)
}

/// How long functions had their GPUs so far, ms, by the GPU's address.
#[derive(Debug)]
struct Reading {
    at: Ns,
    had: BTreeMap<(String, u32), u64>,
    /// Why something was not read.
    refused: Option<String>,
}

fn read(smi: &AmdSmi, at: Ns) -> Reading {
    let mut reading = Reading { at, had: BTreeMap::new(), refused: None };
    for gpu in 0..smi.gpus() {
        let told = smi.address(gpu).and_then(|address| Ok((address, smi.functions(gpu)?)));
        let (address, functions) = match told {
            Ok(told) => told,
            Err(error) => {
                reading.refused = Some(error.to_string());
                continue;
            }
        };
        for function in 0..functions.min(FUNCTIONS) {
            match smi.active_time(gpu, function).map(|text| milliseconds(&text).ok_or(text)) {
                Ok(Ok(ms)) => drop(reading.had.insert((address.clone(), function), ms)),
                Ok(Err(text)) => reading.refused = Some(format!("`{text}` is no time")),
                Err(error) => reading.refused = Some(error.to_string()),
            }
        }
    }
    reading
}

/// `HH:MM:SS.mmm`, where there may be more than 99 hours.
fn milliseconds(text: &str) -> Option<u64> {
    let (clock, fraction) = text.split_once('.')?;
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let is_whole = parts.next().is_none() && minutes < 60 && seconds < 60 && fraction.len() == 3;
    let seconds = hours.checked_mul(3600)?.checked_add(60 * minutes + seconds)?;
    is_whole.then_some(seconds.checked_mul(1000)?.checked_add(fraction.parse().ok()?)?)
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut smi: Option<Result<AmdSmi, String>> = None;
    let round = move |readings: &SyncSender<Reading>| {
        let smi = smi.get_or_insert_with(|| {
            sys::drop_capabilities();
            let library = library().unwrap_or_default();
            AmdSmi::load(&library).map_err(|why| format!("{}: {why}", library.to_string_lossy()))
        });
        let at = sys::monotonic();
        readings.send(match smi {
            Ok(smi) => read(smi, at),
            Err(why) => Reading { at, had: BTreeMap::new(), refused: Some(why.clone()) },
        })
    };
    let reads = Rounds::start("gpuwhy-amd", "virtual functions of AMD GPUs", (EVERY, 16), round)?;
    let rows = FunctionRows { source: start.source, ..FunctionRows::default() };
    Ok(Box::new(Polled { reads, rows }))
}

/// Makes rows of readings.
#[derive(Debug, Default)]
struct FunctionRows {
    source: SourceId,
    last: BTreeMap<(String, u32), u64>,
    times: HashMap<EntityId, DeltaCounter>,
    refused: Option<String>,
    written: u64,
}

impl Readings for FunctionRows {
    type Reading = Reading;

    fn take(&mut self, reading: Reading, cx: &mut Context) {
        if reading.refused.is_some() && reading.refused != self.refused {
            let why = reading.refused.clone().unwrap_or_default();
            cx.degraded(self.source, &format!("virtual functions of AMD GPUs: {why}"));
            self.refused = reading.refused;
        }
        let before = cx.rows.counter.len();
        for ((address, number), ms) in &reading.had {
            let gpu = device_entity(&format!("gim {address}"), cx);
            let engine = engine_of(gpu, "whole", 1, cx);
            let function = function(gpu, number + 1, &mut cx.catalog);
            // What was before the first reading does not count; nor does a count that begins anew.
            let last = self.last.get(&(address.clone(), *number)).copied().unwrap_or(*ms);
            let ns = ms.saturating_sub(last).saturating_mul(1_000_000);
            let (source, catalog) = (self.source, &mut cx.catalog);
            let track = || share_track(function, engine, source, catalog);
            self.times.entry(function).or_default().add(ns, reading.at, &mut cx.rows, track);
        }
        self.last = reading.had;
        self.written += (cx.rows.counter.len() - before) as u64;
    }

    fn recorded(&self) -> u64 {
        self.written
    }

    fn dropped(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::names;

    use super::*;

    #[test]
    fn a_time_is_read_as_the_library_prints_it() {
        assert_eq!(milliseconds("00:00:00.000"), Some(0));
        assert_eq!(milliseconds("01:02:03.045"), Some(3_723_045));
        assert_eq!(milliseconds("1234:00:00.001"), Some(4_442_400_001));
        for bad in ["", "N/A", "00:00:00", "00:60:00.000", "00:00:61.000", "00:00:00.1", "1:2.003"]
        {
            assert_eq!(milliseconds(bad), None, "{bad}");
        }
        assert_eq!(milliseconds("18446744073709551615:00:00.000"), None);
    }

    /// Readings of the functions of one GPU, a second apart, in ms; what each row says.
    fn told(readings: &[&[(u32, u64)]]) -> Vec<(String, i64, f64)> {
        let mut cx = Context::new();
        let source = cx.catalog.source("amd_functions", "test", "0", "");
        let mut rows = FunctionRows { source, ..FunctionRows::default() };
        for (second, had) in (1..).zip(readings) {
            let had = had.iter().map(|&(number, ms)| (("0000:03:00.0".to_owned(), number), ms));
            let reading = Reading { at: Ns::secs(second), had: had.collect(), refused: None };
            rows.take(reading, &mut cx);
        }
        let rows = cx.take_rows();
        let said = rows.counter.iter().map(|row| {
            let track = rows.track.iter().find(|track| track.id == row.track).unwrap();
            assert_eq!(&*track.name, names::PROCESS_ENGINE_TIME);
            let function = rows.entity.iter().find(|e| e.id == track.entity).unwrap();
            (
                format!("{} {}", function.name, function.number.unwrap()),
                row.ts.0 / 1_000_000_000,
                row.value / 1e6,
            )
        });
        said.collect()
    }

    #[test]
    fn functions_had_what_was_added_to_their_counts() {
        let told = told(&[&[(0, 5_000), (1, 0)], &[(0, 5_700), (1, 300)], &[(0, 5_700), (1, 800)]]);
        let row = |function: &str, second, ms| (format!("virtual function {function}"), second, ms);
        let first = [row("1", 2, 700.0), row("2", 2, 300.0)];
        assert_eq!(told, [first.as_slice(), &[row("1", 3, 0.0), row("2", 3, 500.0)]].concat());
    }

    #[test]
    fn a_count_that_begins_anew_adds_nothing() {
        let told = told(&[&[(0, 900)], &[(0, 100)], &[(0, 350)]]);
        assert_eq!(told, [("virtual function 1".into(), 3, 250.0)]);
    }
}
