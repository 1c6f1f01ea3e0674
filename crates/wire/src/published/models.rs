//! `Published` under loom: small situations, in every order of events (`scripts/loom.sh`).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use super::Published;

fn model(f: impl Fn() + Sync + Send + 'static) {
    crate::sync::model(3, f);
}

/// Stands for a ring; loom fails the model if it is read while it is freed or afterwards.
struct Ring {
    memory: UnsafeCell<u32>,
    freed: Arc<AtomicUsize>,
}

impl Ring {
    fn new(number: u32, freed: &Arc<AtomicUsize>) -> Box<Ring> {
        Box::new(Ring { memory: UnsafeCell::new(number), freed: freed.clone() })
    }

    fn read(&self) -> u32 {
        // SAFETY: loom fails the model if the value is written at the same time.
        self.memory.with(|at| unsafe { *at })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: as above, of reading.
        self.memory.with_mut(|at| unsafe { *at = 0 });
        self.freed.fetch_add(1, Relaxed);
    }
}

/// Writers on two counters while the ring is withdrawn and freed: it is not freed under them, and
/// when they are gone it is.
#[test]
fn a_ring_is_withdrawn_while_writers_write() {
    model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let link = Arc::new(Published::new());
        assert!(link.publish(Ring::new(7, &freed)).is_none());
        let writers: Vec<_> = [0, 1]
            .map(|line| {
                let link = link.clone();
                thread::spawn(move || {
                    if let Some(seen) = link.with(line, Ring::read) {
                        assert_eq!(seen, 7);
                    }
                })
            })
            .into();
        let mut withdrawn = Vec::from_iter(link.withdraw());
        link.release(&mut withdrawn);
        writers.into_iter().for_each(|w| w.join().unwrap());
        link.release(&mut withdrawn);
        assert_eq!((withdrawn.len(), freed.load(Relaxed)), (0, 1));
    });
}

/// An agent disappears and the next one connects while a writer writes twice: it sees the first ring,
/// the second or none, and never the first after the second.
#[test]
fn a_ring_is_replaced_while_a_writer_writes() {
    model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let link = Arc::new(Published::new());
        assert!(link.publish(Ring::new(1, &freed)).is_none());
        let writer = {
            let link = link.clone();
            thread::spawn(move || {
                let seen = [(); 2].map(|()| link.with(0, Ring::read));
                assert!(seen != [Some(2), Some(1)] && seen != [None, Some(1)], "{seen:?}");
            })
        };
        let mut withdrawn = Vec::from_iter(link.withdraw());
        link.release(&mut withdrawn);
        withdrawn.extend(link.publish(Ring::new(2, &freed)));
        link.release(&mut withdrawn);
        writer.join().unwrap();
        withdrawn.extend(link.withdraw());
        link.release(&mut withdrawn);
        assert_eq!((withdrawn.len(), freed.load(Relaxed)), (0, 2));
    });
}
