//! Graphs of basic blocks: where paths that part meet again.
//!
//! Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the graph turned around.

/// For each block, by the blocks that may come after each: the first one that all paths from it to the end pass. The
/// number of blocks stands for the end; `None` where no path leads there.
pub(crate) fn post_dominators(next: &[Vec<usize>]) -> Vec<Option<usize>> {
    let end = next.len();
    let mut before = vec![Vec::new(); end + 1];
    for (block, successors) in next.iter().enumerate() {
        for &successor in successors {
            before[successor].push(block);
        }
    }
    let order = post_order(&before, end);
    let mut number = vec![usize::MAX; end + 1];
    for (at, &block) in order.iter().enumerate() {
        number[block] = at;
    }
    let mut found: Vec<Option<usize>> = vec![None; end + 1];
    found[end] = Some(end);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|&&block| block != end) {
            let mut candidate = None;
            for &successor in next[block].iter().filter(|&&s| found[s].is_some()) {
                candidate = Some(match candidate {
                    None => successor,
                    Some(other) => intersect(&found, &number, other, successor),
                });
            }
            if candidate != found[block] {
                found[block] = candidate;
                changed = true;
            }
        }
    }
    found.truncate(end);
    found
}

/// The blocks that can be reached from `from` without passing `stop`, which is not among them.
pub(crate) fn reached(next: &[Vec<usize>], from: &[usize], stop: Option<usize>) -> Vec<usize> {
    let mut seen = vec![false; next.len() + 1];
    let mut open: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    open.extend(from);
    while let Some(block) = open.pop() {
        if Some(block) == stop || block >= next.len() || std::mem::replace(&mut seen[block], true) {
            continue;
        }
        found.push(block);
        open.extend(&next[block]);
    }
    found
}

fn intersect(found: &[Option<usize>], number: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = found[a].unwrap_or(b);
        }
        while number[b] < number[a] {
            b = found[b].unwrap_or(a);
        }
    }
    a
}

/// The nodes from `root` on, each after those that it leads to.
fn post_order(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; edges.len()];
    seen[root] = true;
    let mut stack = vec![(root, 0)];
    while let Some((node, at)) = stack.last_mut() {
        match edges[*node].get(*at) {
            Some(&next) => {
                *at += 1;
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push((next, 0));
                }
            }
            None => {
                order.push(*node);
                stack.pop();
            }
        }
    }
    order
}
