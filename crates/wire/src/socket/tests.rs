use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::messages::{BYTES, message};
use super::*;
use crate::{Drained, Error, Event};

fn server(folder: &Path, max_clients: usize) -> Server {
    let options = ServerOptions::of(max_clients, crate::Options::default());
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

#[test]
fn nothing_is_nothing_of_any_kind() {
    let Settings { kernels, launches, collectives, nodes_every_ms, nodes_for_ms } =
        Settings::NOTHING;
    assert_eq!((kernels, collectives), (Kernels::Off, Collectives::Off));
    assert_eq!((launches, nodes_every_ms, nodes_for_ms), (false, 0, 0));
}

#[test]
fn a_process_that_is_to_leave_nodes_alone_is_never_asked_for_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let (client, _, _) = connect(&mut server);
    let nodes = Settings {
        kernels: Kernels::Nodes,
        nodes_every_ms: 1000,
        nodes_for_ms: 7,
        launches: true,
        ..Settings::USUAL
    };
    let asked = || match client.recv(1000) {
        Received::Settings(settings) => settings,
        other => panic!("{other:?}"),
    };
    server.ask(nodes);
    assert_eq!(asked(), nodes);
    server.stop_nodes(std::process::id() as i32);
    let without =
        Settings { kernels: Kernels::Graphs, nodes_every_ms: 0, nodes_for_ms: 0, ..nodes };
    assert_eq!(asked(), without, "the rest is as it was");
    server.ask(Settings { kernels: Kernels::Off, ..nodes });
    assert_eq!(asked(), Settings { kernels: Kernels::Off, ..without });
}

#[test]
fn all_clients_together_are_limited_whoever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::default();
    options.clients = ClientLimits { all: 2, per_pid: 64, per_uid: 64, ..options.clients };
    let path = folder.path().join("agent.sock");
    let mut server = Server::listen(&path, options, Settings::USUAL).unwrap();
    let all: Vec<_> = (0..4).map(|_| connect(&mut server)).collect();
    let welcome = all.iter().filter(|one| matches!(one.1, Received::Welcome(..))).count();
    assert_eq!(welcome, 2);
}

#[test]
fn a_process_that_has_ended_is_told_from_one_that_cannot_be_watched() {
    let gone = |number| server::is_gone(&io::Error::from_raw_os_error(number));
    assert_eq!(
        [libc::ESRCH, libc::EINVAL, libc::ENOSYS, libc::EMFILE].map(gone),
        [true, true, false, false]
    );
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

#[test]
fn one_process_and_one_user_cannot_take_all_places() {
    let folder = tempfile::tempdir().unwrap();
    let limits = |per_pid, per_uid| {
        let mut options = ServerOptions::default();
        options.clients = ClientLimits { per_pid, per_uid, ..options.clients };
        options
    };
    for (options, places) in [(limits(3, 64), 3), (limits(64, 5), 5)] {
        let path = folder.path().join("agent.sock");
        let mut server = Server::listen(&path, options, Settings::USUAL).unwrap();
        // Those that send no hello count as well.
        let silent = RawEnd::connect(&path).unwrap();
        server.poll(|_, _| {}, |_| {});
        let all: Vec<_> = (0..places + 2).map(|_| connect(&mut server)).collect();
        let welcome = |all: &(Client, Received, Polled)| matches!(all.1, Received::Welcome(..));
        assert_eq!(all.iter().filter(|one| welcome(one)).count(), places - 1);
        drop((all, silent));
        // A place that is left is free again.
        server.poll(|_, _| {}, |_| {});
        assert!(welcome(&connect(&mut server)));
    }
}

#[test]
fn later_clients_get_smaller_rings_so_that_all_fit() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::default();
    let small_ring = crate::Options { slots: 64, names: 16, ..crate::Options::default() };
    options.clients = ClientLimits { all: 4, whole_rings: (3, 2), small_ring, ..options.clients };
    let path = folder.path().join("agent.sock");
    let mut server = Server::listen(&path, options, Settings::USUAL).unwrap();
    let all: Vec<_> = (0..3).map(|_| connect(&mut server)).collect();
    let whole: Vec<bool> = server.clients().map(|client| client.1).collect();
    assert_eq!(whole, [true, true, false], "this user has two of the three");
    let bytes = crate::layout::total_bytes;
    assert_eq!(options.clients.ring_bytes(), 3 * bytes(1 << 14, 1 << 10) + bytes(64, 16));
    drop(all);
}

/// Not a test of its own: connects, leaves the socket to a child, and exits.
#[test]
fn passes_its_socket_on() {
    let Some(path) = std::env::var_os("GPUWHY_TEST_PASS_ON") else { return };
    let client = Client::connect(Path::new(&path)).unwrap();
    let Received::Welcome(producer, _) = client.recv(10_000) else { panic!("refused") };
    producer.mark("mine", None);
    let socket = client.socket.try_clone().unwrap();
    let mut heir = std::process::Command::new("sleep");
    let heir = heir.arg("100").stdin(socket).stdout(std::process::Stdio::null());
    println!("heir {}", heir.spawn().unwrap().id());
}

/// The process that connected is gone, whoever holds its socket: its number may be given to another one,
/// which is not to be blamed for what the heir writes.
#[test]
fn a_socket_that_was_passed_on_is_closed_with_the_process_that_connected() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let child = child
        .args(["--exact", "socket::tests::passes_its_socket_on", "--nocapture"])
        .env("GPUWHY_TEST_PASS_ON", server.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    let (mut names, mut left) = (Vec::new(), Vec::new());
    let mut child = Some(child);
    let mut heir = None;
    let until = Instant::now() + Duration::from_secs(20);
    while left.is_empty() && Instant::now() < until {
        let (more, gone, _) = marks(&mut server);
        names.extend(more);
        left.extend(gone);
        if let Some(mut one) = child.take() {
            match one.try_wait().unwrap() {
                None => child = Some(one),
                Some(_) => {
                    let said = io::read_to_string(one.stdout.take().unwrap()).unwrap();
                    let number = said.split("heir ").nth(1).and_then(|n| n.lines().next());
                    heir = number.and_then(|n| n.trim().parse::<i32>().ok());
                }
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let heir = heir.expect("the child has said who has its socket");
    // SAFETY: takes plain numbers.
    let lived = unsafe { libc::kill(heir, libc::SIGKILL) } == 0;
    assert!(lived, "the heir still had the socket");
    assert_eq!((names, left), (vec![(pid, "mine".to_string())], vec![pid]));
    assert_eq!(server.peers().count(), 0);
}

/// What a guest writes into the counts of its ring.
#[test]
fn counts_that_a_client_overwrites_are_garbage_and_overflow_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let all: Vec<_> = (0..2).map(|_| connect(&mut server)).collect();
    let header = |i: usize| {
        let Received::Welcome(producer, _) = &all[i].1 else { panic!("refused") };
        producer.raw().unwrap().header()
    };
    use std::sync::atomic::Ordering::Relaxed;
    header(0).lost.store(u64::MAX, Relaxed);
    header(1).lost.store(u64::MAX - 1, Relaxed);
    let drained = server.poll(|_, _| {}, |_| {}).drained;
    assert_eq!((drained.lost, drained.garbage), (0, 2));
    // The consumer's own note of what it has reported is the guest's to overwrite as well.
    header(0).lost_reported.store(7, Relaxed);
    header(0).lost.store(8, Relaxed);
    header(1).lost.store(u64::MAX, Relaxed);
    let drained = server.poll(|_, _| {}, |_| {}).drained;
    assert_eq!((drained.lost, drained.garbage), (1, 1), "one went on by one, one went back");
    let mut sum = Drained { lost: u64::MAX - 3, ..Drained::default() };
    sum.add(Drained { lost: u64::MAX, ..Drained::default() });
    assert_eq!(sum.missed(), u64::MAX);
}

/// Three write as fast as they can, one writes little: it loses nothing, and waits for nobody.
#[test]
fn a_small_budget_is_shared_fairly() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), 4);
    let all: Vec<_> = (0..4).map(|_| connect(&mut server)).collect();
    struct Counts(std::collections::BTreeMap<u32, u64>);
    impl Host for Counts {
        fn record(&mut self, peer: Peer, _: crate::Record<&std::sync::Arc<str>>) {
            *self.0.entry(peer.client).or_default() += 1;
        }
        fn gone(&mut self, _: Peer) {}
    }
    let mut counts = Counts(Default::default());
    for _ in 0..50 {
        for (i, one) in all.iter().enumerate() {
            let Received::Welcome(producer, _) = &one.1 else { panic!("refused") };
            (0..if i == 2 { 10 } else { 1000 }).for_each(|_| producer.mark("m", None));
        }
        let before = counts.0.values().sum::<u64>();
        server.serve(100, &mut counts);
        assert!(counts.0.values().sum::<u64>() - before <= 100);
    }
    assert_eq!(counts.0[&3], 500, "{:?}", counts.0);
    for greedy in [1, 2, 4] {
        assert!((1400..=1600).contains(&counts.0[&greedy]), "{:?}", counts.0);
    }
}
