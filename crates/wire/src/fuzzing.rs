//! What the fuzz targets call: both ends of the door, opposite somebody who says anything.
//!
//! Not part of the interface.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use crate::door::{Heard, Hospitality, Host, Settings, Stranger};
use crate::map::{Options, Ring};
use crate::record::Event;

const RING: Options = Options { slots: 16, names: 16, mode: 0o600 };

/// Two messages: the first byte says how long the first one is.
fn messages(data: &[u8]) -> [&[u8]; 2] {
    let Some((cut, rest)) = data.split_first() else { return [&[], &[]] };
    let (first, second) = rest.split_at(rest.len().min(usize::from(*cut)));
    [first, second]
}

/// A stranger at a collector's door says two things, with a descriptor beside the second. It is let
/// in or sent away, and nothing of it is left when it has gone.
pub fn host_hears(data: &[u8]) {
    thread_local! {
        static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
    }
    let path = std::env::temp_dir().join(format!("gpuwhy-fuzz-{}", std::process::id()));
    HOST.with_borrow_mut(|host| {
        let host = host.get_or_insert_with(|| {
            let hospitality = Hospitality { most: 2, ring: RING, ..Hospitality::default() };
            Host::listen(&path, hospitality, Settings::USUAL).expect("a socket of our own")
        });
        let [first, second] = messages(data);
        let stranger = Stranger::connect(host.path()).expect("we listen");
        let descriptor = std::io::stderr().as_raw_fd();
        // An empty message is the end; what does not fit is refused by the system.
        let _ = stranger.say(first, &[]);
        let seen = host.attend(|_, _| {}, |_| {});
        let _ = stranger.say(second, &[descriptor; 2]);
        let again = host.attend(|_, _| {}, |_| {});
        assert!(seen.came + again.came <= 1 && host.peers().count() <= 1);
        drop(stranger);
        host.attend(|_, _| {}, |_| {});
        assert_eq!(host.peers().count(), 0, "who has gone is gone");
    });
}

/// A collector says two things to a visitor, with a ring or something else beside the first. What is
/// taken for a ring can be written to.
pub fn visit_hears(data: &[u8]) {
    let (beside, data) = data.split_first().unwrap_or((&0, &[]));
    let [first, second] = messages(data);
    let (stranger, visit) = Stranger::with_visit().expect("two sockets");
    let ring = Ring::memfd(RING).expect("memory for a small ring");
    let descriptors = [ring.as_fd().as_raw_fd(), std::io::stderr().as_raw_fd()];
    let beside = match beside % 4 {
        0 => &descriptors[..0],
        1 => &descriptors[..1],
        2 => &descriptors[1..],
        _ => &descriptors[..],
    };
    let _ = stranger.say(first, beside);
    let _ = stranger.say(second, &[]);
    for _ in 0..2 {
        match visit.hear(0) {
            Heard::Welcome(producer, _) => {
                let name = producer.name("fuzz");
                producer.write(Event::Mark { name, at: 1, value: None });
            }
            Heard::Asked(settings) => assert_eq!(again(settings), Some(settings)),
            Heard::Nothing | Heard::Gone => {}
        }
    }
}

/// What was understood, said and understood again.
fn again(settings: Settings) -> Option<Settings> {
    let (stranger, visit) = Stranger::with_visit().ok()?;
    stranger.say(&settings.encode(), &[]).ok()?;
    match visit.hear(0) {
        Heard::Asked(settings) => Some(settings),
        _ => None,
    }
}

/// A sound hello of a visitor, and a collector's sound settings: seeds.
pub fn sound() -> [Vec<u8>; 2] {
    [crate::door::hello(7).to_vec(), Settings::USUAL.encode().to_vec()]
}
