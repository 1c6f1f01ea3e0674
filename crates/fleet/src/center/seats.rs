//! Who says to be which rank of a job.
//!
//! Each node that reports a rank has a seat of its own. A node that claims the rank of another, before it or
//! beside it, therefore takes nothing from it: which seats take part is decided by who keeps step with the others
//! (`gpuwhy_diagnose::fleet`). A node that comes back gets its seat again, and a node that a rank moved to gets
//! the one that fell silent.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::Ns;

use super::Conn;

/// A seat of which its node says nothing for so long may be another node's from then on; longer where its
/// steps take longer,
const SPEAKS: Ns = Ns::secs(3);
/// but no longer than this.
const AT_MOST: Ns = Ns::secs(60);
/// A seat that was silent for so long is given up.
const GIVEN_UP: Ns = Ns::secs(900);
/// How often such seats are looked for.
const LOOK: Ns = Ns::secs(1);

/// A node that reports a rank.
#[derive(Debug)]
struct Seat {
    rank: u32,
    /// Nobody, if its connection ended.
    conn: Option<Conn>,
    heard: Ns,
    took: Ns,
}

impl Seat {
    fn is_free(&self, now: Ns) -> bool {
        let patience = SPEAKS.max(Ns(self.took.0.saturating_mul(4))).min(AT_MOST);
        self.conn.is_none() || now >= self.heard.saturating_add(patience)
    }
}

/// The seats of a job, by numbers that are never used again.
#[derive(Debug, Default)]
pub(super) struct Seats {
    by_number: BTreeMap<u32, Seat>,
    claims: HashMap<(u32, Conn), u32>,
    of_rank: HashMap<u32, Vec<u32>>,
    next: u32,
    looked: Ns,
}

impl Seats {
    /// The seat of `conn` for `rank`. None if there are `most` seats already.
    pub fn seat(&mut self, conn: Conn, rank: u32, most: usize, now: Ns) -> Option<u32> {
        if let Some(seat) = self.claims.get(&(rank, conn)) {
            return Some(*seat);
        }
        let of_rank = self.of_rank.get(&rank).map_or(&[][..], |seats| &seats[..]);
        let free =
            |number: &&u32| self.by_number.get(*number).is_some_and(|seat| seat.is_free(now));
        // The one that was heard last: the others may be those of guests that came once.
        let heard = |number: &&u32| self.by_number.get(*number).map(|seat| seat.heard);
        if let Some(&number) = of_rank.iter().filter(free).max_by_key(heard) {
            self.take(number, conn);
            return Some(number);
        }
        if self.by_number.len() >= most {
            self.give_up(now);
        }
        if self.by_number.len() >= most {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let seat = Seat { rank, conn: Some(conn), heard: now, took: Ns::ZERO };
        self.by_number.insert(number, seat);
        self.claims.insert((rank, conn), number);
        self.of_rank.entry(rank).or_default().push(number);
        Some(number)
    }

    fn take(&mut self, number: u32, conn: Conn) {
        let Some(seat) = self.by_number.get_mut(&number) else { return };
        if let Some(before) = seat.conn.replace(conn) {
            self.claims.remove(&(seat.rank, before));
        }
        self.claims.insert((seat.rank, conn), number);
    }

    /// Notes that a step of a seat was heard of, which took so long.
    pub fn heard(&mut self, number: u32, took: Ns, now: Ns) {
        if let Some(seat) = self.by_number.get_mut(&number) {
            (seat.heard, seat.took) = (now, took);
        }
    }

    /// Takes a seat away that was just given.
    pub fn withdraw(&mut self, number: u32) {
        let Some(seat) = self.by_number.remove(&number) else { return };
        if let Some(conn) = seat.conn {
            self.claims.remove(&(seat.rank, conn));
        }
        if let Some(seats) = self.of_rank.get_mut(&seat.rank) {
            seats.retain(|other| *other != number);
            if seats.is_empty() {
                self.of_rank.remove(&seat.rank);
            }
        }
    }

    fn give_up(&mut self, now: Ns) {
        if now < self.looked.saturating_add(LOOK) {
            return;
        }
        self.looked = now;
        let gone = |seat: &Seat| seat.heard.saturating_add(GIVEN_UP) < now;
        let gone: Vec<u32> =
            self.by_number.iter().filter(|(_, seat)| gone(seat)).map(|(n, _)| *n).collect();
        gone.into_iter().for_each(|number| self.withdraw(number));
    }

    /// The connection of a seat, while there is one.
    pub fn conn(&self, number: u32) -> Option<Conn> {
        self.by_number.get(&number)?.conn
    }

    /// Another connection that reports the rank of this seat now, and did so first.
    pub fn rival(&self, number: u32, now: Ns) -> Option<Conn> {
        let own = self.by_number.get(&number)?;
        let of_rank = self.of_rank.get(&own.rank)?;
        let others = of_rank.iter().filter(|other| **other < number);
        let speaking = others.filter_map(|other| self.by_number.get(other));
        speaking.filter(|seat| !seat.is_free(now)).find_map(|seat| seat.conn)
    }

    /// How many ranks a connection reports.
    pub fn count(&self, conn: Conn) -> usize {
        self.claims.keys().filter(|(_, of)| *of == conn).count()
    }

    /// Whether a connection reports a rank.
    pub fn has(&self, conn: Conn, rank: u32) -> bool {
        self.claims.contains_key(&(rank, conn))
    }

    /// A connection has ended.
    pub fn closed(&mut self, conn: Conn) {
        self.claims.retain(|(_, of), _| *of != conn);
        for seat in self.by_number.values_mut().filter(|seat| seat.conn == Some(conn)) {
            seat.conn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 100;

    #[test]
    fn who_claims_the_rank_of_another_has_a_seat_of_its_own() {
        let mut seats = Seats::default();
        let now = Ns::secs(1);
        let liar = seats.seat(7, 2, MOST, now).unwrap();
        let honest = seats.seat(8, 2, MOST, now).unwrap();
        assert!(liar < honest, "who came first has the lower number");
        assert_eq!((seats.rival(honest, now), seats.conn(honest)), (Some(7), Some(8)));
        assert_eq!(seats.seat(8, 2, MOST, now), Some(honest));
        assert_eq!(seats.seat(8, 3, 2, now), None, "all seats are taken");
    }

    #[test]
    fn who_comes_back_and_whom_a_rank_moved_to_sits_where_it_sat() {
        let mut seats = Seats::default();
        let mut now = Ns::secs(1);
        let first = seats.seat(1, 0, MOST, now).unwrap();
        seats.closed(1);
        assert_eq!((seats.conn(first), seats.has(1, 0)), (None, false));
        assert_eq!(seats.seat(2, 0, MOST, now), Some(first), "the connection was made anew");
        seats.heard(first, Ns::secs(2), now);
        now += Ns::secs(7);
        assert_ne!(seats.seat(3, 0, MOST, now), Some(first), "its steps take seconds");
        now += Ns::secs(2);
        assert_eq!(seats.seat(4, 0, MOST, now), Some(first));
        assert!(!seats.has(2, 0) && seats.has(4, 0));
        // However long a step is said to take.
        seats.heard(first, Ns::secs(3600), now);
        assert_eq!(seats.seat(5, 0, MOST, now + AT_MOST).map(|_| seats.count(4)), Some(0));
    }

    #[test]
    fn seats_of_long_ago_are_given_to_others() {
        let mut seats = Seats::default();
        for rank in 0..MOST as u32 {
            seats.seat(1, rank, MOST, Ns::secs(1)).unwrap();
        }
        assert_eq!(seats.seat(2, 1000, MOST, Ns::secs(800)), None);
        assert!(seats.seat(2, 1000, MOST, Ns::secs(2000)).is_some());
        assert_eq!((seats.count(1), seats.of_rank.len()), (0, 1));
    }
}
