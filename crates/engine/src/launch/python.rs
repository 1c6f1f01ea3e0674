//! How Python programs that are recorded get the package `gpuwhy`, where it is not installed: a folder beside
//! this program that Python looks into first.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The folder's name.
const FOLDER: &str = "gpuwhy-python";
/// Names another folder; empty for none.
const VARIABLE: &str = "GPUWHY_WHEEL";
/// Where Python looks for modules first.
pub(super) const PATH: &str = "PYTHONPATH";

/// Where the package is: as GPUWHY_WHEEL says, beside this program, or in the `lib` folder beside its
/// `bin`. `None` if it is at none of them.
pub fn folder() -> Option<PathBuf> {
    if let Some(said) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(said)).filter(|path| is_package(path));
    }
    let own = std::env::current_exe().ok()?;
    let beside = own.parent()?;
    let places = [beside.join(FOLDER), beside.join("../lib").join(FOLDER)];
    places.into_iter().find(|path| is_package(path)).and_then(|path| path.canonicalize().ok())
}

fn is_package(folder: &Path) -> bool {
    // A colon would part the path in two.
    !folder.as_os_str().as_encoded_bytes().contains(&b':')
        && folder.join("sitecustomize.py").is_file()
        && folder.join("gpuwhy/_native.abi3.so").is_file()
}

/// The command's PYTHONPATH: the folder, and then what the user has set.
pub(super) fn path(folder: &Path, users: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        path.push(":");
        path.push(users);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_set_comes_after_ours() {
        let ours = Path::new("/opt/gpuwhy-python");
        let path = |users: Option<&str>| path(ours, users.map(OsStr::new)).into_string().unwrap();
        assert_eq!(path(None), "/opt/gpuwhy-python");
        assert_eq!(
            path(Some("")),
            "/opt/gpuwhy-python",
            "an empty part would be the current folder"
        );
        assert_eq!(path(Some("/a:/b")), "/opt/gpuwhy-python:/a:/b");
    }

    #[test]
    fn a_folder_that_lacks_a_part_is_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("gpuwhy")).unwrap();
        std::fs::write(folder.path().join("sitecustomize.py"), "").unwrap();
        assert!(!is_package(folder.path()));
        std::fs::write(folder.path().join("gpuwhy/_native.abi3.so"), "").unwrap();
        assert!(is_package(folder.path()));
        let colon = folder.path().join("a:b");
        std::fs::create_dir_all(colon.join("gpuwhy")).unwrap();
        std::fs::write(colon.join("sitecustomize.py"), "").unwrap();
        std::fs::write(colon.join("gpuwhy/_native.abi3.so"), "").unwrap();
        assert!(!is_package(&colon));
    }
}
