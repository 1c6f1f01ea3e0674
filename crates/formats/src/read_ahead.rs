//! Work that several threads do ahead of its use, handed out in order.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The results of `work` for all numbers below `count`, in order. Threads compute a few results ahead
/// of the caller, so memory stays bounded; with one thread they are computed when they are asked for.
pub(crate) struct ReadAhead<T> {
    count: usize,
    next: usize,
    work: Arc<dyn Fn(usize) -> T + Send + Sync>,
    /// `None` with one thread, and when the threads have been joined.
    pool: Option<Pool<T>>,
}

struct Pool<T> {
    shared: Arc<Shared>,
    results: Receiver<(usize, T)>,
    /// Results that came before their turn.
    early: BTreeMap<usize, T>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
    /// How many results may be computed before they are asked for.
    ahead: usize,
}

struct Progress {
    /// The next number that no thread has begun.
    next: usize,
    /// How many results the caller has taken.
    taken: usize,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number to work on; waits while the threads are too far ahead. `None` at the end.
    fn begin(&self, count: usize) -> Option<usize> {
        let mut progress = self.lock();
        loop {
            if progress.stop || progress.next >= count {
                return None;
            }
            if progress.next < progress.taken + self.ahead {
                progress.next += 1;
                return Some(progress.next - 1);
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }
}

/// Stops all threads when one of them panics, so that none waits for a result that never comes.
struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

impl<T: Send + 'static> ReadAhead<T> {
    /// Begins to work with `threads` threads.
    pub fn new(
        count: usize,
        threads: usize,
        work: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> ReadAhead<T> {
        let work: Arc<dyn Fn(usize) -> T + Send + Sync> = Arc::new(work);
        let pool = (threads > 1).then(|| Pool::start(count, threads, &work));
        ReadAhead { count, next: 0, work, pool }
    }
}

impl<T: Send + 'static> Pool<T> {
    fn start(
        count: usize,
        threads: usize,
        work: &Arc<dyn Fn(usize) -> T + Send + Sync>,
    ) -> Pool<T> {
        let ahead = 2 * threads;
        let progress = Mutex::new(Progress { next: 0, taken: 0, stop: false });
        let shared = Arc::new(Shared { progress, changed: Condvar::new(), ahead });
        let (send, results) = sync_channel(ahead);
        let one = || {
            let (shared, send, work) = (shared.clone(), send.clone(), work.clone());
            std::thread::spawn(move || run(&shared, count, &send, &*work))
        };
        let threads = (0..threads).map(|_| one()).collect();
        Pool { shared, results, early: BTreeMap::new(), threads }
    }

    /// The result of this number, which is the next in order.
    fn take(&mut self, number: usize) -> Option<T> {
        loop {
            if let Some(result) = self.early.remove(&number) {
                self.shared.lock().taken = number + 1;
                self.shared.changed.notify_all();
                return Some(result);
            }
            // Fails only when all threads have ended, which before the last result means a panic.
            let (at, result) = self.results.recv().ok()?;
            self.early.insert(at, result);
        }
    }
}

fn run<T>(
    shared: &Shared,
    count: usize,
    send: &SyncSender<(usize, T)>,
    work: &(dyn Fn(usize) -> T + Send + Sync),
) {
    let _stop = StopOnPanic(shared);
    while let Some(number) = shared.begin(count) {
        if send.send((number, work(number))).is_err() {
            return;
        }
    }
}

impl<T: Send + 'static> Iterator for ReadAhead<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.next >= self.count {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let Some(pool) = &mut self.pool else { return Some((self.work)(number)) };
        let result = pool.take(number);
        if result.is_none()
            && let Some(pool) = self.pool.take()
        {
            for thread in pool.threads {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
        result
    }
}

impl<T> Drop for ReadAhead<T> {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        pool.shared.stop();
        drop(pool.results);
        for thread in pool.threads {
            // A panic has been passed on by `next`, or its result was not wanted.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_come_in_order_with_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let work = |i: usize| {
                std::thread::sleep(std::time::Duration::from_micros((i as u64 * 7919) % 300));
                i * i
            };
            let results: Vec<usize> = ReadAhead::new(200, threads, work).collect();
            assert_eq!(results, (0..200).map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn threads_stop_a_few_results_after_the_caller_does() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let mut results =
            ReadAhead::new(100_000, 3, move |_| count.fetch_add(1, Ordering::Relaxed));
        for _ in 0..10 {
            results.next();
        }
        drop(results);
        assert!(begun.load(Ordering::Relaxed) <= 10 + 6);
    }

    #[test]
    #[should_panic(expected = "the seventh")]
    fn a_panic_of_a_thread_is_passed_on() {
        let work = |i: usize| assert!(i != 7, "the seventh");
        ReadAhead::new(1000, 3, work).for_each(drop);
    }
}
