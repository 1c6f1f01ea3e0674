//! What devices did, as lanes of a profile's page: the share of time in which kernels computed, in which only
//! something communicated, and in which only something copied.

use std::collections::HashMap;

use gpuwhy_derive::communication::{Communication, Piece as Work, is_communication};
use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{Cut, Sweep, Work as Swept};
use gpuwhy_report::{Interval, Lane, Level, Piece, TimeTrack};
use gpuwhy_schema::{Copy, CopyKind, Id, Span};

use super::Window;
use crate::error::{Error, Result};
use crate::source::TraceSource;

/// The most devices.
const DEVICES: usize = 8;
/// Columns of a level.
const COLUMNS: usize = 1_000;
/// The most pieces of work that are read: a page is a picture, and beyond this a trace viewer is the better
/// tool.
const PIECES: usize = 3_000_000;

/// What is drawn of devices, and what is not.
#[derive(Default)]
pub struct Lanes {
    /// The lanes.
    pub tracks: Vec<TimeTrack>,
    /// What is left out, in words.
    pub not_drawn: Vec<String>,
}

/// A piece of work of a device.
struct Done {
    device: u32,
    copy: Option<CopyKind>,
    communicates: bool,
    start: i64,
    end: i64,
}

/// The lanes of devices within a window.
///
/// # Errors
/// The trace cannot be read.
pub fn lanes(source: &TraceSource, window: &Window) -> Result<Lanes> {
    let catalog = source.entities_and_tracks();
    let plan = Devices::of(&catalog.entity, &catalog.track);
    let mut lanes = Lanes::default();
    if plan.devices.len() > DEVICES {
        let all = plan.devices.len();
        lanes.not_drawn.push(format!("Drawn are {DEVICES} of {all} devices."));
    }
    let Some(work) = work(source, window, &plan)? else {
        let says = format!("Devices are not drawn: they did more than {PIECES} pieces of work.");
        lanes.not_drawn.push(says);
        return Ok(lanes);
    };
    let levels = window.view.levels.iter().map(|during| level(&work, window, *during, source));
    let levels: Vec<Vec<[Vec<Piece>; 3]>> = levels.collect::<Result<_>>()?;
    for (number, device) in plan.devices.iter().take(DEVICES).enumerate() {
        let group = match device.rank {
            Some(rank) => format!("rank {rank}, {}", device.name),
            None => device.name.to_string(),
        };
        for (part, label) in ["kernels", "only communication", "only copies"].iter().enumerate() {
            let of = |(during, level): (&Interval, &Vec<[Vec<Piece>; 3]>)| Level {
                during: *during,
                items: level.get(number).map_or(Vec::new(), |parts| parts[part].clone()),
            };
            let levels: Vec<_> = window.view.levels.iter().zip(&levels).map(of).collect();
            if levels.iter().flat_map(|level| &level.items).any(|piece| piece.2 > 0.0) {
                let (label, unit) = ((*label).to_owned(), "%".to_owned());
                let lane = Lane::Line { unit, levels };
                lanes.tracks.push(TimeTrack { group: group.clone(), label, lane });
            }
        }
    }
    Ok(lanes)
}

/// The work in a window in the order of its begin; `None` if it is too much.
fn work(source: &TraceSource, window: &Window, plan: &Devices) -> Result<Option<Vec<Done>>> {
    let range = window.start()..window.end;
    let mut kinds: HashMap<Id, CopyKind> = HashMap::new();
    let mut work: Vec<Done> = Vec::new();
    for rows in source.trace().read::<Copy>(range.clone()) {
        kinds.extend(rows?.into_iter().map(|copy| (copy.id, copy.kind)));
        if kinds.len() > PIECES {
            return Ok(None);
        }
    }
    for rows in source.trace().read::<Span>(range) {
        for span in rows? {
            let (Some(&device), Some(dur)) = (plan.streams.get(&span.track), span.dur) else {
                continue;
            };
            if device as usize >= DEVICES {
                continue;
            }
            let copy = kinds.get(&span.id).copied();
            let communicates = copy.is_none() && is_communication(&span.name);
            let (start, end) = (span.ts.0, span.ts.saturating_add(dur).0);
            work.push(Done { device, copy, communicates, start, end });
        }
        if work.len() > PIECES {
            return Ok(None);
        }
    }
    work.sort_by_key(|done| done.start);
    Ok(Some(work))
}

/// By device: the shares of computing, communicating and copying in columns of a stretch of time.
fn level(
    work: &[Done],
    window: &Window,
    during: Interval,
    source: &TraceSource,
) -> Result<Vec<[Vec<Piece>; 3]>> {
    let start = window.start().0;
    let width = (during.len() / COLUMNS as i64 + 1).max(1);
    let (from, to) = (start.saturating_add(during.from), start.saturating_add(during.to));
    let Some(cut) = Cut::of(from..to, width, COLUMNS) else { return Ok(Vec::new()) };
    let mut sweep = Sweep::new(cut, from..to);
    let mut communication = Communication::by_interval(cut);
    for done in work.iter().filter(|done| done.end > from && done.start < to) {
        let unsorted = |_| Error::Unsorted { path: source.trace().path().into(), at: done.start };
        let what = done.copy.map_or(Swept::Kernel, Swept::Copy);
        sweep.push(done.device, what, done.start, done.end, 0).map_err(unsorted)?;
        let piece = match done.copy {
            None if done.communicates => Work::Communicate,
            None | Some(CopyKind::Memset) => Work::Compute,
            Some(CopyKind::PeerToPeer) => Work::PeerCopy,
            Some(_) => continue,
        };
        let (start, end) = (done.start.max(from), done.end.min(to));
        communication.push(done.device, piece, start, end).map_err(unsorted)?;
    }
    let communicated = communication.finish_by_interval();
    let of_device = |(number, intervals): (usize, &Vec<gpuwhy_derive::sweep::Interval>)| {
        let mut parts: [Vec<Piece>; 3] = Default::default();
        for column in 0..cut.count {
            let range = cut.range(column);
            let (from, to) = (range.start - start, (range.end - start).min(during.to));
            let done = intervals.get(column).copied().unwrap_or_default();
            let waited = communicated.get(number).and_then(|all| all.get(column));
            let waited = waited.copied().unwrap_or_default();
            let shares = waited.divide(done.kernel_ns, done.exposed_ns);
            for (part, ns) in parts.iter_mut().zip(shares) {
                let percent = (1000.0 * ns as f64 / (to - from).max(1) as f64).round() / 10.0;
                match part.last_mut() {
                    Some(last) if last.1 == from && last.2 == percent => last.1 = to,
                    _ => part.push(Piece(from, to, percent, percent)),
                }
            }
        }
        parts
    };
    Ok(sweep.finish().devices.iter().enumerate().map(of_device).collect())
}
