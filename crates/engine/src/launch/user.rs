//! As whom a command runs, where the recorder runs as root.

use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A user, with groups and home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAs {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    name: Option<String>,
    home: Option<PathBuf>,
}

impl FromStr for RunAs {
    type Err = String;

    /// `NAME`, `UID` or either with `:GID`; a user whom this host does not know needs the group.
    fn from_str(text: &str) -> Result<RunAs, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let number = user.parse::<u32>().ok();
        let found = match number {
            Some(uid) => User::from_uid(Uid::from_raw(uid)),
            None => User::from_name(user),
        };
        let found = found.map_err(|error| format!("cannot look `{user}` up: {error}"))?;
        let given = match group {
            None => None,
            Some(group) => Some(
                group.parse::<u32>().map_err(|_| format!("`{group}` is no number of a group"))?,
            ),
        };
        let (uid, gid) = match (&found, number, given) {
            (Some(found), _, given) => (found.uid.as_raw(), given.unwrap_or(found.gid.as_raw())),
            (None, Some(uid), Some(gid)) => (uid, gid),
            (None, Some(_), None) => {
                return Err(format!("this host knows no user {user}; write UID:GID"));
            }
            (None, None, _) => return Err(format!("this host knows no user `{user}`")),
        };
        let groups = match &found {
            // A group that is named is the only one.
            Some(found) if given.is_none() => {
                let name = CString::new(found.name.as_str()).map_err(|error| error.to_string())?;
                let all = getgrouplist(&name, found.gid);
                all.map_err(|error| format!("cannot list the groups of `{user}`: {error}"))?
                    .into_iter()
                    .map(Gid::as_raw)
                    .collect()
            }
            _ => vec![gid],
        };
        let (name, home) = found.map(|found| (found.name, found.dir)).unzip();
        Ok(RunAs { uid, gid, groups, name, home })
    }
}

impl RunAs {
    /// Makes a file of ours this user's.
    ///
    /// # Errors
    /// Only root may.
    pub fn give(&self, path: &Path) -> Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
            .map_err(Error::io("give to the command's user", path))
    }

    /// Whether this process may run a command as this user.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self) -> Result<()> {
        let own = rustix::process::geteuid();
        match own.is_root() || own.as_raw() == self.uid {
            true => Ok(()),
            false => Err(Error::NotRoot),
        }
    }

    /// Makes this process, which has one thread, the user's, for good.
    pub(super) fn become_user(&self) -> Result<()> {
        let failed = |error: nix::Error| Error::User { uid: self.uid, source: error.into() };
        let own = rustix::process::getuid().as_raw();
        if own == self.uid && !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(failed)?;
        setgid(Gid::from_raw(self.gid)).map_err(failed)?;
        setuid(Uid::from_raw(self.uid)).map_err(failed)?;
        if self.uid != 0 {
            // The kernel has emptied them, but where the secure bits say otherwise.
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            let dropped = rustix::thread::set_capabilities(None, sets);
            dropped.map_err(|error| Error::Capabilities { source: error.into() })?;
        }
        Ok(())
    }

    /// Sets HOME, USER and LOGNAME, where they are known.
    pub(super) fn set_variables(&self, environment: &mut Vec<(OsString, OsString)>) {
        let name = self.name.as_ref().map(OsString::from);
        let home = self.home.as_ref().map(|home| home.clone().into_os_string());
        for (variable, value) in [("HOME", home), ("USER", name.clone()), ("LOGNAME", name)] {
            environment.retain(|(name, _)| name != variable);
            environment.extend(value.map(|value| (variable.into(), value)));
        }
    }
}

/// Whom a command runs as if root was become by `sudo` and nobody was named: the name of the user who
/// called sudo.
pub fn root_by_sudo() -> Option<String> {
    let caller = std::env::var("SUDO_UID").ok()?;
    let is_other = caller != "0" && rustix::process::geteuid().is_root();
    is_other.then(|| std::env::var("SUDO_USER").unwrap_or(caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_or_numbered_and_an_unknown_one_needs_a_group() {
        let root: RunAs = "root".parse().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!("0".parse::<RunAs>().unwrap(), root);
        let unknown: RunAs = "4000001:4000002".parse().unwrap();
        assert_eq!(
            (unknown.uid, unknown.gid, &unknown.groups[..]),
            (4_000_001, 4_000_002, &[4_000_002][..])
        );
        for bad in ["", "nobody-knows-him", "4000001", "root:wheel"] {
            assert!(bad.parse::<RunAs>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_users_variables_replace_the_callers() {
        let mut environment = vec![("HOME".into(), "/root".into()), ("A".into(), "b".into())];
        let user = RunAs {
            uid: 7,
            gid: 7,
            groups: vec![],
            name: Some("ada".into()),
            home: Some("/home/ada".into()),
        };
        user.set_variables(&mut environment);
        let get = |name: &str| {
            let found: Vec<_> = environment.iter().filter(|(key, _)| key == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0].1.to_string_lossy().into_owned()
        };
        assert_eq!(
            (get("HOME"), get("USER"), get("A")),
            ("/home/ada".into(), "ada".into(), "b".into())
        );
    }
}
