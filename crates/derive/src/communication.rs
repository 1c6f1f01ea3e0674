//! How much of the communication between devices computing hides, and how much it does not.
//!
//! # What it sees
//! Kernels of communication libraries and copies between devices, against all other kernels of the same
//! device. Communication is *overlapped* while another kernel computes there, and *exposed* otherwise. It
//! never counts as computing.
//!
//! # Why it matters
//! The kernels of a collective occupy a device as any other does, so that a GPU that only waits for its
//! peers looks busy.
//!
//! # What fools it
//! Kernels are told apart by their names: a library that nobody named below computes. A kernel that
//! computes and communicates is the one that its name says. Communication by way of the host is copies.

use std::ops::Range;

use gpuwhy_schema::CopyKind;

use crate::sweep::{Cut, Disorder, Interval, Sweep, Work, kind_index};

/// What names of kernels that communicate contain, in lower case: libraries (NCCL, RCCL, MSCCL, NVSHMEM,
/// DeepEP, the packing of MPICH), and collectives of frameworks' own.
const NAMES: &[&str] = &[
    "nccl",
    "rccl",
    "msccl",
    "nvshmem",
    "deep_ep",
    "yaksuri",
    "cross_device_reduce",
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "all_to_all",
    "alltoall",
    "reduce_scatter",
    "reducescatter",
    "sendrecv",
];

/// Whether a kernel of this name communicates with other devices.
pub fn is_communication(kernel: &str) -> bool {
    // Template arguments and parameters name types, not what the kernel does.
    let end = kernel.find(['<', '(']).unwrap_or(kernel.len());
    let head = &kernel.as_bytes()[..end];
    let contains = |name: &&str| {
        head.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name.as_bytes()))
    };
    NAMES.iter().any(contains)
}

/// The communication of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communicated {
    /// Kernels.
    pub kernels: u64,
    /// All of them, ns.
    pub kernels_ns: i64,
    /// Copies between devices.
    pub copies: u64,
    /// All of them, ns.
    pub copies_ns: i64,
    /// Time in which something communicated, ns.
    pub total_ns: i64,
    /// Of that, while nothing computed, ns.
    pub exposed_ns: i64,
    /// Time in which a kernel communicated and nothing computed, ns.
    pub kernels_exposed_ns: i64,
}

impl Communicated {
    /// Time in which a device computed, only communicated, and only copied, ns: of what its kernels took, and of what
    /// copies took that no kernel covered.
    pub fn divide(&self, kernels_ns: i64, copies_exposed_ns: i64) -> [i64; 3] {
        // A copy between devices that nothing covers is an exposed copy and exposed communication.
        let peer = self.exposed_ns - self.kernels_exposed_ns;
        [kernels_ns - self.kernels_exposed_ns, self.exposed_ns, copies_exposed_ns - peer]
            .map(|ns| ns.max(0))
    }
}

impl Communicated {
    /// What these come to.
    pub fn sum(all: &[Communicated]) -> Communicated {
        let mut sum = Communicated::default();
        all.iter().for_each(|one| sum.merge(one));
        sum
    }

    /// What two recordings of the same device come to.
    pub fn merge(&mut self, other: &Communicated) {
        self.kernels += other.kernels;
        self.kernels_ns = self.kernels_ns.saturating_add(other.kernels_ns);
        self.copies += other.copies;
        self.copies_ns = self.copies_ns.saturating_add(other.copies_ns);
        self.total_ns += other.total_ns;
        self.exposed_ns += other.exposed_ns;
        self.kernels_exposed_ns += other.kernels_exposed_ns;
    }
}

/// Takes the work of devices in the order of its begin.
#[derive(Clone, Debug)]
pub struct Communication {
    sweep: Sweep,
    devices: Vec<Latest>,
}

/// What of a device's past may reach into the present. Computing while nothing communicates need not be accounted
/// for, and most of a program is that.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// When the last computing ends.
    computes_until: i64,
    /// When the last communication ends.
    communicates_until: i64,
}

/// What a piece of work is to [`Communication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A kernel that computes.
    Compute,
    /// A kernel that communicates.
    Communicate,
    /// A copy between devices.
    PeerCopy,
}

impl Communication {
    /// Accounts for the work in `range`.
    pub fn new(range: Range<i64>) -> Communication {
        let width = range.end.saturating_sub(range.start).max(1);
        Communication::by_interval(Cut { origin: range.start, width, count: 1 })
    }

    /// Accounts for the work in each interval.
    pub fn by_interval(cut: Cut) -> Communication {
        Communication { sweep: Sweep::new(cut, cut.all()), devices: Vec::new() }
    }

    /// A piece of work of `device` from `start` to `end`.
    ///
    /// # Errors
    /// It began before another piece of that device that was given already.
    pub fn push(
        &mut self,
        device: u32,
        piece: Piece,
        start: i64,
        end: i64,
    ) -> Result<(), Disorder> {
        let number = device as usize;
        if number >= self.devices.len() {
            let never = Latest { computes_until: i64::MIN, communicates_until: i64::MIN };
            self.devices.resize(number + 1, never);
        }
        let latest = &mut self.devices[number];
        let work = match piece {
            Piece::Compute => {
                latest.computes_until = latest.computes_until.max(end);
                if start >= latest.communicates_until {
                    return Ok(());
                }
                Work::Kernel
            }
            Piece::Communicate => Work::Copy(CopyKind::Other),
            Piece::PeerCopy => Work::Copy(CopyKind::PeerToPeer),
        };
        if piece != Piece::Compute {
            latest.communicates_until = latest.communicates_until.max(end);
            // What computes already, and was not accounted for because nothing communicated.
            if latest.computes_until > start {
                self.sweep.push(device, Work::Kernel, start, latest.computes_until, 0)?;
            }
        }
        self.sweep.push(device, work, start, end, 0)
    }

    /// By device; nothing of devices that did not communicate.
    pub fn finish(self) -> Vec<Communicated> {
        self.finish_by_interval().iter().map(|intervals| Communicated::sum(intervals)).collect()
    }

    /// By device and interval, up to the last in which the device did something that counts here.
    pub fn finish_by_interval(self) -> Vec<Vec<Communicated>> {
        let (kernel, peer) = (kind_index(CopyKind::Other), kind_index(CopyKind::PeerToPeer));
        let of = |sums: &Interval| Communicated {
            kernels: sums.copies[kernel].count,
            kernels_ns: sums.copies[kernel].sum,
            copies: sums.copies[peer].count,
            copies_ns: sums.copies[peer].sum,
            total_ns: sums.copy_ns,
            exposed_ns: sums.exposed_ns,
            kernels_exposed_ns: sums.exposed_by[kernel],
        };
        let devices = self.sweep.finish().devices;
        devices.iter().map(|intervals| intervals.iter().map(of).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_libraries_communicate_and_types_in_templates_do_not() {
        let names = [
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
            "void multimem_all_reduce_kernel<c10::BFloat16>()",
            "nvshmemi_transfer_put_kernel",
        ];
        assert!(names.into_iter().all(is_communication));
        let computing = [
            "void at::native::elementwise<ncclComm>(int)",
            "ampere_sgemm_128x64_tn",
            "reduce_kernel(allreduce_params)",
            "",
        ];
        assert!(!computing.into_iter().any(is_communication));
    }

    fn example(mut all: Communication) -> Communication {
        // compute  ██████░░░░░░██░░   0..60 and 120..140
        // nccl     ░░░░████████████   40..160: 20 + 20 beneath, 80 exposed
        // peer     ░░░░░░░░░░░░░░██   150..170: 10 more
        for (piece, start, end) in [
            (Piece::Compute, 0, 60),
            (Piece::Communicate, 40, 160),
            (Piece::Compute, 120, 140),
            (Piece::PeerCopy, 150, 170),
        ] {
            all.push(1, piece, start, end).unwrap();
        }
        all.push(0, Piece::Compute, 500, 600).unwrap();
        all
    }

    #[test]
    fn what_no_other_kernel_covers_is_exposed() {
        let found = example(Communication::new(0..1000)).finish();
        assert_eq!(found[0], Communicated::default(), "it only computes");
        let expected = Communicated {
            kernels: 1,
            kernels_ns: 120,
            copies: 1,
            copies_ns: 20,
            total_ns: 130,
            exposed_ns: 90,
            kernels_exposed_ns: 80,
        };
        assert_eq!(found[1], expected);
    }

    #[test]
    fn intervals_add_up_to_the_whole() {
        let cut = Cut { origin: 0, width: 100, count: 10 };
        let found = example(Communication::by_interval(cut)).finish_by_interval();
        let exposed: Vec<_> =
            found[1].iter().map(|c| (c.exposed_ns, c.kernels_exposed_ns)).collect();
        assert_eq!(exposed, [(40, 40), (50, 40)], "60 to 120 and 140 to 170");
        let whole = example(Communication::new(0..1000)).finish();
        assert_eq!(Communicated::sum(&found[1]), whole[1]);
    }
}
