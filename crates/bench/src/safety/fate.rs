//! Whether a command fares behind `gpuwhy record` and `gpuwhy watch` as it would alone: the situations of
//! `gpuwhy_testkit::fate`, each a hundred times, with other numbers each time.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use gpuwhy_testkit::fate::{SITUATIONS, Situation, Try, Wrapper};

use super::folder::Folder;
use super::{Measured, each};
use crate::program;
use crate::result::Figure;

/// Tries of each situation behind each command.
const TRIES: usize = 100;

const HANG_UP: i32 = 1;
const INTERRUPT: i32 = 2;
const QUIT: i32 = 3;

/// Runs all situations.
pub fn run(args: &super::Args) -> Result<Measured> {
    if let Some(reason) = program::cannot_record() {
        bail!("{reason}");
    }
    // What we ignore the commands would inherit: `nohup`, and a shell for what it starts in the background, have
    // us ignore these.
    for signal in [HANG_UP, INTERRUPT, QUIT] {
        gpuwhy_collect::set_ignored(signal, false);
    }
    let tries = args.tries(TRIES);
    let mut measured = Measured::default();
    let (mut kept_in_all, mut tries_in_all) = (0, 0);
    let mut rows = Vec::new();
    for situation in SITUATIONS {
        for wrapper in [Wrapper::Record(program::gpuwhy()), Wrapper::Watch(program::gpuwhy())] {
            let (mut kept, mut made) = (0, 0);
            let seed = |n: usize| args.seed.wrapping_mul(1_000_003).wrapping_add(n as u64);
            let mut skipped = None;
            each(
                tries,
                |n| one(situation, &wrapper, seed(n)),
                |n, fate| {
                    match fate? {
                        Err(why) if why.starts_with("skipped: ") => {
                            skipped = Some(why);
                            return Ok(());
                        }
                        Err(why) => {
                            let (name, of) = (wrapper.name(), situation.name);
                            let seed = seed(n);
                            measured
                                .notes
                                .push(format!("not kept: {name}, {of}, seed {seed}: {why}"));
                        }
                        Ok(()) => kept += 1,
                    }
                    made += 1;
                    Ok(())
                },
            )?;
            measured.notes.extend(skipped.map(|why| format!("{}: {why}", situation.name)));
            kept_in_all += kept;
            tries_in_all += made;
            let cells = [
                ("situation", situation.name.to_owned()),
                ("command", wrapper.name().to_owned()),
                ("tries", made.to_string()),
                ("kept", kept.to_string()),
            ];
            rows.push(cells.map(|(key, value)| (key.to_owned(), value)).into());
        }
    }
    measured.figures.insert("fate_kept".into(), Figure::share(kept_in_all, tries_in_all));
    measured.tables = BTreeMap::from([("fate".into(), rows)]);
    Ok(measured)
}

/// One try, in a folder of its own on a real disk.
fn one(situation: &Situation, wrapper: &Wrapper, seed: u64) -> Result<Result<(), String>> {
    let folder = Folder::new("fate")?;
    Ok((situation.run)(&Try { wrapper, folder: folder.path(), seed }))
}
