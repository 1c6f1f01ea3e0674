//! The link from rank 0 to the next: filled with other packets, or slowed down.

use std::net::UdpSocket;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Culprit, Disturbance, Workers, count};
use crate::steploop::{Nic, Ready, network};
use crate::sys;

fn link(target: &Ready) -> Result<&Nic> {
    target
        .rank(0)?
        .nics
        .first()
        .context("the workload has no links: its ranks communicate over loopback")
}

/// Runs `work` in the network namespace of a process, in a thread of its own.
fn inside<T: Send>(pid: i32, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sys::enter_netns(pid)
                .with_context(|| format!("cannot enter the network namespace of {pid}"))?;
            work()
        });
        thread.join().unwrap_or_else(|_| anyhow::bail!("the thread in the namespace panicked"))
    })
}

pub(super) fn udp_burst(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let nic = link(target)?.clone();
    let senders = count(intensity, 4.0);
    // A socket that is never read, so that no ICMP messages come back.
    let sink = inside(target.rank(nic.peer)?.pid, || {
        UdpSocket::bind((nic.peer_address, 0))
            .context("cannot bind a UDP socket at the other end of the link")
    })?;
    let to = sink.local_addr().context("cannot ask for the port")?;
    let sockets = inside(target.rank(0)?.pid, || {
        (0..senders)
            .map(|_| {
                let socket =
                    UdpSocket::bind((nic.address, 0)).context("cannot bind a UDP socket")?;
                socket.connect(to).context("cannot connect a UDP socket")?;
                Ok(socket)
            })
            .collect::<Result<Vec<_>>>()
    })?;
    let mut workers = Workers::new();
    for socket in sockets {
        workers.spawn(move |stop| {
            // Fits into a jumbo frame. A full queue makes send(2) sleep, so the senders use up the
            // link and not the CPU.
            let packet = [0x55; 8900];
            while !stop.load(Relaxed) {
                if socket.send(&packet).is_err() {
                    sys::sleep_until(sys::now() + 100_000);
                }
            }
        });
    }
    workers.spawn(move |stop| {
        let _keep = sink;
        while !stop.load(Relaxed) {
            sys::sleep_until(sys::now() + 10_000_000);
        }
    });
    Ok(Disturbance::new(
        Culprit::ThisProcess,
        workers,
        json!({ "nic": nic.name, "senders": senders }),
    ))
}

pub(super) fn link_cap(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let nic = link(target)?.clone();
    let mbit = (target.config.link_mbit as f64 / (8.0 * intensity.max(0.125))).max(1.0) as u32;
    inside(target.rank(0)?.pid, || network::set_speed(&nic.name, mbit))?;
    let params = json!({ "nic": nic.name, "mbit": mbit, "before_mbit": target.config.link_mbit });
    Ok(Disturbance::new(Culprit::NoProcess, Workers::new(), params))
}

pub(super) fn restore_link(target: &Ready) {
    let restored = || -> Result<()> {
        let nic = link(target)?;
        inside(target.rank(0)?.pid, || network::set_speed(&nic.name, target.config.link_mbit))
    };
    let _ = restored();
}
