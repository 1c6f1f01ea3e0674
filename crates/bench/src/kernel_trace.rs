//! A generated kernel trace in CTF, as large as wished: a host with 64 CPUs on which 100 virtual machines share 8 GPUs.
//!
//! Each CPU goes through episodes of 29 events: a machine is woken by an interrupt, enters and leaves its guest, asks
//! for work, a thread of the host hands that to an engine, and the engine says when it is done. Everything follows from
//! the seed, and no more than a packet a CPU is held.

use std::path::Path;

use anyhow::Result;
use gpuwhy_diagnose::stats::Random;
use gpuwhy_testkit::gvt::ctf::Writer;
use gpuwhy_testkit::gvt::{self, Event, KINDS, Value};
use serde_json::json;

const CPUS: usize = 64;
const TENANTS: usize = 100;
const DEVICES: usize = 8;
const RINGS: usize = 5;
/// Between the episodes of a CPU, ns at most.
const THINKS: usize = 20_000_000;
/// The thread of a tenant's virtual CPU, and that of the host that hands its work over.
const VCPU: i32 = 10_000;
const SERVICE: i32 = 20_000;

/// What happens on one CPU.
struct Cpu {
    number: usize,
    now: i64,
    episodes: u64,
    random: Random,
}

/// Writes a trace of at least this many events, to the end of an episode; what it holds, as JSON.
pub fn write(folder: &Path, events: u64, seed: u64) -> Result<serde_json::Value> {
    let mut writer = Writer::create(folder)?;
    let mut counts = vec![0u64; KINDS.len()];
    let names: Vec<&'static str> = (0..TENANTS)
        .map(|at| &*Box::leak(format!("CPU {}/KVM", at % 4).into_boxed_str()))
        .collect();
    let cpu = |number| Cpu {
        number,
        now: 1_000_000_000 + number as i64 * 1000,
        episodes: 0,
        random: Random::new(seed.wrapping_mul(1_000_003) ^ number as u64),
    };
    let mut cpus: Vec<Cpu> = (0..CPUS).map(cpu).collect();
    let (mut written, mut next) = (0, 0);
    while written < events {
        for event in cpus[next % CPUS].episode(&names) {
            counts[event.kind] += 1;
            written += 1;
            writer.event(&event)?;
        }
        next += 1;
    }
    writer.finish()?;
    let counts: serde_json::Map<_, _> = KINDS
        .iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| (kind.name.to_owned(), count.into()))
        .collect();
    let files = std::fs::read_dir(folder)?.flatten().filter_map(|file| file.metadata().ok());
    let bytes: u64 = files.map(|file| file.len()).sum();
    Ok(json!({
        "schema_version": 1,
        "file": folder.display().to_string(),
        "bytes": bytes,
        "events": written,
        "cpus": CPUS,
        "tenants": TENANTS,
        "types": counts,
        "seconds": cpus.iter().map(|cpu| cpu.now).max().unwrap_or(0) as f64 / 1e9 - 1.0,
    }))
}

/// A thread as events name it.
#[derive(Clone, Copy)]
struct Thread {
    tid: i32,
    pid: i32,
    comm: &'static str,
}

const IDLE: Thread = Thread { tid: 0, pid: 0, comm: "swapper" };

impl Cpu {
    /// The events of a tenant's turn.
    fn episode(&mut self, names: &[&'static str]) -> Vec<Event> {
        // The tenants of a CPU take turns.
        let own = (TENANTS - self.number).div_ceil(CPUS).max(1) as u64;
        let tenant = self.number + (self.episodes % own) as usize * CPUS;
        let seqno = (self.episodes / own + 1) as i64;
        self.episodes += 1;
        self.now += self.random.below(THINKS) as i64;
        let pid = VCPU + 4 * tenant as i32;
        let vcpu = Thread { tid: pid + 1, pid, comm: names[tenant] };
        let service = Thread { tid: SERVICE + tenant as i32, pid: SERVICE, comm: "gvt workload" };
        let mut out = Vec::with_capacity(32);
        self.wakes(vcpu, &mut out);
        self.asks(vcpu, service, (tenant, seqno), &mut out);
        self.hands_over(service, (tenant, seqno), &mut out);
        self.ends((tenant, seqno), &mut out);
        out
    }

    fn event(&mut self, name: &str, by: Thread, values: Vec<Value>, out: &mut Vec<Event>) {
        self.now += 200 + self.random.below(4000) as i64;
        let Thread { tid, pid, comm } = by;
        let (time, cpu, kind) = (self.now, self.number as u32, gvt::kind(name));
        out.push(Event { time, cpu, tid, pid, comm, kind, values });
    }

    fn numbers(&mut self, name: &str, by: Thread, values: &[i64], out: &mut Vec<Event>) {
        self.event(name, by, values.iter().map(|n| Value::Number(*n)).collect(), out);
    }

    fn switch(&mut self, prev: Thread, state: i64, next: Thread, out: &mut Vec<Event>) {
        let number = |n: i32| Value::Number(i64::from(n));
        let values = vec![
            Value::Text(prev.comm),
            number(prev.tid),
            number(20),
            Value::Number(state),
            Value::Text(next.comm),
            number(next.tid),
            number(20),
        ];
        self.event("sched_switch", prev, values, out);
    }

    /// An interrupt wakes a virtual CPU.
    fn wakes(&mut self, vcpu: Thread, out: &mut Vec<Event>) {
        let irq = Value::Number(40 + self.number as i64);
        self.event("irq_handler_entry", IDLE, vec![irq.clone(), Value::Text("i915")], out);
        self.event("irq_handler_exit", IDLE, vec![irq, Value::Number(1)], out);
        self.numbers("irq_softirq_entry", IDLE, &[1], out);
        let woken = [i64::from(vcpu.tid), 20, self.number as i64].map(Value::Number);
        let values = [vec![Value::Text(vcpu.comm)], woken.to_vec()].concat();
        self.event("sched_wakeup", IDLE, values, out);
        self.numbers("irq_softirq_exit", IDLE, &[1], out);
        self.switch(IDLE, 0, vcpu, out);
    }

    /// A guest asks for work, reads a block and sends a packet.
    fn asks(&mut self, vcpu: Thread, service: Thread, request: (usize, i64), out: &mut Vec<Event>) {
        let (tenant, seqno) = request;
        let rip = 0xffff_8000_0000 + self.random.below(1 << 24) as i64;
        let sector = self.random.below(1 << 30) as i64;
        for reason in [30, 48] {
            self.numbers("kvm_entry", vcpu, &[tenant as i64 % 4], out);
            self.numbers("kvm_exit", vcpu, &[reason, rip], out);
        }
        self.numbers("syscall_entry_ioctl", vcpu, &[17, 0xae80, 0], out);
        self.numbers("block_rq_issue", vcpu, &[8 << 20, sector, 8, 4], out);
        self.numbers("syscall_exit_ioctl", vcpu, &[0, 0], out);
        let packet = vec![Value::Number(rip), Value::Number(1500), Value::Text("eth0")];
        self.event("net_dev_queue", vcpu, packet, out);
        let workload = work(tenant, seqno);
        self.numbers(
            "gvt_workload_queue",
            vcpu,
            &[device(tenant), tenant as i64 + 1, ring(seqno), workload],
            out,
        );
        self.switch(vcpu, 1, service, out);
        self.numbers("block_rq_complete", service, &[8 << 20, sector, 8, 4], out);
    }

    /// A thread of the host hands the work to an engine.
    fn hands_over(&mut self, by: Thread, (tenant, seqno): (usize, i64), out: &mut Vec<Event>) {
        let (dev, ring, context) = (device(tenant), ring(seqno), tenant as i64 + 1);
        let left = self.random.below(20_000_000) as i64 - 4_000_000;
        let global = seqno * TENANTS as i64 + tenant as i64;
        let request = [dev, context, ring, seqno, global];
        self.numbers("gvt_sched_switch", by, &[dev, context, left], out);
        let workload = [dev, context, ring, work(tenant, seqno), context, seqno];
        self.numbers("gvt_workload_submit", by, &workload, out);
        self.numbers("i915_gem_request_add", by, &request, out);
        self.numbers("i915_gem_request_submit", by, &request, out);
        self.numbers("i915_gem_request_in", by, &[dev, context, ring, seqno, global, 0], out);
        self.switch(by, 1, IDLE, out);
    }

    /// The engine is done.
    fn ends(&mut self, (tenant, seqno): (usize, i64), out: &mut Vec<Event>) {
        let (dev, ring, context) = (device(tenant), ring(seqno), tenant as i64 + 1);
        self.now += self.random.below(5_000_000) as i64;
        let global = seqno * TENANTS as i64 + tenant as i64;
        let request = [dev, context, ring, seqno, global];
        self.numbers("intel_engine_notify", IDLE, &[dev, ring, global, 1], out);
        self.numbers("i915_gem_request_out", IDLE, &request, out);
        self.numbers(
            "gvt_workload_complete",
            IDLE,
            &[dev, context, ring, work(tenant, seqno)],
            out,
        );
        self.numbers("i915_gem_request_retire", IDLE, &request, out);
    }
}

fn device(tenant: usize) -> i64 {
    (tenant % DEVICES) as i64
}

fn ring(seqno: i64) -> i64 {
    seqno % RINGS as i64
}

/// The address of a workload.
fn work(tenant: usize, seqno: i64) -> i64 {
    0x7f00_0000_0000 + (seqno % 1024) * 0x100 + tenant as i64 * 0x10_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_many_types_of_events_of_all_cpus_and_follows_from_its_seed() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let label = write(&one, 10_000, 7).unwrap();
        write(&two, 10_000, 7).unwrap();
        assert!(label["types"].as_object().unwrap().len() >= 20, "{label}");
        assert!(label["events"].as_u64().unwrap() >= 10_000);
        for cpu in 0..CPUS {
            let read = |folder: &Path| std::fs::read(folder.join(format!("kernel_{cpu}"))).unwrap();
            assert!(read(&one) == read(&two) && !read(&one).is_empty());
        }
    }
}
