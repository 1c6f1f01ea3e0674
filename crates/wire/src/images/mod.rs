//! How a program's GPU code is handed to whoever puts device probes into it, and how the probes' maps come back.
//!
//! An object that is loaded into the program (crate `interpose`) stands between it and the driver. It connects to the
//! socket that [`PROBES_ENV`] names, once for each image that is loaded, and sends the image as a sealed memfd. The
//! controller behind the socket answers with another image and with what its probes need ([`Plan`]), or that the image
//! stays as it is. So no compiler runs in the program, and one that is slow, wrong or killed costs the program at most
//! the time that it waits for an answer.
//!
//! What the maps hold lies in a [`Memory`] that both ends have mapped ([`State`]). It is the controller's, so that it
//! outlives the program.
//!
//! Neither end trusts the other: messages have one size and a version, each number is checked before it is used as an
//! offset, and memory is sealed against shrinking.
//!
//! | file | what it knows |
//! |---|---|
//! | `messages` | what is sent, byte by byte |
//! | `memory` | memory that both ends have mapped |
//! | `plan` | an image with probes, and what it needs |
//! | `state` | what the maps hold, and when that was true |
//! | `late` | how late launches began |
//! | `records` | records of rings on their way to the controller |
//! | `policy` | what a program tells policies, and what they ask it for |
//! | `patch` | kernels of machine code, and what is called in them |
//! | `stealing` | kernels that can steal work, and how they were launched |
//! | `standby` | programs that are off until who watches asks for them |
//! | `ends` | the two ends of the socket |

mod ends;
mod late;
pub(crate) mod memory;
mod messages;
mod patch;
mod plan;
mod policy;
mod records;
mod standby;
mod state;
mod stealing;

pub use ends::{Asker, Desk, Seat, close_image, open_image};
pub use late::Late;
pub use memory::Memory;
pub use messages::{Answer, Ask, Outcome};
pub use patch::Patch;
pub use plan::{Launches, MANY, Name, Plan, Ring, Running, name_hash};
pub use policy::{Count, Exchange, POINTERS, Request, Told};
pub use records::Records;
pub use standby::{StandBy, switch_on};
pub use state::State;
pub use stealing::{Stealing, Stolen, Thief};

/// The environment variable that names the controller's socket; without it nothing is asked.
pub const PROBES_ENV: &str = "GPUWHY_PROBES";
/// The environment variable that says how long a load waits for an answer, ms.
pub const PROBES_WAIT_ENV: &str = "GPUWHY_PROBES_WAIT_MS";
/// The environment variable that says whether the controller has policies (`1`): without it nothing is told.
pub const POLICY_ENV: &str = "GPUWHY_POLICY";
/// The environment variable that names NVIDIA's Sanitizer (`libsanitizer-public.so`): without it machine code stays as it is.
pub const SANITIZER_ENV: &str = "GPUWHY_SANITIZER";
/// The largest image that is handed over, bytes.
pub const MAX_IMAGE: u64 = 1 << 30;
