//! The README says what the program does.

use std::fs;
use std::path::Path;

use mig_mps::config::VARIABLES;
use mig_mps::error::ExitStatus;
use mig_mps::profile::Profile;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

#[test]
fn every_variable_and_exit_status_is_explained() {
    let readme = readme();
    for (variable, _) in VARIABLES {
        assert!(readme.contains(&format!("| `{variable}` |")), "{variable}");
    }
    for (status, meaning) in ExitStatus::MEANINGS {
        assert!(
            readme.contains(&format!("| {} | {meaning} |", status as u8)),
            "{meaning}"
        );
    }
}

#[test]
fn the_profile_shown_and_the_ready_made_ones_are_right() {
    let readme = readme();
    let shown = readme
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let profile = Profile::parse(Path::new("README.md"), shown.to_owned()).unwrap();
    assert_eq!(profile.blocks.len(), 3);
    let ready_made: Vec<_> = fs::read_dir(root().join("profiles"))
        .unwrap()
        .flatten()
        .collect();
    assert!(!ready_made.is_empty());
    for file in ready_made {
        Profile::load(&file.path()).unwrap();
    }
}

#[test]
fn every_link_leads_somewhere() {
    let links = regex::Regex::new(r"\]\(([^):#]+)\)").unwrap();
    let readme = readme();
    let targets: Vec<&str> = links
        .captures_iter(&readme)
        .map(|link| link.get(1).unwrap().as_str())
        .collect();
    assert!(targets.len() > 5, "{targets:?}");
    for target in targets {
        assert!(root().join(target).exists(), "{target}");
    }
}
