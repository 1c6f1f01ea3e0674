//! Which member of which job a report is of, by what the report itself holds.
//!
//! # In which order of trust
//! 1. The rows of `MPI_RANKS`, and names of threads (`MPI Rank 6`): each for its process.
//! 2. The environment that `nsys` was started in (`META_DATA_CAPTURE`, else `DeviceEnvironment` of
//!    `TARGET_INFO_SYSTEM_ENV`): of MPI, of PyTorch's launcher, of Slurm.
//! 3. The name of the file, if it says `rank3`.
//!
//! Never the order in which the files were given, and no number of a default name (`report3`).
//!
//! # What fools it
//! - `SLURM_PROCID` is 0 in every shell of an allocation: it is a rank only in a step of several tasks.
//! - The environment of a launcher (`nsys profile torchrun …`) is not that of the processes below it: where
//!   several processes used a GPU, it names none of them.
//! - `SLURM_NTASKS` is the size of the allocation, not of the MPI job within it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Variables that are kept of an environment; the others are nobody's business.
const VARIABLES: &[&str] = &[
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_JOBID",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_HET_JOB_ID",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "AWS_BATCH_JOB_ID",
    "COBALT_JOBID",
    "TORCHELASTIC_RUN_ID",
    "PALS_APID",
    "JSM_NAMESPACE",
    "SINGULARITY_CONTAINER",
    "SINGULARITY_NAME",
    "APPTAINER_CONTAINER",
    "APPTAINER_NAME",
    "SHIFTER_IMAGEREQUEST",
    "container",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_POD_NAME",
    "POD_NAME",
    "HOSTNAME",
    "MODAL_TASK_ID",
    "CONTAINER_ID",
];

/// Ranks in an environment, the most trusted first, with the size of the same world. In each process that
/// it starts, PyTorch's launcher sets all of its three; it is started by MPI or Slurm rather than the
/// other way round.
const RANKS: &[(&str, &[&str])] = &[
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"]),
    ("MV2_COMM_WORLD_RANK", &["MV2_COMM_WORLD_SIZE"]),
    ("PMIX_RANK", &["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]),
    ("PMI_RANK", &["PMI_SIZE"]),
    ("RANK", &["WORLD_SIZE"]),
    (SLURM, &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
];

/// Ids of batch jobs. A job of several parts has one that all share, and one of each part.
const JOBS: &[(&str, &str)] = &[
    ("SLURM_HET_JOB_ID", "slurm"),
    ("SLURM_JOB_ID", "slurm"),
    ("SLURM_JOBID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("FLUX_JOB_ID", "flux"),
    ("AWS_BATCH_JOB_ID", "aws_batch"),
    ("COBALT_JOBID", "cobalt"),
];
/// Ids of one launch of a program on all its ranks: of PMIx (Open MPI, `srun --mpi=pmix`), of PyTorch's launcher,
/// of HPE's and of IBM's. A step of Slurm is none: `mpirun` may start its ranks in several.
const LAUNCHES: &[(&str, &str)] = &[
    ("TORCHELASTIC_RUN_ID", "torchelastic"),
    ("PMIX_NAMESPACE", "pmix"),
    ("PALS_APID", "pals"),
    ("JSM_NAMESPACE", "jsm"),
];

/// The rank of a task of Slurm.
pub(super) const SLURM: &str = "SLURM_PROCID";
/// How the name of a file is called where a rank comes from it.
pub(super) const FILE_NAME: &str = "the file's name";
/// How the names of threads are called where a rank comes from them.
const THREAD_NAMES: &str = "the names of threads";

/// Which member of which job a report is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// The rank of all its processes, if they have one.
    pub rank: Option<u32>,
    /// By what that rank is known, or those of its processes.
    pub by: Option<&'static str>,
    /// How many ranks the job has.
    pub world: Option<u32>,
    /// The ranks of its processes, by pid.
    pub ranks: HashMap<i64, u32>,
    /// The batch job: `slurm 165592`.
    pub job: Option<String>,
    /// The launch of the program within it, if the launcher names it: `pmix 2253717505`.
    pub launch: Option<String>,
    /// The container or pod.
    pub container: Option<String>,
    /// A rank that only counts if other reports of the same job have others: `SLURM_PROCID=0`.
    pub perhaps: Option<u32>,
    /// What else is to be said of it.
    pub remark: Option<String>,
}

/// What a report holds of who it is.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Ranks of processes by `MPI_RANKS`, by pid.
    pub mpi: HashMap<i64, u32>,
    /// Ranks of processes by the names of their threads, by pid.
    pub threads: HashMap<i64, u32>,
    /// The variables of its environment.
    environment: HashMap<&'static str, String>,
    /// Processes that used a GPU.
    pub contexts: BTreeSet<i64>,
    /// The name of the host, by which it is shown.
    pub display_name: Option<String>,
}

/// The rank in the name of a thread, as Nsight gives it to the thread that called `MPI_Init`.
pub(super) fn rank_of_thread(name: &str) -> Option<u32> {
    name.strip_prefix("MPI Rank ")?.trim().parse().ok()
}

/// The rank in the name of a file that says so: `rank3.sqlite`, `report.rank-12.sqlite`.
pub(super) fn rank_in(path: &Path) -> Option<u32> {
    let name = path.file_stem()?.to_str()?.to_ascii_lowercase();
    let at = name.rfind("rank")?;
    // Not the end of another word: `crank3`.
    if name[..at].chars().next_back().is_some_and(char::is_alphanumeric) {
        return None;
    }
    let after = &name[at + 4..];
    let digits = after.trim_start_matches(['-', '_', '.', '=']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

impl Evidence {
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        if let Some(known) = VARIABLES.iter().find(|known| **known == name) {
            let value = value.trim().trim_matches('"').to_owned();
            self.environment.entry(known).or_insert(value);
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.environment.get(name)?.parse().ok()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|value| &**value).filter(|value| !value.is_empty())
    }

    /// The rank by the environment, the variable that says so, and the size of its world.
    fn in_environment(&self) -> Option<(u32, &'static str, Option<u32>)> {
        let launched =
            ["RANK", "WORLD_SIZE", "LOCAL_RANK"].iter().all(|v| self.number(v).is_some());
        let first = launched.then_some(&("RANK", &["WORLD_SIZE"] as &[&str]));
        let one = |(name, sizes): &(&'static str, &[&str])| {
            let rank = self.number(name)?;
            let world = sizes.iter().find_map(|size| self.number(size));
            let needs_world = *name == "RANK";
            let fits = world.map_or(!needs_world, |world| rank < world);
            fits.then_some((rank, *name, world))
        };
        first.into_iter().chain(RANKS).find_map(one)
    }

    /// The size of the world by the environment of MPI or of the launcher.
    fn world(&self) -> Option<u32> {
        let sizes = ["OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"];
        sizes.iter().chain(&["SLURM_STEP_NUM_TASKS"]).find_map(|size| self.number(size))
    }

    /// Who this is. `file` is the name of the report.
    pub fn identify(self, file: &Path) -> Identity {
        let mut of =
            Identity { job: self.first(JOBS), container: self.container(), ..Identity::default() };
        // Without a rendezvous of its own, PyTorch's launcher calls every run so.
        of.launch = self.first(LAUNCHES).filter(|launch| launch != "torchelastic none");
        let by_rows = [(&self.mpi, "MPI_RANKS"), (&self.threads, THREAD_NAMES)];
        let named = rank_in(file);
        if let Some((ranks, by)) = by_rows.into_iter().find(|(ranks, _)| !ranks.is_empty()) {
            let all: BTreeSet<u32> = ranks.values().copied().collect();
            of.ranks = ranks.clone();
            of.by = Some(by);
            of.rank = all.first().copied().filter(|_| all.len() == 1);
            of.world = self.world().filter(|world| all.last().is_none_or(|rank| rank < world));
        } else if let Some((rank, by, world)) = self.in_environment() {
            if self.contexts.len() > 1 {
                of.remark = Some(format!(
                    "{} processes used a GPU: {by}={rank} is of what started them",
                    self.contexts.len()
                ));
            } else {
                self.of_environment(&mut of, rank, by, world);
            }
        }
        match (named, of.rank) {
            (Some(named), Some(rank)) if named != rank => {
                of.remark = Some(format!("its name says rank {named}, its contents {rank}"));
            }
            (Some(named), None) if of.by.is_none() && of.world != Some(1) => {
                (of.rank, of.by, of.perhaps) = (Some(named), Some(FILE_NAME), None);
            }
            _ => {}
        }
        of
    }

    fn of_environment(&self, of: &mut Identity, rank: u32, by: &'static str, world: Option<u32>) {
        // A job of one has no ranks that could differ.
        if world == Some(1) {
            of.world = world;
            return;
        }
        // A shell of an allocation is no task of a step.
        let is_task =
            self.number("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks > 1) || rank > 0;
        (of.by, of.world) = (Some(by), world);
        if by == SLURM && !is_task {
            (of.by, of.world, of.perhaps) = (None, None, Some(rank));
        } else {
            of.rank = Some(rank);
        }
    }

    /// The first of these variables that is there, behind the word for its kind.
    fn first(&self, kinds: &[(&str, &str)]) -> Option<String> {
        kinds.iter().find_map(|(name, kind)| Some(format!("{kind} {}", self.text(name)?)))
    }

    fn container(&self) -> Option<String> {
        let images = [
            ("SINGULARITY", ["SINGULARITY_CONTAINER", "SINGULARITY_NAME"]),
            ("APPTAINER", ["APPTAINER_CONTAINER", "APPTAINER_NAME"]),
        ];
        let image = || {
            // An image has one name, and as many containers as it was started times.
            let of = |(kind, names): &(&str, [&str; 2])| {
                let image = names.iter().find_map(|name| self.text(name))?;
                let name = image.rsplit('/').next().unwrap_or(image);
                Some(format!("{} {name}", kind.to_ascii_lowercase()))
            };
            let shifter = || Some(format!("shifter {}", self.text("SHIFTER_IMAGEREQUEST")?));
            images.iter().find_map(of).or_else(shifter)
        };
        // Docker and Podman call a host by the first twelve digits of its container's id.
        let by_host = || {
            let host = self.text("HOSTNAME")?;
            let is_id =
                host.len() == 12 && host.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let engine = self.text("container").unwrap_or("id");
            is_id.then(|| format!("{engine} {host}"))
        };
        let engine = || self.text("container").map(|engine| format!("{engine} without a name"));
        let pod = self.text("KUBERNETES_POD_NAME").or(self.text("POD_NAME"));
        // A pod's host name is its own name.
        let in_pod = || self.text("KUBERNETES_SERVICE_HOST").and(self.text("HOSTNAME"));
        let pod = pod.or_else(in_pod).map(|pod| format!("pod {pod}"));
        let modal = || self.text("MODAL_TASK_ID").map(|id| format!("modal {id}"));
        let id = || self.text("CONTAINER_ID").map(|id| format!("id {id}"));
        pod.or_else(id).or_else(modal).or_else(image).or_else(by_host).or_else(engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(environment: &[(&str, &str)], contexts: i64) -> Evidence {
        let mut found = Evidence { contexts: (0..contexts).collect(), ..Evidence::default() };
        environment.iter().for_each(|(name, value)| found.variable(name, value));
        found
    }

    /// The rank, the world and by what they are known.
    fn says(environment: &[(&str, &str)], contexts: i64, file: &str) -> String {
        let of = evidence(environment, contexts).identify(Path::new(file));
        let text = |n: Option<u32>| n.map_or("-".into(), |n| n.to_string());
        format!("{} of {} by {}", text(of.rank), text(of.world), of.by.unwrap_or("nothing"))
    }

    #[test]
    fn the_rank_may_stand_in_the_name_of_the_file() {
        let rank = |name: &str| rank_in(Path::new(name));
        assert_eq!(rank("a/rank3.sqlite"), Some(3));
        assert_eq!(rank("job_Rank-12.sqlite"), Some(12));
        assert_eq!(rank("ranking.sqlite"), None);
        assert_eq!(rank("crank3.sqlite"), None);
        assert_eq!(rank("report1.sqlite"), None);
    }

    #[test]
    fn the_environment_says_the_rank() {
        let ompi = [("OMPI_COMM_WORLD_RANK", "\"3\""), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(says(&ompi, 1, "report1.sqlite"), "3 of 8 by OMPI_COMM_WORLD_RANK");
        // mpirun in a shell of Slurm, where every task has SLURM_PROCID=0.
        let shell = [ompi[0], ompi[1], ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(says(&shell, 1, "x"), "3 of 8 by OMPI_COMM_WORLD_RANK");
        let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_NTASKS", "8")];
        assert_eq!(says(&step, 1, "x"), "0 of 4 by SLURM_PROCID");
        assert_eq!(says(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], 1, "x"), "1 of 2 by PMI_RANK");
    }

    #[test]
    fn a_shell_of_slurm_or_a_job_of_one_has_no_rank() {
        assert_eq!(
            says(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")], 1, "x"),
            "- of - by nothing"
        );
        let one = [("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("SLURM_PROCID", "0")];
        assert_eq!(says(&one, 1, "x"), "- of 1 by nothing");
        // RANK alone may mean anything.
        assert_eq!(says(&[("RANK", "5")], 1, "x"), "- of - by nothing");
        assert_eq!(says(&[("RANK", "9"), ("WORLD_SIZE", "8")], 1, "x"), "- of - by nothing");
    }

    #[test]
    fn pytorchs_launcher_is_below_slurm_and_below_it_are_several_processes() {
        let launched = [
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "1"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
        ];
        assert_eq!(says(&launched, 1, "x"), "9 of 16 by RANK");
        // The report of a launcher with its eight processes.
        assert_eq!(says(&launched[3..], 8, "x"), "- of - by nothing");
    }

    #[test]
    fn contents_are_believed_rather_than_the_name_of_the_file() {
        let mut found = evidence(&[("OMPI_COMM_WORLD_SIZE", "8")], 1);
        found.threads.insert(4242, 6);
        let of = found.identify(Path::new("rank0.sqlite"));
        assert_eq!((of.rank, of.world, of.by), (Some(6), Some(8), Some(THREAD_NAMES)));
        assert_eq!(of.remark.as_deref(), Some("its name says rank 0, its contents 6"));
        assert_eq!(says(&[], 1, "a/rank3.sqlite"), "3 of - by the file's name");
    }

    #[test]
    fn a_report_of_several_ranks_has_them_by_process() {
        let mut found = evidence(&[], 2);
        found.threads.extend([(1, 0), (2, 1)]);
        let of = found.identify(Path::new("report1.sqlite"));
        assert_eq!((of.rank, of.ranks.len()), (None, 2));
    }

    #[test]
    fn jobs_and_pods_are_known_by_the_environment() {
        let of = evidence(&[("SLURM_JOBID", "17"), ("HOSTNAME", "h")], 1).identify(Path::new("x"));
        assert_eq!((of.job.as_deref(), of.container), (Some("slurm 17"), None));
        let pod = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("HOSTNAME", "train-0")];
        let of = evidence(&pod, 1).identify(Path::new("x"));
        assert_eq!(of.container.as_deref(), Some("pod train-0"));
        let parts = [("SLURM_JOB_ID", "18"), ("SLURM_HET_JOB_ID", "17"), ("PMIX_NAMESPACE", "9")];
        let of = evidence(&parts, 1).identify(Path::new("x"));
        assert_eq!((of.job.as_deref(), of.launch.as_deref()), (Some("slurm 17"), Some("pmix 9")));
        let of = evidence(&[("TORCHELASTIC_RUN_ID", "none")], 1).identify(Path::new("x"));
        assert_eq!((of.job, of.launch), (None, None));
    }

    #[test]
    fn containers_are_known_by_what_they_set() {
        let container =
            |environment: &[_]| evidence(environment, 1).identify(Path::new("x")).container;
        let says = |environment: &[_]| container(environment).unwrap_or_default();
        assert_eq!(
            says(&[("SINGULARITY_CONTAINER", "/gpfs/x/multi gpu.simg")]),
            "singularity multi gpu.simg"
        );
        assert_eq!(says(&[("APPTAINER_NAME", "a.sif")]), "apptainer a.sif");
        assert_eq!(says(&[("HOSTNAME", "3f4e8a90bc12")]), "id 3f4e8a90bc12");
        assert_eq!(
            says(&[("HOSTNAME", "3f4e8a90bc12"), ("container", "podman")]),
            "podman 3f4e8a90bc12"
        );
        assert_eq!(says(&[("HOSTNAME", "node7"), ("container", "oci")]), "oci without a name");
        // The names of a cluster's nodes may consist of such letters, too.
        assert_eq!(container(&[("HOSTNAME", "dead-beef-00")]), None);
    }
}
