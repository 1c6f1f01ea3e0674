//! Plays the agent: listens on a socket, asks the processes that connect to record something, and
//! counts their records.
//!
//! `cargo run -p gpuwhy-wire --example agent -- SOCKET [WORD]...` asks for what the words say
//! (`graphs`, `nodes`, `launches`, `phases`; nothing without words). Each line of its standard
//! input asks for something else; when the input ends, the agent ends. After each line, and at the
//! end, it prints a line of JSON: what was recorded since the last one. Programs find it by
//! `GPUWHY_SOCKET=SOCKET`.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::sync::mpsc;
use std::time::Duration;

use gpuwhy_wire::{Collectives, Event, Kernels, Options, Server, ServerOptions, Settings};

#[derive(Default)]
struct Recorded {
    records: u64,
    kernels: u64,
    graphs: u64,
    collectives: u64,
    lost: u64,
    /// From the first kernel's start to the last one's end, CLOCK_MONOTONIC ns.
    busy: Option<(u64, u64)>,
    notices: BTreeMap<String, f64>,
    costs: BTreeMap<String, f64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: agent SOCKET [graphs|nodes|launches|phases]...")?;
    // CUPTI hands over what a device has collected at once: 100,000 records.
    let ring = Options { slots: 1 << 17, ..Options::default() };
    let options = ServerOptions::of(64, ring);
    let asked = settings(args.collect::<Vec<_>>().iter())?;
    let mut server = Server::listen(&path, options, asked)?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    println!("listening");
    let mut recorded = Recorded::default();
    loop {
        let polled = server.poll(|_, record| recorded.take(&record.event), |_| ());
        recorded.lost += polled.drained.lost;
        match lines.recv_timeout(Duration::from_millis(5)) {
            Ok(line) => {
                server.ask(settings(line.split_whitespace())?);
                recorded.print();
                recorded = Recorded::default();
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    // What was recorded between the last look and the end.
    for _ in 0..2 {
        let polled = server.poll(|_, record| recorded.take(&record.event), |_| ());
        recorded.lost += polled.drained.lost;
    }
    recorded.print();
    Ok(())
}

fn settings(words: impl Iterator<Item = impl AsRef<str>>) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for word in words {
        match word.as_ref() {
            "graphs" => settings.kernels = Kernels::Graphs,
            "nodes" => settings.kernels = Kernels::Nodes,
            "launches" => settings.launches = true,
            "phases" => settings.collectives = Collectives::Phases,
            word => return Err(format!("`{word}` is none of graphs, nodes, launches, phases")),
        }
    }
    Ok(settings)
}

impl Recorded {
    fn take(&mut self, event: &Event<&std::sync::Arc<str>>) {
        self.records += 1;
        match event {
            Event::Kernel { name, graph, start, dur, .. } => {
                self.kernels += 1;
                let (from, to) = self.busy.unwrap_or((u64::MAX, 0));
                self.busy = Some((from.min(*start), to.max(start + dur)));
                self.graphs += u64::from(graph.is_some() && ***name == *"CUDA graph");
            }
            Event::Collective { .. } => self.collectives += 1,
            Event::Notice { name, value, .. } => {
                *self.notices.entry(name.to_string()).or_default() += value.unwrap_or(1.0);
            }
            Event::Counter { name, value, .. } => {
                self.costs.insert(name.to_string(), *value);
            }
            _ => {}
        }
    }

    fn print(&self) {
        let texts = |of: &BTreeMap<String, f64>| {
            let all: Vec<String> =
                of.iter().map(|(text, value)| format!("{text:?}:{value}")).collect();
            all.join(",")
        };
        println!(
            "{{\"records\":{},\"kernels\":{},\"graphs\":{},\"collectives\":{},\"lost\":{},\
             \"from_ns\":{},\"to_ns\":{},\"notices\":{{{}}},\"counters\":{{{}}}}}",
            self.records,
            self.kernels,
            self.graphs,
            self.collectives,
            self.lost,
            self.busy.unwrap_or_default().0,
            self.busy.unwrap_or_default().1,
            texts(&self.notices),
            texts(&self.costs)
        );
    }
}
