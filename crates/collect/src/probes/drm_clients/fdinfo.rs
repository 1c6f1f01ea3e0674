//! What `/proc/PID/fdinfo/FD` says of a descriptor of a DRM device: Documentation/gpu/drm-usage-stats.rst of Linux.

/// Engines of one client that are read.
const ENGINES: usize = 32;
/// Longest name that is kept, bytes.
const NAME: usize = 64;

/// How long a client had an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineTime {
    /// The engine, or the kind of several alike.
    pub engine: String,
    /// How many there are of the kind.
    pub capacity: Option<u32>,
    /// Time on it so far, ns.
    pub time: Option<u64>,
    /// Cycles on it so far.
    pub cycles: Option<u64>,
    /// Cycles that passed meanwhile.
    pub total_cycles: Option<u64>,
}

/// A client: somebody who opened a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// The driver.
    pub driver: String,
    /// The device's PCI address; empty if it is on no PCI bus.
    pub device: String,
    /// Its number, the same for all descriptors of it.
    pub id: u64,
    /// By engine.
    pub engines: Vec<EngineTime>,
    /// Memory of the device that its buffers take, bytes; `None` where the driver does not say it.
    pub device_memory: Option<u64>,
}

impl Client {
    /// The client of a descriptor; `None` for other descriptors, and for drivers that count nothing.
    pub fn parse(text: &str) -> Option<Client> {
        let mut client = Client::default();
        let (mut id, mut resident, mut taken) = (None, None, None);
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let Some(key) = key.strip_prefix("drm-") else { continue };
            let value = value.trim();
            match key {
                "driver" => client.driver = short(value),
                "pdev" => client.device = short(value),
                "client-id" => id = value.parse().ok(),
                _ => {}
            }
            // `engine-capacity-` is no engine, and so with cycles: longer words come first.
            if let Some(name) = key.strip_prefix("engine-capacity-") {
                client.engine(name, |one| one.capacity = value.parse().ok().filter(|n| *n > 0));
            } else if let Some(name) = key.strip_prefix("engine-") {
                let ns = value.strip_suffix("ns").and_then(|n| n.trim_end().parse().ok());
                client.engine(name, |one| one.time = ns);
            } else if let Some(name) = key.strip_prefix("total-cycles-") {
                client.engine(name, |one| one.total_cycles = value.parse().ok());
            } else if let Some(name) = key.strip_prefix("cycles-") {
                client.engine(name, |one| one.cycles = value.parse().ok());
            } else if let Some(region) = key.strip_prefix("resident-") {
                add(&mut resident, region, value);
            } else if let Some(region) = key.strip_prefix("memory-") {
                add(&mut taken, region, value);
            }
        }
        client.id = id?;
        client.device_memory = resident.or(taken);
        let counts = |one: &EngineTime| one.time.is_some() || one.cycles.is_some();
        client.engines.retain(counts);
        let says = !client.engines.is_empty() || client.device_memory.is_some();
        (says && !client.driver.is_empty()).then_some(client)
    }

    fn engine(&mut self, name: &str, set: impl FnOnce(&mut EngineTime)) {
        let name = short(name);
        let at = self.engines.iter().position(|one| one.engine == name);
        let at = at.unwrap_or_else(|| {
            self.engines.push(EngineTime { engine: name, ..EngineTime::default() });
            self.engines.len() - 1
        });
        if at < ENGINES {
            set(&mut self.engines[at]);
        } else {
            self.engines.truncate(ENGINES);
        }
    }
}

/// The beginning of a name.
fn short(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_graphic()).take(NAME).collect()
}

/// Adds bytes of a region, if it is the device's own memory: the others are the host's.
fn add(sum: &mut Option<u64>, region: &str, value: &str) {
    if !["vram", "local"].iter().any(|own| region.starts_with(own)) {
        return;
    }
    let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
    let shift = match unit.trim() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        _ => return,
    };
    let Some(bytes) = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)) else {
        return;
    };
    *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(name: &str, capacity: Option<u32>, time: Option<u64>) -> EngineTime {
        EngineTime { engine: name.into(), capacity, time, ..EngineTime::default() }
    }

    #[test]
    fn a_client_of_each_way_of_counting_is_read() {
        // As amdgpu, i915 and xe print it.
        let amdgpu = "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t27\n\
                      drm-pdev:\t0000:03:00.0\npasid:\t32771\ndrm-memory-vram:\t5120 KiB\n\
                      drm-memory-gtt: \t2048 KiB\ndrm-memory-cpu: \t0 KiB\namd-memory-visible-vram:\t1024 KiB\n\
                      drm-engine-gfx:\t1160221000 ns\ndrm-engine-compute:\t7 ns\n";
        let client = Client::parse(amdgpu).unwrap();
        assert_eq!((&*client.driver, &*client.device, client.id), ("amdgpu", "0000:03:00.0", 27));
        assert_eq!(client.device_memory, Some(5 << 20));
        assert_eq!(
            client.engines,
            [engine("gfx", None, Some(1_160_221_000)), engine("compute", None, Some(7))]
        );

        let i915 = "drm-driver: i915\ndrm-client-id: 5\ndrm-pdev: 0000:00:02.0\ndrm-total-local0: 9 MiB\n\
                    drm-resident-local0: 3 MiB\ndrm-resident-local1: 512\ndrm-memory-local0: 8 MiB\n\
                    drm-engine-render: 9288864723 ns\ndrm-engine-video: 0 ns\ndrm-engine-capacity-video: 2\n";
        let client = Client::parse(i915).unwrap();
        assert_eq!(
            client.device_memory,
            Some((3 << 20) + 512),
            "what lies there, not what it may be"
        );
        assert_eq!(client.engines[1], engine("video", Some(2), Some(0)));

        let xe = "drm-driver: xe\ndrm-client-id: 6\ndrm-pdev: 0000:03:00.0\ndrm-cycles-rcs: 28257900\n\
                  drm-total-cycles-rcs: 7655183225\ndrm-engine-capacity-ccs: 4\n";
        let client = Client::parse(xe).unwrap();
        let rcs = EngineTime {
            engine: "rcs".into(),
            cycles: Some(28_257_900),
            total_cycles: Some(7_655_183_225),
            ..EngineTime::default()
        };
        assert_eq!(client.engines, [rcs], "an engine of which only the capacity is said is none");
    }

    #[test]
    fn what_is_no_client_or_counts_nothing_is_left_out() {
        for text in [
            "",
            "pos:\t0\nflags:\t02\n",
            // NVIDIA's driver names itself and counts nothing.
            "drm-driver:\tnvidia-drm\ndrm-client-id:\t3\n",
            "drm-driver:\tamdgpu\ndrm-engine-gfx:\t5 ns\n",
            "drm-client-id:\t3\ndrm-engine-gfx:\t5 ns\n",
            "drm-driver:\ta\ndrm-client-id:\t3\ndrm-engine-gfx:\t5 s\n",
            "drm-driver:\ta\ndrm-client-id:\t99999999999999999999\ndrm-engine-gfx:\t5 ns\n",
            "drm-driver:\ta\ndrm-client-id:\t3\ndrm-memory-gtt:\t5 KiB\n",
            "drm-driver:\ta\ndrm-client-id:\t3\ndrm-memory-vram:\t18446744073709551615 KiB\n",
        ] {
            assert_eq!(Client::parse(text), None, "{text}");
        }
    }

    #[test]
    fn engines_and_names_are_bounded() {
        let mut text = "drm-driver:\ta\ndrm-client-id:\t3\n".to_owned();
        for n in 0..1000 {
            text += &format!("drm-engine-{}{n}:\t5 ns\n", "e".repeat(500));
        }
        for n in 0..1000 {
            text += &format!("drm-engine-{n}:\t5 ns\n");
        }
        let client = Client::parse(&text).unwrap();
        assert_eq!(client.engines.len(), ENGINES);
        assert!(client.engines.iter().all(|one| one.engine.len() <= NAME));
    }
}
