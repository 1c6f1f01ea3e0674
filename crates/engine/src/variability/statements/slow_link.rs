//! Links between devices that are slower than the others, also at their best.

use std::collections::HashMap;

use gpuwhy_diagnose::variability::{Apart, slow_links};
use gpuwhy_schema::Rows;

use super::Statement;
use crate::variability::sums::{LinkSum, Sums};

/// Copies over a link that are needed to judge it.
const COPIES: u64 = 10;

/// The slow links.
pub fn statements(sums: &Sums, names: &Rows) -> Vec<Statement> {
    let names: HashMap<u32, &str> = names.entity.iter().map(|e| (e.id.0, &*e.name)).collect();
    let name = |id: &u32| names.get(id).copied().unwrap_or("?");
    let links: Vec<(&(u32, u32), &LinkSum)> =
        sums.links.iter().filter(|(_, link)| link.durations.count >= COPIES).collect();
    let measured: Vec<(f64, f64)> =
        links.iter().map(|(_, l)| (l.durations.mean(), l.durations.min as f64)).collect();
    let statement = |slow: Apart| {
        let ((from, to), link) = links[slow.index];
        let says = format!(
            "copies from {} to {} are slow: {:.0} ns on average and {} ns at best, {:.0} ns on the \
             other links ({} bytes each)",
            name(from),
            name(to),
            slow.value,
            link.durations.min,
            slow.others,
            link.bytes / link.durations.count.max(1)
        );
        let sql =
            format!("select * from 'copy/*.parquet' where \"from\" = {from} and \"to\" = {to}");
        Statement::new("slow_link", says).with_sql(sql)
    };
    slow_links(&measured).into_iter().map(statement).collect()
}
