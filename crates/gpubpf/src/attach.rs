//! Where a program runs, as the name of its section says it.

/// What instructions a program is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// `loads`: `ld`, `ldu`, and `cp.async`, of global memory or through generic addresses.
    Loads,
    /// `stores`: `st`, of the same.
    Stores,
    /// `atomics`: `atom` and `red`, of the same.
    Atomics,
    /// `barriers`: `bar` and `barrier`.
    Barriers,
    /// Loads, stores and atomics together (`kprobe/__memcapture`).
    Accesses,
    /// Any other word: a pattern of the whole opcode, `ld.shared.*`.
    Opcode(String),
}

/// Before or after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before it.
    Before,
    /// After it: its results are there.
    After,
}

/// What a policy answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Memory was allocated, or given back.
    Allocation,
    /// A kernel is launched.
    Launch,
    /// Ten times a second, after the maps of device programs were copied.
    Tick,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allocation, Self::Launch, Self::Tick];

    /// The word for it in names of sections.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allocation => "alloc",
            Self::Launch => "launch",
            Self::Tick => "tick",
        }
    }

    /// How many 8-byte words `r1` points to: of an allocation number, address, bytes, kind, device and whether it was given
    /// back; of a launch number, kernel, stream, grid and block, how many of its parameters point into managed memory, and
    /// of the first four of these allocation, base, bytes and offset; of a tick the time, its number, the process
    /// and the hash of its name.
    pub fn context_words(self) -> usize {
        match self {
            Self::Allocation => 6,
            Self::Launch => 10 + 4 * 4,
            Self::Tick => 4,
        }
    }
}

/// Where a program belongs, by the name of its section.
///
/// `KERNEL` is the name or pattern (`*`, `?`) of kernels, mangled or demangled; where it may be left
/// out, that means every kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// `kprobe/KERNEL`: where the kernel begins.
    Entry(String),
    /// `kretprobe/KERNEL`: where threads of that kernel return.
    Return(String),
    /// `kprobe/__memcapture`: loads, stores and atomics of every kernel, before they are executed.
    Accesses,
    /// `gpu/insn/WHAT[/KERNEL]` and `gpu/insnret/WHAT[/KERNEL]`: before or after instructions.
    Instructions {
        /// Which ones.
        what: What,
        /// When.
        moment: Moment,
        /// In which kernels.
        kernel: String,
    },
    /// `gpu/line/FILE:NUMBER[/KERNEL]`: before the first instruction of a source line, at each place
    /// where the compiler left a part of it.
    Line {
        /// The end of the source file's path.
        file: String,
        /// The line, from 1.
        line: u32,
        /// In which kernels.
        kernel: String,
    },
    /// `gpu/tp/NAME[/KERNEL]`: at tracepoints that the kernel's author put into it.
    Tracepoint {
        /// The tracepoint's name or pattern.
        name: String,
        /// In which kernels.
        kernel: String,
    },
    /// `gpu/order/KERNEL`: which block of a kernel that steals work (`probe run --steal`) is the next.
    Order(String),
    /// `gpu/policy/alloc`, `…/launch` and `…/tick`: a policy, which runs on the host, in the controller (`probe policy`).
    Policy(Event),
    /// A section of ours that says nothing that can be attached to, with the reason.
    Unclear(String),
    /// Anything else, for the host.
    Host,
}

/// The word of an instruction's context that has what it loaded.
pub(crate) const LOADED: usize = 4;

/// The most arguments of a tracepoint.
pub const TRACEPOINT_ARGUMENTS: usize = 8;

impl Attach {
    /// What the section name `section` says.
    pub fn from_section(section: &str) -> Self {
        match section.split_once('/') {
            Some(("kprobe", "__memcapture")) => Self::Accesses,
            Some(("kprobe", name)) => Self::Entry(name.to_owned()),
            Some(("kretprobe", name)) => Self::Return(name.to_owned()),
            Some(("gpu", rest)) => ours(rest),
            _ => Self::Host,
        }
    }

    /// The pattern of the kernels that it is attached to; `None` for programs of the host.
    pub fn kernel(&self) -> Option<&str> {
        match self {
            Self::Entry(kernel)
            | Self::Return(kernel)
            | Self::Instructions { kernel, .. }
            | Self::Line { kernel, .. }
            | Self::Tracepoint { kernel, .. } => Some(kernel),
            Self::Accesses => Some("*"),
            Self::Order(_) | Self::Policy(_) | Self::Unclear(_) | Self::Host => None,
        }
    }

    /// What it answers to, if it is a policy.
    pub fn policy(&self) -> Option<Event> {
        match self {
            Self::Policy(event) => Some(*event),
            _ => None,
        }
    }

    /// The pattern of the kernels whose blocks it puts in order.
    pub fn orders(&self) -> Option<&str> {
        match self {
            Self::Order(kernel) => Some(kernel),
            _ => None,
        }
    }

    /// How many 8-byte words `r1` points to there: the number of the site first, then what is known
    /// of the instruction (address, bytes, kind, and behind a load what was loaded) or the arguments of the tracepoint. Of an order of blocks: the turn,
    /// how many blocks there are, and the grid's three sides.
    pub fn context_words(&self) -> usize {
        match self {
            Self::Entry(_) | Self::Return(_) | Self::Line { .. } => 1,
            Self::Accesses | Self::Instructions { .. } => 5,
            Self::Tracepoint { .. } => 1 + TRACEPOINT_ARGUMENTS,
            Self::Order(_) => 5,
            Self::Policy(event) => event.context_words(),
            Self::Unclear(_) | Self::Host => 0,
        }
    }
}

/// What follows `gpu/`.
fn ours(rest: &str) -> Attach {
    let (kind, rest) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.is_empty() {
        let reason = format!("`gpu/{kind}` lacks what it is attached to");
        return Attach::Unclear(reason);
    }
    let (first, kernel) = rest.split_once('/').unwrap_or((rest, "*"));
    let kernel = if kernel.is_empty() { "*" } else { kernel };
    match kind {
        "insn" | "insnret" => Attach::Instructions {
            what: what(first),
            moment: if kind == "insn" { Moment::Before } else { Moment::After },
            kernel: kernel.to_owned(),
        },
        "tp" => Attach::Tracepoint { name: first.to_owned(), kernel: kernel.to_owned() },
        "line" => line(rest),
        "order" => Attach::Order(rest.to_owned()),
        "policy" => match Event::ALL.into_iter().find(|event| event.word() == rest) {
            Some(event) => Attach::Policy(event),
            None => Attach::Unclear(format!(
                "`gpu/policy/{rest}` is not known; there are gpu/policy/alloc, gpu/policy/launch and gpu/policy/tick"
            )),
        },
        _ => Attach::Unclear(format!(
            "`gpu/{kind}` is not known; there are gpu/insn, gpu/insnret, gpu/line, gpu/tp, gpu/order and gpu/policy"
        )),
    }
}

fn what(word: &str) -> What {
    match word {
        "loads" => What::Loads,
        "stores" => What::Stores,
        "atomics" => What::Atomics,
        "barriers" => What::Barriers,
        "accesses" => What::Accesses,
        pattern => What::Opcode(pattern.to_owned()),
    }
}

/// `FILE:NUMBER[/KERNEL]`, where the file may be a path: the number is what follows the last colon
/// that digits follow.
fn line(rest: &str) -> Attach {
    let place = rest.rmatch_indices(':').find_map(|(at, _)| {
        let (digits, kernel) = match rest[at + 1..].split_once('/') {
            Some((digits, kernel)) => (digits, kernel),
            None => (&rest[at + 1..], "*"),
        };
        let number = digits.parse::<u32>().ok().filter(|&number| number > 0)?;
        Some((&rest[..at], number, kernel)).filter(|(file, ..)| !file.is_empty())
    });
    match place {
        Some((file, line, kernel)) => {
            Attach::Line { file: file.to_owned(), line, kernel: kernel.to_owned() }
        }
        None => Attach::Unclear(format!("`gpu/line/{rest}` is not FILE:NUMBER")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(section: &str) -> String {
        format!("{:?}", Attach::from_section(section))
    }

    #[test]
    fn sections_say_where_a_program_runs() {
        let table = [
            ("kprobe/_Z3addPf", r#"Entry("_Z3addPf")"#),
            ("kretprobe/ns::f", r#"Return("ns::f")"#),
            ("kprobe/__memcapture", "Accesses"),
            ("uprobe/launch", "Host"),
            ("tracepoint/syscalls/sys_enter", "Host"),
            ("gpu/insn/loads", r#"Instructions { what: Loads, moment: Before, kernel: "*" }"#),
            (
                "gpu/insnret/bar.*/a/b",
                r#"Instructions { what: Opcode("bar.*"), moment: After, kernel: "a/b" }"#,
            ),
            (
                "gpu/line/src/k.cu:17/gemm*",
                r#"Line { file: "src/k.cu", line: 17, kernel: "gemm*" }"#,
            ),
            ("gpu/line/k.cu:17/ns::f", r#"Line { file: "k.cu", line: 17, kernel: "ns::f" }"#),
            ("gpu/order/ns::f", r#"Order("ns::f")"#),
            ("gpu/policy/alloc", "Policy(Allocation)"),
            ("gpu/policy/tick", "Policy(Tick)"),
            ("gpu/order", "Unclear(\"`gpu/order` lacks what it is attached to\")"),
            ("gpu/tp/phase", r#"Tracepoint { name: "phase", kernel: "*" }"#),
            ("gpu/line/k.cu", "Unclear(\"`gpu/line/k.cu` is not FILE:NUMBER\")"),
            ("gpu/line/k.cu:0", "Unclear(\"`gpu/line/k.cu:0` is not FILE:NUMBER\")"),
            ("gpu/tp", "Unclear(\"`gpu/tp` lacks what it is attached to\")"),
        ];
        for (section, wanted) in table {
            assert_eq!(told(section), wanted, "{section}");
        }
        assert!(told("gpu/what/x").contains("is not known; there are"));
        assert!(told("gpu/policy/kernel").contains("is not known; there are gpu/policy/alloc"));
    }
}
