//! What libbpf prints, kept for the error that follows instead of going to stderr.

use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// Set this variable to see all that libbpf prints on stderr.
const SHOW: &str = "GPUWHY_LIBBPF_LOG";

/// The first warning since it was last taken; bounded, as a verifier's log may have a million lines.
static WARNING: Mutex<String> = Mutex::new(String::new());

/// Keeps libbpf's warnings from now on.
pub(super) fn capture() {
    if std::env::var_os(SHOW).is_none() {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            // Later warnings are consequences of the first one.
            let mut warning = WARNING.lock().unwrap_or_else(|e| e.into_inner());
            // Kernels since 5.11 have no such limit, and the error that follows says enough.
            if warning.is_empty() && !text.contains("RLIMIT_MEMLOCK") {
                *warning = essence(&text);
            }
        })));
    }
}

/// Takes the warning, in brackets behind a space; an empty text if there is none.
pub(super) fn take() -> String {
    let text = std::mem::take(&mut *WARNING.lock().unwrap_or_else(|e| e.into_inner()));
    if text.is_empty() { text } else { format!(" ({text})") }
}

/// The line of a verifier's log that says what is wrong: the last one before its statistics.
fn essence(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let statistics = lines.iter().position(|line| line.starts_with("processed "));
    let line = match statistics {
        Some(i) => lines.get(i.saturating_sub(1)),
        None => lines.first(),
    };
    let line = line.map_or("", |line| line.trim_start_matches("libbpf: "));
    // "BPF program load failed: Permission denied" says less than the log that follows it.
    if line.ends_with("-- BEGIN PROG LOAD LOG --") || line.contains("load failed: ") {
        return String::new();
    }
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_essence_of_a_verifiers_log_is_its_last_line() {
        let log = "libbpf: prog 'sched_switch': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\n\
                   82: (79) r7 = *(u64 *)(r1 +408)\nR1 invalid mem access 'scalar'\n\
                   processed 81 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        assert_eq!(essence(log), "R1 invalid mem access 'scalar'");
        assert_eq!(essence("libbpf: prog 'x': BPF program load failed: Permission denied\n"), "");
        assert_eq!(essence("libbpf: map 'x': failed to create\n"), "map 'x': failed to create");
        assert_eq!(essence(""), "");
    }
}
