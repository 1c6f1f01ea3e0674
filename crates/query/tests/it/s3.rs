//! A trace in a bucket: a server that speaks as much of S3 as reading needs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Serves the files below `root` as `/bucket/…` until the process ends.
fn serve(root: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let root = root.clone();
            std::thread::spawn(move || answer(&root, stream));
        }
    });
    port
}

fn answer(root: &Path, mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let mut range = None;
    let mut signed = false;
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.trim().to_owned()),
            "authorization" => signed = value.contains("AWS4-HMAC-SHA256"),
            _ => {}
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let key = path.strip_prefix("/bucket/").unwrap_or("").replace("%2E", ".");
    let mut reply = |status: &str, more: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nETag: \"1\"\r\n\
             Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n{more}\r\n"
        );
        let _ = stream.write_all(head.as_bytes());
        if method == "GET" {
            let _ = stream.write_all(body);
        }
    };
    if !signed {
        return reply("403 Forbidden", "Content-Length: 0\r\n", b"");
    }
    let Ok(bytes) = std::fs::read(root.join(&key)) else {
        return reply("404 Not Found", "Content-Length: 0\r\n", b"");
    };
    let wanted = range.as_deref().and_then(|r| r.strip_prefix("bytes=")).and_then(|r| {
        let (from, to) = r.split_once('-')?;
        let last = bytes.len().checked_sub(1)?;
        Some(match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) => (from, to.min(last)),
            (Ok(from), Err(_)) => (from, last),
            (Err(_), Ok(suffix)) => (bytes.len().saturating_sub(suffix), last),
            _ => return None,
        })
    });
    match wanted {
        Some((from, to)) if from <= to => {
            let more = format!(
                "Content-Length: {}\r\nContent-Range: bytes {from}-{to}/{}\r\n",
                to - from + 1,
                bytes.len()
            );
            reply("206 Partial Content", &more, &bytes[from..=to]);
        }
        _ => reply("200 OK", &format!("Content-Length: {}\r\n", bytes.len()), &bytes),
    }
}

/// With a key for the server at `port`.
fn with_key(command: &mut Command, port: u16) -> &mut Command {
    command
        .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "nobody")
        .env("AWS_SECRET_ACCESS_KEY", "nothing")
        .env("AWS_REGION", "us-east-1")
}

#[test]
fn a_trace_in_a_bucket_answers_as_one_that_lies_here() {
    let (dir, trace) = small_trace();
    let port = serve(dir.path().to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-query"));
    let sql = "select ts, name, gpu, process from kernels order by ts";
    command.args(["s3://bucket/small.trace", sql, "--format", "csv"]);
    let there = with_key(&mut command, port).output().unwrap();
    assert_eq!(stdout(&there), csv(&trace, sql));
}

#[test]
fn the_variability_of_a_trace_in_a_bucket_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "26000", "1");
    let port = serve(dir.path().to_owned());
    let text = |of: &str, more: &[&str]| {
        let mut command = core();
        command.args(["variability", of, "--interval", "10ms"]).args(more);
        let out = run(with_key(&mut command, port));
        // The first line names the trace.
        let text = String::from_utf8(out.stdout).unwrap();
        text[text.find(": ").unwrap()..].to_owned()
    };
    let there = text("s3://bucket/generated.trace", &["--cluster", "local"]);
    let here = text(trace.to_str().unwrap(), &[]);
    // Of the rest, communication and gaps are looked for only in what lies here, and the answer says so.
    let until =
        there.find("\nnot looked for: communication, ").unwrap_or_else(|| panic!("{there}"));
    let lines = here.lines().filter(|line| !line.starts_with("  communication "));
    let here_too = lines.fold(String::new(), |text, line| text + line + "\n");
    assert!(here_too.starts_with(&there[..until]), "{here}\n{there}");
    let findings = |text: &str| {
        text[text.find("\nfindings\n").unwrap_or_else(|| panic!("{text}"))..].to_owned()
    };
    assert_eq!(findings(&here), findings(&there));
}

#[test]
fn what_is_not_in_the_bucket_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let port = serve(dir.path().to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-query"));
    command.args(["s3://bucket/none.trace", "select 1"]);
    let out = with_key(&mut command, port).output().unwrap();
    let says = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && says.contains("s3://bucket/none.trace/trace.toml"), "{says}");
}
