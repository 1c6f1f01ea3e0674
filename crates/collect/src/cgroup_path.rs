//! Reads a cgroup path: its hierarchy, and the container, pod, batch job, service or virtual machine
//! that it was made for.
//!
//! Text in, names out; nothing here opens a file. The forms are those that runtimes are known to
//! write (docker, containerd, cri-o, podman, LXC, kubelet with both cgroup drivers, Slurm under v1
//! and v2, libvirt with and without systemd, systemd services). A path of another form has no owner
//! but the cgroup itself.
//!
//! Whoever was given a cgroup may make others in it, and call them what he likes. So a path is read from
//! its root, and a name counts only at the place where its manager puts it: a pod below `kubepods` at the
//! root or in a slice of the system, a job below Slurm's own folder. What lies below a container, a job,
//! a virtual machine, or below a service is theirs, whatever it is called (the outermost wins), and what
//! lies below a user's own systemd is that user's: `unit:` and container ids there have `user:N/` in
//! front.

/// One line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    /// The hierarchy: `v2`, or `v1:` and the controller that matters most of those mounted
    /// together (`v1:cpu` for `cpu,cpuacct`, `v1:systemd` for `name=systemd`).
    pub hierarchy: String,
    /// The path within the hierarchy, as seen from our own cgroup namespace.
    pub path: String,
}

impl Membership {
    /// The key of the cgroup's entity: `v2:/a/b`, `v1:cpu:/a/b`.
    pub fn key(&self) -> String {
        format!("{}:{}", self.hierarchy, self.path)
    }

    fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// All lines of a `/proc/PID/cgroup`; lines of another form are left out.
pub(crate) fn memberships(text: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if !path.starts_with('/') {
            return None;
        }
        // A cgroup that was removed while the process was in it.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        Some(Membership { hierarchy: hierarchy(controllers), path: path.to_owned() })
    };
    text.lines().filter_map(line).collect()
}

fn hierarchy(controllers: &str) -> String {
    if controllers.is_empty() {
        return "v2".into();
    }
    let main = ["cpu", "memory", "blkio"]
        .into_iter()
        .find(|main| controllers.split(',').any(|c| c == *main))
        .or_else(|| controllers.split(',').next())
        .unwrap_or(controllers);
    format!("v1:{}", main.strip_prefix("name=").unwrap_or(main))
}

/// The membership that a process is shown in: one that names a container or a job before one that
/// does not, and then the hierarchy that limits the CPU. `None` if all are roots.
pub(crate) fn main_membership(memberships: &[Membership]) -> Option<&Membership> {
    let rank = |m: &&Membership| {
        let hierarchy = match m.hierarchy.as_str() {
            "v1:cpu" => 0,
            "v2" => 1,
            "v1:memory" => 2,
            "v1:blkio" => 3,
            "v1:systemd" => 5,
            _ => 4,
        };
        (owners(&m.path) == Owners::default(), hierarchy)
    };
    memberships.iter().filter(|m| !m.is_root()).min_by_key(rank)
}

/// What a cgroup was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    /// A container.
    pub container: Option<Owner>,
    /// A pod, batch job or service.
    pub job: Option<Owner>,
    /// A virtual machine.
    pub vm: Option<Owner>,
}

/// A container, job or virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// What distinguishes it from others: a container's id, `k8s:<pod uid>`, `slurm:<job id>`.
    pub key: String,
    /// Its name for people.
    pub name: String,
}

/// Where in a path one is, which decides what the next folder may mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Above our own cgroup: somewhere that we do not see, but that no container was given.
    Above,
    /// At the root, or in slices of the system.
    System,
    /// In a folder that a container runtime makes its containers in, or below its service.
    Runtime,
    RuntimeService,
    /// In `lxc`, in `machine`.
    Lxc,
    Machine,
    /// In the kubelet's own folder; in `kubepods` and its classes of service; in a pod.
    Kubelet,
    Kube,
    Pod,
    /// In Slurm's folder.
    Slurm,
    /// In the slice of all users, in that of one, and below that one's systemd.
    Users,
    User(u32),
    UserUnits(u32),
}

/// Folders at the root in which runtimes make containers.
const RUNTIMES: [&str; 4] = ["docker", "ecs", "actions_job", "libpod_parent"];

/// Services that make pods below themselves.
const POD_SERVICES: [&str; 6] = [
    "containerd.service",
    "crio.service",
    "docker.service",
    "k3s.service",
    "k3s-agent.service",
    "kubelet.service",
];

/// What a cgroup path was made for.
pub(crate) fn owners(path: &str) -> Owners {
    let path = unescape_systemd(path);
    let mut found = Owners::default();
    let mut place = Place::System;
    for segment in path.split('/').filter(|s| !s.is_empty()) {
        let next = match segment {
            ".." if matches!(place, Place::System | Place::Above) => Some(Place::Above),
            _ => found.enter(place, segment),
        };
        match next {
            Some(next) => place = next,
            None => break,
        }
    }
    found
}

impl Owners {
    /// Goes one folder down; `None` where all that lies below belongs to what was found.
    fn enter(&mut self, place: Place, segment: &str) -> Option<Place> {
        match place {
            Place::System => self.enter_system(segment),
            Place::Above => self
                .enter_kube(segment)
                .or_else(|| self.enter_pod(segment))
                .or_else(|| if self.is_empty() { self.enter_system(segment) } else { None }),
            Place::Kubelet => is_kubepods(segment).then_some(Place::Kube),
            Place::Kube => self.enter_kube(segment),
            Place::Pod => self.enter_pod(segment),
            Place::Runtime => {
                self.container = container(segment, false);
                // `ecs` has folders of tasks.
                (self.is_empty() && segment.len() < 64).then_some(Place::Runtime)
            }
            Place::RuntimeService => {
                if is_kubepods(segment) {
                    return Some(Place::Kube);
                }
                self.set_pod_and_container(segment);
                None
            }
            Place::Lxc => {
                self.container = Some(lxc(segment));
                None
            }
            Place::Machine => {
                self.vm = segment
                    .strip_prefix("qemu-")
                    .and_then(|s| s.strip_suffix(".libvirt-qemu"))
                    .and_then(vm);
                None
            }
            Place::Slurm => {
                let job = segment.strip_prefix("job_").filter(|job| digits(job));
                self.job = job.map(|job| Owner {
                    key: format!("slurm:{job}"),
                    name: format!("slurm job {job}"),
                });
                let is_user = segment.strip_prefix("uid_").is_some_and(digits);
                is_user.then_some(Place::Slurm)
            }
            Place::Users => {
                let uid = segment.strip_prefix("user-")?.strip_suffix(".slice")?;
                uid.parse().ok().map(Place::User)
            }
            Place::User(uid) => {
                (segment == format!("user@{uid}.service")).then_some(Place::UserUnits(uid))
            }
            Place::UserUnits(uid) => self.enter_user_units(uid, segment),
        }
    }

    fn enter_system(&mut self, segment: &str) -> Option<Place> {
        if is_kubepods(segment) {
            return Some(Place::Kube);
        }
        if RUNTIMES.contains(&segment) {
            return Some(Place::Runtime);
        }
        if segment == "slurm" || segment.starts_with("slurm_") || is_slurmstepd(segment) {
            return Some(Place::Slurm);
        }
        match segment {
            "kubelet" | "kubelet.slice" => return Some(Place::Kubelet),
            "lxc" => return Some(Place::Lxc),
            "machine" => return Some(Place::Machine),
            "user.slice" => return Some(Place::Users),
            _ if segment.ends_with(".slice") => return Some(Place::System),
            _ => {}
        }
        if self.set_pod_and_container(segment) {
            return None;
        }
        if let Some(name) = segment.strip_prefix("lxc.payload.") {
            self.container = Some(lxc(name));
        } else if let Some(machine) = segment.strip_prefix("machine-qemu-") {
            self.vm = machine.strip_suffix(".scope").and_then(vm);
        } else if segment.ends_with(".scope") {
            self.container = container(segment, true);
        } else if segment.ends_with(".service") {
            let key = format!("unit:{segment}");
            self.job = Some(Owner { key, name: segment.to_owned() });
            // A runtime's own processes are its service's; its pods are not.
            return POD_SERVICES.contains(&segment).then_some(Place::RuntimeService);
        }
        None
    }

    fn enter_kube(&mut self, segment: &str) -> Option<Place> {
        if is_kubepods(segment) || is_class_of_service(segment) {
            return Some(Place::Kube);
        }
        let uid = pod(segment)?;
        self.job = Some(pod_owner(&uid));
        Some(Place::Pod)
    }

    fn enter_pod(&mut self, segment: &str) -> Option<Place> {
        let found = container(segment, false);
        if found.is_some() {
            self.container = found;
        }
        None
    }

    fn enter_user_units(&mut self, uid: u32, segment: &str) -> Option<Place> {
        if segment.ends_with(".slice") {
            return Some(Place::UserUnits(uid));
        }
        if segment.ends_with(".service") {
            let key = format!("user:{uid}/unit:{segment}");
            self.job = Some(Owner { key, name: format!("{segment} of user {uid}") });
        } else if let Some(found) = container(segment, true) {
            let key = format!("user:{uid}/{}", found.key);
            self.container = Some(Owner { key, name: format!("{} of user {uid}", found.name) });
        }
        None
    }

    /// Whether the folder is a container and names its pod.
    fn set_pod_and_container(&mut self, segment: &str) -> bool {
        let Some((pod, container)) = pod_and_container(segment) else { return false };
        (self.job, self.container) = (Some(pod), Some(container));
        true
    }

    fn is_empty(&self) -> bool {
        *self == Owners::default()
    }
}

fn is_slurmstepd(segment: &str) -> bool {
    segment == "slurmstepd.scope" || segment.ends_with("_slurmstepd.scope")
}

/// `kubepods`, `kubepods.slice`, `kubelet-kubepods.slice`.
fn is_kubepods(segment: &str) -> bool {
    let name = segment.strip_suffix(".slice").unwrap_or(segment);
    name == "kubepods" || segment.ends_with("-kubepods.slice")
}

/// `burstable`, `kubepods-besteffort.slice`.
fn is_class_of_service(segment: &str) -> bool {
    let name = segment.strip_suffix(".slice").map(|s| s.rsplit('-').next().unwrap_or(s));
    let name = name.filter(|_| segment.contains("kubepods-")).unwrap_or(segment);
    matches!(name, "burstable" | "besteffort" | "guaranteed")
}

fn pod_owner(uid: &str) -> Owner {
    Owner { key: format!("k8s:{uid}"), name: format!("pod {uid}") }
}

/// containerd under a kubelet that disagrees about the driver writes
/// `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>` as one folder.
fn pod_and_container(segment: &str) -> Option<(Owner, Owner)> {
    let mut parts = segment.split(':');
    let (slice, runtime, id) = (parts.next()?, parts.next()?, parts.next()?);
    let uid = pod(slice).filter(|_| slice.contains("kubepods") && parts.next().is_none())?;
    Some((pod_owner(&uid), container(&format!("{runtime}-{id}"), false)?))
}

/// systemd writes a `-` within a name as `\x2d`.
fn unescape_systemd(path: &str) -> String {
    path.replace("\\x2d", "-")
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The uid in `pod<uid>` or `kubepods-burstable-pod<uid>.slice`: a UUID, with `_` for `-` under
/// the systemd driver, or the 32 digits of a static pod's hash.
fn pod(segment: &str) -> Option<String> {
    let segment = segment.strip_suffix(".slice").unwrap_or(segment);
    let uid = segment[segment.rfind("pod")? + 3..].replace('_', "-");
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    let shaped = lengths == [8, 4, 4, 4, 12] || lengths == [32];
    (shaped && uid.split('-').all(hex)).then_some(uid)
}

fn lxc(name: &str) -> Owner {
    Owner { key: format!("lxc:{name}"), name: name.to_owned() }
}

/// `<64 digits>`, `docker-<64 digits>.scope` and the like; the latter only where it must be `named` after
/// its runtime.
fn container(segment: &str, named: bool) -> Option<Owner> {
    let segment = segment.strip_suffix(".scope").unwrap_or(segment);
    let (runtime, id) = match segment.rsplit_once('-') {
        Some((runtime, id)) => (runtime, id),
        None if named => return None,
        None => ("", segment),
    };
    // `crio-conmon-<id>` holds the monitor process of a container, not the container.
    if id.len() != 64 || !hex(id) || runtime.ends_with("conmon") {
        return None;
    }
    let known = ["docker", "cri-containerd", "crio", "libpod"];
    let name = match known.into_iter().find(|known| *known == runtime) {
        Some(runtime) => format!("{runtime} {}", &id[..12]),
        None => id[..12].to_owned(),
    };
    Some(Owner { key: id.to_owned(), name })
}

/// `3-instance-00000001`.
fn vm(numbered: &str) -> Option<Owner> {
    let (number, name) = numbered.split_once('-')?;
    (digits(number) && !name.is_empty())
        .then(|| Owner { key: format!("libvirt:{name}"), name: name.to_owned() })
}

/// Where cgroup hierarchies are mounted, from `/proc/self/mountinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts(Vec<Mount>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    hierarchy: String,
    /// The cgroup that is visible at the mount point; not `/` where a container was given a part.
    root: String,
    point: String,
}

impl Mounts {
    /// The mounts in the text of a `mountinfo`.
    pub fn parse(mountinfo: &str) -> Mounts {
        let line = |line: &str| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            let hierarchy = match kind {
                "cgroup2" => hierarchy(""),
                "cgroup" => {
                    let named = |o: &&str| !matches!(*o, "rw" | "ro" | "xattr" | "clone_children");
                    let controllers: Vec<&str> = options.split(',').filter(named).collect();
                    hierarchy(&controllers.join(","))
                }
                _ => return None,
            };
            Some(Mount { hierarchy, root: unescape_octal(root), point: unescape_octal(point) })
        };
        Mounts(mountinfo.lines().filter_map(line).collect())
    }

    /// The folder of a cgroup, if its hierarchy is mounted and it lies below what is visible.
    pub fn folder(&self, membership: &Membership) -> Option<String> {
        let mount = self.0.iter().find(|m| m.hierarchy == membership.hierarchy)?;
        // A path that leaves our cgroup namespace begins with `/..`.
        if membership.path.split('/').any(|s| s == "..") {
            return None;
        }
        let below = if mount.root == "/" {
            membership.path.as_str()
        } else {
            let rest = membership.path.strip_prefix(mount.root.as_str())?;
            if !rest.is_empty() && !rest.starts_with('/') {
                return None;
            }
            rest
        };
        Some(format!("{}{}", mount.point, below.trim_end_matches('/')))
    }

    /// The hierarchies that are mounted.
    pub fn hierarchies(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|m| m.hierarchy.as_str())
    }
}

/// `mountinfo` writes space, tab, newline and backslash in octal.
fn unescape_octal(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (code, character)| text.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e";

    /// `container | job | vm` of a path, `-` for none; `ID` and `UID` stand for long numbers.
    fn check(path: &str, expected: &str) {
        let path = path.replace("U_ID", &UID.replace('-', "_"));
        let path = path.replace("UID", UID).replace("ID64", ID);
        let found = owners(&path);
        let key = |o: &Option<Owner>| o.as_ref().map_or("-".into(), |o| o.key.clone());
        let text = format!("{} | {} | {}", key(&found.container), key(&found.job), key(&found.vm));
        assert_eq!(text.replace(ID, "ID64").replace(UID, "UID"), expected, "{path}");
    }

    #[test]
    fn containers_pods_jobs_and_virtual_machines_are_recognised_by_their_paths() {
        check("/", "- | - | -");
        check("/user.slice/user-1000.slice/session-2.scope", "- | - | -");
        check("/docker/ID64", "ID64 | - | -");
        check("/system.slice/docker-ID64.scope", "ID64 | - | -");
        check("/machine.slice/libpod-ID64.scope/container", "ID64 | - | -");
        check("/machine.slice/libpod-conmon-ID64.scope", "- | - | -");
        check("/lxc.payload.web/init.scope", "lxc:web | - | -");
        check("/lxc/web", "lxc:web | - | -");
        check("/kubepods/podUID/ID64", "ID64 | k8s:UID | -");
        check("/kubepods/burstable/podUID/ID64", "ID64 | k8s:UID | -");
        check("/kubepods/besteffort/podUID", "- | k8s:UID | -");
        check(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID64.scope",
            "ID64 | k8s:UID | -",
        );
        check(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_ID.slice/crio-ID64.scope",
            "ID64 | k8s:UID | -",
        );
        check(
            "/kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice/crio-conmon-ID64.scope",
            "- | k8s:0123456789abcdef0123456789abcdef | -",
        );
        check(
            "/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:ID64",
            "ID64 | k8s:UID | -",
        );
        check("/system.slice/slurmstepd.scope/job_42/step_0/user/task_1", "- | slurm:42 | -");
        check("/system.slice/node7_slurmstepd.scope/job_42/step_batch", "- | slurm:42 | -");
        check("/slurm/uid_1000/job_43/step_extern", "- | slurm:43 | -");
        check("/slurm_node7/uid_1000/job_43", "- | slurm:43 | -");
        check("/builds/job_43", "- | - | -");
        check(
            r"/machine.slice/machine-qemu\x2d3\x2dinstance\x2d00000001.scope/libvirt/vcpu0",
            "- | - | libvirt:instance-00000001",
        );
        check("/machine/qemu-1-instance1.libvirt-qemu", "- | - | libvirt:instance1");
        check("/system.slice/redis-server.service", "- | unit:redis-server.service | -");
        check(
            "/user.slice/user-0.slice/user@0.service/app.slice/agent.service",
            "- | user:0/unit:agent.service | -",
        );
        check("/user.slice/user-0.slice/user@0.service/app.slice", "- | - | -");
        check(
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID64.scope/container",
            "user:1000/ID64 | - | -",
        );
        check("/system.slice/containerd.service", "- | unit:containerd.service | -");
        check("/ecs/0123456789abcdef0123456789abcdef/ID64", "ID64 | - | -");
        // As seen from a recorder in a pod.
        check(
            "/../../kubepods-burstable-podU_ID.slice/cri-containerd-ID64.scope",
            "ID64 | k8s:UID | -",
        );
        check("/../cri-containerd-ID64.scope", "ID64 | - | -");
        check("/../../../system.slice/redis.service", "- | unit:redis.service | -");
        check("/../podUID/ID64", "ID64 | k8s:UID | -");
    }

    /// Finding 13: a cgroup may be made by whoever was given the one above, under any name.
    #[test]
    fn forged_names_below_what_somebody_was_given_are_his() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        let forged = [
            "kubepods/podUID/ID64",
            "kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID64.scope",
            "kubepods-podU_ID.slice:cri-containerd:ID64",
            "docker/ID64",
            "slurm/uid_0/job_42",
            "slurmstepd.scope/job_42",
            "lxc/web",
            "lxc.payload.web",
            "machine/qemu-1-victim.libvirt-qemu",
            "machine-qemu-1-victim.scope",
            "system.slice/redis-server.service",
        ];
        for name in forged {
            // Below a user's own systemd: nothing, or that user's unit.
            let path = format!("{user}/app.slice/evil.service/{name}");
            check(&path, "- | user:1000/unit:evil.service | -");
            // Below a container, a job, a virtual machine or a service: theirs.
            let other = "f".repeat(64);
            for (above, owner) in [
                (format!("/docker/{other}"), format!("{other} | - | -")),
                ("/system.slice/slurmstepd.scope/job_7/step_0".into(), "- | slurm:7 | -".into()),
                ("/slurm/uid_1000/job_7".into(), "- | slurm:7 | -".into()),
                ("/machine/qemu-1-a.libvirt-qemu".into(), "- | - | libvirt:a".into()),
                ("/lxc/a".into(), "lxc:a | - | -".into()),
                ("/system.slice/httpd.service".into(), "- | unit:httpd.service | -".into()),
                ("/system.slice/app.scope".into(), "- | - | -".into()),
                ("/user.slice/user-1000.slice/session-2.scope".into(), "- | - | -".into()),
                ("/home-made".into(), "- | - | -".into()),
            ] {
                check(&format!("{above}/{name}"), &owner);
            }
        }
        // A user's own slices hold no pods, and other people's containers have other keys.
        check(
            &format!("{user}/kubepods.slice/kubepods-podU_ID.slice/docker-ID64.scope"),
            "user:1000/ID64 | - | -",
        );
        check(&format!("{user}/kubepods/podUID/ID64"), "- | - | -");
        // Another user's systemd is not in this one's slice.
        check("/user.slice/user-1000.slice/user@0.service/x.service", "- | - | -");
        // The outermost of two containers.
        let inner = "e".repeat(64);
        check(&format!("/docker/ID64/docker/{inner}"), "ID64 | - | -");
        check(&format!("/docker/ID64/kubelet/kubepods/podUID/{inner}"), "ID64 | - | -");
        check(&format!("/kubepods/podUID/ID64/kubepods/podUID/{inner}"), "ID64 | k8s:UID | -");
    }

    /// Keys of all memberships, then the one that is shown as the process's cgroup.
    fn member(text: &str, expected: &str) {
        let all = memberships(text);
        let keys: Vec<String> = all.iter().map(Membership::key).collect();
        let shown = main_membership(&all).map_or("-".into(), Membership::key);
        assert_eq!(format!("{} > {shown}", keys.join(" ")), expected);
    }

    #[test]
    fn a_process_is_shown_in_the_cgroup_that_limits_its_cpu() {
        member("0::/\n", "v2:/ > -");
        member("0::/user.slice\n", "v2:/user.slice > v2:/user.slice");
        member(
            "9:name=systemd:/init\n4:memory:/m\n2:cpu,cpuacct:/quota\n0::/x\n",
            "v1:systemd:/init v1:memory:/m v1:cpu:/quota v2:/x > v1:cpu:/quota",
        );
        member(
            "4:memory:/docker\n1:cpu:/\n0::/\n",
            "v1:memory:/docker v1:cpu:/ v2:/ > v1:memory:/docker",
        );
        // The hierarchy that names a job wins over one that names nothing.
        member(
            "1:cpu:/limits/a\n0::/system.slice/slurmstepd.scope/job_7\n",
            "v1:cpu:/limits/a v2:/system.slice/slurmstepd.scope/job_7 > v2:/system.slice/slurmstepd.scope/job_7",
        );
        member("rubbish\n1:cpu\n0::relative\n0::/gone (deleted)\n", "v2:/gone > v2:/gone");
    }

    #[test]
    fn folders_are_found_in_hybrid_and_bound_mounts() {
        let mounts = Mounts::parse(
            "30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
             31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             33 30 0:29 / /sys/fs/cgroup/my\\040unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
             broken line\n",
        );
        let folder = |text: &str| {
            let all = memberships(text);
            mounts.folder(&all[0]).unwrap_or("-".into())
        };
        assert_eq!(folder("1:cpu,cpuacct:/a/b"), "/sys/fs/cgroup/cpu,cpuacct/a/b");
        assert_eq!(folder("1:cpu,cpuacct:/"), "/sys/fs/cgroup/cpu,cpuacct");
        assert_eq!(folder("1:memory:/docker/abc/x"), "/sys/fs/cgroup/memory/x");
        assert_eq!(folder("1:memory:/docker/abcd"), "-");
        assert_eq!(folder("1:memory:/other"), "-");
        assert_eq!(folder("0::/a"), "/sys/fs/cgroup/my unified/a");
        assert_eq!(folder("0::/../a"), "-");
        assert_eq!(folder("1:pids:/a"), "-");
    }
}
