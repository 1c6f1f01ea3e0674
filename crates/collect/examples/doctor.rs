//! Prints what this host lets us see.

fn main() {
    for check in gpuwhy_collect::host::facts() {
        let mark = if check.ok { "ok  " } else { "MISS" };
        println!("{mark} {:28} {}", check.name, check.found);
        if !check.ok {
            println!("     {:28} {} -> {}", "", check.why_it_matters, check.fix);
        }
    }
}
