//! The modules of the crate, the names in each, and the file that defines what a path means.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{ImplItem, Item};

use crate::house::items::{attributes, attributes_in_impl, imports, is_test};
use crate::house::sources::Sources;
use crate::house::tokens;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An item, by the file that defines it.
    Item {
        /// That file.
        file: String,
        /// The item's name there.
        name: String,
    },
    /// A module.
    Module(usize),
}

/// What a name in a module stands for.
#[derive(Clone, Debug)]
enum Binding {
    Item,
    Module(usize),
    Import(Vec<String>),
}

/// A module, in a file of its own or inside one.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) file: String,
    parent: Option<usize>,
    names: BTreeMap<String, Vec<Binding>>,
    globs: Vec<Vec<String>>,
}

/// The parsed crate: the library, and the program that calls it.
pub(crate) struct Crate {
    /// Each file that a `mod` declares, outside tests.
    pub(crate) files: BTreeMap<String, syn::File>,
    pub(crate) modules: Vec<Module>,
    roots: Vec<usize>,
}

/// A name and its place in a module's list, to notice a path that leads to itself.
type Steps = Vec<(usize, String, usize)>;

impl Crate {
    /// Parses every file that is declared from `src/lib.rs` and `src/main.rs` on.
    pub(crate) fn parse(sources: &Sources) -> Self {
        let mut tree = Self {
            files: BTreeMap::new(),
            modules: Vec::new(),
            roots: Vec::new(),
        };
        for root in ["src/lib.rs", "src/main.rs"] {
            if sources.contains_key(root) {
                let module = tree.add_file(sources, root, None);
                tree.roots.push(module);
            }
        }
        tree
    }

    /// The module that a file is.
    pub(crate) fn module_of(&self, file: &str) -> usize {
        let is_it = |module: &Module| module.file == file;
        self.modules.iter().position(is_it).unwrap()
    }

    /// The module that a `mod` declares in another one.
    pub(crate) fn child(&self, module: usize, name: &str) -> Option<usize> {
        self.modules[module]
            .names
            .get(name)?
            .iter()
            .find_map(|binding| match binding {
                Binding::Module(child) => Some(*child),
                Binding::Item | Binding::Import(_) => None,
            })
    }

    /// The names that a module has itself, its imports included.
    pub(crate) fn names(&self, module: usize) -> impl Iterator<Item = &str> {
        self.modules[module].names.keys().map(String::as_str)
    }

    /// What a path means in a module; empty for a path out of the crate.
    pub(crate) fn resolve(&self, module: usize, path: &[String]) -> Vec<Target> {
        self.follow(module, path, &mut Steps::new())
    }

    fn follow(&self, module: usize, path: &[String], steps: &mut Steps) -> Vec<Target> {
        let mut rest = path;
        let mut from = module;
        let mut anchored = false;
        while let Some((first, others)) = rest.split_first() {
            match (first.as_str(), self.modules[from].parent) {
                ("crate", _) => from = self.root_of(from),
                ("super", Some(parent)) => from = parent,
                ("self", _) => {}
                ("mig_mps", _) if !anchored => from = self.roots[0],
                _ => break,
            }
            anchored = true;
            rest = others;
        }
        let mut targets = vec![Target::Module(from)];
        for name in rest {
            let modules = targets.iter().filter_map(|target| match target {
                Target::Module(module) => Some(*module),
                Target::Item { .. } => None,
            });
            let modules: Vec<usize> = modules.collect();
            // Behind an item stand its variants and associated items, which its file defines.
            if modules.is_empty() {
                break;
            }
            targets = modules
                .into_iter()
                .flat_map(|module| self.look_up(module, name, steps))
                .collect();
        }
        if targets
            .iter()
            .any(|target| matches!(target, Target::Item { .. }))
        {
            targets.retain(|target| matches!(target, Target::Item { .. }));
        }
        targets
    }

    fn look_up(&self, module: usize, name: &str, steps: &mut Steps) -> Vec<Target> {
        let mut found = Vec::new();
        let bindings = self.modules[module].names.get(name);
        for (nth, binding) in bindings.into_iter().flatten().enumerate() {
            match binding {
                Binding::Item => found.push(Target::Item {
                    file: self.modules[module].file.clone(),
                    name: name.to_owned(),
                }),
                Binding::Module(child) => found.push(Target::Module(*child)),
                Binding::Import(path) => {
                    let step = (module, name.to_owned(), nth);
                    if !steps.contains(&step) {
                        steps.push(step);
                        found.extend(self.follow(module, path, steps));
                        steps.pop();
                    }
                }
            }
        }
        if bindings.is_none() {
            for (nth, glob) in self.modules[module].globs.iter().enumerate() {
                let step = (module, "*".to_owned(), nth);
                if steps.contains(&step) {
                    continue;
                }
                steps.push(step);
                for target in self.follow(module, glob, steps) {
                    if let Target::Module(from) = target {
                        found.extend(self.look_up(from, name, steps));
                    }
                }
                steps.pop();
            }
        }
        found.dedup();
        found
    }

    fn root_of(&self, module: usize) -> usize {
        let mut root = module;
        while let Some(parent) = self.modules[root].parent {
            root = parent;
        }
        root
    }

    fn add_file(&mut self, sources: &Sources, path: &str, parent: Option<usize>) -> usize {
        let parsed = syn::parse_file(&sources[path]).unwrap_or_else(|e| panic!("{path}: {e}"));
        let module = self.add_module(path, parent);
        let mut names = Names {
            tree: self,
            sources,
            module,
            folder: folder_of(path),
        };
        names.visit_file(&parsed);
        self.files.insert(path.to_owned(), parsed);
        module
    }

    fn add_module(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            names: BTreeMap::new(),
            globs: Vec::new(),
        });
        self.modules.len() - 1
    }
}

/// Where the modules lie that a file declares.
fn folder_of(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap();
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        name => format!("{folder}/{}", name.strip_suffix(".rs").unwrap()),
    }
}

/// Collects the names of one module, and goes into the modules that it declares.
struct Names<'a> {
    tree: &'a mut Crate,
    sources: &'a Sources,
    module: usize,
    folder: String,
}

impl Names<'_> {
    fn bind(&mut self, name: &impl ToString, binding: Binding) {
        let names = &mut self.tree.modules[self.module].names;
        names.entry(name.to_string()).or_default().push(binding);
    }

    /// A macro defines its own name, or items whose names stand among its arguments.
    fn invoke(&mut self, item: &syn::ItemMacro) {
        if let Some(name) = &item.ident {
            return self.bind(name, Binding::Item);
        }
        for path in tokens::paths(item.mac.tokens.clone()) {
            if let [name] = path.segments.as_slice() {
                self.bind(name, Binding::Item);
            }
        }
    }

    fn declare(&mut self, item: &syn::ItemMod) {
        let folder = format!("{}/{}", self.folder, item.ident);
        let child = if let Some((_, items)) = &item.content {
            let file = self.tree.modules[self.module].file.clone();
            let child = self.tree.add_module(&file, Some(self.module));
            let mut names = Names {
                tree: self.tree,
                sources: self.sources,
                module: child,
                folder,
            };
            for item in items {
                names.visit_item(item);
            }
            child
        } else {
            let path = [format!("{folder}.rs"), format!("{folder}/mod.rs")]
                .into_iter()
                .find(|path| self.sources.contains_key(path))
                .unwrap_or_else(|| panic!("no file for module {folder}"));
            self.tree.add_file(self.sources, &path, Some(self.module))
        };
        self.bind(&item.ident, Binding::Module(child));
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Mod(item) => return self.declare(item),
            Item::Use(item) => {
                for import in imports(&item.tree) {
                    match import.name {
                        Some(name) => self.bind(&name, Binding::Import(import.path)),
                        None => self.tree.modules[self.module].globs.push(import.path),
                    }
                }
            }
            Item::Const(item) => self.bind(&item.ident, Binding::Item),
            Item::Enum(item) => self.bind(&item.ident, Binding::Item),
            Item::Fn(item) => self.bind(&item.sig.ident, Binding::Item),
            Item::Static(item) => self.bind(&item.ident, Binding::Item),
            Item::Macro(item) => self.invoke(item),
            Item::Struct(item) => self.bind(&item.ident, Binding::Item),
            Item::Trait(item) => self.bind(&item.ident, Binding::Item),
            Item::Type(item) => self.bind(&item.ident, Binding::Item),
            Item::Union(item) => self.bind(&item.ident, Binding::Item),
            _ => {}
        }
        // A block can import too; its names are taken for names of the module.
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_test(attributes_in_impl(item)) {
            visit::visit_impl_item(self, item);
        }
    }
}
