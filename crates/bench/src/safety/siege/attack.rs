//! Those who want the correlator to fall: some without a key, some with a stolen one.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpuwhy_fleet::protocol::{LINE, NodeMessage, RankStep, line};
use gpuwhy_fleet::{Credentials, Link};
use serde_json::json;

/// Connections that are held open and say nothing, or a byte a second.
const IDLE: usize = 2000;
/// Nodes that flood, that forge answers, and that have another fleet's key, at any time.
const FLOODS: usize = 4;
const FORGERS: usize = 4;
const STRANGERS: usize = 8;

/// The attack while it lasts.
pub struct Attack {
    stop: Arc<AtomicBool>,
    threads: Vec<(&'static str, Arc<AtomicUsize>, JoinHandle<()>)>,
}

/// What an attacker needs.
struct Attacker {
    address: SocketAddr,
    keys: Credentials,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
}

impl Attack {
    /// Begins it; `other` is the key of another fleet.
    pub fn begin(address: SocketAddr, keys: Credentials, other: Credentials) -> Attack {
        let mut attack = Attack { stop: Arc::default(), threads: Vec::new() };
        attack.add("idle connections", address, &keys, hold_connections);
        attack.add("tries with a wrong key", address, &other, try_keys);
        attack.add("lines of floods", address, &keys, flood);
        attack.add("forged answers", address, &keys, forge);
        attack.add("made-up steps", address, &keys, make_up);
        attack
    }

    fn add(
        &mut self,
        what: &'static str,
        address: SocketAddr,
        keys: &Credentials,
        run: fn(&Attacker),
    ) {
        let (stop, done) = (self.stop.clone(), Arc::<AtomicUsize>::default());
        let attacker = Attacker { address, keys: keys.clone(), stop, done: done.clone() };
        self.threads.push((what, done, std::thread::spawn(move || run(&attacker))));
    }

    /// Ends it; what was tried, and how often.
    pub fn end(self) -> BTreeMap<&'static str, usize> {
        self.stop.store(true, Ordering::Relaxed);
        let end = |(what, done, thread): (&'static str, Arc<AtomicUsize>, JoinHandle<()>)| {
            let _ = thread.join();
            (what, done.load(Ordering::Relaxed))
        };
        self.threads.into_iter().map(end).collect()
    }
}

impl Attacker {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn link(&self, name: &str) -> Option<Link> {
        Link::connect(&self.address.to_string(), name, &self.keys).ok()
    }
}

/// Holds connections that say nothing, every tenth a byte of a handshake a second, and opens each again that is
/// closed.
fn hold_connections(attacker: &Attacker) {
    let mut held: Vec<TcpStream> = Vec::new();
    let (mut turn, hello) = (0usize, [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
    while attacker.goes_on() {
        let mut scratch = [0; 64];
        held.retain_mut(|stream| {
            matches!(stream.read(&mut scratch), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
        });
        let slow = held.iter_mut().step_by(10);
        slow.for_each(|stream| drop(stream.write(&hello[turn % hello.len()..][..1])));
        turn += 1;
        let until = Instant::now() + Duration::from_secs(1);
        while held.len() < IDLE && Instant::now() < until && attacker.goes_on() {
            let Ok(stream) = TcpStream::connect_timeout(&attacker.address, Duration::from_secs(1))
            else {
                break;
            };
            if stream.set_nonblocking(true).is_ok() {
                held.push(stream);
                attacker.count();
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Shows the key of another fleet, again and again.
fn try_keys(attacker: &Attacker) {
    while attacker.goes_on() {
        let links: Vec<Option<Link>> =
            (0..STRANGERS).map(|n| attacker.link(&format!("stranger{n}"))).collect();
        std::thread::sleep(Duration::from_millis(500));
        (0..STRANGERS).for_each(|_| attacker.count());
        drop(links);
    }
}

/// Sends as much as is taken, under another name when it is sent away.
fn flood(attacker: &Attacker) {
    let text = "x".repeat(LINE / 2);
    let Some(line) = line(&NodeMessage::Finding { finding: json!(text) }, LINE) else { return };
    let mut round = 0;
    while attacker.goes_on() {
        let name = |n: usize| format!("flood{n}-{round}");
        let links: Vec<Link> = (0..FLOODS).filter_map(|n| attacker.link(&name(n))).collect();
        let until = Instant::now() + Duration::from_secs(15);
        while attacker.goes_on() && Instant::now() < until {
            for link in &links {
                link.send(line.clone());
                attacker.count();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        round += 1;
    }
}

/// Answers questions that it was not asked, under another name when it is sent away.
fn forge(attacker: &Attacker) {
    let mut guess: u128 = 1;
    while attacker.goes_on() {
        let name = |n: usize| format!("forger{n}-{guess}");
        let links: Vec<Link> = (0..FORGERS).filter_map(|n| attacker.link(&name(n))).collect();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(50));
            for link in &links {
                guess = guess.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645) | 1;
                let finding =
                    json!({"outcome": "decided", "class": "gc_pause", "summary": "forged"});
                let id = format!("{guess:032x}");
                let answer = NodeMessage::Answer { id, finding: Some(finding) };
                if let Some(line) = line(&answer, LINE) {
                    link.send(line);
                    attacker.count();
                }
            }
        }
    }
}

/// Reports ranks that are not there, ranks of others, and step numbers that nobody has, in jobs of others.
fn make_up(attacker: &Attacker) {
    let Some(link) = attacker.link("liar") else { return };
    let mut random = 7u64;
    while attacker.goes_on() {
        for job in 0..4 {
            let steps = (0..20).map(|n| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let seq = [random % 500, u64::MAX - random % 9, random][n % 3];
                RankStep {
                    rank: [9000 + n as u32 % 4, n as u32 % 8][usize::from(n % 5 == 0)],
                    seq,
                    name: "step".into(),
                    size: None,
                    dur_ns: (random >> 8) as i64,
                    waited_ns: (random >> 20) as i64,
                    phases: vec![(format!("p{}", random % 1000), i64::MAX)],
                }
            });
            let steps: Vec<RankStep> = steps.collect();
            let steps = NodeMessage::Steps { job: format!("job{job}"), steps, dropped: 0 };
            if let Some(line) = line(&steps, LINE) {
                link.send(line);
                (0..20).for_each(|_| attacker.count());
            }
        }
        std::thread::sleep(Duration::from_millis(40));
    }
}
