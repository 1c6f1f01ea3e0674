//! What a source of records in this process is to the thread that talks to the agent.

use gpuwhy_wire::Settings;

use crate::guarded;

/// A source of records that lives in this process, such as CUPTI or NCCL.
///
/// Its entry points, which the driver or a library calls, start the connection
/// ([`crate::link::start`]) and write to the ring ([`crate::ring::with`]). The connection calls back
/// through this trait; a panic ends only that call.
pub(crate) trait Tenant: Sync {
    /// The agent's settings from now on. When the agent disappears they are [`Settings::default`]:
    /// record nothing.
    fn ask(&self, settings: Settings);

    /// Called every [`crate::link::TICK_MS`] while an agent is connected: the place for everything
    /// that takes time, since entry points run on the program's own threads.
    fn tick(&self);

    /// In the child of a fork: drops all state, which is the parent's. Runs in the fork handler, so it
    /// may only store to atomics and to what no other thread can hold locked.
    fn forget(&self);
}

/// All tenants of the library.
pub(crate) struct Tenants(pub &'static [&'static dyn Tenant]);

impl Tenants {
    /// [`Tenant::ask`] of each.
    pub fn ask(&self, settings: Settings) {
        self.0.iter().for_each(|tenant| guarded((), || tenant.ask(settings)));
    }

    /// [`Tenant::tick`] of each.
    pub fn tick(&self) {
        self.0.iter().for_each(|tenant| guarded((), || tenant.tick()));
    }

    /// [`Tenant::forget`] of each.
    pub fn forget(&self) {
        self.0.iter().for_each(|tenant| guarded((), || tenant.forget()));
    }
}
