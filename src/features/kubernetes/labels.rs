//! Labels of the node, which Node Feature Discovery (NFD) reads from a file and writes to the cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::offer::{DOMAIN, MAX_NAME_CHARS, ResourceOffers};
use crate::config::NODE_FEATURES;
use crate::host::{Environment, FileResult, OwnFile};
use crate::render::warn;
use crate::state::ProfileHistory;

/// The time between two looks at the directory, which NFD may make later, and at the name of the profile.
const LABEL_PERIOD: Duration = Duration::from_secs(30);

/// The facts about the devices of a resource.
#[derive(Default)]
struct ResourceFacts {
    count: usize,
    shares: u32,
    /// The least memory of a device; `None` if the driver does not tell it.
    memory_mib: Option<u64>,
}

/// Keeps the file of labels current, without end.
pub async fn keep_labels(environment: &'static Environment, mut offers: Receiver<ResourceOffers>) {
    let mut said = None;
    loop {
        let text = label_lines(
            &offers.borrow_and_update(),
            profile_name(environment).as_deref(),
        );
        let problem = write_labels(environment, &text).err().map(|error| {
            let restart = match error.kind() {
                // The sandbox began before the directory was made.
                ErrorKind::ReadOnlyFilesystem => "; run `systemctl restart mig-mps-device-plugin`",
                _ => "",
            };
            format!("cannot write node labels for NFD: {error}{restart}")
        });
        if problem != said
            && let Some(problem) = &problem
        {
            warn(problem);
        }
        said = problem;
        if matches!(timeout(LABEL_PERIOD, offers.changed()).await, Ok(Err(_))) {
            return;
        }
    }
}

/// Removes the file: a node without a plugin has no shares.
pub fn remove_labels(environment: &Environment) {
    let _ = label_file(environment).remove();
}

fn label_file(environment: &Environment) -> OwnFile {
    OwnFile {
        directory: environment.host.under_root(NODE_FEATURES),
        name: "mig-mps",
        is_mounted: false,
        mode: 0o644,
        is_ours: |_| true,
    }
}

/// Writes the file if NFD has its directory on this node.
fn write_labels(environment: &Environment, text: &str) -> FileResult<()> {
    let file = label_file(environment);
    if file.directory.is_dir() {
        file.write(text)?;
    }
    Ok(())
}

fn profile_name(environment: &Environment) -> Option<String> {
    let history = ProfileHistory::load(&environment.state_dir().ok()?).ok()?;
    if !history.is_in_force() {
        return None;
    }
    history.last_applied()?.name.clone()
}

/// Returns a line for each label.
fn label_lines(offers: &ResourceOffers, profile: Option<&str>) -> String {
    let mut resources: BTreeMap<&str, ResourceFacts> = BTreeMap::new();
    for offered in &offers.devices {
        let facts = resources.entry(&offered.resource).or_default();
        facts.count += 1;
        facts.shares += offered.shares;
        let memory = facts.memory_mib.into_iter().chain(offered.memory_mib);
        facts.memory_mib = memory.min();
    }
    let mut lines = String::new();
    let profile = profile.map(label_value).filter(|value| !value.is_empty());
    if let Some(profile) = profile {
        let _ = writeln!(lines, "{DOMAIN}/profile={profile}");
    }
    for (resource, facts) in resources {
        let (_, word) = resource.split_once('/').unwrap_or(("", resource));
        let values = [
            ("count", Some(facts.count as u64)),
            ("shares", Some(facts.shares.into())),
            ("memory-mib", facts.memory_mib),
        ];
        for (fact, value) in values {
            let name = format!("{word}.{fact}");
            if let Some(value) = value
                && name.len() <= MAX_NAME_CHARS
            {
                let _ = writeln!(lines, "{DOMAIN}/{name}={value}");
            }
        }
    }
    lines
}

/// Returns a text as the value of a label: other characters become dashes.
fn label_value(text: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let value: String = text
        .chars()
        .map(|c| if is_kept(c) { c } else { '-' })
        .take(MAX_NAME_CHARS)
        .collect();
    value
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::offer::OfferedDevice;
    use super::*;

    fn offered(resource: &str, shares: u32, memory_mib: Option<u64>) -> OfferedDevice {
        OfferedDevice {
            name: String::new(),
            uuid: String::new(),
            resource: format!("{DOMAIN}/{resource}"),
            shares,
            ill: None,
            numa_node: None,
            memory_mib,
            container: Err(String::new()),
        }
    }

    fn lines(devices: Vec<OfferedDevice>, profile: &str) -> String {
        let offers = ResourceOffers {
            devices,
            ..ResourceOffers::default()
        };
        label_lines(&offers, Some(profile))
    }

    #[test]
    fn each_resource_has_its_sums() {
        let devices = vec![
            offered("trainer", 1, None),
            offered("1g.10gb", 2, Some(9728)),
            offered("1g.10gb", 3, Some(9216)),
        ];
        assert_eq!(
            lines(devices, "Lab 1 (night)"),
            "mig-mps.io/profile=Lab-1--night\nmig-mps.io/1g.10gb.count=2\nmig-mps.io/1g.10gb.shares=5\n\
             mig-mps.io/1g.10gb.memory-mib=9216\nmig-mps.io/trainer.count=1\nmig-mps.io/trainer.shares=1\n"
        );
    }

    #[test]
    fn a_label_that_would_be_too_long_is_left_out() {
        let devices = vec![offered(&"x".repeat(56), 1, Some(1))];
        let expected = format!(
            "mig-mps.io/{0}.count=1\nmig-mps.io/{0}.shares=1\n",
            "x".repeat(56)
        );
        assert_eq!(lines(devices, "-"), expected);
    }

    proptest! {
        #[test]
        fn a_value_is_valid_or_empty(name in any::<String>()) {
            let value = label_value(&name);
            let pattern = regex::Regex::new("^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$").unwrap();
            prop_assert!(pattern.is_match(&value) && value.len() <= 63, "{value}");
        }
    }
}
