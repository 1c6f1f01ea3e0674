//! What each recipe of docs/privileges.md leaves to the recorder, and what of it reaches the command: the
//! capabilities, descriptors and environment of both, as the kernel shows them.
//!
//! What a command has beyond what its user would have without the recipe was lent to the recorder and leaked.
//! The service and the container need systemd and a container engine; `cargo test` checks their text.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_testkit::fate;

use super::Measured;
use super::folder::Folder;
use crate::program;
use crate::result::Figure;

/// Nobody's user and group.
const NOBODY: &str = "65534";

/// What the command says of itself, and of its parent.
const SCRIPT: &str = "grep ^Cap /proc/self/status; echo --; grep ^Cap /proc/$PPID/status; echo --; ls /proc/$$/fd; echo --; env";

/// A recipe: how the words of a command are run by it, and how the same user runs them without it.
struct Recipe {
    name: &'static str,
    granted: fn(&Path, &[String]) -> Command,
    alone: fn(&[String]) -> Command,
}

const RECIPES: &[Recipe] = &[
    Recipe { name: "root", granted: |_, words| of(words), alone: of },
    Recipe { name: "sudo with --user", granted: |_, words| of(words), alone: nobody },
    Recipe { name: "setpriv", granted: |_, words| setpriv(words), alone: nobody },
    Recipe { name: "capsh", granted: |_, words| capsh(words), alone: nobody },
    Recipe { name: "setcap", granted: |_, words| nobody(words), alone: nobody },
];

fn of(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn nobody(words: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).args(words);
    command
}

fn setpriv(words: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    // By number: older ones know no names.
    command.args(["--inh-caps=+cap_38,+cap_39", "--ambient-caps=+cap_38,+cap_39"]);
    command.arg("--bounding-set=-all,+cap_38,+cap_39").args(words);
    command
}

fn capsh(words: &[String]) -> Command {
    let quoted: Vec<String> =
        words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let mut command = Command::new("capsh");
    command.args(["--keep=1", "--user=nobody", "--inh=cap_bpf,cap_perfmon"]);
    command.args(["--addamb=cap_bpf,cap_perfmon", "--shell=/bin/sh", "--", "-c"]);
    command.arg(quoted.join(" "));
    command
}

/// What a process has.
#[derive(Debug, Default)]
struct Has {
    capabilities: u64,
    recorder: u64,
    descriptors: BTreeSet<String>,
    environment: BTreeMap<String, String>,
}

impl Has {
    fn parse(text: &str) -> Result<Has> {
        let parts: Vec<&str> = text.split("--\n").collect();
        let [own, parent, descriptors, environment] = parts[..] else {
            bail!("not understood: {text}")
        };
        // Of the bounding set nobody has anything by itself.
        let set = |text: &str| {
            let sets = text.lines().filter(|line| !line.starts_with("CapBnd"));
            let masks =
                sets.filter_map(|line| u64::from_str_radix(line.split('\t').nth(1)?, 16).ok());
            masks.fold(0, |all, mask| all | mask)
        };
        Ok(Has {
            capabilities: set(own),
            recorder: set(parent),
            descriptors: descriptors.lines().map(str::to_owned).collect(),
            environment: environment
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    fn of(command: &mut Command) -> Result<Has> {
        // `_` names the program that a shell started last.
        command.env("LD_LIBRARY_PATH", "/nowhere").env_remove("_");
        let ran = fate::run(command).map_err(|why| anyhow!(why))?;
        if !ran.status.success() {
            bail!("{}: {}", ran.status, ran.said());
        }
        Has::parse(&String::from_utf8_lossy(&ran.stdout))
    }
}

/// Runs every recipe.
pub fn run(_args: &super::Args) -> Result<Measured> {
    if let Some(reason) = program::cannot_record() {
        bail!("{reason}");
    }
    let mut measured = Measured::default();
    let (mut left, mut rows) = (Vec::new(), Vec::new());
    for recipe in RECIPES {
        match tried(recipe) {
            Ok((alone, behind)) => {
                let leaked = behind.capabilities & !alone.capabilities;
                left.push(f64::from(leaked.count_ones()));
                rows.push(row(recipe.name, &alone, &behind, leaked));
            }
            Err(error) => measured.notes.push(format!("{} was not tried: {error:#}", recipe.name)),
        }
    }
    let figure = Figure {
        value: left.iter().sum(),
        spread: [0.0, left.iter().copied().fold(0.0, f64::max)],
        n: left.len(),
    };
    measured.figures.insert("capabilities_left_to_child".into(), figure);
    measured.tables.insert("privileges".into(), rows);
    Ok(measured)
}

fn tried(recipe: &Recipe) -> Result<(Has, Has)> {
    let folder = Folder::new("privileges")?;
    let path = folder.path();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
    // Where the program lies may be closed to others.
    let program = path.join("gpuwhy");
    std::fs::copy(program::gpuwhy(), &program).context("cannot copy gpuwhy")?;
    if recipe.name == "setcap" {
        let set = Command::new("setcap").arg("cap_bpf,cap_perfmon+ep").arg(&program).status();
        if !set.is_ok_and(|status| status.success()) {
            bail!("setcap failed");
        }
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let command = words(&["sh", "-c", SCRIPT]);
    let trace = path.join("t.trace").display().to_string();
    let mut front = words(&[&program.display().to_string(), "record", "-o", &trace]);
    if recipe.name.ends_with("--user") {
        front.extend(words(&["--user", "65534:65534"]));
    }
    front.push("--".into());
    let alone = Has::of(&mut (recipe.alone)(&command)).context("without gpuwhy")?;
    let behind = Has::of(&mut (recipe.granted)(path, &[front, command].concat()))?;
    Ok((alone, behind))
}

fn row(recipe: &str, alone: &Has, behind: &Has, leaked: u64) -> BTreeMap<String, String> {
    let joined = |all: Vec<&str>| if all.is_empty() { "none".into() } else { all.join(" ") };
    let changed = |name: &&String| alone.environment.get(*name) != behind.environment.get(*name);
    let added: Vec<&str> = behind.environment.keys().filter(changed).map(String::as_str).collect();
    let missing: Vec<&str> = alone
        .environment
        .keys()
        .filter(|name| !behind.environment.contains_key(*name))
        .map(String::as_str)
        .collect();
    let descriptors =
        behind.descriptors.difference(&alone.descriptors).map(String::as_str).collect();
    [
        ("recipe", recipe.to_owned()),
        ("recorder", names(behind.recorder)),
        ("command", names(behind.capabilities)),
        ("left", names(leaked)),
        ("descriptors", joined(descriptors)),
        ("variables", joined(added)),
        ("missing", joined(missing)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// A set of capabilities in words, of those that matter here.
fn names(set: u64) -> String {
    let known =
        [(19, "SYS_PTRACE"), (21, "SYS_ADMIN"), (23, "SYS_NICE"), (38, "PERFMON"), (39, "BPF")];
    match set.count_ones() {
        0 => "none".into(),
        many @ 8.. => format!("{many} (root)"),
        _ => {
            let named = known.iter().filter(|(bit, _)| set & (1 << bit) != 0);
            let mut all: Vec<String> = named.map(|(_, name)| (*name).to_owned()).collect();
            let others = (0..64).filter(|bit| set & (1 << bit) != 0);
            all.extend(
                others
                    .filter(|bit| known.iter().all(|(k, _)| k != bit))
                    .map(|bit| format!("cap_{bit}")),
            );
            all.join(" ")
        }
    }
}
