//! Arithmetic on half-open intervals `[start, end)` in ns.

use gpuwhy_schema::Ns;

/// A half-open interval.
pub type Interval = (Ns, Ns);

/// The union of intervals, sorted, touching ones merged; empty ones are dropped.
pub fn union(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.retain(|(a, b)| a < b);
    intervals.sort_unstable();
    let mut out: Vec<Interval> = Vec::with_capacity(intervals.len());
    for (a, b) in intervals {
        match out.last_mut() {
            Some((_, end)) if a <= *end => *end = (*end).max(b),
            _ => out.push((a, b)),
        }
    }
    out
}

/// The pieces of `window` that lie in `sorted`, which must be sorted and disjoint.
pub fn clip(sorted: &[Interval], window: Interval) -> Vec<Interval> {
    let first = sorted.partition_point(|&(_, end)| end <= window.0);
    sorted[first..]
        .iter()
        .take_while(|&&(start, _)| start < window.1)
        .map(|&(a, b)| (a.max(window.0), b.min(window.1)))
        .filter(|(a, b)| a < b)
        .collect()
}

/// The pieces of `window` that do not lie in `sorted`, which must be sorted and disjoint.
pub fn subtract(window: Interval, sorted: &[Interval]) -> Vec<Interval> {
    let mut at = window.0;
    let mut out = Vec::new();
    for (a, b) in clip(sorted, window) {
        if at < a {
            out.push((at, a));
        }
        at = b;
    }
    if at < window.1 {
        out.push((at, window.1));
    }
    out
}

/// Union of intervals clipped to `window`, in ns. Overlaps count once; an empty window is 0.
pub fn busy(intervals: &[Interval], window: Interval) -> Ns {
    clip(&union(intervals.to_vec()), window).into_iter().map(|(a, b)| b - a).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Interval> {
        text.split_whitespace()
            .map(|p| p.split_once('-').unwrap())
            .map(|(a, b)| (Ns(a.parse().unwrap()), Ns(b.parse().unwrap())))
            .collect()
    }

    fn show(intervals: &[Interval]) -> String {
        let each: Vec<_> = intervals.iter().map(|(a, b)| format!("{}-{}", a.0, b.0)).collect();
        each.join(" ")
    }

    #[test]
    fn overlapping_and_touching_intervals_are_one() {
        assert_eq!(show(&union(of("5-9 1-3 3-4 8-12 20-20"))), "1-4 5-12");
        assert_eq!(busy(&of("0-10 5-15 30-40"), (Ns(8), Ns(32))), Ns(9));
    }

    #[test]
    fn what_is_cut_out_and_what_is_left_make_the_window() {
        let window = (Ns(2), Ns(30));
        let holes = of("0-5 10-12 28-40");
        assert_eq!(show(&clip(&holes, window)), "2-5 10-12 28-30");
        assert_eq!(show(&subtract(window, &holes)), "5-10 12-28");
    }
}
