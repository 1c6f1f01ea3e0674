//! Directed flows of stream sockets: both ends compute the same number without knowing of each other.
//!
//! A flow is a hash of the connection, with two bits of its own: from whom to whom the bytes go, and whether it is known which end
//! asks. That is the end that connected, where the kernel tells which did; else the one with the greater port of TCP (clients have
//! ephemeral ones), or the end of a Unix socket that has no name.
//! So the two directions of a connection differ in the lowest bit, and a request is told from an answer.

use crate::Message;

/// One end of a connection: its address (IPv4 as `::ffff:a.b.c.d`, of a Unix socket its cookie), and its port.
pub type End = ([u8; 16], u16);

/// The port that stands for an unnamed end of a Unix socket, and for one that has a name.
pub const UNNAMED: u16 = u16::MAX;
/// See [`UNNAMED`].
pub const NAMED: u16 = 1;

/// The first byte of every flow: hashes of earlier versions, which say nothing of directions, hardly have it.
const MARK: u64 = 0xf7 << 56;
const MARKED: u64 = 0xff << 56;
/// From who asks to who is asked, or back.
const ANSWERS: u64 = 1;
/// Who asks is known.
const KNOWN: u64 = 2;

/// The flow from a sender to a receiver, of which the one with the greater port asks.
#[must_use]
pub fn of_ends(sender: End, receiver: End) -> u64 {
    let rank = |end: &End| (std::cmp::Reverse(end.1), end.0);
    let answers = rank(&sender) > rank(&receiver);
    let (asks, asked) = if answers { (receiver, sender) } else { (sender, receiver) };
    let known = if asks.1 == asked.1 { 0 } else { KNOWN };
    hash(asks, asked) | known | u64::from(answers)
}

/// The flow of a connection that was made by the end that asks, from that or to that end.
#[must_use]
pub fn of_roles(asks: End, asked: End, is_request: bool) -> u64 {
    hash(asks, asked) | KNOWN | u64::from(!is_request)
}

/// FNV-1a over both ends, without what says who asks.
fn hash(asks: End, asked: End) -> u64 {
    let ports = [asks.1.to_be_bytes(), asked.1.to_be_bytes()];
    let bytes = asks.0.iter().chain(&asked.0).chain(ports.as_flattened());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash & !(MARKED | KNOWN | ANSWERS) | MARK
}

impl Message {
    /// The flow of the other direction of its connection.
    #[must_use]
    pub fn opposite(&self) -> u64 {
        self.flow ^ ANSWERS
    }

    /// Whether it has the size of what HTTP/2 says of the connection itself, and nobody answers by a message of another kind: a ping,
    /// leave to send more, or both (RFC 9113, sections 6.7 and 6.9). Others may have it too.
    #[must_use]
    pub fn may_be_housekeeping(&self) -> bool {
        const FRAME: u64 = 9;
        const PING: u64 = FRAME + 8;
        const WINDOW_UPDATE: u64 = FRAME + 4;
        const SIZES: [u64; 6] =
            [FRAME, WINDOW_UPDATE, PING, 2 * WINDOW_UPDATE, PING + WINDOW_UPDATE, 2 * PING];
        SIZES.contains(&self.bytes)
    }

    /// Whether it goes from who asks to who is asked; none if that is not known.
    #[must_use]
    pub fn is_request(&self) -> Option<bool> {
        let known = self.flow & MARKED == MARK && self.flow & KNOWN != 0;
        known.then_some(self.flow & ANSWERS == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, EntityId, Id, Ns};

    fn end(address: u8, port: u16) -> End {
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, address], port)
    }

    fn message(flow: u64) -> Message {
        Message {
            id: Id(1),
            ts: Ns(0),
            thread: EntityId(1),
            direction: Direction::Receive,
            flow,
            bytes: 1,
            position: 0,
        }
    }

    #[test]
    fn both_directions_of_a_connection_know_of_each_other_and_who_asks() {
        let (client, server) = (end(1, 50_000), end(2, 80));
        let request = message(of_ends(client, server));
        let answer = message(of_ends(server, client));
        assert_eq!((request.is_request(), answer.is_request()), (Some(true), Some(false)));
        assert_eq!((request.opposite(), answer.opposite()), (answer.flow, request.flow));
        assert_ne!(request.flow, of_ends(end(1, 50_001), server), "another connection");
        // Part of the format: another recorder on the other host must agree.
        assert_eq!(request.flow, EXAMPLE);
    }

    const EXAMPLE: u64 = 0xf7bf_cfe6_847a_0f6a;

    #[test]
    fn who_asks_is_not_known_between_equal_ports_and_in_traces_of_before() {
        let (a, b) = (end(1, 4000), end(2, 4000));
        let (there, back) = (message(of_ends(a, b)), message(of_ends(b, a)));
        assert_eq!((there.is_request(), there.opposite()), (None, back.flow));
        assert_eq!(message(0x37bf_154a_326e_dee3).is_request(), None);
    }

    #[test]
    fn an_unnamed_end_of_a_unix_socket_asks_one_that_has_a_name() {
        let (client, server) = (end(1, UNNAMED), end(2, NAMED));
        assert_eq!(message(of_ends(client, server)).is_request(), Some(true));
        assert_eq!(message(of_ends(end(1, UNNAMED), end(2, UNNAMED))).is_request(), None);
    }
}
