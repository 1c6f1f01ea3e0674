//! Events of kernel tracers, whichever wrote them: the form in which readers hand them out ([`event`]).

pub mod event;
