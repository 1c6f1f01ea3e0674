//! Situations of requests, written as events.

use super::metrics::{Running, Usage, metrics};
use super::*;

/// Follows events, each a line of time, name and `field=value`.
pub(super) fn followed(text: &str) -> (Model, Vec<Request>) {
    let mut model = Model::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let time = words.next().unwrap().parse().unwrap();
        let name = words.next().unwrap();
        let fields: Vec<(&str, Field<'_>)> =
            words.map(|w| w.split_once('=').unwrap()).map(|(k, v)| (k, Field::Text(v))).collect();
        model.event(&Event { time, tid: Some(7), comm: Some("glxgears"), name, fields: &fields });
    }
    let requests = model.finish();
    (model, requests)
}

fn stretches(request: &Request) -> Vec<(i64, i64, bool)> {
    request.executions.iter().map(|e| (e.from, e.to, e.preempted)).collect()
}

const ONE: &str = "
    100 gvt_workload_queue dev=0 vgpu_id=1 ring_id=0 workload=0xa0
    200 gvt_workload_submit dev=0 vgpu_id=1 ring_id=0 workload=0xa0 ctx=17 seqno=1
    210 i915_gem_request_add dev=0 ctx=17 ring=0 seqno=1 global=0
    220 i915_gem_request_submit dev=0 ctx=17 ring=0 seqno=1 global=5
    230 i915_gem_request_in dev=0 ctx=17 ring=0 seqno=1 global_seqno=5 port=0
    400 intel_engine_notify dev=0 ring=0 seqno=5 waiters=1
    403 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=1 global=5
    410 gvt_workload_complete dev=0 vgpu_id=1 ring_id=0 workload=0xa0
    420 i915_gem_request_retire dev=0 ctx=17 ring=0 seqno=1 global=5";

#[test]
fn a_request_is_followed_from_the_virtual_gpus_queue_to_its_end() {
    let (model, requests) = followed(ONE);
    assert_eq!(requests.len(), 1);
    let one = &requests[0];
    let stages = [
        (Stage::VgpuQueued, 100),
        (Stage::VgpuSubmitted, 200),
        (Stage::HostQueued, 210),
        (Stage::Ready, 220),
        (Stage::Running, 230),
        (Stage::Done, 400),
        (Stage::Notified, 400),
        (Stage::Retired, 420),
    ];
    for (stage, at) in stages {
        assert_eq!(one.when(stage), Some(at), "{stage:?}");
    }
    assert_eq!((one.context, one.sequence, one.outcome), (17, 1, Outcome::Done));
    assert_eq!(stretches(one), [(230, 400, false)]);
    assert_eq!(model.tenants[one.tenant].key, TenantKey::Vgpu(1));
    assert_eq!(model.misfits, super::model::Misfits::default());
    assert_eq!(model.missing(), [("gvt_sched_switch", "slices and debts")]);
}

#[test]
fn the_same_number_in_two_contexts_is_two_requests_of_two_tenants() {
    let other = ONE.replace("vgpu_id=1", "vgpu_id=2").replace("=0xa0", "=0xb0");
    let other = other.replace("ctx=17", "ctx=22").replace("=5", "=6");
    let mut lines: Vec<&str> = ONE.lines().chain(other.lines()).map(str::trim).collect();
    lines.retain(|line| !line.is_empty());
    lines.sort_by_key(|line| line.split(' ').next().unwrap().parse::<i64>().unwrap());
    let (model, requests) = followed(&lines.join("\n"));
    assert_eq!(requests.len(), 2);
    let owners: Vec<_> = requests.iter().map(|one| model.tenants[one.tenant].key).collect();
    assert_eq!(owners, [TenantKey::Vgpu(1), TenantKey::Vgpu(2)]);
    assert_eq!(requests.iter().map(|one| one.context).collect::<Vec<_>>(), [17, 22]);
    assert_eq!(model.misfits.impossible + model.misfits.repeated, 0);
}

#[test]
fn the_hosts_driver_may_tell_of_a_request_before_gvt_does() {
    let text = ONE.replace("200 gvt", "215 gvt");
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines.sort_by_key(|line| line.split(' ').next().unwrap().parse::<i64>().unwrap());
    let (model, requests) = followed(&lines.join("\n"));
    assert_eq!(requests.len(), 1, "{requests:#?}");
    assert_eq!(requests[0].when(Stage::VgpuSubmitted), Some(215));
    assert_eq!(requests[0].when(Stage::HostQueued), Some(210));
    assert_eq!(model.tenants[requests[0].tenant].key, TenantKey::Vgpu(1));
    assert_eq!(stretches(&requests[0]), [(230, 400, false)]);
}

#[test]
fn a_number_is_used_again_after_the_request_is_retired_and_when_it_wraps() {
    let later = |text: &str| {
        let moved = |line: &str| {
            let (time, rest) = line.trim().split_once(' ').unwrap();
            format!("{} {rest}", time.parse::<i64>().unwrap() + 1000)
        };
        text.lines().filter(|l| !l.trim().is_empty()).map(moved).collect::<Vec<_>>().join("\n")
    };
    // Of 64 bits there and 32 here: the low ones count.
    let wrapped = later(ONE).replace("_complete dev", "_complete x=1 dev");
    let wrapped = wrapped
        .replace("_out dev=0 ctx=17 ring=0 seqno=1 ", "_out dev=0 ctx=17 ring=0 seqno=4294967297 ");
    let (model, requests) = followed(&format!("{ONE}\n{wrapped}"));
    assert_eq!(requests.len(), 2);
    assert_eq!(stretches(&requests[0]), [(230, 400, false)]);
    assert_eq!(stretches(&requests[1]), [(1230, 1400, false)]);
    assert_eq!(model.misfits, super::model::Misfits::default());
}

#[test]
fn a_request_taken_off_its_engine_has_an_execution_for_each_time() {
    let (_, requests) = followed(
        "10 i915:i915_request_add dev=0 ctx=3 class=0 instance=0 seqno=9
         20 i915:i915_request_in dev=0 ctx=3 class=0 instance=0 seqno=9 port=0
         50 i915:i915_request_out dev=0 ctx=3 class=0 instance=0 seqno=9 completed=0
         70 i915:i915_request_in dev=0 ctx=3 class=0 instance=0 seqno=9 port=0
         90 i915:i915_request_out dev=0 ctx=3 class=0 instance=0 seqno=9 completed=1",
    );
    assert_eq!(stretches(&requests[0]), [(20, 50, true), (70, 90, false)]);
    assert_eq!((requests[0].ended(), requests[0].when(Stage::Preempted)), (Some(90), Some(50)));
    // Older kernels do not say why it left: that it comes again says it.
    let (_, requests) = followed(
        "10 i915_gem_request_add dev=0 ctx=3 ring=0 seqno=9
         20 i915_gem_request_in dev=0 ctx=3 ring=0 seqno=9 global_seqno=4
         50 i915_gem_request_out dev=0 ctx=3 ring=0 seqno=9
         70 i915_gem_request_in dev=0 ctx=3 ring=0 seqno=9 global_seqno=6
         90 i915_gem_request_out dev=0 ctx=3 ring=0 seqno=9",
    );
    assert_eq!(requests.len(), 1);
    assert_eq!(stretches(&requests[0]), [(20, 50, true), (70, 90, false)]);
}

#[test]
fn a_request_on_the_second_port_begins_when_the_first_ends() {
    let (model, requests) = followed(
        "20 i915_request_in dev=0 ctx=3 class=0 instance=0 seqno=1 port=0
         25 i915_request_in dev=0 ctx=4 class=0 instance=0 seqno=1 port=1
         60 i915_request_out dev=0 ctx=3 class=0 instance=0 seqno=1 completed=1
         80 i915_request_out dev=0 ctx=4 class=0 instance=0 seqno=1 completed=1",
    );
    assert_eq!(stretches(&requests[0]), [(20, 60, false)]);
    assert_eq!(stretches(&requests[1]), [(60, 80, false)]);
    let usage = Usage::new(&requests);
    // Half of the first and half of the second.
    assert_eq!(metrics(&model, &requests, &usage, (40, 70)).engines[0].busy, 30);
}

#[test]
fn the_time_of_an_engine_is_of_those_whose_jobs_ran() {
    let job = |client: i64, from: i64, to: i64| {
        format!(
            "{from} drm_sched_job_queue name=gfx dev=a fence_context={client} fence_seqno=1 client_id={client}
             {from} drm_sched_job_run name=gfx dev=a fence_context={client} fence_seqno=1 client_id={client}
             {to} drm_sched_job_done fence_context={client} fence_seqno=1\n"
        )
    };
    let (model, requests) = followed(&[job(5, 10, 60), job(6, 62, 90)].concat());
    let all = metrics(&model, &requests, &Usage::new(&requests), (40, 70));
    let tenants = all.tenants.iter().map(|own| (own.tenant, own.busy.clone()));
    assert_eq!(tenants.collect::<Vec<_>>(), [(0, [(0, 20)].into()), (1, [(0, 8)].into())]);
}

#[test]
fn jobs_of_the_drm_scheduler_are_followed_by_their_fences() {
    let (model, requests) = followed(
        "10 drm_sched_job_queue name=gfx dev=0000:03:00.0 fence_context=8 fence_seqno=2 client_id=5
         30 drm_sched_job_run name=gfx dev=0000:03:00.0 fence_context=8 fence_seqno=2 client_id=5
         70 drm_sched_job_done fence_context=8 fence_seqno=2",
    );
    assert_eq!(stretches(&requests[0]), [(30, 70, false)]);
    assert_eq!(model.tenants[requests[0].tenant].key, TenantKey::Client(5));
    let (_, requests) = followed(
        "10 drm_sched_job entity=0x1 fence=0xf0 name=gfx id=3 job_count=0 hw_job_count=0
         30 drm_run_job entity=0x1 fence=0xf0 name=gfx id=3 job_count=0 hw_job_count=0
         70 drm_sched_process_job fence=0xf0
         80 drm_sched_job entity=0x1 fence=0xf0 name=gfx id=4 job_count=0 hw_job_count=0",
    );
    assert_eq!(requests.len(), 2, "the address is another job's now");
    assert_eq!(stretches(&requests[0]), [(30, 70, false)]);
}

#[test]
fn events_that_cannot_be_are_counted_and_change_nothing() {
    let (model, requests) = followed(&format!(
        "{ONE}
         500 gvt_workload_queue dev=0 vgpu_id=1 ring_id=0
         510 i915_gem_request_out dev=0 ctx=99 ring=0 seqno=1
         520 gvt_workload_complete dev=0 vgpu_id=1 ring_id=0 workload=0xa0
         530 i915_gem_request_add dev=0 ctx=17 ring=0 seqno=2
         540 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=2
         550 i915_gem_object_destroy obj=0xdead
         560 dma_fence_signaled driver=x timeline=gfx context=5 seqno=5"
    ));
    let misfits = model.misfits;
    assert_eq!(misfits.nameless, 1);
    assert_eq!(misfits.unmatched, 1);
    assert_eq!(misfits.repeated, 1);
    assert_eq!(misfits.impossible, 1);
    assert_eq!(misfits.unknown_objects, 1);
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].outcome, Outcome::Unfinished);
    // Its context is the virtual GPU's, though GVT-g did not tell of this request.
    assert_eq!(requests[1].tenant, requests[0].tenant);
}

#[test]
fn memory_is_of_who_asked_for_it() {
    let (model, _) = followed(
        "1 i915_gem_object_create obj=0x10 size=4096
         2 i915_gem_object_create obj=0x20 size=8192
         3 i915_gem_object_destroy obj=0x10
         4 i915_gem_object_create obj=0x10 size=1024",
    );
    let memory = model.memory["glxgears (7)"];
    assert_eq!((memory.made, memory.live, memory.peak), (3, 9216, 12288));
}

#[test]
fn what_has_to_leave_the_devices_memory_is_kept_with_what_lives_then() {
    let (model, _) = followed(
        "1 i915_gem_object_create obj=0x10 size=4096
         2 i915_gem_object_create obj=0x20 size=8192
         3 i915_gem_evict dev=0 size=512
         4 i915_gem_object_destroy obj=0x20
         5 amdgpu_bo_move bo=0x10 bo_size=64 new_placement=1 old_placement=2
         6 amdgpu_bo_move bo=0x10 bo_size=64 new_placement=2 old_placement=1
         7 amdgpu_bo_move bo=0x10 bo_size=64 new_placement=1 old_placement=0
         8 amdgpu_bo_move bo=0x10 bo_size=64 new_placement=2 old_placement=2",
    );
    // To the device, between others, and within it makes no room.
    let all = model.evictions.iter().map(|one| (one.at, one.bytes, one.live, one.by.as_str()));
    let by = "glxgears (7)";
    assert_eq!(all.collect::<Vec<_>>(), [(3, 512, 12288, by), (5, 64, 4096, by)]);
    assert_eq!((model.all_memory.live, model.all_memory.peak), (4096, 12288));
}

#[test]
fn a_request_whose_end_was_lost_waits_no_longer_than_until_a_later_one_of_its_context_ended() {
    let job = |number: i64, from: i64| {
        format!(
            "{from} amdgpu_cs_ioctl timeline=gfx context=5 seqno={number} ring_name=1
             {} amdgpu_sched_run_job timeline=gfx context=5 seqno={number} ring_name=1\n",
            from + 10
        )
    };
    let done = |number: i64, at: i64| {
        format!("{at} dma_fence_signaled driver=a timeline=gfx context=5 seqno={number}\n")
    };
    let queued = "15 amdgpu_cs_ioctl timeline=gfx context=5 seqno=2 ring_name=1\n";
    let (last, none) =
        (job(4, 700), "710 amdgpu_cs_ioctl timeline=gfx context=9 seqno=1 ring_name=1\n");
    let text =
        [job(1, 0), queued.into(), done(1, 100), job(3, 200), done(3, 300), last, none.into()];
    let (model, requests) = followed(&text.concat());
    assert_eq!(requests.len(), 5);
    let all = metrics(&model, &requests, &Usage::new(&requests), (0, 1000));
    let own = &all.tenants[0];
    // The second, the fourth, and one of another context; only the second was overtaken.
    assert_eq!((own.done, own.unfinished, own.overtaken), (2, 3, 1));
    // From 0 to 300, and from 700 on, when one runs and one waits.
    assert_eq!(own.backlogged, 600);
    assert!((own.queue - (10.0 + 10.0 + 10.0 + 290.0) / 1000.0).abs() < 1e-9, "{}", own.queue);
    let engine = &all.engines[0];
    assert_eq!((engine.done, engine.software.mean, engine.hardware.mean), (2, 10.0, 0.0));
    assert_eq!(engine.executions.mean, 90.0);
}

#[test]
fn what_two_cover_and_what_neither_does_is_found_in_one_pass() {
    let one = Running::new(vec![(0, 10), (20, 30), (25, 40), (100, 110)]);
    let other = Running::new(vec![(5, 22), (38, 39), (39, 101), (109, 500)]);
    // 5 to 10, 20 to 22, 38 to 40, 100 to 101, 109 to 110.
    assert_eq!((one.overlap(&other), other.overlap(&one)), (11, 11));
    assert_eq!((one.overlap(&Running::default()), one.overlap(&one)), (0, 40));
    assert_eq!(one.uncovered(-5, 105), [(-5, 0), (10, 20), (40, 100)]);
    assert_eq!(one.uncovered(22, 45), [(40, 45)]);
    assert_eq!(one.uncovered(3, 8), []);
    assert_eq!(one.uncovered(50, 50), []);
}

#[test]
fn a_guests_commands_take_until_the_host_answers() {
    // The times are those of Perfetto's own test of virtio-gpu.
    let (model, requests) = followed(
        "1345090723759 virtio_gpu:virtio_gpu_cmd_queue ctx_id=27 dev=4 fence_id=67980 name=control seqno=143910 type=519 vq=0
         1345090746311 virtio_gpu:virtio_gpu_cmd_queue ctx_id=27 dev=4 fence_id=0 name=control seqno=143911 type=515 vq=0
         1345090750000 virtio_gpu:virtio_gpu_cmd_queue ctx_id=0 dev=4 fence_id=0 name=cursor seqno=143911 type=768 vq=1
         1345091904071 virtio_gpu:virtio_gpu_cmd_response ctx_id=27 dev=4 fence_id=67980 name=control seqno=143910 type=4352 vq=0
         1345091913446 virtio_gpu:virtio_gpu_cmd_response ctx_id=0 dev=4 fence_id=0 name=control seqno=143911 type=4352 vq=0",
    );
    let engines: Vec<&str> = model.engines.iter().map(|one| &*one.name).collect();
    assert_eq!(engines, ["control", "cursor"]);
    let lasted = |one: &Request| Some(one.ended()? - one.queued().or(one.began())?);
    let all: Vec<_> = requests.iter().map(lasted).collect();
    assert_eq!(all, [Some(1_180_312), Some(1_167_135), None]);
    // The host answers a queue in its order: the second began when the first was answered.
    assert_eq!(stretches(&requests[1]), [(1_345_091_904_071, 1_345_091_913_446, false)]);
    assert_eq!(model.misfits, super::model::Misfits::default());
}

#[test]
fn commands_of_kernels_that_do_not_number_them_are_known_by_their_fences() {
    let (model, requests) = followed(
        "10 virtio_gpu_cmd_queue vdev=4 vq=0 name=control type=0x207 fence_id=7 ctx_id=3
         20 virtio_gpu_cmd_queue vdev=4 vq=0 name=control type=0x203 fence_id=0 ctx_id=3
         90 virtio_gpu_cmd_response vdev=4 vq=0 name=control type=0x1100 fence_id=7 ctx_id=3",
    );
    assert_eq!(requests.iter().map(Request::ended).collect::<Vec<_>>(), [Some(90)]);
    assert_eq!(model.misfits.nameless, 1, "a command without a number and without a fence");
}
