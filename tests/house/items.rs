//! What an item imports, and whether it is for tests alone.

use syn::punctuated::Punctuated;
use syn::{Attribute, ImplItem, Item, Meta, Token, UseTree};

/// One leaf of a `use`.
pub(crate) struct Import {
    /// The path that is imported; of a glob, the one before the `*`.
    pub(crate) path: Vec<String>,
    /// The name that it gets; none for a glob.
    pub(crate) name: Option<String>,
}

/// The leaves of a `use`.
pub(crate) fn imports(tree: &UseTree) -> Vec<Import> {
    fn collect(tree: &UseTree, before: &[String], found: &mut Vec<Import>) {
        let with = |name: &syn::Ident| {
            let mut path = before.to_vec();
            // `a::{self}` imports `a`.
            if name != "self" || before.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        match tree {
            UseTree::Path(inner) => collect(&inner.tree, &with(&inner.ident), found),
            UseTree::Name(leaf) => {
                let path = with(&leaf.ident);
                let name = path.last().cloned();
                found.push(Import { path, name });
            }
            UseTree::Rename(leaf) => found.push(Import {
                path: with(&leaf.ident),
                name: Some(leaf.rename.to_string()),
            }),
            UseTree::Glob(_) => found.push(Import {
                path: before.to_vec(),
                name: None,
            }),
            UseTree::Group(group) => {
                for tree in &group.items {
                    collect(tree, before, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    collect(tree, &[], &mut found);
    found
}

/// True if these attributes keep an item out of everything but tests.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .filter_map(|attribute| attribute.parse_args::<Meta>().ok())
        .any(|predicate| outside_tests(&predicate) == Some(false))
}

/// The value of a `cfg` predicate where `test` is not set, if that decides it.
fn outside_tests(predicate: &Meta) -> Option<bool> {
    let Meta::List(list) = predicate else {
        return predicate.path().is_ident("test").then_some(false);
    };
    let parts = list
        .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
        .ok()?;
    let values: Vec<Option<bool>> = parts.iter().map(outside_tests).collect();
    let decided = |value: bool| values.contains(&Some(value)).then_some(value);
    let all_are = |value: bool| values.iter().all(|v| *v == Some(value)).then_some(value);
    if list.path.is_ident("not") {
        values.first().copied().flatten().map(|value| !value)
    } else if list.path.is_ident("any") {
        decided(true).or(all_are(false))
    } else {
        decided(false).or(all_are(true))
    }
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The attributes of an item of an `impl` block.
pub(crate) fn attributes_in_impl(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        _ => &[],
    }
}
