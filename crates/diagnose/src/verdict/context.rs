//! What a judgement needs of the recorded rows besides steps and parts: names, tracks, what sources
//! lost, and readings of GPU drivers.

use foldhash::{HashMap, HashSet};
use gpuwhy_schema::{
    Class, Entity, EntityId, EntityKind, Name, Part, Rows, Source, SourceState, Track, TrackId,
    names, sources,
};

use super::finding::Culprit;
use crate::demand::Demands;
use crate::evidence::{Evidence, Pointer};
use crate::gpu::Readings;

/// What a judgement needs of the recorded rows besides steps and parts.
pub struct JudgeContext<'a> {
    entities: HashMap<EntityId, &'a Entity>,
    tracks: HashMap<(EntityId, &'a str), &'a Track>,
    loss: Vec<Loss>,
    readings: Readings,
    demands: Demands,
    /// Pids of gpuwhy's own processes that recorded.
    recorders: HashSet<i64>,
    /// The control group of the processes of a command, where there is but one that is known.
    only_groups: HashMap<&'a Name, Option<EntityId>>,
}

/// Entities that are one culprit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Group {
    /// The processes of a command in a control group.
    Command(Name, Option<EntityId>),
    /// One that is no process.
    Alone(EntityId),
}

/// A source that did not see everything.
struct Loss {
    evidence: Evidence,
    /// The classes that it is evidence for; all of them if none is listed.
    classes: &'static [Class],
    /// Whether it lost events, rather than was set up to see fewer.
    lost: bool,
}

/// What a process belongs to, if more is known than its host.
fn home(entities: &HashMap<EntityId, &Entity>, process: &Entity) -> Option<EntityId> {
    let is_host = |id: &EntityId| entities.get(id).is_some_and(|of| of.kind == EntityKind::Host);
    process.parent.filter(|id| !is_host(id))
}

/// Losses rarer than one event in this many do not change a verdict.
const LOSS_MATTERS_ONE_IN: u64 = 1000;
/// A chain of parents is short; one longer than this is a loop in a hostile trace.
const MOST_PARENTS: usize = 16;

impl Loss {
    /// What a source did not see, if that matters.
    fn of(source: &Source) -> Option<Loss> {
        let all = source.recorded + source.dropped;
        let lost = source.dropped > 0 && source.dropped * LOSS_MATTERS_ONE_IN >= all;
        let says = match source.state {
            _ if !sources::is_evidence(&source.kind) => return None,
            SourceState::Ok if !lost => return None,
            SourceState::Ok => format!("{} lost {} of {all} events", source.kind, source.dropped),
            state => {
                let note = source.note.as_deref().unwrap_or("no reason given");
                format!("{} was {state}: {note}", source.kind)
            }
        };
        let sql = "select * from 'source/*.parquet'".to_string();
        let rows = Pointer { table: "source", track: None, from_ns: 0, to_ns: 0, sql };
        let evidence = Evidence { says, rows: Some(rows) };
        Some(Loss { evidence, classes: sources::evidence_for(&source.kind), lost })
    }
}

impl<'a> JudgeContext<'a> {
    /// Looks names and tracks up in `rows`, and what its sources lost.
    pub fn new(rows: &'a Rows) -> JudgeContext<'a> {
        let sources: HashMap<_, _> = rows.source.iter().map(|s| (s.id, s)).collect();
        let mut sources: Vec<_> = sources.into_values().collect();
        sources.sort_by_key(|s| s.id);
        let entities: HashMap<EntityId, &Entity> = rows.entity.iter().map(|e| (e.id, e)).collect();
        let mut only_groups: HashMap<&Name, Option<EntityId>> = HashMap::default();
        for process in entities.values().filter(|e| e.kind == EntityKind::Process) {
            if let Some(parent) = home(&entities, process) {
                let known = only_groups.entry(&process.name).or_insert(Some(parent));
                *known = known.filter(|of| *of == parent);
            }
        }
        JudgeContext {
            only_groups,
            entities,
            tracks: rows.track.iter().map(|t| ((t.entity, &*t.name), t)).collect(),
            loss: sources.into_iter().filter_map(Loss::of).collect(),
            readings: Readings::default(),
            demands: Demands::default(),
            recorders: rows.source.iter().filter_map(|s| s.word("pid")?.parse().ok()).collect(),
        }
    }

    /// Whether a process is gpuwhy itself, which looks closer while something is slow.
    pub(super) fn records(&self, process: EntityId) -> bool {
        let pid = self.entity(process).filter(|e| e.kind == EntityKind::Process);
        pid.and_then(|e| e.number).is_some_and(|pid| self.recorders.contains(&pid))
    }

    /// Whether the program may have run in virtual machines: their hosts do not say that they are none.
    pub(super) fn is_virtual(&self) -> bool {
        let settings = self.entities.values().filter(|e| e.kind == EntityKind::Setting);
        let mut said =
            settings.filter_map(|e| e.name.strip_prefix(names::VIRTUAL_CPUS)?.strip_prefix('='));
        !(said.next() == Some("no") && said.all(|says| says == "no"))
    }

    /// Whether a process is a worker of the kernel, which does what others asked for.
    pub(super) fn works_for_others(&self, process: EntityId) -> bool {
        self.entity(process).is_some_and(|e| names::is_kernel_worker(&e.name))
    }

    /// With what each process took of the CPUs before the incident and during it.
    pub fn with_demands(self, demands: Demands) -> JudgeContext<'a> {
        JudgeContext { demands, ..self }
    }

    /// What each process took of the CPUs.
    pub(super) fn demands(&self) -> &Demands {
        &self.demands
    }

    /// By what processes are taken together that do the same: the command and the control group; anything else
    /// is alone, and so is the process that recorded: what it does is not what others of its name do. A process that ended
    /// before its control group was read is of the one in which all others of its command are.
    pub(super) fn group(&self, id: EntityId) -> Group {
        match self.entities.get(&id) {
            Some(e) if e.kind == EntityKind::Process && !self.records(id) => {
                let known = home(&self.entities, e);
                let only = || self.only_groups.get(&e.name).copied().flatten();
                Group::Command(e.name.clone(), known.or_else(only))
            }
            _ => Group::Alone(id),
        }
    }

    /// With what the drivers of GPUs reported around the incidents.
    pub fn with_readings(self, readings: Readings) -> JudgeContext<'a> {
        JudgeContext { readings, ..self }
    }

    /// What the drivers of GPUs reported.
    pub(super) fn readings(&self) -> &Readings {
        &self.readings
    }

    /// An entity of the trace.
    pub(super) fn entity(&self, id: EntityId) -> Option<&Entity> {
        self.entities.get(&id).copied()
    }

    fn losses(&self, class: Class) -> impl Iterator<Item = &Loss> {
        self.loss.iter().filter(move |l| l.classes.is_empty() || l.classes.contains(&class))
    }

    /// What sources that are evidence for a class did not see.
    pub(super) fn unseen(&self, class: Class) -> impl Iterator<Item = &Evidence> {
        self.losses(class).map(|loss| &loss.evidence)
    }

    /// Whether a source that is evidence for a class lost events.
    pub(super) fn has_lost(&self, class: Class) -> bool {
        self.losses(class).any(|l| l.lost)
    }

    /// An entity as a culprit, by the names that people call it by.
    pub fn culprit(&self, id: EntityId) -> Option<Culprit> {
        let entity = self.entities.get(&id)?;
        let mut cgroup = None;
        let mut belongs_to = Vec::new();
        let mut at = entity.parent;
        for _ in 0..MOST_PARENTS {
            let Some(parent) = at.and_then(|id| self.entities.get(&id)) else { break };
            match parent.kind {
                EntityKind::Cgroup if cgroup.is_none() => cgroup = Some(parent.key.to_string()),
                EntityKind::Container | EntityKind::Job | EntityKind::Vm => {
                    belongs_to.push(format!("{} {}", parent.kind, parent.name));
                }
                _ => {}
            }
            at = parent.parent;
        }
        if entity.kind == EntityKind::Cgroup {
            cgroup = Some(entity.key.to_string());
        }
        let process = matches!(entity.kind, EntityKind::Process | EntityKind::Thread);
        let is_thread = entity.kind == EntityKind::Thread;
        let of = entity.parent.filter(|_| is_thread).and_then(|id| self.entities.get(&id));
        Some(Culprit {
            entity: id.0,
            kind: entity.kind.as_str(),
            pid: of.map_or(entity.number, |of| of.number).filter(|_| process),
            tid: entity.number.filter(|_| is_thread),
            comm: process.then(|| entity.name.to_string()),
            name: (entity.kind == EntityKind::Gpu).then(|| entity.name.to_string()),
            cgroup,
            belongs_to,
            processes: 1,
        })
    }

    fn states(&self, thread: EntityId) -> Option<TrackId> {
        self.tracks.get(&(thread, names::THREAD_STATE)).map(|track| track.id)
    }

    /// The rows that a part rests on.
    pub(super) fn pointer(&self, part: &Part) -> Pointer {
        Pointer::of_part(part, |thread| self.states(thread))
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Ns;

    use super::*;

    #[test]
    fn control_groups_that_contain_each_other_in_a_hostile_trace_are_followed_for_a_while() {
        let made = |id: u32, kind, parent| Entity {
            id: EntityId(id),
            kind,
            key: format!("v2:/{id}").into(),
            name: "work".into(),
            number: Some(id.into()),
            parent: Some(EntityId(parent)),
            from: Some(Ns::ZERO),
            to: None,
        };
        let entity = vec![
            made(1, EntityKind::Process, 2),
            made(2, EntityKind::Cgroup, 3),
            made(3, EntityKind::Cgroup, 2),
        ];
        let rows = Rows { entity, ..Rows::default() };
        let culprit = JudgeContext::new(&rows).culprit(EntityId(1)).unwrap();
        assert_eq!((culprit.pid, culprit.cgroup.as_deref()), (Some(1), Some("v2:/2")));
    }

    #[test]
    fn a_process_whose_control_group_is_not_known_is_taken_with_those_of_its_command_if_these_have_one()
     {
        let made = |id: u32, kind, name: &str, parent: Option<u32>| Entity {
            id: EntityId(id),
            kind,
            key: id.to_string().into(),
            name: name.into(),
            number: Some(id.into()),
            parent: parent.map(EntityId),
            from: Some(Ns::ZERO),
            to: None,
        };
        let process = |id, name, parent| made(id, EntityKind::Process, name, parent);
        let entity = vec![
            made(1, EntityKind::Cgroup, "a", None),
            made(2, EntityKind::Cgroup, "b", None),
            made(10, EntityKind::Host, "h", None),
            process(3, "ld", None),
            process(11, "ld", Some(10)),
            // What is known later counts.
            process(4, "ld", None),
            process(4, "ld", Some(1)),
            process(5, "sh", Some(1)),
            process(6, "sh", Some(2)),
            process(7, "sh", None),
            process(8, "as", None),
            process(9, "as", None),
        ];
        let rows = Rows { entity, ..Rows::default() };
        let context = JudgeContext::new(&rows);
        let together = |a, b| context.group(EntityId(a)) == context.group(EntityId(b));
        assert!(together(3, 4) && together(11, 4) && together(8, 9));
        assert!(!together(7, 5) && !together(7, 6) && !together(5, 6) && !together(4, 5));
    }

    #[test]
    fn programs_may_run_in_virtual_machines_unless_every_host_that_tells_says_no() {
        let of = |says: &[&str]| {
            let setting = |(id, name): (usize, &&str)| Entity {
                id: EntityId(id as u32 + 1),
                kind: EntityKind::Setting,
                key: format!("h{id}/{name}").into(),
                name: (*name).into(),
                number: None,
                parent: None,
                from: Some(Ns::ZERO),
                to: None,
            };
            let entity = says.iter().enumerate().map(setting).collect();
            JudgeContext::new(&Rows { entity, ..Rows::default() }).is_virtual()
        };
        assert!(of(&[]) && of(&["cpu.smt=1"]), "nobody says that it is none");
        assert!(!of(&["cpu.smt=1", "cpu.virtual=no"]));
        assert!(of(&["cpu.virtual=yes"]));
        assert!(of(&["cpu.virtual=no", "cpu.virtual=yes"]), "one of two hosts is one");
    }
}
