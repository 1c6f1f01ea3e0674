use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::messages::{BYTES, message};
use super::*;
use crate::{Error, Event};

fn server(folder: &Path, max_clients: usize) -> Server {
    let options = ServerOptions { max_clients, ..ServerOptions::default() };
    Server::listen(folder.join("agent.sock"), options, Settings::USUAL).unwrap()
}

/// Connects while the server polls; what the client received.
fn connect(server: &mut Server) -> (Client, Received, Polled) {
    let client = Client::connect(server.path()).unwrap();
    let polled = server.poll(|_, _| {}, |_| {});
    let received = client.recv(1000);
    (client, received, polled)
}

fn marks(server: &mut Server) -> (Vec<(i32, String)>, Vec<i32>, Polled) {
    let (mut names, mut left) = (Vec::new(), Vec::new());
    let polled = server.poll(
        |peer, record| {
            let Event::Mark { name, .. } = record.event else { panic!("{record:?}") };
            names.push((peer.pid, name.to_string()));
        },
        |peer| left.push(peer.pid),
    );
    (names, left, polled)
}

#[test]
fn a_client_gets_a_ring_and_the_kernel_says_which_process_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let (client, received, polled) = connect(&mut server);
    let Received::Welcome(producer, settings) = received else { panic!("{received:?}") };
    assert_eq!((polled.connected, settings), (1, Settings::USUAL));
    producer.mark("hello", None);
    let me = std::process::id() as i32;
    assert_eq!(marks(&mut server).0, [(me, "hello".to_string())]);

    let more = Settings { kernels: Kernels::Nodes, nodes_for_ms: 7, ..settings };
    server.ask(more);
    let Received::Settings(asked) = client.recv(1000) else { panic!() };
    assert_eq!(asked, more);

    producer.mark("the last word", None);
    drop(client);
    let (names, left, _) = marks(&mut server);
    assert_eq!(names, [(me, "the last word".to_string())]);
    assert_eq!(left, [me]);
    assert_eq!(server.peers().count(), 0);
}

#[test]
fn clients_beyond_the_limit_or_of_another_version_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 1);
    let (_first, received, _) = connect(&mut server);
    assert!(matches!(received, Received::Welcome(..)));
    let (_second, received, polled) = connect(&mut server);
    assert!(matches!(received, Received::Closed));
    assert_eq!(polled.refused, 1);

    let folder = tempfile::tempdir().unwrap();
    let mut server = self::server(folder.path(), 4);
    let other = unix::connect(server.path()).unwrap();
    unix::send(other.as_raw_fd(), &[b'x'; BYTES], None).unwrap();
    assert_eq!(server.poll(|_, _| {}, |_| {}).refused, 1);
}

/// Descriptors that another program sends are not kept, not even one that happens to fit into the
/// padding after the first.
#[test]
fn unexpected_descriptors_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    // The reading end of a pipe is closed when all its copies are.
    let (reader, mut writer) = io::pipe().unwrap();
    let other = RawEnd::connect(server.path()).unwrap();
    let fds = [reader.as_raw_fd(), reader.as_raw_fd()];
    other.send(&message(), &fds).unwrap();
    other.send(b"more", &fds).unwrap();
    assert_eq!(server.poll(|_, _| {}, |_| {}).connected, 1);
    drop(reader);
    let error = io::Write::write(&mut writer, b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_client_that_is_killed_before_its_welcome_was_not_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let other = RawEnd::connect(server.path()).unwrap();
    other.send(&hello(7), &[]).unwrap();
    drop(other);
    assert_eq!(server.poll(|_, _| {}, |_| {}), Polled::default());
    assert_eq!(server.peers().count(), 0);
}

#[test]
fn an_abandoned_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let first = server(folder.path(), 4);
    let path = first.path().to_owned();
    let busy = Server::listen(&path, ServerOptions::default(), Settings::USUAL);
    assert!(matches!(busy, Err(Error::Listening { .. })), "{busy:?}");
    // As an agent that was killed leaves it.
    let left = folder.path().join("left");
    std::fs::rename(&path, &left).unwrap();
    drop(first);
    std::fs::rename(&left, &path).unwrap();
    let mut again = Server::listen(&path, ServerOptions::default(), Settings::USUAL).unwrap();
    let (_client, received, _) = connect(&mut again);
    assert!(matches!(received, Received::Welcome(..)));

    let file = folder.path().join("file");
    std::fs::write(&file, "no socket").unwrap();
    let error = Server::listen(&file, ServerOptions::default(), Settings::USUAL).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"no socket");
}

#[test]
fn of_agents_that_start_at_once_one_listens_and_the_others_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    for _ in 0..50 {
        // What a killed one has left.
        drop(std::os::unix::net::UnixListener::bind(&path));
        let start = std::sync::Barrier::new(4);
        let listen = || {
            start.wait();
            Server::listen(&path, ServerOptions::default(), Settings::USUAL)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let busy =
            all.iter().filter(|server| matches!(server, Err(Error::Listening { .. }))).count();
        assert_eq!(busy, 3, "{all:?}");
        let mut server = all.into_iter().find_map(Result::ok).unwrap();
        let (_client, received, _) = connect(&mut server);
        assert!(matches!(received, Received::Welcome(..)));
    }
}

#[test]
fn a_client_notices_that_its_agent_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let (client, _, _) = connect(&mut server);
    let before = Instant::now();
    assert!(matches!(client.recv(1), Received::Nothing));
    drop(server);
    assert!(matches!(client.recv(10_000), Received::Closed));
    assert!(before.elapsed() < Duration::from_secs(9));
}
