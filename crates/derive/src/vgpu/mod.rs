//! Shared and virtual GPUs: from events of the host's kernel to requests, and from requests to who waited for whom.
//!
//! # How
//! [`rules`] says what each tracepoint does to a request, as data. [`model`] follows the events and makes a
//! [`Request`] of those that belong together: by (device, context, engine, sequence), by the workload of a virtual
//! GPU, or by the fence of a job. [`metrics`] measures a window of the requests; [`parts`] says where their time went,
//! so that two runs can be subtracted. [`guest`] adds what a guest's own trace says of its requests.
//!
//! # What fools it
//! The host does not see a guest's own queue: without the guest's trace, a wait begins where the host first hears of the request. Where no
//! tracepoint tells that the hardware began, a request begins when it was handed over or when its predecessor on
//! the engine ended, whichever is later.

pub mod event;
pub mod guest;
pub mod hosts;
pub mod metrics;
pub mod model;
pub mod parts;
pub mod placement;
pub mod replay;
pub mod request;
pub mod rules;
pub mod slices;
pub mod vcpu;

#[cfg(test)]
mod tests;

pub use event::{Event, Field};
pub use model::Model;
pub use request::{Execution, Outcome, Request, Stage, Tenant, TenantKey};
