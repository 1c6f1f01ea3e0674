//! Which file of a crate uses which other one, and where that goes in circles.
//!
//! *What it sees:* paths in code, `use` declarations and macro calls, resolved through the crate's
//! modules and re-exports to the file that defines what they name.
//! *What it leaves out:* tests; `mod` declarations; `pub use`, which only shows at another place what
//! is declared somewhere; and a file that uses what is below it in its own folder (`ring.rs` and
//! `ring/`): the folder is one concern, and its root is allowed to know its parts and they their root.
//! *What fools it:* methods are called without a path, so only the import of their type is an edge;
//! names that macros make are taken for names of the module in which they are looked up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use super::tree::{Module, is_test};

/// The files of a crate that use each other in a circle, one list a circle.
pub fn circles(root: &Module) -> Vec<Vec<String>> {
    let index = Index::new(root);
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    index.each(&mut |at, module| {
        let mut seen = Paths { found: Vec::new() };
        module.items.iter().for_each(|item| seen.visit_item(item));
        for path in seen.found {
            let Some(target) = index.resolve(at, &path, 0) else { continue };
            let (from, to) = (&module.file, &index.modules[target].file);
            if from != to && !same_folder(from, to) {
                edges.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    });
    strongly_connected(&edges)
}

/// Whether one file is the root of the folder that the other one lies in.
fn same_folder(a: &str, b: &str) -> bool {
    let folder = |file: &str| file.trim_end_matches("/mod.rs").trim_end_matches(".rs").to_owned();
    let within = |file: &str, root: &str| {
        let is_crate_root = root.ends_with("/lib") || root.ends_with("/main");
        !is_crate_root && file.starts_with(&format!("{root}/"))
    };
    let (a, b) = (folder(a), folder(b));
    within(&a, &b) || within(&b, &a)
}

/// The modules of a crate by number, with what their names stand for.
struct Index<'a> {
    modules: Vec<&'a Module>,
    parents: Vec<Option<usize>>,
    children: Vec<HashMap<String, usize>>,
    /// Names that `use` brings in, with the path that they stand for.
    aliases: Vec<HashMap<String, Vec<String>>>,
    /// Modules that are imported whole (`use module::*`).
    globs: Vec<Vec<Vec<String>>>,
    own: Vec<HashSet<String>>,
}

impl<'a> Index<'a> {
    fn new(root: &'a Module) -> Index<'a> {
        let mut index = Index {
            modules: Vec::new(),
            parents: Vec::new(),
            children: Vec::new(),
            aliases: Vec::new(),
            globs: Vec::new(),
            own: Vec::new(),
        };
        index.add(root, None);
        index
    }

    fn add(&mut self, module: &'a Module, parent: Option<usize>) -> usize {
        let at = self.modules.len();
        self.modules.push(module);
        self.parents.push(parent);
        self.children.push(HashMap::new());
        let (mut aliases, mut globs, mut own) = (HashMap::new(), Vec::new(), HashSet::new());
        for item in module.items.iter().filter(|item| !is_test(item)) {
            if let Item::Use(one) = item {
                each_use(&one.tree, &mut Vec::new(), &mut |path, name| match name {
                    Some(name) => {
                        aliases.insert(name, path);
                    }
                    None => globs.push(path),
                });
            }
            own.extend(name_of(item));
        }
        self.aliases.push(aliases);
        self.globs.push(globs);
        self.own.push(own);
        for child in &module.children {
            let number = self.add(child, Some(at));
            self.children[at].insert(child.name.clone(), number);
        }
        at
    }

    fn each(&self, take: &mut dyn FnMut(usize, &Module)) {
        self.modules.iter().enumerate().for_each(|(at, module)| take(at, module));
    }

    /// The module that defines what `path` names in module `at`; none if it is of another crate.
    fn resolve(&self, at: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        // Two re-exports may name each other; no honest chain is this long.
        if depth > 16 {
            return None;
        }
        match first.as_str() {
            "crate" => self.walk(0, rest, depth),
            "self" => self.walk(at, rest, depth),
            "super" => self.walk(self.parents[at]?, rest, depth),
            name => {
                let known = self.children[at].contains_key(name)
                    || self.aliases[at].contains_key(name)
                    || self.own[at].contains(name);
                if known {
                    return self.walk(at, path, depth);
                }
                let mut globs = self.globs[at].iter();
                globs.find_map(|glob| {
                    let from = self.resolve(at, glob, depth + 1)?;
                    let there = self.own[from].contains(name)
                        || self.children[from].contains_key(name)
                        || self.aliases[from].contains_key(name);
                    there.then(|| self.walk(from, path, depth + 1)).flatten()
                })
            }
        }
    }

    fn walk(&self, mut at: usize, mut path: &[String], depth: usize) -> Option<usize> {
        while let Some((name, rest)) = path.split_first() {
            if name == "super" {
                (at, path) = (self.parents[at]?, rest);
            } else if let Some(&child) = self.children[at].get(name) {
                (at, path) = (child, rest);
            } else if let Some(alias) =
                self.aliases[at].get(name).filter(|alias| alias.first() != Some(name))
            {
                let whole: Vec<String> = alias.iter().chain(rest).cloned().collect();
                return self.resolve(at, &whole, depth + 1);
            } else if !self.own[at].contains(name)
                && let Some(from) = self.globs[at].iter().find_map(|glob| {
                    let from = self.resolve(at, glob, depth + 1)?;
                    self.own[from].contains(name).then_some(from)
                })
            {
                return Some(from);
            } else {
                return Some(at);
            }
        }
        Some(at)
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Each name that a `use` brings in, with its path; no name for `*`.
fn each_use(
    tree: &UseTree,
    path: &mut Vec<String>,
    take: &mut dyn FnMut(Vec<String>, Option<String>),
) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            each_use(&step.tree, path, take);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|one| each_use(one, path, take)),
        UseTree::Glob(_) => take(path.clone(), None),
        UseTree::Name(_) | UseTree::Rename(_) => {
            let (ident, name) = match tree {
                UseTree::Rename(one) => (one.ident.to_string(), one.rename.to_string()),
                UseTree::Name(one) => (one.ident.to_string(), one.ident.to_string()),
                _ => return,
            };
            let mut whole = path.clone();
            let name = match ident.as_str() {
                "self" if name == "self" => path.last().cloned().unwrap_or_default(),
                "self" => name,
                _ => {
                    whole.push(ident);
                    name
                }
            };
            take(whole, Some(name));
        }
    }
}

/// Every path that code names, and not what it re-exports.
struct Paths {
    found: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        // Inline modules are modules of their own in the tree.
        if is_test(item) || matches!(item, Item::Mod(_)) {
            return;
        }
        if let Item::Use(one) = item {
            if matches!(one.vis, Visibility::Inherited) {
                each_use(&one.tree, &mut Vec::new(), &mut |path, _| self.found.push(path));
            }
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !super::tree::has_test_attribute(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.found.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.found.push(call.path.segments.iter().map(|s| s.ident.to_string()).collect());
        paths_of_tokens(call.tokens.clone(), &mut self.found);
    }
}

fn paths_of_tokens(tokens: TokenStream, found: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    let mut done = |path: &mut Vec<String>| {
        if path.len() > 1 {
            found.push(std::mem::take(path));
        }
        path.clear();
    };
    let mut groups = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    done(&mut path);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(p) if p.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                done(&mut path);
                groups.push(group.stream());
                colons = 0;
            }
            _ => {
                done(&mut path);
                colons = 0;
            }
        }
    }
    done(&mut path);
    groups.into_iter().for_each(|group| paths_of_tokens(group, found));
}

/// Components of more than one file, by Tarjan's algorithm.
fn strongly_connected(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    struct Search<'a> {
        edges: &'a BTreeMap<String, BTreeSet<String>>,
        number: HashMap<&'a str, usize>,
        low: HashMap<&'a str, usize>,
        stack: Vec<&'a str>,
        found: Vec<Vec<String>>,
    }
    impl<'a> Search<'a> {
        fn visit(&mut self, node: &'a str) {
            let number = self.number.len();
            self.number.insert(node, number);
            self.low.insert(node, number);
            self.stack.push(node);
            let edges = self.edges;
            for next in edges.get(node).into_iter().flatten() {
                if !self.number.contains_key(next.as_str()) {
                    self.visit(next);
                    let low = self.low[node].min(self.low[next.as_str()]);
                    self.low.insert(node, low);
                } else if self.stack.contains(&next.as_str()) {
                    let low = self.low[node].min(self.number[next.as_str()]);
                    self.low.insert(node, low);
                }
            }
            if self.low[node] == number {
                let at = self.stack.iter().position(|n| *n == node).unwrap_or(0);
                let mut circle: Vec<String> =
                    self.stack.split_off(at).into_iter().map(str::to_owned).collect();
                circle.sort();
                if circle.len() > 1 {
                    self.found.push(circle);
                }
            }
        }
    }
    let mut search = Search {
        edges,
        number: HashMap::new(),
        low: HashMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for node in edges.keys() {
        if !search.number.contains_key(node.as_str()) {
            search.visit(node);
        }
    }
    search.found.sort();
    search.found
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::krate;
    use super::*;

    fn check(files: &[(&str, &str)], expected: &[&[&str]]) {
        let found = circles(&krate(files));
        assert_eq!(found, expected, "in {files:?}");
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        check(
            &[
                ("src/lib.rs", "mod a; mod b; mod c;"),
                ("src/a.rs", "use crate::b::B; pub struct A;"),
                ("src/b.rs", "pub struct B; fn f() { let _ = crate::a::A; }"),
                ("src/c.rs", "use crate::a::A;"),
            ],
            &[&["src/a.rs", "src/b.rs"]],
        );
    }

    #[test]
    fn a_longer_way_round_is_one_too_and_macros_hide_nothing() {
        check(
            &[
                ("src/lib.rs", "mod a; mod b; mod c;"),
                ("src/a.rs", "use super::b; fn f() { b::g() }"),
                ("src/b.rs", "pub fn g() { println!(\"{}\", crate::c::H) }"),
                ("src/c.rs", "pub const H: u8 = crate::a::Z;"),
            ],
            &[&["src/a.rs", "src/b.rs", "src/c.rs"]],
        );
    }

    #[test]
    fn a_re_export_leads_to_where_the_thing_is_declared() {
        check(
            &[
                ("src/lib.rs", "mod a; mod b; pub use a::A;"),
                ("src/a.rs", "pub struct A;"),
                ("src/b.rs", "use crate::A; use super::*; fn f() { A; }"),
            ],
            &[],
        );
    }

    #[test]
    fn tests_and_the_root_of_a_folder_do_not_count() {
        check(
            &[
                ("src/lib.rs", "mod a; mod b;"),
                ("src/a.rs", "mod part; use part::P; pub struct A;"),
                ("src/a/part.rs", "use super::A; pub struct P;"),
                ("src/b.rs", "use crate::a::A; #[cfg(test)] mod tests { use crate::b; }"),
            ],
            &[],
        );
        check(
            &[
                ("src/lib.rs", "mod a; mod b;"),
                ("src/a.rs", "#[cfg(test)] mod tests { use crate::b::B; }"),
                ("src/b.rs", "use crate::a::A; pub struct B;"),
            ],
            &[],
        );
    }
}
