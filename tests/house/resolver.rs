//! Tests of what an import is taken for, on small sources.

use std::collections::BTreeSet;

use crate::house::facts::Facts;
use crate::house::modules::Crate;
use crate::house::rules;
use crate::house::sources::Sources;

fn sources(files: &[(&str, &str)]) -> Sources {
    files
        .iter()
        .map(|(path, text)| (format!("src/{path}"), (*text).to_owned()))
        .collect()
}

/// The imports of one file, as `file: names`, with a `-` before what it only passes on.
fn imports(files: &[(&str, &str)], of: &str) -> Vec<String> {
    let facts = Facts::collect(&Crate::parse(&sources(files)));
    let has = &facts.files[&format!("src/{of}")];
    let line = |sign: &str, file: &str, names: &BTreeSet<String>| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let file = file.strip_prefix("src/").unwrap();
        format!("{sign}{file}: {}", names.join(", "))
    };
    let uses = has.uses.iter().map(|(file, names)| line("", file, names));
    let passes_on = has.passes_on.iter();
    uses.chain(passes_on.map(|(file, names)| line("-", file, names)))
        .collect()
}

fn faults(files: &[(&str, &str)]) -> Vec<String> {
    let sources = sources(files);
    let facts = Facts::collect(&Crate::parse(&sources));
    rules::faults(&sources, &facts)
        .iter()
        .map(|(fault, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{fault}: {}", names.join(", "))
        })
        .collect()
}

const HOST: [(&str, &str); 3] = [
    (
        "host/mod.rs",
        "mod directory; mod pid; pub use directory::Directory; pub(crate) use pid::{Pid as Id, own};",
    ),
    ("host/directory.rs", "pub struct Directory;"),
    (
        "host/pid.rs",
        "pub struct Pid(u32); pub fn own() -> Pid { Pid(1) }",
    ),
];

/// The imports of `src/node.rs` beside the room `host`.
fn node(text: &str) -> Vec<String> {
    let mut files = HOST.to_vec();
    files.extend([("lib.rs", "pub mod host; pub mod node;"), ("node.rs", text)]);
    imports(&files, "node.rs")
}

#[test]
fn a_re_export_is_an_import_of_the_file_that_defines_the_name() {
    assert_eq!(
        node("use crate::host::{Directory, Id as Name};"),
        ["host/directory.rs: Directory", "host/pid.rs: Pid"]
    );
}

#[test]
fn a_face_uses_nothing_of_what_it_passes_on() {
    let mut files = HOST.to_vec();
    files.push(("lib.rs", "pub mod host;"));
    assert_eq!(
        imports(&files, "host/mod.rs"),
        ["-host/directory.rs: Directory", "-host/pid.rs: Pid, own"]
    );
    files[0].1 = "mod directory; pub use directory::Directory; pub struct Host(Directory);";
    assert_eq!(
        imports(&files, "host/mod.rs"),
        ["host/directory.rs: Directory"]
    );
}

#[test]
fn a_glob_imports_the_names_that_are_mentioned() {
    assert_eq!(
        node("use crate::host::*; fn f(_: Id) {}"),
        ["host/pid.rs: Pid"]
    );
    assert_eq!(
        node("use crate::host::*; struct Id; fn f() -> Id { Id }"),
        [""; 0]
    );
}

#[test]
fn a_name_comes_through_a_glob_that_is_passed_on() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod inner; pub use inner::*;"),
        ("a/inner.rs", "pub struct Inner;"),
        ("b.rs", "use crate::a::Inner;"),
    ];
    assert_eq!(imports(&files, "b.rs"), ["a/inner.rs: Inner"]);
}

#[test]
fn inline_paths_are_imports() {
    assert_eq!(
        node("fn f(d: &crate::host::Directory) { crate::host::own(); }"),
        ["host/directory.rs: Directory", "host/pid.rs: own"]
    );
    assert_eq!(
        node("use crate::host; fn f() { host::Directory::make(); assert!(host::own() == 1); }"),
        ["host/directory.rs: Directory", "host/pid.rs: own"]
    );
    assert_eq!(
        node("#[derive(A)] #[arg(value_parser = crate::host::own)] struct S;"),
        ["host/pid.rs: own"]
    );
}

#[test]
fn super_leads_up_from_inline_modules_too() {
    let files = [
        ("lib.rs", "mod a; mod top;"),
        ("top.rs", "pub struct Top;"),
        ("a/mod.rs", "mod b; mod c; pub struct Mine;"),
        ("a/b/mod.rs", "mod d; mod e;"),
        (
            "a/b/d.rs",
            "use super::super::Mine; use super::e::E; mod inner { use super::super::super::c::C; }",
        ),
        (
            "a/b/e.rs",
            "pub struct E; use super::super::super::top::Top;",
        ),
        (
            "a/c.rs",
            "pub struct C; fn f() { use self::g::G; } mod g { pub struct G; }",
        ),
    ];
    assert_eq!(
        imports(&files, "a/b/d.rs"),
        ["a/b/e.rs: E", "a/c.rs: C", "a/mod.rs: Mine"]
    );
    assert_eq!(imports(&files, "a/b/e.rs"), ["top.rs: Top"]);
    assert_eq!(imports(&files, "a/c.rs"), [""; 0]);
}

#[test]
fn a_module_and_a_function_of_one_name_are_kept_apart() {
    let files = [
        ("lib.rs", "mod convert; mod commands;"),
        (
            "convert/mod.rs",
            "mod import; pub use import::{Imported, import};",
        ),
        (
            "convert/import.rs",
            "pub struct Imported; pub fn import() {}",
        ),
        (
            "commands.rs",
            "use crate::convert::import; fn f() { import() }",
        ),
    ];
    assert_eq!(
        imports(&files, "commands.rs"),
        ["convert/import.rs: import"]
    );
}

#[test]
fn what_is_for_tests_alone_counts_for_nothing() {
    assert_eq!(node("#[cfg(test)] use crate::host::Directory;"), [""; 0]);
    assert_eq!(
        node("#[cfg(all(test, unix))] mod tests { use crate::host::Directory; }"),
        [""; 0]
    );
    assert_eq!(
        node("struct S; impl S { #[cfg(test)] fn f() { crate::host::own(); } }"),
        [""; 0]
    );
    assert_eq!(
        node("#[cfg(not(test))] use crate::host::Directory;"),
        ["host/directory.rs: Directory"]
    );
}

#[test]
fn a_module_that_is_passed_on_is_an_import_by_its_floor() {
    assert_eq!(node("pub use crate::host;"), ["-host/mod.rs: host"]);
}

#[test]
fn items_that_a_macro_makes_belong_to_the_file_that_invokes_it() {
    let files = [
        ("lib.rs", "mod numbers; mod a;"),
        (
            "numbers.rs",
            "macro_rules! number { () => {} } number! { /// A number.\n Slices }",
        ),
        (
            "a.rs",
            "use crate::numbers::Slices; use crate::numbers::Lost;",
        ),
    ];
    assert_eq!(imports(&files, "a.rs"), ["numbers.rs: Slices"]);
    assert!(faults(&files).contains(
        &"src/a.rs has paths that this test cannot resolve: crate::numbers::Lost".to_owned()
    ));
}

#[test]
fn the_program_imports_from_the_library() {
    let files = [
        ("lib.rs", "pub mod cli;"),
        ("cli.rs", "pub fn main() {}"),
        ("main.rs", "fn main() { mig_mps::cli::main() }"),
    ];
    assert_eq!(imports(&files, "main.rs"), ["cli.rs: main"]);
}

#[test]
fn faults_are_named_by_file_and_name() {
    let long = format!("pub fn long() {{\n{}}}\n", "    f();\n".repeat(59));
    let files = [
        ("lib.rs", "mod attic; mod node; mod plan; mod host;"),
        ("attic.rs", "struct Attic;"),
        (
            "node.rs",
            "use crate::plan::{Plan, Step}; fn f() { println!() }",
        ),
        (
            "plan/mod.rs",
            "mod a; mod b; pub use a::Plan; pub use b::Step;",
        ),
        (
            "plan/a.rs",
            "use super::Step; pub struct Plan; fn f() { unsafe { g() } }",
        ),
        ("plan/b.rs", "use super::Plan; pub struct Step;"),
        ("host.rs", &long),
    ];
    assert_eq!(
        faults(&files),
        [
            "src/attic.rs is in a room without a floor: attic",
            "src/host.rs has functions of more than 60 lines: long",
            "src/node.rs prints: println",
            "src/node.rs → src/plan/a.rs: Plan",
            "src/node.rs → src/plan/b.rs: Step",
            "src/plan/a.rs has unsafe code: ",
            "src/plan/a.rs → src/plan/b.rs (circle): Step",
            "src/plan/b.rs → src/plan/a.rs (circle): Plan",
        ]
    );
}

#[test]
fn streams_count_where_they_are_called() {
    let prints = |text: &str| {
        faults(&[("lib.rs", "mod node;"), ("node.rs", text)])
            .iter()
            .any(|fault| fault.starts_with("src/node.rs prints"))
    };
    assert!(prints("fn f() { io::stdout().lock(); }"));
    assert!(prints("fn f() { writeln!(io::stderr(), \"x\"); }"));
    assert!(prints("fn f() { vec![{ eprintln!(\"x\") }]; }"));
    assert!(!prints(
        "fn f() { command.stdout(Stdio::null()); assert!(child.stdout()); }"
    ));
}
