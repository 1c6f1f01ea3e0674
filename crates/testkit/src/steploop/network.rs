//! The links between ranks: veth pairs; a `tbf` qdisc at each end sets the speed of the link.
//!
//! They are made by the commands `ip` and `tc`: a few calls at the start do not justify a netlink
//! library.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// One end of a veth pair, in the network namespace of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The rank that it belongs to.
    pub rank: u32,
    /// The rank at the other end.
    pub peer: u32,
    /// Its name in the namespace of its rank.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The address of the other end.
    pub peer_address: Ipv4Addr,
}

/// The pairs that join this many ranks in a ring; two ranks share one pair.
pub fn ring(ranks: u32) -> Vec<[Nic; 2]> {
    let pairs = match ranks {
        0 | 1 => 0,
        2 => 1,
        n => n,
    };
    (0..pairs)
        .map(|pair| {
            let ends = [(pair, 1), ((pair + 1) % ranks, 2)];
            let address = |host| Ipv4Addr::new(10, 77, pair as u8, host);
            let nic = |(rank, host): (u32, u8), (peer, peer_host): (u32, u8)| Nic {
                rank,
                peer,
                name: format!("to{peer}"),
                address: address(host),
                peer_address: address(peer_host),
            };
            [nic(ends[0], ends[1]), nic(ends[1], ends[0])]
        })
        .collect()
}

/// Makes a pair with its ends in the network namespaces of two processes.
pub fn join(pair: &[Nic; 2], pids: [i32; 2]) -> Result<()> {
    let [a, b] = pair;
    run(&format!(
        "ip link add {} netns {} type veth peer name {} netns {}",
        a.name, pids[0], b.name, pids[1]
    ))
}

/// Brings up an end in the calling thread's namespace.
pub fn bring_up(nic: &Nic, mbit: u32) -> Result<()> {
    run(&format!("ip addr add {}/24 dev {}", nic.address, nic.name))?;
    // Jumbo frames, as in clusters: fewer packets for the same bytes.
    run(&format!("ip link set {} mtu 9000 up", nic.name))?;
    set_speed(&nic.name, mbit)
}

/// Sets the link speed of a NIC in the calling thread's namespace.
pub fn set_speed(nic: &str, mbit: u32) -> Result<()> {
    // The burst holds two of the largest segmented packets but little of an all-reduce, which would
    // otherwise pass at the speed of memory after each pause. The queue holds a megabyte, as those
    // of switches do: 8 ms at 1 Gbit/s.
    let (burst, limit) = (128 << 10, 1 << 20);
    run(&format!("tc qdisc replace dev {nic} root tbf rate {mbit}mbit burst {burst} limit {limit}"))
}

/// Runs a command of words separated by spaces; the error has what it wrote to stderr.
pub fn run(command: &str) -> Result<()> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program)
        .args(words)
        .output()
        .with_context(|| format!("cannot run `{program}` (in Debian's package iproute2)"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("`{command}` failed: {}", message.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ranks: u32) -> String {
        let end = |n: &Nic| format!("{}.{}", n.rank, n.name);
        let pairs: Vec<String> =
            ring(ranks).iter().map(|[a, b]| format!("{}={}", end(a), end(b))).collect();
        pairs.join(" ")
    }

    #[test]
    fn ranks_are_joined_in_a_ring() {
        assert_eq!(names(1), "");
        assert_eq!(names(2), "0.to1=1.to0");
        assert_eq!(names(3), "0.to1=1.to0 1.to2=2.to1 2.to0=0.to2");
    }
}
