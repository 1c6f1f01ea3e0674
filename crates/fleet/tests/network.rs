//! A correlator and nodes over loopback: those who have the key, those who have another, and those who do not
//! even try.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use common::{Fleet, until};
use gpuwhy_fleet::{Correlator, Credentials, FleetEvent, Limits, Link, LinkEvent};

#[test]
fn a_node_with_the_secret_is_welcome_and_its_straggler_is_found() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let links: Vec<Link> = (0..3).map(|n| fleet.node(&format!("node{n}"))).collect();
    fleet.until_nodes(3);
    let report = fleet.until_straggler(&links, "default", 1, 0);
    assert_eq!((report.rank, report.node.as_deref()), (Some(1), Some("node1")));
    let question = until(|| {
        fleet.turn();
        links[1].question()
    });
    assert_eq!((question.rank, question.id.len()), (1, 32));
    assert!(links[0].question().is_none() && links[2].question().is_none());
    // Somebody else answers first: it does not count, though it knows the id.
    let answer = |class: &str| {
        serde_json::json!({"says": "answer", "id": question.id, "finding":
            {"outcome": "decided", "class": class, "summary": "s\u{1b}[2J"}})
        .to_string()
            + "\n"
    };
    links[0].send(answer("gc_pause"));
    let told = until(|| fleet.turn().into_iter().find(|e| matches!(e, FleetEvent::Refused { .. })));
    let FleetEvent::Refused { from, why } = told else { unreachable!() };
    assert!(from == "node0" && why.contains("not asked"), "{from}: {why}");
    links[1].send(answer("block_io"));
    let FleetEvent::Cause(cause) = until(|| fleet.find(|e| matches!(e, FleetEvent::Cause(_))))
    else {
        unreachable!()
    };
    let finding = cause.finding.unwrap();
    assert_eq!((&finding["class"], cause.slowness), (&"block_io".into(), "host-interfered"));
    assert!(!finding["summary"].as_str().unwrap().contains('\u{1b}'));
}

#[test]
fn a_node_with_another_secret_learns_why_it_is_away_and_the_correlator_tells_once() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let other = Fleet::with_secret(Limits::default());
    let link = Link::connect(&fleet.address(), "stranger", &other.credentials).unwrap();
    let news = until(|| {
        fleet.turn();
        link.news().pop()
    });
    assert!(matches!(news, LinkEvent::Away { .. }), "{news:?}");
    for _ in 0..100 {
        fleet.turn();
    }
    let told = fleet.told.iter().filter(|e| matches!(e, FleetEvent::Refused { .. })).count();
    assert_eq!((fleet.correlator.nodes(), told), (0, 1), "{:?}", fleet.told);
}

#[test]
fn who_speaks_no_tls_is_hung_up_on_and_so_is_a_node_without_a_key() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let mut plain = TcpStream::connect(fleet.address()).unwrap();
    plain
        .write_all(b"{\"says\":\"hello\",\"version\":2,\"node\":\"n\",\"session\":\"s\"}\n")
        .unwrap();
    plain.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    until(|| {
        fleet.turn();
        let mut answer = [0; 100];
        // An alert of TLS, then the end.
        plain.read(&mut answer).is_ok_and(|n| n == 0).then_some(())
    });
    let open = Credentials::None { anywhere: true };
    let link = Link::connect(&fleet.address(), "n", &open).unwrap();
    until(|| {
        fleet.turn();
        link.news().pop()
    });
    assert_eq!(fleet.correlator.nodes(), 0);
}

#[test]
fn a_key_is_replaced_without_a_gap() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let Credentials::Secret(path) = fleet.credentials.clone() else { unreachable!() };
    let old = fleet.dir.path().join("old.key");
    std::fs::copy(&path, &old).unwrap();
    gpuwhy_fleet::add_secret(&path).unwrap();
    // The correlator begins anew with both; a node that has the old one only goes on.
    fleet.restart();
    let _node = Link::connect(&fleet.address(), "late", &Credentials::Secret(old.clone())).unwrap();
    fleet.until_nodes(1);
    // The new key comes first now, for both.
    let text = std::fs::read_to_string(&path).unwrap();
    let keys: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    std::fs::write(&path, format!("{}\n{}\n", keys[1], keys[0])).unwrap();
    fleet.restart();
    let _new = fleet.node("new");
    fleet.until_nodes(1);
    std::fs::write(&path, format!("{}\n", keys[1])).unwrap();
    fleet.restart();
    let late = Link::connect(&fleet.address(), "late", &Credentials::Secret(old)).unwrap();
    until(|| {
        fleet.turn();
        late.news().pop()
    });
    assert_eq!(fleet.correlator.nodes(), 0);
}

#[test]
fn with_certificates_a_node_speaks_for_its_own_name_only() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = ["node0".to_owned(), "node1".to_owned()];
    gpuwhy_fleet::make_certificates(dir.path(), &["127.0.0.1".into(), "hub".into()], &nodes[..1])
        .unwrap();
    // Another one later, by the same authority.
    gpuwhy_fleet::make_certificates(dir.path(), &[], &nodes[1..]).unwrap();
    let of = |name: &str| Credentials::Certificates {
        ca: dir.path().join("ca.pem"),
        cert: dir.path().join(format!("{name}.pem")),
        key: dir.path().join(format!("{name}-key.pem")),
    };
    let mut fleet = Fleet::with(of("correlator"), Limits::default(), tempfile::tempdir().unwrap());
    let address = fleet.address();
    let _node = Link::connect(&address, "node0", &of("node0")).unwrap();
    let _other = Link::connect(&address, "node1", &of("node1")).unwrap();
    fleet.until_nodes(2);
    let liar = Link::connect(&address, "node2", &of("node1")).unwrap();
    let away = until(|| {
        fleet.turn();
        liar.news().pop()
    });
    let LinkEvent::Away { why } = away else { panic!("{away:?}") };
    assert!(why.contains("certificate is not for the name node2"), "{why}");
    // Neither may a node be the correlator, nor somebody of another authority a node.
    let false_hub = Fleet::with(of("node0"), Limits::default(), tempfile::tempdir().unwrap());
    let node = Link::connect(&false_hub.address(), "node1", &of("node1")).unwrap();
    let mut false_hub = false_hub;
    until(|| {
        false_hub.turn();
        node.news().pop()
    });
    assert_eq!((false_hub.correlator.nodes(), fleet.correlator.nodes()), (0, 2));
}

#[test]
fn without_a_key_only_loopback_is_listened_at_and_joined() {
    let none = Credentials::None { anywhere: false };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7777", "example.com:7777"] {
        let refused = Correlator::listen(address, &none, Limits::default()).err().expect(address);
        assert!(refused.to_string().contains("gpuwhy fleet key"), "{refused}");
        assert!(Link::connect(address, "n", &none).is_err(), "{address}");
    }
    let mut fleet = Fleet::with(none, Limits::default(), tempfile::tempdir().unwrap());
    let _node = fleet.node("n");
    fleet.until_nodes(1);
}

#[test]
fn connections_that_say_nothing_take_no_place_of_a_node() {
    let mut fleet = Fleet::with_secret(Limits { strangers: 8, ..Limits::default() });
    let mut idle: Vec<TcpStream> = Vec::new();
    for n in 0..200 {
        idle.push(TcpStream::connect(fleet.address()).unwrap());
        if n % 10 == 0 {
            fleet.turn();
        }
    }
    let _node = fleet.node("honest");
    fleet.until_nodes(1);
    // And in the end all of them are gone.
    let closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0; 16]), Ok(0))
            || stream.read(&mut [0; 16]).is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock)
    };
    until(|| {
        fleet.turn();
        idle.iter_mut().all(closed).then_some(())
    });
}

#[test]
fn a_node_that_floods_is_sent_away_and_the_others_are_heard_meanwhile() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let links: Vec<Link> = (0..3).map(|n| fleet.node(&format!("node{n}"))).collect();
    let flood = fleet.node("flood");
    fleet.until_nodes(4);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flooding = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let line = format!("{{\"says\":\"finding\",\"finding\":\"{}\"}}\n", "x".repeat(60_000));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                flood.send(line.clone());
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    });
    let report = fleet.until_straggler(&links, "default", 2, 0);
    assert_eq!(report.rank, Some(2));
    let away = |e: &FleetEvent| matches!(e, FleetEvent::Refused { why, .. } if why.contains("did not stop"));
    until(|| fleet.find(away));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    flooding.join().unwrap();
}

#[test]
fn a_node_whose_connection_broke_comes_back_under_its_name() {
    let mut fleet = Fleet::with_secret(Limits::default());
    let node = fleet.node("node0");
    fleet.until_nodes(1);
    fleet.restart();
    let away = until(|| node.news().into_iter().find(|e| matches!(e, LinkEvent::Away { .. })));
    assert!(matches!(away, LinkEvent::Away { .. }));
    fleet.until_nodes(1);
    assert!(until(|| node.news().pop()) == LinkEvent::Joined);
    // Somebody else may not take its name.
    let other = fleet.node("node0");
    let LinkEvent::Away { why } = until(|| {
        fleet.turn();
        other.news().pop()
    }) else {
        panic!("it joined")
    };
    assert!(why.contains("another node is connected under the name"), "{why}");
}
