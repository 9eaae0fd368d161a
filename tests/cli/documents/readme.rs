//! The README and the manual say what the program does.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use mig_mps::internals::config::VARIABLES;
use mig_mps::internals::failure::ExitStatus;
use mig_mps::internals::manual::{ALIASES, TOPICS};
use mig_mps::internals::profile::Profile;

use testkit::{is_shipped, repository, without_gpu};

/// The README and every chapter of the manual.
pub(crate) fn documents() -> Vec<(PathBuf, String)> {
    let chapters = TOPICS
        .iter()
        .map(|topic| repository().join(format!("src/manual/{}.md", topic.name)));
    let all = chapters.chain([repository().join("README.md")]);
    all.map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    })
    .collect()
}

fn chapter(name: &str) -> &'static str {
    TOPICS.iter().find(|topic| topic.name == name).unwrap().text
}

#[test]
fn every_variable_and_exit_status_is_explained() {
    let environment = chapter("interfaces");
    for (variable, _) in VARIABLES {
        assert!(
            environment.contains(&format!("| `{variable}` |")),
            "{variable}"
        );
    }
    for (status, meaning) in ExitStatus::MEANINGS {
        assert!(
            chapter("interfaces").contains(&format!("| {} | {meaning} |", status as u8)),
            "{meaning}"
        );
    }
}

#[test]
fn the_profiles_shown_and_the_ready_made_ones_are_right() {
    let mut shown = 0;
    for (path, text) in documents() {
        for block in text.split("```toml\n").skip(1) {
            let profile = block.split("```").next().unwrap();
            Profile::parse(&path, profile.to_owned()).unwrap();
            shown += 1;
        }
    }
    assert!(shown > 0);
    let ready_made: Vec<_> = fs::read_dir(repository().join("profiles"))
        .unwrap()
        .flatten()
        .collect();
    assert!(!ready_made.is_empty());
    for file in ready_made {
        Profile::parse(&file.path(), fs::read_to_string(file.path()).unwrap()).unwrap();
    }
}

#[test]
fn every_link_leads_somewhere() {
    let links = regex::Regex::new(r"\]\(([^):#]*)(?:#([^)]*))?\)").unwrap();
    let mut targets = 0;
    for (path, text) in documents() {
        for link in links.captures_iter(&text) {
            let target = match &link[1] {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {}", path.display(), &link[0]);
            if let Some(heading) = link.get(2) {
                let headings = headings(&fs::read_to_string(&target).unwrap());
                let is_there = headings.contains(heading.as_str());
                assert!(is_there, "{}: {}", path.display(), &link[0]);
            }
            targets += 1;
        }
    }
    assert!(targets > 20, "{targets}");
}

/// What developers read names files and folders, from the root of its crate or from `src`.
#[test]
fn every_path_that_developers_are_told_exists() {
    let path = regex::Regex::new(r"`([\w.-]+(?:/[\w.-]+)+)/?`").unwrap();
    let simnode = repository().join("fixtures/simnode");
    let mut paths = 0;
    for (document, bases) in [
        (
            repository().join("CONTRIBUTING.md"),
            vec![repository().to_owned(), repository().join("src")],
        ),
        (
            simnode.join("ADDING.md"),
            vec![simnode.clone(), repository().to_owned()],
        ),
        (
            simnode.join("README.md"),
            vec![simnode.clone(), repository().to_owned()],
        ),
    ] {
        let text = fs::read_to_string(&document).unwrap();
        for named in path.captures_iter(&text) {
            let named = &named[1];
            // `NAME` is for the reader to fill in, and what is built or belongs to the machine is not in the source.
            let is_of_source = ["src/", "tests/", "fixtures/", "profiles/", ".ci/"]
                .iter()
                .any(|folder| named.starts_with(folder));
            let is_of_source =
                is_of_source || Path::new(named).extension().is_some_and(|end| end == "rs");
            if !is_of_source || named.contains("NAME") || named.contains("KEY") {
                continue;
            }
            let is_there = bases.iter().any(|base| base.join(named).exists());
            assert!(is_there, "{}: {named}", document.display());
            paths += 1;
        }
    }
    assert!(paths > 40, "{paths}");
}

/// Scenarios name the tests in Rust that have what a scenario cannot show.
#[test]
fn every_test_that_a_scenario_names_exists() {
    let path = regex::Regex::new(r"tests/[\w/]+\.rs").unwrap();
    let scenarios = repository().join("tests/scenarios");
    let mut files = vec![scenarios.join("unprovoked.txt")];
    for folder in ["commands", "documents", "messages"] {
        let entries = fs::read_dir(scenarios.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let texts: String = files
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let named: BTreeSet<&str> = path.find_iter(&texts).map(|found| found.as_str()).collect();
    assert!(named.len() > 15, "{named:?}");
    for path in named {
        assert!(repository().join(path).exists(), "{path}");
    }
}

/// The headings of a document, as links name them.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let is_kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    lines
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            words
                .chars()
                .filter(is_kept)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn the_readme_is_short_and_lists_every_topic() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 140);
    for topic in &TOPICS {
        let link = format!("[{0}](src/manual/{0}.md)", topic.name);
        assert!(readme.contains(&link), "{link}");
    }
    let files = fs::read_dir(repository().join("src/manual"))
        .unwrap()
        .flatten();
    let chapters = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| !path.ends_with("README.md"));
    let chapters = chapters.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let topics = TOPICS.iter().map(|topic| topic.name.to_owned());
    assert_eq!(
        chapters.collect::<BTreeSet<String>>(),
        topics.collect::<BTreeSet<String>>()
    );
}

/// For those who read the manual where its files are.
#[test]
fn the_shipped_manual_has_an_index() {
    let mut index =
        "# The manual of mig-mps\n\nIn a terminal, `mig-mps help TOPIC` shows a chapter, and \
                     `mig-mps help WORD` searches all chapters.\n"
            .to_owned();
    let mut part = "";
    for topic in &TOPICS {
        if topic.part.title() != part {
            part = topic.part.title();
            let _ = write!(index, "\n## {part}\n\n| topic | about |\n|---|---|\n");
        }
        let _ = writeln!(index, "| [{0}]({0}.md) | {1} |", topic.name, topic.about);
    }
    is_shipped("src/manual/README.md", &index);
}

/// Names that chapters had, and other words, show the section that they are about.
#[test]
fn other_words_show_sections() {
    for alias in &ALIASES {
        let shown = without_gpu(&["help", alias.name], "").ended(0).stdout;
        let chapter = without_gpu(&["help", alias.topic], "").ended(0).stdout;
        let Some(title) = alias.section else {
            assert_eq!(shown, chapter, "{}", alias.name);
            continue;
        };
        assert!(shown.starts_with(&format!("{title}\n\n")), "{shown}");
        let end = format!("\n\nThis is a section of `mig-mps help {}`.\n", alias.topic);
        assert!(
            chapter.contains(shown.strip_suffix(&end).unwrap()),
            "{shown}"
        );
    }
    let statuses = without_gpu(&["help", "exit-status"], "").ended(0).stdout;
    assert!(!statuses.contains("MIG_MPS_RUN_DIR"), "{statuses}");
    // A link names the word of its section.
    let profile = without_gpu(&["help", "profile"], "").ended(0).stdout;
    assert!(
        profile.contains("(`mig-mps help exit-status`)"),
        "{profile}"
    );
}

#[test]
fn help_lists_every_command_and_topic() {
    let program = mig_mps::cli::command();
    let commands: Vec<&str> = program
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    assert!(commands.contains(&"up"), "{commands:?}");
    let help = without_gpu(&["help"], "").ended(0).stdout;
    for words in [&["--help"][..], &["-h"], &["-q", "--help"]] {
        assert_eq!(without_gpu(words, "").ended(0).stdout, help, "{words:?}");
    }
    for name in commands
        .iter()
        .copied()
        .chain(TOPICS.iter().map(|topic| topic.name))
    {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
    }
    for topic in &TOPICS {
        for command in topic.commands {
            assert!(commands.contains(command), "{}: {command}", topic.name);
        }
    }
}

/// A page of first steps is short, and its commands are understood.
#[test]
fn the_first_steps_are_commands() {
    let tutorial = TOPICS
        .iter()
        .find(|topic| topic.name == "tutorial")
        .unwrap();
    let (_, start) = tutorial.text.split_once("\n## First steps\n").unwrap();
    let shown = without_gpu(&["help", "start"], "").ended(0).stdout;
    assert!(shown.lines().count() <= 45, "{shown}");
    let program = mig_mps::cli::command();
    let mut commands = 0;
    for block in start.split("```sh\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines() {
            let line = line.split(" #").next().unwrap();
            let line = line.split('>').next().unwrap();
            let ours = &line[line.find("mig-mps").unwrap()..];
            let parsed = program
                .clone()
                .try_get_matches_from(ours.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
            commands += 1;
        }
    }
    assert_eq!(commands, 15);
}

#[test]
fn help_shows_chapters_and_commands() {
    for topic in &TOPICS {
        let shown = without_gpu(&["help", topic.name], "").ended(0).stdout;
        let title = topic.text.lines().next().unwrap().trim_start_matches("# ");
        assert!(shown.starts_with(&format!("{title}\n\n")), "{shown}");
    }
    let up = without_gpu(&["help", "up"], "").ended(0).stdout;
    assert_eq!(up, without_gpu(&["up", "--help"], "").ended(0).stdout);
    assert!(
        up.contains("See also: mig-mps help profile, changing"),
        "{up}"
    );
    let slurm = without_gpu(&["help", "slurm", "prolog"], "")
        .ended(0)
        .stdout;
    let own = without_gpu(&["slurm", "prolog", "--help"], "").ended(0);
    assert_eq!(slurm, own.stdout);
    // Another word is searched for.
    let found = without_gpu(&["help", "jupyter"], "").ended(0).stdout;
    let searched = without_gpu(&["help", "--search", "jupyter"], "").ended(0);
    assert!(found.ends_with(&searched.stdout), "{found}");
    without_gpu(&["help", "nosuchword"], "").ended(2);
}

/// CI runs the tests as a reader of the README does: with nothing that the suite could have found by itself.
#[test]
fn ci_runs_the_tests_as_the_readme_has_it() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let script = fs::read_to_string(repository().join(".ci/run")).unwrap();
    let commands = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let command = commands.filter(|line| line.starts_with("cargo test"));
    let run = script.lines().filter(|line| line.starts_with("cargo test"));
    assert!(command.eq(run), "{script}");
    let exported: Vec<&str> = script
        .lines()
        .filter(|line| line.starts_with("export "))
        .collect();
    assert_eq!(exported, ["export CI=true"]);
}
