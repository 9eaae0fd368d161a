use std::collections::BTreeSet;
use std::fs;

use mig_mps::internals::manual::TOPICS;
use testkit::{Sim, assert_contains, without_gpu};

fn subcommands() -> BTreeSet<String> {
    let program = mig_mps::cli::command();
    let names = program.get_subcommands().map(clap::Command::get_name);
    names.map(str::to_owned).collect()
}

#[test]
fn the_program_each_subcommand_and_each_chapter_have_a_manual_page() {
    let sim = Sim::with("a100-80gb", 1);
    let dir = sim.node.dir().join("share/man");
    let args = ["man", "--dir", dir.to_str().unwrap()];
    let ran = without_gpu(&args, "").ended(0);
    let subcommands = subcommands();
    assert!(subcommands.contains("up"), "{subcommands:?}");
    assert!(subcommands.contains("man"), "{subcommands:?}");
    let pages = subcommands.len() + 1 + TOPICS.len();
    let wrote = format!("wrote {pages} pages to {}\n", dir.display());
    assert_eq!((ran.stdout, ran.stderr), (String::new(), wrote));
    let quiet = without_gpu(&[&args[..], &["-q"]].concat(), "").ended(0);
    assert_eq!(quiet.stderr, "");
    let mut expected: BTreeSet<String> = subcommands
        .iter()
        .map(|name| format!("man1/mig-mps-{name}.1"))
        .collect();
    expected.insert("man1/mig-mps.1".to_owned());
    expected.extend(TOPICS.iter().map(|topic| match topic.name {
        "profile" => "man5/mig-mps-profile.5".to_owned(),
        name => format!("man7/mig-mps-{name}.7"),
    }));
    let files = |section: &str| {
        let entries = fs::read_dir(dir.join(section)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(|name| format!("{section}/{name}")).collect()
    };
    let pages: [Vec<String>; 3] = ["man1", "man5", "man7"].map(files);
    let pages: BTreeSet<String> = pages.into_iter().flatten().collect();
    assert_eq!(pages, expected);

    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let main = page("man1/mig-mps.1");
    assert_contains(&main, "\n.TH mig-mps 1 ");
    for name in &subcommands {
        assert!(main.contains(&format!("mig\\-mps\\-{name}(1)")), "{name}");
    }
    let up = page("man1/mig-mps-up.1");
    assert_contains(&up, &format!("\"mig-mps {}\"", env!("CARGO_PKG_VERSION")));
    assert_contains(&up, "\\fB\\-\\-dry\\-run\\fR");
    // A page also has the options that help leaves out.
    assert_contains(&up, "\\fB\\-\\-progress\\fR");
    let profile = page("man5/mig-mps-profile.5");
    assert!(profile.starts_with(".TH mig-mps-profile 5 "), "{profile}");
    assert_contains(&profile, "\n.SH Selecting GPUs\n");

    // Pages of an earlier version are replaced.
    fs::write(dir.join("man1/mig-mps-up.1"), "old").unwrap();
    without_gpu(&args, "").ended(0);
    assert!(page("man1/mig-mps-up.1").contains("dry"));
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let ran = without_gpu(&["man", "--dir", "/dev/null/man"], "").ended(1);
    assert_eq!(
        ran.stderr,
        "error: cannot write manual pages to /dev/null/man: Not a directory\n\
         hint: move the file away, or choose another path\n"
    );
}
