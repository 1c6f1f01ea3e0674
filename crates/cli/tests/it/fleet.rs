//! Keys for several nodes, as their users meet them.

use std::os::unix::fs::PermissionsExt as _;

use crate::{folder, gpuwhy, said};

#[test]
fn one_command_makes_a_key_and_says_what_to_do_with_it() {
    let (_keep, folder) = folder();
    let key = folder.join("fleet.key");
    let key = key.to_str().unwrap();
    let output = gpuwhy(&["fleet", "key", key]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    assert!(text.contains("watch --join") && text.contains("watch --to"), "{text}");
    assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    // It is not replaced by accident, and it is what `watch` takes.
    assert_eq!(gpuwhy(&["fleet", "key", key]).status.code(), Some(1));
    let join = ["watch", "--join", "0.0.0.0:0", "--fleet-key", key, "--for", "100ms"];
    let output = gpuwhy(&join);
    assert!(output.status.success(), "{}", said(&output));
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = gpuwhy(&join);
    assert!(said(&output).contains("chmod 600"), "{}", said(&output));
}

#[test]
fn without_a_key_a_correlator_is_for_this_host_and_says_how_to_change_that() {
    let output = gpuwhy(&["watch", "--join", "0.0.0.0:0", "--for", "100ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("gpuwhy fleet key"), "{}", said(&output));
    let output = gpuwhy(&["watch", "--join", "0.0.0.0:0", "--insecure", "--for", "100ms"]);
    assert!(
        output.status.success() && said(&output).contains("neither encrypted"),
        "{}",
        said(&output)
    );
    let output = gpuwhy(&["watch", "--join", "127.0.0.1:0", "--for", "100ms"]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn certificates_are_made_for_hosts_that_can_have_names() {
    let (_keep, folder) = folder();
    let pki = folder.join("pki");
    let pki = pki.to_str().unwrap();
    let output =
        gpuwhy(&["fleet", "certificates", pki, "--correlator", "hub,10.0.0.7", "--node", "a,b"]);
    assert!(output.status.success(), "{}", said(&output));
    for name in ["ca", "correlator", "a", "b"] {
        let key = format!("{pki}/{name}-key.pem");
        assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    let output = gpuwhy(&["fleet", "certificates", pki, "--node", "../x"]);
    assert!(said(&output).contains("no name for a host"), "{}", said(&output));
}
