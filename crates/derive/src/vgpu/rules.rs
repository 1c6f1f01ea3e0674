//! What each tracepoint does to a request, as data: a new kernel's names are new lines here.

use super::request::Stage;

/// How an event names its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Device, context, engine and number in the context (i915).
    Request,
    /// Device and number on the whole engine (i915 of Linux 4.14: `intel_engine_notify`).
    Global,
    /// Virtual GPU and address of the workload (GVT-g).
    Workload,
    /// Context and number of the fence that says that the job is finished (amdgpu, DRM scheduler since 6.17).
    Fence,
    /// The number of the job and later its fence (DRM scheduler before 6.17).
    Job,
    /// Device, queue and number of a command of a guest's driver; its fence where commands have no numbers (virtio-gpu).
    Command,
}

/// What an event does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request comes to a stage.
    To(Stage),
    /// The engine lets go of the request: done, or preempted where a field `completed` is 0.
    Out,
    /// The scheduler of virtual GPUs takes the device from one, which has so much of its slice left.
    Slice,
    /// A buffer is made.
    ObjectMade,
    /// A buffer is no more.
    ObjectGone,
    /// Something has to leave the device's memory, so that something else fits.
    Evicted,
}

/// What a tracepoint does.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name, without its system.
    pub event: &'static str,
    /// What it does.
    pub action: Action,
    /// How it names the request.
    pub key: Key,
    /// Whether a request may begin with it, because what comes before is not always traced.
    pub begins: bool,
    /// What is not known without it; empty where another event tells the same.
    pub without: &'static str,
}

const fn rule(event: &'static str, action: Action, key: Key, begins: bool) -> Rule {
    Rule { event, action, key, begins, without: "" }
}

const fn costs(without: &'static str, rule: Rule) -> Rule {
    Rule { without, ..rule }
}

/// Spellings of the fields.
pub mod fields {
    /// The device.
    pub const DEVICE: &[&str] = &["dev", "gpu_id"];
    /// The context.
    pub const CONTEXT: &[&str] = &["ctx", "hw_id", "context", "fence_context"];
    /// The number in the context.
    pub const SEQUENCE: &[&str] = &["seqno", "fence_seqno"];
    /// The engine as one number.
    pub const RING: &[&str] = &["ring", "ring_id"];
    /// The engine by class and instance.
    pub const CLASS: &[&str] = &["class"];
    /// The instance of the class.
    pub const INSTANCE: &[&str] = &["instance"];
    /// The number on the engine.
    pub const GLOBAL: &[&str] = &["global_seqno", "global"];
    /// The virtual GPU.
    pub const VGPU: &[&str] = &["vgpu_id", "vgpu"];
    /// The workload of a virtual GPU.
    pub const WORKLOAD: &[&str] = &["workload", "workload_id", "wrkld"];
    /// What is left of a slice, ns.
    pub const LEFT: &[&str] = &["left_ts", "left", "timeslice_left"];
    /// The ring by its name.
    pub const TIMELINE: &[&str] = &["timeline", "name"];
    /// The client of the driver.
    pub const CLIENT: &[&str] = &["client_id"];
    /// The number of a request in its context, as newer kernels of the DRM scheduler call it.
    pub const ID: &[&str] = &["id"];
    /// Whether a request that leaves its engine is done: 0 if it was taken off.
    pub const COMPLETED: &[&str] = &["completed"];
    /// The address of a buffer.
    pub const OBJECT: &[&str] = &["obj"];
    /// Its bytes, and those that room is made for.
    pub const SIZE: &[&str] = &["size", "bo_size"];
    /// Where a buffer goes and comes from, as the memory manager TTM numbers places.
    pub const TO_PLACE: &[&str] = &["new_placement"];
    /// Where it comes from.
    pub const FROM_PLACE: &[&str] = &["old_placement"];
    /// The address of a job's fence.
    pub const FENCE: &[&str] = &["fence"];
    /// The number of the fence of a guest's command; 0 if it has none.
    pub const FENCE_ID: &[&str] = &["fence_id"];
    /// All that the model asks for.
    pub const ALL: &[&str] = &[
        "dev",
        "gpu_id",
        "ctx",
        "hw_id",
        "context",
        "fence_context",
        "seqno",
        "fence_seqno",
        "ring",
        "ring_id",
        "class",
        "instance",
        "global_seqno",
        "global",
        "vgpu_id",
        "vgpu",
        "workload",
        "workload_id",
        "wrkld",
        "left_ts",
        "left",
        "timeslice_left",
        "timeline",
        "name",
        "client_id",
        "id",
        "completed",
        "obj",
        "size",
        "bo_size",
        "new_placement",
        "old_placement",
        "fence",
        "fence_id",
    ];
}

use Action::{Evicted, ObjectGone, ObjectMade, Out, Slice, To};
use Key::{Command, Fence, Global, Job, Request, Workload};
use Stage::{
    Done, GuestSubmitted, HostQueued, Notified, Ready, Retired, Running, VgpuQueued, VgpuSubmitted,
};

/// Every tracepoint that the model knows.
pub const RULES: &[Rule] = &[
    // GVT-g with the tracepoints of the paper.
    costs(
        "the wait in virtual GPUs' queues",
        rule("gvt_workload_queue", To(VgpuQueued), Workload, true),
    ),
    costs("whose a request is", rule("gvt_workload_submit", To(VgpuSubmitted), Workload, true)),
    rule("gvt_workload_complete", To(Notified), Workload, false),
    costs("slices and debts", rule("gvt_sched_switch", Slice, Workload, false)),
    // i915 of Linux 4.14.
    rule("i915_gem_request_queue", To(HostQueued), Request, true),
    costs(
        "the wait in the host's queue",
        rule("i915_gem_request_add", To(HostQueued), Request, true),
    ),
    costs(
        "dependencies apart from the host",
        rule("i915_gem_request_submit", To(Ready), Request, true),
    ),
    costs("executions", rule("i915_gem_request_in", To(Running), Request, true)),
    costs("executions", rule("i915_gem_request_out", Out, Request, false)),
    rule("intel_engine_notify", To(Notified), Global, false),
    rule("i915_gem_request_retire", To(Retired), Request, false),
    rule("i915_gem_object_create", ObjectMade, Request, false),
    rule("i915_gem_object_destroy", ObjectGone, Request, false),
    rule("i915_gem_evict", Evicted, Request, false),
    // i915 since Linux 4.17.
    rule("i915_request_queue", To(HostQueued), Request, true),
    rule("i915_request_add", To(HostQueued), Request, true),
    rule("i915_request_submit", To(Ready), Request, true),
    rule("i915_request_guc_submit", To(Ready), Request, true),
    rule("i915_request_in", To(Running), Request, true),
    rule("i915_request_out", Out, Request, false),
    rule("i915_request_retire", To(Retired), Request, false),
    // amdgpu, whose jobs end with the fence of the scheduler.
    rule("amdgpu_cs_ioctl", To(HostQueued), Fence, true),
    rule("amdgpu_sched_run_job", To(Running), Fence, true),
    rule("dma_fence_signaled", To(Done), Fence, false),
    rule("amdgpu_bo_move", Evicted, Fence, false),
    // The DRM scheduler before Linux 6.17, where the run names the fence by its address.
    rule("drm_sched_job", To(HostQueued), Job, true),
    rule("drm_run_job", To(Running), Job, true),
    rule("drm_sched_process_job", To(Done), Job, false),
    // And since.
    rule("drm_sched_job_queue", To(HostQueued), Fence, true),
    rule("drm_sched_job_run", To(Running), Fence, true),
    rule("drm_sched_job_done", To(Done), Fence, false),
    // A guest of virtio-gpu, which sees what it asks for and when the host has answered.
    rule("virtio_gpu_cmd_queue", To(GuestSubmitted), Command, true),
    rule("virtio_gpu_cmd_response", To(Notified), Command, false),
];

/// What an event does, by its name without the system.
pub fn of(event: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.event == event)
}

#[cfg(test)]
mod tests {
    use super::fields::*;

    #[test]
    fn whatever_is_asked_for_is_kept() {
        let asked = [
            DEVICE, CONTEXT, SEQUENCE, RING, CLASS, INSTANCE, GLOBAL, VGPU, WORKLOAD, LEFT,
            TIMELINE, CLIENT, ID, COMPLETED, OBJECT, SIZE, TO_PLACE, FROM_PLACE, FENCE, FENCE_ID,
        ];
        assert_eq!(asked.concat(), ALL);
    }
}
