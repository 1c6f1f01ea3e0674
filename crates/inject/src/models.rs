//! `Exclusive` under loom: small situations, in every order of events
//! (`scripts/loom.sh`).

use loom::sync::Arc;
use loom::thread;

use crate::exclusive::Exclusive;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Unless LOOM_MAX_PREEMPTIONS says otherwise.
    builder.preemption_bound.get_or_insert(3);
    builder.check(f);
}

/// Of three threads one has the value at a time, and a later one sees what it did.
#[test]
fn one_at_a_time_has_what_is_exclusive() {
    model(|| {
        let one = Arc::new(Exclusive::new(0));
        let others: Vec<_> = [(); 2]
            .map(|()| {
                let one = one.clone();
                thread::spawn(move || one.with(|n| *n += 1).is_some() as u32)
            })
            .into();
        let mine = one.with(|n| *n += 1).is_some() as u32;
        let had: u32 = others.into_iter().map(|t| t.join().unwrap()).sum::<u32>() + mine;
        assert!(had >= 1, "at least one of them gets the lock");
        assert_eq!(one.with(|n| *n), Some(had));
    });
}
