//! Several hosts: each node watches for itself and sends one correlator how long its steps took; the
//! correlator finds the rank that came late and asks that rank's node why.
//!
//! The protocol is lines of JSON over TCP (`protocol`). A node ([`node::NodeLink`]) sends `hello`,
//! then `steps` about ten times a second, its own `finding`s, and an `answer` to each question of the
//! correlator ([`correlator::Correlator`]). No message carries a time of the node's clock that the
//! correlator would compare with another node's. Queues are bounded on both sides; what does not fit
//! is dropped and counted, and a node whose correlator is away goes on watching and tries again.

pub mod correlator;
pub mod node;
mod protocol;

pub use correlator::{Correlator, FleetEvent, StragglerReport};
pub use node::NodeLink;
