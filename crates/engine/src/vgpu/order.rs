//! In which order engines and tenants are shown: by device and by name, numbers in names as numbers, whenever they first
//! appeared.

use gpuwhy_derive::vgpu::Model;

/// A name cut into words and numbers, so that `vGPU 2` comes before `vGPU 10`.
fn natural(name: &str) -> Vec<(u64, &str)> {
    let mut out = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[word..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - word);
        let (piece, after) = rest.split_at(word + number);
        // Numbers that are too long for one are compared as text.
        let digits = piece[word..].parse();
        out.push((0, &piece[..word]));
        out.push(digits.map_or((u64::MAX, &piece[word..]), |number| (number, "")));
        rest = after;
    }
    out
}

/// The places of engines.
pub(super) fn engines(model: &Model) -> Vec<usize> {
    let mut out: Vec<usize> = (0..model.engines.len()).collect();
    out.sort_by_key(|at| (model.engines[*at].device, natural(&model.engines[*at].name)));
    out
}

/// The places of tenants.
pub(super) fn tenants(model: &Model) -> Vec<usize> {
    let mut out: Vec<usize> = (0..model.tenants.len()).collect();
    out.sort_by_key(|at| (model.tenants[*at].device, natural(&model.tenants[*at].name)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_in_the_order_of_numbers() {
        let mut names =
            ["vGPU 10", "vGPU 2", "copy1", "copy0", "vGPU", "a 99999999999999999999 b", "a 3 b"];
        names.sort_by_key(|name| natural(name));
        let sorted =
            ["a 3 b", "a 99999999999999999999 b", "copy0", "copy1", "vGPU", "vGPU 2", "vGPU 10"];
        assert_eq!(names, sorted);
    }
}
