//! Work on several threads, with the results in order.

use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};

/// How far the threads have come.
struct Progress {
    next: usize,
    taken: usize,
    stop: bool,
}

/// Does `work` for every number below `count` on `threads` threads, and calls `take` with the results
/// in order. Threads run ahead of `take` by a few results only, so memory stays bounded.
///
/// # Errors
/// The first error of `take`, which ends it.
pub fn in_order<T: Send, E>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    if threads <= 1 {
        return (0..count).try_for_each(|i| take(i, work(i)));
    }
    let ahead = 2 * threads;
    let progress = Mutex::new(Progress { next: 0, taken: 0, stop: false });
    let turn = Condvar::new();
    let (send, receive) = sync_channel(ahead);
    // A thread that panics ends the whole when it is joined; the lock is good until then.
    let lock = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    let mine = || {
        let mut progress = lock();
        loop {
            if progress.stop || progress.next >= count {
                return None;
            }
            if progress.next < progress.taken + ahead {
                progress.next += 1;
                return Some(progress.next - 1);
            }
            progress = turn.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (send, mine, work) = (send.clone(), &mine, &work);
            scope.spawn(move || {
                while let Some(i) = mine() {
                    if send.send((i, work(i))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut early: BTreeMap<usize, T> = BTreeMap::new();
        let mut result = Ok(());
        let mut wanted = 0;
        for (i, done) in receive {
            early.insert(i, done);
            while let Some(done) = early.remove(&wanted) {
                if result.is_ok() {
                    result = take(wanted, done);
                }
                wanted += 1;
            }
            let mut progress = lock();
            progress.taken = wanted;
            progress.stop |= result.is_err();
            drop(progress);
            turn.notify_all();
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_threads_do() {
        for threads in [1, 2, 5] {
            let mut taken = Vec::new();
            let work = |i: usize| {
                std::thread::sleep(std::time::Duration::from_micros((i as u64 * 7919) % 300));
                i * i
            };
            in_order(200, threads, work, |i, square| {
                assert_eq!(square, i * i);
                taken.push(i);
                Ok::<_, String>(())
            })
            .unwrap();
            assert_eq!(taken, (0..200).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_ends_it_early() {
        let begun = std::sync::atomic::AtomicUsize::new(0);
        let work = |_| begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let take = |i, _| if i == 10 { Err("enough") } else { Ok(()) };
        let error = in_order(100_000, 3, work, take).unwrap_err();
        assert_eq!(error, "enough");
        assert!(begun.into_inner() < 1000);
    }
}
