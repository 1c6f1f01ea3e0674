//! Every field of real traces against the text of babeltrace2, an independent reader.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pretty::Pretty;
use super::trace::Traces;
use crate::Result;

/// The directory of kernel traces.
fn data() -> Option<PathBuf> {
    crate::shared_data().map(|data| data.join("kernel"))
}

/// Every event as `[seconds] name: { packet context }, { contexts }, { fields }`.
fn ours(path: &Path) -> Result<Vec<String>> {
    let mut traces = Traces::open(&[path.to_path_buf()])?;
    let (mut lines, mut pretty) = (Vec::new(), Pretty::default());
    let mut last = i64::MIN;
    while let Some(number) = traces.next()? {
        let stream = &mut traces.streams[number];
        assert!(stream.time >= last, "{}: {} after {last}", path.display(), stream.time);
        last = stream.time;
        let mut context = Pretty::default();
        stream.packet_context(&mut context)?;
        stream.body(&mut pretty, Pretty::part)?;
        let mut parts = vec![context.text, pretty.text.clone()];
        parts.retain(|part| !part.is_empty() && part != "{ }");
        let name = &stream.event().1.name;
        let (sign, time) = if last < 0 { ("-", last.unsigned_abs()) } else { ("", last as u64) };
        let (seconds, ns) = (time / 1_000_000_000, time % 1_000_000_000);
        let fields = parts.join(", ");
        let fields = if fields.is_empty() { String::new() } else { format!(" {fields}") };
        lines.push(format!("[{sign}{seconds}.{ns:09}] {name}:{fields}"));
    }
    Ok(lines)
}

#[test]
fn show() {
    let Some(path) = std::env::var_os("CTF_SHOW") else { return };
    match ours(Path::new(&path)) {
        Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
        Err(e) => println!("ERROR {e}"),
    }
}
