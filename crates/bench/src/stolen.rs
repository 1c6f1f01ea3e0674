//! Which share of the CPUs' time the hypervisor took, by `/proc/stat`: measured beside the watcher, whose own
//! readings are what is judged.

/// Between two readings, ns: the file counts in 10 ms a CPU.
const EVERY: i64 = 500_000_000;

/// Readings since a stage was opened: when, and the stolen and all ticks so far.
#[derive(Debug, Default)]
pub struct Stolen(Vec<(i64, f64, f64)>);

impl Stolen {
    /// Reads if it is time to.
    pub fn look(&mut self, at: i64) {
        if self.0.last().is_some_and(|last| at - last.0 < EVERY) {
            return;
        }
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        if let Some((stolen, all)) = ticks(&stat) {
            self.0.push((at, stolen, all));
        }
    }

    /// The share of the CPUs' time between the readings next to `from` and `to`; none without two of them.
    pub fn share(&self, from: i64, to: i64) -> Option<f64> {
        let near = |at: i64| self.0.iter().min_by_key(|reading| (reading.0 - at).abs());
        let (first, last) = (near(from)?, near(to)?);
        let all = last.2 - first.2;
        (all > 0.0).then(|| (last.1 - first.1) / all)
    }
}

/// Stolen and all ticks of all CPUs.
fn ticks(stat: &str) -> Option<(f64, f64)> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    // user nice system idle iowait irq softirq steal; what guests had is in user and nice.
    let numbers: Vec<f64> = numbers.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((*numbers.get(7)?, numbers.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_readings_next_to_the_window() {
        let readings = Stolen(vec![(0, 10.0, 100.0), (500, 20.0, 200.0), (1000, 80.0, 300.0)]);
        assert_eq!(readings.share(100, 400), Some(0.1));
        assert_eq!(readings.share(480, 2000), Some(0.6));
        assert_eq!(readings.share(600, 700), None);
        assert_eq!(Stolen::default().share(0, 1), None);
    }

    #[test]
    fn the_eighth_number_of_the_first_line_is_what_was_stolen() {
        assert_eq!(ticks("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1\n"), Some((8.0, 36.0)));
        assert_eq!(ticks("cpu  1 2 3"), None);
        assert_eq!(ticks("intr 1"), None);
    }
}
