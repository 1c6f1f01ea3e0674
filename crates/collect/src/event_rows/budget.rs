//! What one guest has left of its quotas.

use gpuwhy_schema::Ns;

use crate::quota::{self, Bucket, Quota};

/// What one guest has left of its quotas.
#[derive(Debug)]
pub(super) struct Budget {
    /// See [`quota::RECORDS`].
    pub records: Bucket,
    /// See [`quota::BYTES`].
    pub bytes: Bucket,
    /// See [`quota::NEW_ENTITIES`].
    pub new_entities: Bucket,
    /// See [`quota::LOOK_UPS`].
    pub look_ups: Bucket,
    /// Entities that it has.
    pub entities: usize,
    /// Tracks that it has.
    pub tracks: usize,
    /// Spans that are held for it.
    pub held: usize,
    /// Texts that it may still bring into the source's note.
    pub notes: u32,
    /// The quotas that were used up, and whether that was told.
    used_up: [(bool, bool); Quota::ALL.len()],
}

impl Budget {
    /// With nothing used up.
    pub fn new() -> Budget {
        Budget {
            records: Bucket::new(quota::RECORDS),
            bytes: Bucket::new(quota::BYTES),
            new_entities: Bucket::new(quota::NEW_ENTITIES),
            look_ups: Bucket::new(quota::LOOK_UPS),
            entities: 0,
            tracks: 0,
            held: 0,
            notes: quota::NOTES,
            used_up: [(false, false); Quota::ALL.len()],
        }
    }

    /// Gives back what time gives back.
    pub fn refill(&mut self, now: Ns) {
        for bucket in
            [&mut self.records, &mut self.bytes, &mut self.new_entities, &mut self.look_ups]
        {
            bucket.refill(now);
        }
    }

    /// A quota did not suffice.
    pub fn use_up(&mut self, quota: Quota) {
        self.used_up[quota as usize].0 = true;
    }

    /// The quotas that were used up and of which that was not told yet: each is told once.
    pub fn untold(&mut self) -> impl Iterator<Item = Quota> {
        let all = self.used_up.iter_mut().zip(Quota::ALL);
        all.filter_map(|((used_up, told), quota)| {
            let untold = *used_up && !*told;
            *told |= *used_up;
            untold.then_some(quota)
        })
    }

    /// Room for one more entity or not.
    pub fn take_entity(&mut self) -> bool {
        let has_room = self.entities < quota::ENTITIES
            && self.new_entities.take(1)
            && self.bytes.take(quota::ENTITY_BYTES);
        if has_room {
            self.entities += 1;
        } else {
            self.use_up(Quota::Entities);
        }
        has_room
    }

    /// Room for one more track or not.
    pub fn take_track(&mut self) -> bool {
        let has_room = self.tracks < quota::TRACKS && self.bytes.take(quota::ENTITY_BYTES);
        if has_room {
            self.tracks += 1;
        } else {
            self.use_up(Quota::Tracks);
        }
        has_room
    }

    /// An entity of the guest has ended, with so many tracks.
    pub fn give_back(&mut self, tracks: usize) {
        self.entities = self.entities.saturating_sub(1);
        self.tracks = self.tracks.saturating_sub(tracks);
    }
}
