//! The messages of the two ends: one size, a magic number and a version, either way.

/// What a message begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYPB");
const VERSION: u32 = 2;
/// Bytes of every message.
pub(super) const BYTES: usize = 64;

/// What the program's end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// An image is about to be loaded; a descriptor comes with it.
    Image {
        /// The device's compute capability, times 10; with several devices the least.
        arch: u32,
        /// Its streaming multiprocessors; with several devices the most.
        sms: u32,
    },
    /// The driver has loaded machine code; a descriptor comes with it. What comes back is called from it.
    Code {
        /// The device's streaming multiprocessors; with several devices the most.
        sms: u32,
    },
    /// What became of it.
    Loaded {
        /// The number that its [`crate::images::Plan`] has.
        image: u64,
        /// How it went.
        outcome: Outcome,
    },
    /// Its maps are about to be put on a device: memory to show them in is wanted.
    State {
        /// The number of the image.
        image: u64,
        /// The device's ordinal in the program.
        device: u32,
        /// The context, a number that the program's driver gave it.
        context: u64,
    },
    /// Memory of somebody else is wanted, for one of its maps.
    Shared {
        /// The number of the image.
        image: u64,
        /// The word of the table that is to be its address.
        word: u32,
    },
    /// How the program came to NVIDIA's Sanitizer; answered with [`Answer::AsItIs`].
    Sanitizer {
        /// A `SanitizerResult`: 0 if it subscribed; 1000 where the library cannot be opened or lacks a function.
        code: u32,
    },
    /// Policies are to hear of the program: memory for what it tells and is asked for is wanted.
    Policy,
}

/// How loading an image with probes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The driver took it.
    Taken,
    /// The driver refused it with this `CUresult`; the program's own image was loaded.
    Refused(u32),
    /// The driver took it and its maps could not be put on the device, by this `CUresult`: its probes are off.
    Unfilled(u32),
}

/// What the controller says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Another image is to be loaded; a descriptor of its plan comes with it.
    Plan,
    /// The image stays as it is.
    AsItIs,
    /// Memory for the maps; its descriptor comes with it.
    State,
    /// Memory of somebody else; its descriptor comes with it.
    Shared,
    /// An [`super::Exchange`]; its descriptor comes with it.
    Policy,
}

/// A message of a kind, with up to six words.
fn message(kind: u32, words: &[u64]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&kind.to_le_bytes());
    for (to, word) in out[16..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Its kind and words; `None` if it is no message of this version.
fn read(bytes: &[u8]) -> Option<(u32, [u64; 6])> {
    if bytes.len() != BYTES || bytes[..8] != MAGIC.to_le_bytes() {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    if number(8) != VERSION {
        return None;
    }
    let mut words = [0; 6];
    for (word, eight) in words.iter_mut().zip(bytes[16..].chunks_exact(8)) {
        *word = u64::from_le_bytes(eight.try_into().unwrap_or_default());
    }
    Some((number(12), words))
}

impl Ask {
    pub(super) fn encode(self) -> [u8; BYTES] {
        match self {
            Ask::Image { arch, sms } => message(1, &[arch.into(), sms.into()]),
            Ask::Loaded { image, outcome } => {
                let (kind, code) = match outcome {
                    Outcome::Taken => (0, 0),
                    Outcome::Refused(code) => (1, code),
                    Outcome::Unfilled(code) => (2, code),
                };
                message(2, &[image, kind, code.into()])
            }
            Ask::State { image, device, context } => message(3, &[image, device.into(), context]),
            Ask::Policy => message(4, &[]),
            Ask::Shared { image, word } => message(5, &[image, word.into()]),
            Ask::Code { sms } => message(6, &[sms.into()]),
            Ask::Sanitizer { code } => message(7, &[code.into()]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Ask> {
        let (kind, words) = read(bytes)?;
        let small = |at: usize| u32::try_from(words[at]).ok();
        Some(match kind {
            1 => Ask::Image { arch: small(0)?, sms: small(1)? },
            2 => {
                let outcome = match words[1] {
                    0 => Outcome::Taken,
                    1 => Outcome::Refused(small(2)?),
                    2 => Outcome::Unfilled(small(2)?),
                    _ => return None,
                };
                Ask::Loaded { image: words[0], outcome }
            }
            3 => Ask::State { image: words[0], device: small(1)?, context: words[2] },
            4 => Ask::Policy,
            5 => Ask::Shared { image: words[0], word: small(1)? },
            6 => Ask::Code { sms: small(0)? },
            7 => Ask::Sanitizer { code: small(0)? },
            _ => return None,
        })
    }
}

impl Answer {
    pub(super) fn encode(self) -> [u8; BYTES] {
        message(
            match self {
                Answer::Plan => 101,
                Answer::AsItIs => 102,
                Answer::State => 103,
                Answer::Policy => 104,
                Answer::Shared => 105,
            },
            &[],
        )
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Answer> {
        Some(match read(bytes)?.0 {
            101 => Answer::Plan,
            102 => Answer::AsItIs,
            103 => Answer::State,
            104 => Answer::Policy,
            105 => Answer::Shared,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        for ask in [
            Ask::Image { arch: 90, sms: 132 },
            Ask::Loaded { image: u64::MAX, outcome: Outcome::Taken },
            Ask::Loaded { image: 7, outcome: Outcome::Refused(218) },
            Ask::Loaded { image: 7, outcome: Outcome::Unfilled(2) },
            Ask::State { image: 7, device: 3, context: 0x7f00_0000_0000 },
            Ask::Policy,
            Ask::Code { sms: 132 },
            Ask::Sanitizer { code: 1000 },
            Ask::Shared { image: 7, word: 12 },
        ] {
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
            assert_eq!(Answer::decode(&ask.encode()), None, "the other end's");
        }
        use Answer::{AsItIs, Plan, Policy, Shared, State};
        for answer in [Plan, AsItIs, State, Policy, Shared] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
            assert_eq!(Ask::decode(&answer.encode()), None);
        }
    }

    #[test]
    fn a_message_of_another_size_magic_version_or_kind_is_none() {
        let good = Ask::Image { arch: 90, sms: 132 }.encode();
        assert_eq!(Ask::decode(&good[..63]), None);
        for at in [0, 8, 12, 21] {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Ask::decode(&bad), None, "byte {at}");
        }
    }
}
