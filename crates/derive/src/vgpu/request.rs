//! A request to a GPU, from the queue of a virtual GPU to its end.

/// How far a request has come. The order is that of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// In the queue of the guest's driver; seen in a guest's trace only.
    GuestQueued,
    /// Its dependencies in the guest are resolved; seen in a guest's trace only.
    GuestSubmitted,
    /// In the queue of its virtual GPU.
    VgpuQueued,
    /// Its virtual GPU was given the device, and hands it to the host's driver.
    VgpuSubmitted,
    /// In a queue of the host's driver.
    HostQueued,
    /// Nothing that it depends on is left.
    Ready,
    /// An engine has it.
    Running,
    /// Taken off the engine before its end.
    Preempted,
    /// Its work is done.
    Done,
    /// Who waits for it was told.
    Notified,
    /// The driver has forgotten it.
    Retired,
}

impl Stage {
    /// How many stages there are.
    pub const COUNT: usize = 11;
}

/// A stretch that an engine worked on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// When it began, ns: handed to the engine, and nothing before it left there.
    pub from: i64,
    /// When it ended, ns.
    pub to: i64,
    /// Whether the request was taken off the engine before its end.
    pub preempted: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Its end was not seen.
    #[default]
    Unfinished,
    /// Its end was seen.
    Done,
}

/// By what a tenant is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TenantKey {
    /// A virtual GPU of a device, by its number.
    Vgpu(i64),
    /// A client of the driver (`client_id`).
    Client(i64),
    /// A thread that submits.
    Thread(i64),
    /// Nobody that the events name.
    Unknown,
}

/// Somebody who shares a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The number of the device.
    pub device: i64,
    /// By what it is known.
    pub key: TenantKey,
    /// What users are shown.
    pub name: String,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The number of its device.
    pub device: i64,
    /// The place of its engine in [`super::Model::engines`].
    pub engine: usize,
    /// The place of its tenant in [`super::Model::tenants`].
    pub tenant: usize,
    /// Its context.
    pub context: i64,
    /// Its number in the context.
    pub sequence: i64,
    /// When it came to each stage first, ns.
    pub at: [Option<i64>; Stage::COUNT],
    /// Where it is.
    pub stage: Stage,
    /// When engines worked on it.
    pub executions: Vec<Execution>,
    /// What became of it.
    pub outcome: Outcome,
}

/// Puts requests into the order in which one first heard of them.
pub(super) fn in_order(requests: &mut [Request]) {
    requests.sort_by_key(|one| (one.queued().or(one.began()), one.engine, one.sequence));
}

impl Request {
    /// When it was first heard of, ns: by the guest if its trace is there, else by the host.
    pub fn queued(&self) -> Option<i64> {
        self.at[..Stage::Running as usize].iter().flatten().min().copied()
    }

    /// Since when it was in its guest before the host heard of it, ns; known of those in a guest's trace and in the host's.
    pub fn in_guest(&self) -> Option<i64> {
        self.when(Stage::VgpuQueued)?;
        self.at[..Stage::VgpuQueued as usize].iter().flatten().min().copied()
    }

    /// When it came to a stage first, ns.
    pub fn when(&self, stage: Stage) -> Option<i64> {
        self.at[stage as usize]
    }

    /// When an engine first worked on it, ns.
    pub fn began(&self) -> Option<i64> {
        self.executions.first().map(|one| one.from)
    }

    /// When its work was done, ns.
    pub fn ended(&self) -> Option<i64> {
        self.when(Stage::Done)
    }

    /// How long engines worked on it, ns.
    pub fn executed(&self) -> i64 {
        self.executions.iter().map(|one| one.to - one.from).sum()
    }
}
