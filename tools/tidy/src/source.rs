//! What Rust files say: how long functions are, which names they give, what effects there are and what is bound to them.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use syn::{
    Block, Expr, ExprStruct, Fields, Ident, ImplItemFn, Item, ItemFn, ItemStruct, Member, Signature, TraitItemFn,
    spanned::Spanned,
    visit::{self, Visit},
};

/// Functions of more than `lines_max` lines, from `fn` to the closing brace: (line, name, lines).
///
/// # Errors
/// When the text is not Rust.
pub fn long_functions(text: &str, lines_max: usize) -> Result<Vec<(usize, String, usize)>> {
    struct Long {
        lines_max: usize,
        found: Vec<(usize, String, usize)>,
    }
    impl Long {
        fn judge(&mut self, signature: &Signature, body: &Block) {
            let first = signature.fn_token.span().start().line;
            let lines = body.span().end().line - first + 1;
            if lines > self.lines_max {
                self.found.push((first, signature.ident.to_string(), lines));
            }
        }
    }
    impl<'ast> Visit<'ast> for Long {
        fn visit_item_fn(&mut self, function: &'ast ItemFn) {
            self.judge(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
        fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
            self.judge(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
        fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
            if let Some(body) = &function.default {
                self.judge(&function.sig, body);
            }
            visit::visit_trait_item_fn(self, function);
        }
    }
    let mut long = Long { lines_max, found: Vec::new() };
    long.visit_file(&syn::parse_file(text)?);
    Ok(long.found)
}

/// Every name that a file gives: items, methods, fields, variants, modules, and what it takes in by `use`.
///
/// # Errors
/// When the text is not Rust.
pub fn names(text: &str) -> Result<BTreeSet<String>> {
    #[derive(Default)]
    struct Names(BTreeSet<String>);
    impl Names {
        fn add(&mut self, ident: &Ident) {
            self.0.insert(ident.to_string());
        }
    }
    impl<'ast> Visit<'ast> for Names {
        fn visit_item(&mut self, item: &'ast Item) {
            match item {
                Item::Enum(item) => self.add(&item.ident),
                Item::Struct(item) => self.add(&item.ident),
                Item::Trait(item) => self.add(&item.ident),
                Item::Type(item) => self.add(&item.ident),
                Item::Const(item) => self.add(&item.ident),
                Item::Static(item) => self.add(&item.ident),
                Item::Mod(item) => self.add(&item.ident),
                _ => {}
            }
            visit::visit_item(self, item);
        }
        fn visit_signature(&mut self, signature: &'ast Signature) {
            self.add(&signature.ident);
        }
        fn visit_variant(&mut self, variant: &'ast syn::Variant) {
            self.add(&variant.ident);
            visit::visit_variant(self, variant);
        }
        fn visit_field(&mut self, field: &'ast syn::Field) {
            field.ident.iter().for_each(|ident| self.add(ident));
        }
        fn visit_use_name(&mut self, name: &'ast syn::UseName) {
            self.add(&name.ident);
        }
        fn visit_use_rename(&mut self, name: &'ast syn::UseRename) {
            self.add(&name.rename);
        }
    }
    let mut names = Names::default();
    names.visit_file(&syn::parse_file(text)?);
    Ok(names.0)
}

/// The fields of `pub struct Effects`: (line, name); empty when the file has none.
///
/// # Errors
/// When the text is not Rust.
pub fn effect_fields(text: &str) -> Result<Vec<(usize, String)>> {
    #[derive(Default)]
    struct Found(Vec<(usize, String)>);
    impl<'ast> Visit<'ast> for Found {
        fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
            if let (true, Fields::Named(fields)) = (item.ident == "Effects", &item.fields) {
                let named = fields.named.iter().filter_map(|field| field.ident.as_ref());
                self.0.extend(named.map(|ident| (ident.span().start().line, ident.to_string())));
            }
        }
    }
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(text)?);
    Ok(found.0)
}

/// One field of an `Effects { … }` literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Line of the field.
    pub line: usize,
    /// Its name.
    pub field: String,
    /// The function bound to it, as written: the last argument of `bind`. `None` when nothing named is bound.
    pub function: Option<String>,
}

/// What the `Effects { … }` literals of a file bind.
///
/// # Errors
/// When the text is not Rust.
pub fn bindings(text: &str) -> Result<Vec<Binding>> {
    #[derive(Default)]
    struct Literals(Vec<Binding>);
    impl<'ast> Visit<'ast> for Literals {
        fn visit_expr_struct(&mut self, literal: &'ast ExprStruct) {
            if literal.path.segments.last().is_some_and(|segment| segment.ident == "Effects") {
                self.0.extend(literal.fields.iter().filter_map(|field| match &field.member {
                    Member::Named(name) => {
                        Some(Binding { line: name.span().start().line, field: name.to_string(), function: bound_function(&field.expr) })
                    }
                    Member::Unnamed(_) => None,
                }));
            }
            visit::visit_expr_struct(self, literal);
        }
    }
    let mut literals = Literals::default();
    literals.visit_file(&syn::parse_file(text).context("not Rust")?);
    Ok(literals.0)
}

fn bound_function(expression: &Expr) -> Option<String> {
    #[derive(Default)]
    struct Bound(Option<String>);
    impl<'ast> Visit<'ast> for Bound {
        fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
            let callee = path_text(&call.func);
            if callee.as_deref().is_some_and(|callee| callee == "bind" || callee.ends_with("::bind")) {
                self.0 = call.args.last().and_then(path_text);
            }
            visit::visit_expr_call(self, call);
        }
    }
    let mut bound = Bound::default();
    bound.visit_expr(expression);
    bound.0
}

fn path_text(expression: &Expr) -> Option<String> {
    let Expr::Path(path) = expression else { return None };
    let segments: Vec<_> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    Some(segments.join("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_too_many_lines_is_found_where_it_begins() {
        let text = "struct S;\nimpl S {\n    /// Doc.\n    fn long(\n        a: u8,\n    ) {\n        a;\n    }\n    fn short() {}\n}\n";
        assert_eq!(long_functions(text, 4).unwrap(), [(4, "long".into(), 5)]);
        assert_eq!(long_functions(text, 5).unwrap(), []);
    }

    #[test]
    fn fields_and_what_is_bound_to_them_are_found() {
        let text = "pub struct Effects {\n    /// One.\n    pub one: u8,\n    pub two: u8,\n}\n";
        assert_eq!(effect_fields(text).unwrap(), [(3, "one".into()), (4, "two".into())]);
        let text = "fn main() { let e = x::Effects {\n one: timed(\"one\", bind(&a, m::one)),\n two: bind(&b, move |x| x),\n three: effect(f) }; }";
        let found: Vec<_> = bindings(text).unwrap().into_iter().map(|binding| (binding.line, binding.field, binding.function)).collect();
        assert_eq!(found, [(2, "one".into(), Some("m::one".into())), (3, "two".into(), None), (4, "three".into(), None)]);
    }

    #[test]
    fn names_are_those_that_a_file_gives() {
        let text = "pub use a::{b, c as d};\nenum E { V { f: u8 } }\nimpl E { fn m(&self) { let hidden = 1; } }\nconst K: u8 = 0;";
        let expected = ["E", "K", "V", "b", "d", "f", "m"];
        assert_eq!(names(text).unwrap().into_iter().collect::<Vec<_>>(), expected);
    }
}
