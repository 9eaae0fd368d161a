//! What each file imports, prints and holds.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Meta, Safety, Signature, Visibility};

use crate::house::items::{attributes, attributes_in_impl, imports, is_test};
use crate::house::modules::{Crate, Target};
use crate::house::tokens;

/// The most lines of a function.
const FUNCTION_LINES: usize = 60;

/// Macros that print.
const PRINTING: [&str; 5] = ["dbg", "eprint", "eprintln", "print", "println"];

/// Functions that return a stream to print to.
const STREAMS: [&str; 2] = ["stderr", "stdout"];

/// Imported names, by the file that defines them.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// What one file has, outside tests.
#[derive(Debug, Default)]
pub(crate) struct FileFacts {
    /// What it uses of other files.
    pub(crate) uses: Imports,
    /// What it only passes on: an import by its floor, but not in a circle.
    pub(crate) passes_on: Imports,
    /// What it prints with.
    pub(crate) prints: BTreeSet<String>,
    /// It has unsafe code.
    pub(crate) has_unsafe: bool,
    /// Functions that are too long.
    pub(crate) long_functions: BTreeSet<String>,
    /// Paths into the crate that lead nowhere: what this test does not understand.
    pub(crate) unresolved: BTreeSet<String>,
    /// It defines something, and does not only declare modules and re-export.
    pub(crate) defines: bool,
}

/// The facts of every file.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) files: BTreeMap<String, FileFacts>,
}

impl Facts {
    /// Reads the whole crate.
    pub(crate) fn collect(tree: &Crate) -> Self {
        let mut facts = Self::default();
        for (path, file) in &tree.files {
            let mut reader = Reader {
                tree,
                module: tree.module_of(path),
                path,
                facts: FileFacts::default(),
                mentions: BTreeSet::new(),
                imported: Vec::new(),
            };
            reader.visit_file(file);
            facts.files.insert(path.clone(), reader.finish());
        }
        facts
    }
}

/// A leaf of a `use`, kept until every name that the file mentions is known.
struct Imported {
    module: usize,
    path: Vec<String>,
    name: Option<String>,
    passed_on: bool,
}

struct Reader<'a> {
    tree: &'a Crate,
    module: usize,
    path: &'a str,
    facts: FileFacts,
    /// Every identifier outside `use`.
    mentions: BTreeSet<String>,
    imported: Vec<Imported>,
}

impl Reader<'_> {
    fn finish(mut self) -> FileFacts {
        for import in std::mem::take(&mut self.imported) {
            match &import.name {
                Some(name) => {
                    let passed_on = import.passed_on && !self.mentions.contains(name);
                    for target in self.resolve(import.module, &import.path) {
                        self.record(target, import.path.last().unwrap(), passed_on);
                    }
                }
                None => self.finish_glob(&import),
            }
        }
        self.facts
    }

    /// Of a glob, the file uses the names that it mentions and does not have itself.
    fn finish_glob(&mut self, import: &Imported) {
        for target in self.resolve(import.module, &import.path) {
            let Target::Module(from) = target else {
                // The variants of an enum.
                self.record(target, import.path.last().unwrap(), false);
                continue;
            };
            let own: BTreeSet<&str> = self.tree.names(import.module).collect();
            let names = self.tree.names(from).filter(|name| !own.contains(name));
            for name in names {
                let used = self.mentions.contains(name);
                if used || import.passed_on {
                    for target in self
                        .tree
                        .resolve(from, &["self".to_owned(), name.to_owned()])
                    {
                        self.record(target, name, !used);
                    }
                }
            }
        }
    }

    fn resolve(&mut self, module: usize, path: &[String]) -> Vec<Target> {
        let targets = self.tree.resolve(module, path);
        let into_the_crate = ["crate", "mig_mps", "self", "super"];
        if targets.is_empty() && into_the_crate.contains(&path[0].as_str()) {
            self.facts.unresolved.insert(path.join("::"));
        }
        targets
    }

    fn record(&mut self, target: Target, word: &str, passed_on: bool) {
        let (file, name, used) = match target {
            Target::Item { file, name } => (file, name, !passed_on),
            // What is used through a module is a path of its own.
            Target::Module(_) if !passed_on => return,
            Target::Module(module) => {
                let file = self.tree.modules[module].file.clone();
                (file, word.to_owned(), false)
            }
        };
        if file == self.path {
            return;
        }
        let into = if used {
            &mut self.facts.uses
        } else {
            &mut self.facts.passes_on
        };
        into.entry(file).or_default().insert(name);
    }

    /// A path in an expression, type or pattern. A single name was imported or is the file's own.
    fn inline(&mut self, path: &[String]) {
        if path.len() < 2 {
            return;
        }
        for target in self.resolve(self.module, path) {
            if let Target::Item { .. } = target {
                self.record(target, &path[0], false);
            }
        }
    }

    fn unparsed(&mut self, stream: TokenStream) {
        for path in tokens::paths(stream) {
            let last = path.segments.last().unwrap().as_str();
            if path.macro_name && PRINTING.contains(&last)
                || path.plain_call && STREAMS.contains(&last)
            {
                self.facts.prints.insert(last.to_owned());
            }
            if path.segments.iter().any(|name| name == "unsafe") {
                self.facts.has_unsafe = true;
            }
            self.inline(&path.segments);
            self.mentions.extend(path.segments);
        }
    }

    fn function(&mut self, signature: &Signature, block: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = block.brace_token.span.close().end().line;
        if last - first + 1 > FUNCTION_LINES {
            self.facts
                .long_functions
                .insert(signature.ident.to_string());
        }
    }

    fn inside(&mut self, module: usize, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.module, module);
        visit(self);
        self.module = outer;
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Use(item) => {
                for import in imports(&item.tree) {
                    self.imported.push(Imported {
                        module: self.module,
                        path: import.path,
                        name: import.name,
                        passed_on: !matches!(item.vis, Visibility::Inherited),
                    });
                }
                return;
            }
            Item::Mod(item) => {
                let child = self.tree.child(self.module, &item.ident.to_string());
                if item.content.is_some() {
                    self.inside(child.unwrap(), |reader| visit::visit_item_mod(reader, item));
                }
                return;
            }
            Item::Fn(item) => self.function(&item.sig, &item.block),
            Item::Impl(item) => self.facts.has_unsafe |= item.unsafety.is_some(),
            Item::Trait(item) => self.facts.has_unsafe |= item.unsafety.is_some(),
            Item::ForeignMod(_) => self.facts.has_unsafe = true,
            _ => {}
        }
        self.facts.defines = true;
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if is_test(attributes_in_impl(item)) {
            return;
        }
        if let ImplItem::Fn(item) = item {
            self.function(&item.sig, &item.block);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string());
            self.inline(&names.collect::<Vec<_>>());
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
            && STREAMS.iter().any(|stream| last.ident == stream)
        {
            self.facts.prints.insert(last.ident.to_string());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last()
            && PRINTING.iter().any(|name| last.ident == name)
        {
            self.facts.prints.insert(last.ident.to_string());
        }
        self.unparsed(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::Path(_) => {}
            Meta::List(list) => {
                self.facts.has_unsafe |= list.path.is_ident("unsafe");
                self.unparsed(list.tokens.clone());
            }
            Meta::NameValue(pair) => self.visit_expr(&pair.value),
        }
    }

    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.mentions.insert(name.to_string());
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.facts.has_unsafe = true;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.facts.has_unsafe |= matches!(signature.safety, Safety::Unsafe(_));
        visit::visit_signature(self, signature);
    }

    // `pub(in crate::host)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
