//! A correlator that is driven by the test, and nodes.

#![allow(dead_code)]

use std::time::{Duration, Instant};

use gpuwhy_fleet::protocol::{LINE, NodeMessage, RankStep, line};
use gpuwhy_fleet::{
    Correlator, Credentials, FleetEvent, Limits, Link, StragglerReport, make_secret,
};

/// Waits for what will come.
pub fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(it) = what() {
            return it;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it has not come within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A correlator with its key.
pub struct Fleet {
    pub correlator: Correlator,
    pub credentials: Credentials,
    pub limits: Limits,
    pub told: Vec<FleetEvent>,
    pub dir: tempfile::TempDir,
}

impl Fleet {
    pub fn with_secret(limits: Limits) -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.key");
        make_secret(&path).unwrap();
        Fleet::with(Credentials::Secret(path), limits, dir)
    }

    pub fn with(credentials: Credentials, limits: Limits, dir: tempfile::TempDir) -> Fleet {
        let correlator = Correlator::listen("127.0.0.1:0", &credentials, limits).unwrap();
        Fleet { correlator, credentials, limits, told: Vec::new(), dir }
    }

    /// Ends the correlator and begins another one at its address.
    pub fn restart(&mut self) {
        let address = self.address();
        let elsewhere = Correlator::listen("127.0.0.1:0", &self.credentials, self.limits).unwrap();
        drop(std::mem::replace(&mut self.correlator, elsewhere));
        self.correlator =
            until(|| Correlator::listen(&address, &self.credentials, self.limits).ok());
    }

    pub fn address(&self) -> String {
        self.correlator.address().to_string()
    }

    pub fn node(&self, name: &str) -> Link {
        Link::connect(&self.address(), name, &self.credentials).unwrap()
    }

    pub fn turn(&mut self) -> Vec<FleetEvent> {
        let events = self.correlator.poll(Duration::from_millis(2)).unwrap();
        self.told.extend(events.iter().cloned());
        events
    }

    pub fn find(&mut self, which: impl Fn(&FleetEvent) -> bool) -> Option<FleetEvent> {
        self.turn().into_iter().find(|event| which(event))
    }

    pub fn until_nodes(&mut self, n: usize) {
        until(|| {
            self.turn();
            (self.correlator.nodes() == n).then_some(())
        });
    }

    /// Steps of all nodes, one rank each, of whom `late` is 8 ms late from step 500 on, until that is told.
    pub fn until_straggler(
        &mut self,
        links: &[Link],
        job: &str,
        late: usize,
        first: u64,
    ) -> StragglerReport {
        let mut random = 1u64;
        for seq in first..first + 2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let noise = (random >> 40) as f64 / (1u64 << 24) as f64 / 4.0;
            let slower = if seq >= first + 500 { 8.0 } else { 0.0 };
            for (rank, link) in links.iter().enumerate() {
                let own = if rank == late { 9.0 + slower + noise } else { 9.0 };
                link.send(steps(job, rank as u32, seq, own, 9.0 + slower + noise));
            }
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(5) {
                if let Some(FleetEvent::Straggler(report)) =
                    self.find(|e| matches!(e, FleetEvent::Straggler(_)))
                {
                    return report;
                }
            }
        }
        panic!("no straggler was told: {:?}", self.told);
    }
}

/// A step of one rank as a line: its own work takes `own` ms and the slowest rank's `slowest` ms.
pub fn steps(job: &str, rank: u32, seq: u64, own: f64, slowest: f64) -> String {
    let ns = |ms: f64| (ms * 1e6) as i64;
    let step = RankStep {
        rank,
        seq,
        name: "step".into(),
        size: None,
        dur_ns: ns(slowest + 1.0),
        waited_ns: ns(slowest - own + 1.0),
        phases: vec![("load".into(), ns(own))],
    };
    let message = NodeMessage::Steps { job: job.into(), steps: vec![step], dropped: 0 };
    line(&message, LINE).unwrap()
}
