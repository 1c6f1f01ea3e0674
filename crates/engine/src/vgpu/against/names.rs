//! Which tenant of one run is which of another.
//!
//! # How
//! By device and name; then, of those that are left, by a name that only one of each run has; then by a name without the
//! number of the thread, which differs from run to run. Whoever then is left is in one run only.

use gpuwhy_derive::vgpu::Tenant;

/// Tenants of two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// By the place of the run's tenant, that of the base's.
    pub pairs: Vec<(usize, usize)>,
    /// Who is in the run only.
    pub only_run: Vec<usize>,
    /// Who is in the base only.
    pub only_base: Vec<usize>,
    /// The device and the name of each tenant of the run.
    pub run: Vec<(i64, String)>,
    /// Those of each tenant of the base: as in the run where it is there too.
    pub base: Vec<(i64, String)>,
}

/// A name without the number of a thread in brackets behind it.
fn without_number(name: &str) -> &str {
    let Some((start, number)) = name.strip_suffix(')').and_then(|name| name.rsplit_once(" ("))
    else {
        return name;
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { start } else { name }
}

/// Pairs those that only one tenant of each side is called by `key`.
fn pair<K: PartialEq>(
    names: &mut Names,
    (run, base): (&[Tenant], &[Tenant]),
    key: impl Fn(&Tenant) -> K,
) {
    let only = |of: &[usize], all: &[Tenant], wanted: &K| {
        let mut found = of.iter().filter(|at| key(&all[**at]) == *wanted);
        found.next().copied().filter(|_| found.next().is_none())
    };
    for at in names.only_run.clone() {
        let wanted = key(&run[at]);
        if only(&names.only_run, run, &wanted) == Some(at)
            && let Some(other) = only(&names.only_base, base, &wanted)
        {
            names.pairs.push((at, other));
            names.only_run.retain(|one| *one != at);
            names.only_base.retain(|one| *one != other);
        }
    }
}

fn called(one: &Tenant) -> (i64, String) {
    (one.device, one.name.clone())
}

/// Who is who.
pub(super) fn names(run: &[Tenant], base: &[Tenant]) -> Names {
    let mut out = Names {
        only_run: (0..run.len()).collect(),
        only_base: (0..base.len()).collect(),
        run: run.iter().map(called).collect(),
        base: base.iter().map(called).collect(),
        ..Names::default()
    };
    pair(&mut out, (run, base), called);
    pair(&mut out, (run, base), |one| one.name.clone());
    pair(&mut out, (run, base), |one| without_number(&one.name).to_owned());
    out.pairs.sort_unstable();
    for (at, other) in &out.pairs {
        out.base[*other].clone_from(&out.run[*at]);
    }
    out
}

#[cfg(test)]
mod tests {
    use gpuwhy_derive::vgpu::TenantKey;

    use super::*;

    fn tenants(names: &[(i64, &str)]) -> Vec<Tenant> {
        let of = |(device, name): &(i64, &str)| Tenant {
            device: *device,
            key: TenantKey::Unknown,
            name: (*name).to_owned(),
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn a_tenant_is_known_again_by_device_and_name_by_name_or_by_the_name_of_its_thread() {
        let run = tenants(&[(0, "vGPU 1"), (1, "vGPU 1"), (0, "glxgears (812)"), (0, "vGPU 9")]);
        let base = tenants(&[(1, "vGPU 1"), (0, "vGPU 1"), (0, "glxgears (7)"), (3, "vGPU 9")]);
        let found = names(&run, &base);
        assert_eq!(found.pairs, [(0, 1), (1, 0), (2, 2), (3, 3)]);
        assert_eq!(found.base[2].1, "glxgears (812)");
        assert_eq!(found.base[3], (0, "vGPU 9".to_owned()));
        assert_eq!((found.only_run, found.only_base), (vec![], vec![]));
    }

    #[test]
    fn two_of_one_name_are_not_guessed() {
        let run = tenants(&[(0, "Xorg (1)"), (0, "Xorg (2)"), (0, "a (b)")]);
        let base = tenants(&[(0, "Xorg (3)"), (0, "a")]);
        let found = names(&run, &base);
        assert_eq!(
            (found.pairs.len(), found.only_run, found.only_base),
            (0, vec![0, 1, 2], vec![0, 1])
        );
    }
}
