//! The modules of a crate, each with the file that it lies in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::{Attribute, Item};

/// A module: a file, or a part of one.
pub struct Module {
    /// What it is called in its parent.
    pub name: String,
    /// The file, relative to the crate.
    pub file: String,
    /// What is declared in it, modules with a file of their own left out.
    pub items: Vec<Item>,
    /// The modules in it that are no tests.
    pub children: Vec<Module>,
}

/// Reads the text of a file of the crate; none if it is not there.
pub type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The modules of the crate whose root file is `root`.
pub fn parse(root: &str, read: &Read<'_>) -> Result<Module> {
    file("crate", root, &parent(root), read)
}

fn parent(file: &str) -> String {
    Path::new(file).parent().unwrap_or(Path::new("")).to_string_lossy().into_owned()
}

/// The module in `path`, whose children with files of their own lie in `folder`.
fn file(name: &str, path: &str, folder: &str, read: &Read<'_>) -> Result<Module> {
    let text = read(path).with_context(|| format!("cannot read `{path}`"))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse `{path}`"))?;
    module(name, path, folder, parsed.items, read)
}

fn module(
    name: &str,
    path: &str,
    folder: &str,
    items: Vec<Item>,
    read: &Read<'_>,
) -> Result<Module> {
    let mut children = Vec::new();
    let mut rest = Vec::new();
    for item in items {
        let Item::Mod(child) = item else {
            rest.push(item);
            continue;
        };
        if has_test_attribute(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let below = format!("{folder}/{name}");
        if let Some((_, items)) = child.content {
            children.push(module(&name, path, &below, items, read)?);
            continue;
        }
        let places = match path_attribute(&child.attrs) {
            Some(said) => vec![Path::new(&parent(path)).join(said)],
            None => {
                vec![PathBuf::from(format!("{below}.rs")), PathBuf::from(format!("{below}/mod.rs"))]
            }
        };
        let place = places.iter().map(|p| p.to_string_lossy()).find(|p| read(p).is_some());
        // A file that a build script writes is nobody's.
        if let Some(place) = place {
            children.push(file(&name, &place, &below, read)?);
        }
    }
    Ok(Module { name: name.into(), file: path.into(), items: rest, children })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|a| a.path().is_ident("path"))?;
    let syn::Meta::NameValue(pair) = &path.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
        return None;
    };
    Some(text.value())
}

/// Whether something is compiled into tests or models only.
pub fn has_test_attribute(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let tokens = list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && !tokens.starts_with("not")
            && tokens.split(|c: char| !c.is_alphanumeric()).any(|w| w == "test" || w == "loom")
    })
}

/// Whether an item is compiled into tests only.
pub fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => return false,
    };
    has_test_attribute(attributes)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A crate of these files, the first of which is its root.
    pub fn krate(files: &[(&str, &str)]) -> Module {
        let read = |path: &str| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        };
        parse(files[0].0, &read).unwrap()
    }

    #[test]
    fn modules_are_found_in_files_folders_and_inline() {
        let root = krate(&[
            ("src/lib.rs", "mod a; mod b { mod c; } #[cfg(test)] mod tests;"),
            ("src/a/mod.rs", "pub fn f() {}"),
            ("src/b/c.rs", ""),
        ]);
        let names: Vec<&str> = root.children.iter().map(|m| &*m.file).collect();
        assert_eq!(names, ["src/a/mod.rs", "src/lib.rs"]);
        assert_eq!(root.children[1].children[0].file, "src/b/c.rs");
    }
}
