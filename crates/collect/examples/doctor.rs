//! Prints what can be recorded on this host.

fn main() {
    for check in gpuwhy_collect::host::checks() {
        let mark = if check.ok { "ok  " } else { "MISS" };
        println!("{mark} {:28} {}", check.name, check.found);
        if !check.ok {
            println!("     {:28} {} -> {}", "", check.why_it_matters, check.fix);
        }
    }
}
