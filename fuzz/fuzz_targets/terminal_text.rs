//! Any text on a screen, in a line, in JSON, as bytes to a terminal: nothing that does not show comes out.

#![no_main]

use std::io::Write as _;

use gpuwhy_schema::text::{Screen, Visible, plain, unseen, visible_json};

fn shows(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !unseen(c))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    assert!(!plain(&text).contains(unseen), "{text:?}");
    let mut screen = Screen::new(false);
    screen.put(&text).bold(&text).line(&text);
    assert_eq!(screen.as_str().lines().count(), 1);
    screen.block(">", &text);
    assert!(shows(screen.as_str()), "{text:?}");
    assert!(screen.as_str().lines().skip(2).all(|line| line.starts_with('>')), "{text:?}");
    assert!(shows(&visible_json(&text)), "{text:?}");
    let (head, tail) = data.split_at(data.len() / 2);
    let mut out = Vec::new();
    let mut to = Visible::new(&mut out);
    to.write_all(head).unwrap();
    to.write_all(tail).unwrap();
    assert!(std::str::from_utf8(&out).is_ok_and(shows), "{data:?}");
});
