//! Sizes of files and functions, and which public items say what they are.

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Visibility};

use super::tree::{has_test_attribute, is_test};

/// What was counted in one file, tests left out.
#[derive(Debug, Default)]
pub struct Counted {
    /// Lines, comments and blank ones too.
    pub lines: usize,
    /// Lines of tests that lie in the same file.
    pub test_lines: usize,
    /// Functions: name, first line, lines from signature to closing brace.
    pub functions: Vec<(String, usize, usize)>,
    /// Public items, methods, fields and variants.
    pub public: usize,
    /// Those without a doc comment: name and line.
    pub undocumented: Vec<(String, usize)>,
}

/// Counts a file of Rust.
pub fn rust(text: &str) -> syn::Result<Counted> {
    let file = syn::parse_file(text)?;
    let mut counter = Counter { counted: Counted::default(), in_trait_impl: false };
    for item in &file.items {
        counter.visit_item(item);
    }
    let mut counted = counter.counted;
    counted.lines = text.lines().count() - counted.test_lines;
    Ok(counted)
}

struct Counter {
    counted: Counted,
    in_trait_impl: bool,
}

fn lines_of(span: Span) -> usize {
    span.end().line + 1 - span.start().line
}

impl Counter {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        self.counted.functions.push((signature.ident.to_string(), first, last + 1 - first));
    }

    fn public(&mut self, vis: &Visibility, attributes: &[Attribute], name: &str, span: Span) {
        if matches!(vis, Visibility::Public(_)) {
            self.described(attributes, name, span);
        }
    }

    fn described(&mut self, attributes: &[Attribute], name: &str, span: Span) {
        self.counted.public += 1;
        if !attributes.iter().any(|a| a.path().is_ident("doc")) {
            self.counted.undocumented.push((name.to_owned(), span.start().line));
        }
    }

    fn fields(&mut self, fields: &syn::Fields) {
        for field in fields {
            // A field without a name is what its type says.
            if let Some(ident) = &field.ident {
                self.public(&field.vis, &field.attrs, &ident.to_string(), field.span());
            }
        }
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(item) {
            self.counted.test_lines += lines_of(item.span());
            return;
        }
        match item {
            Item::Fn(i) => self.public(&i.vis, &i.attrs, &i.sig.ident.to_string(), i.span()),
            Item::Const(i) => self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span()),
            Item::Static(i) => self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span()),
            Item::Type(i) => self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span()),
            Item::Trait(i) => self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span()),
            Item::Struct(i) => {
                self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span());
                self.fields(&i.fields);
            }
            Item::Enum(i) => {
                self.public(&i.vis, &i.attrs, &i.ident.to_string(), i.span());
                if matches!(i.vis, Visibility::Public(_)) {
                    for variant in &i.variants {
                        self.described(&variant.attrs, &variant.ident.to_string(), variant.span());
                    }
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.in_trait_impl = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if has_test_attribute(&item.attrs) {
            return;
        }
        self.function(&item.sig, &item.block);
        if !self.in_trait_impl {
            self.public(&item.vis, &item.attrs, &item.sig.ident.to_string(), item.span());
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_counted_from_signature_to_brace_and_tests_are_not() {
        let text = "//! A file.\n\n/// Doc.\npub fn a() {\n    b();\n}\n\nfn b() {}\n\n\
                    #[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {}\n}\n";
        let counted = rust(text).unwrap();
        assert_eq!(counted.functions, [("a".into(), 4, 3), ("b".into(), 8, 1)]);
        assert_eq!((counted.lines, counted.test_lines), (9, 5));
        assert_eq!((counted.public, counted.undocumented.len()), (1, 0));
    }

    #[test]
    fn public_items_without_a_word_are_named() {
        let text = "pub struct A { pub x: u8, y: u8 }\nimpl A { pub fn f() {} fn g() {} }\n\
                    impl Clone for A { fn clone(&self) -> A { todo() } }\n\
                    /// E.\npub enum E { /// V.\n V, W }\n";
        let counted = rust(text).unwrap();
        let names: Vec<&str> = counted.undocumented.iter().map(|(n, _)| &**n).collect();
        assert_eq!(names, ["A", "x", "f", "W"]);
        assert_eq!(counted.public, 6);
    }
}
