//! Launches that a policy delays, and the bounds of that: [`MOST_NS`] a launch, and a quarter of the program's time
//! in all.

/// The longest delay of a launch, ns.
pub const MOST_NS: u64 = 10_000_000;
/// All delays together are at most the time since the policy began, divided by this.
const SHARE: u64 = 4;
/// Rules at a time.
const RULES: usize = 16;
/// Of all kernels.
const ALL: u64 = 0;

/// What becomes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// No rule is about it.
    Nothing,
    /// It waits for so many ns; `cut`: the rule says longer.
    Wait { ns: u64, cut: bool },
    /// A rule is about it, and launches have been delayed for long enough.
    LeftOut,
}

/// The rules, and how long launches were delayed by them.
#[derive(Debug, Default)]
pub struct Delays {
    /// By the hash of the kernel's name: so many ns.
    rules: Vec<(u64, u64)>,
    spent: u64,
}

impl Delays {
    pub const fn new() -> Delays {
        Delays { rules: Vec::new(), spent: 0 }
    }

    /// Takes a rule: launches of a kernel are delayed by so many us, by 0 not any more. Whether there was room for it.
    pub fn rule(&mut self, kernel: u64, us: u64) -> bool {
        self.rules.retain(|(of, _)| *of != kernel);
        if us == 0 {
            return true;
        }
        let room = self.rules.len() < RULES;
        if room {
            self.rules.push((kernel, us.saturating_mul(1000)));
        }
        room
    }

    /// Whether there is a rule.
    pub fn any(&self) -> bool {
        !self.rules.is_empty()
    }

    /// A launch of a kernel, when the policy has been there for so many ns. A rule of the kernel goes before one of all.
    pub fn launch(&mut self, kernel: u64, since: u64) -> Delay {
        let of = |wanted| self.rules.iter().find(|(of, _)| *of == wanted);
        let Some((_, ns)) = of(kernel).or_else(|| of(ALL)).copied() else { return Delay::Nothing };
        let wait = ns.min(MOST_NS);
        if (self.spent + wait).saturating_mul(SHARE) > since.saturating_add(wait) {
            return Delay::LeftOut;
        }
        self.spent += wait;
        Delay::Wait { ns: wait, cut: wait < ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_launch_waits_as_its_rule_says_and_never_longer_than_it_may() {
        let mut delays = Delays::new();
        assert_eq!(delays.launch(7, 100 * MS), Delay::Nothing);
        assert!(delays.rule(7, 500) && delays.rule(ALL, 1_000_000) && delays.any());
        assert_eq!(delays.launch(7, 100 * MS), Delay::Wait { ns: 500_000, cut: false });
        assert_eq!(delays.launch(8, 1000 * MS), Delay::Wait { ns: MOST_NS, cut: true });
        assert!(delays.rule(ALL, 0) && delays.rule(7, u64::MAX));
        assert_eq!(delays.launch(8, 1000 * MS), Delay::Nothing);
        assert_eq!(delays.launch(7, 1000 * MS), Delay::Wait { ns: MOST_NS, cut: true });
        assert!(delays.rule(7, 0) && !delays.any());
    }

    /// A program that does nothing but launch: of each second at most a quarter is delay.
    #[test]
    fn all_delays_together_are_a_quarter_of_the_time() {
        let mut delays = Delays::new();
        delays.rule(ALL, 5_000);
        let (mut now, mut waited, mut left_out) = (0, 0, 0);
        while now < 1000 * MS {
            now += MS;
            match delays.launch(1, now) {
                Delay::Wait { ns, .. } => {
                    now += ns;
                    waited += ns;
                }
                Delay::LeftOut => left_out += 1,
                Delay::Nothing => panic!("there is a rule"),
            }
            assert!(4 * waited <= now, "{waited} of {now}");
        }
        assert!(waited > 240 * MS && left_out > 0, "{waited} {left_out}");
    }

    #[test]
    fn there_is_room_for_so_many_rules_and_one_that_is_there_can_be_changed() {
        let mut delays = Delays::new();
        assert!((1..=RULES as u64).all(|kernel| delays.rule(kernel, 5)));
        assert!(!delays.rule(99, 5) && delays.rule(3, 6));
        assert_eq!(delays.launch(99, 1000 * MS), Delay::Nothing);
    }
}
