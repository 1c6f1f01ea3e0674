//! Ring all-reduce over TCP: reduce-scatter, then all-gather, as NCCL and MPI do it.
//!
//! Each of the `2 (n - 1)` rounds sends one of `n` chunks to the next rank and receives another
//! from the previous one. One thread does both at once and sleeps in poll(2) while neither is
//! possible, so that the ranks cannot deadlock on full buffers.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};

use crate::sys;

/// The connections of a rank to its two neighbours.
pub struct Ring {
    rank: usize,
    ranks: usize,
    next: TcpStream,
    previous: TcpStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Ring {
    /// Uses connected sockets to the next and from the previous rank.
    ///
    /// # Errors
    /// If their options cannot be set.
    pub fn new(rank: u32, ranks: u32, next: TcpStream, previous: TcpStream) -> Result<Ring> {
        for socket in [&next, &previous] {
            socket.set_nodelay(true).context("cannot set TCP_NODELAY")?;
            socket.set_nonblocking(true).context("cannot make a socket non-blocking")?;
        }
        let (rank, ranks) = (rank as usize, ranks as usize);
        Ok(Ring { rank, ranks, next, previous, incoming: Vec::new(), outgoing: Vec::new() })
    }

    /// Replaces `values` by their sum over all ranks, which must all pass the same number of
    /// values.
    ///
    /// # Errors
    /// If a neighbour has closed its connection.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<()> {
        let n = self.ranks;
        for round in 0..n - 1 {
            let (send, receive) = (self.rank + n - round, self.rank + 2 * n - round - 1);
            self.exchange(values, send % n, receive % n, |to, from| *to += from)?;
        }
        for round in 0..n - 1 {
            let (send, receive) = (self.rank + 1 + n - round, self.rank + n - round);
            self.exchange(values, send % n, receive % n, |to, from| *to = from)?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        values: &mut [f32],
        send: usize,
        receive: usize,
        combine: impl Fn(&mut f32, f32),
    ) -> Result<()> {
        let chunk = |i: usize| i * values.len() / self.ranks..(i + 1) * values.len() / self.ranks;
        let (send, receive) = (chunk(send), chunk(receive));
        self.outgoing.resize(send.len() * 4, 0);
        for (to, from) in self.outgoing.chunks_exact_mut(4).zip(&values[send]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        self.incoming.resize(receive.len() * 4, 0);
        let (mut sent, mut received) = (0, 0);
        while sent < self.outgoing.len() || received < self.incoming.len() {
            let mut moved = false;
            if sent < self.outgoing.len() {
                match self.next.write(&self.outgoing[sent..]) {
                    Ok(n) => (sent, moved) = (sent + n, true),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e).context("cannot send to the next rank"),
                }
            }
            if received < self.incoming.len() {
                match self.previous.read(&mut self.incoming[received..]) {
                    Ok(0) => bail!("the previous rank has closed its connection"),
                    Ok(n) => (received, moved) = (received + n, true),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e).context("cannot receive from the previous rank"),
                }
            }
            if !moved {
                sys::wait_for_sockets(
                    (received < self.incoming.len()).then_some(&self.previous),
                    (sent < self.outgoing.len()).then_some(&self.next),
                );
            }
        }
        for (to, from) in values[receive].iter_mut().zip(self.incoming.chunks_exact(4)) {
            combine(to, f32::from_le_bytes([from[0], from[1], from[2], from[3]]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn sums(ranks: u32, len: usize) -> Vec<Vec<f32>> {
        let listeners: Vec<_> =
            (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = |r: u32| listeners[(r % ranks) as usize].local_addr().unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks)
                .map(|rank| {
                    let (listener, next) = (&listeners[rank as usize], address(rank + 1));
                    scope.spawn(move || {
                        let next = TcpStream::connect(next).unwrap();
                        let previous = listener.accept().unwrap().0;
                        let mut ring = Ring::new(rank, ranks, next, previous).unwrap();
                        let mut values: Vec<f32> =
                            (0..len).map(|i| (i as u32 * (rank + 1)) as f32).collect();
                        ring.sum(&mut values).unwrap();
                        values
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_ends_with_the_sum_of_all() {
        for (ranks, len) in [(2, 7), (3, 100_000), (4, 2), (2, 1_000_000)] {
            let factor = (1..=ranks).sum::<u32>();
            let want: Vec<f32> =
                (0..len).map(|i| (1..=ranks).map(|r| (i as u32 * r) as f32).sum()).collect();
            for (rank, got) in sums(ranks, len).into_iter().enumerate() {
                // The order of additions differs between chunks; the sums are below 2^24 * 10.
                let off = got.iter().zip(&want).filter(|(a, b)| (*a - *b).abs() > 8.0).count();
                assert_eq!(off, 0, "rank {rank} of {ranks}, {len} values, factor {factor}");
            }
        }
    }
}
