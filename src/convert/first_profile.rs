//! A profile out of a few answers.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::import::regex_of;
use super::{
    DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect, EmptyNode, GpuGroup,
    GroupSupply,
};
use crate::geometry::Partition;
use crate::settings::Serve;

/// The answers that do not lie in the chosen partitions.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The indices of the GPUs that stay whole.
    pub whole: BTreeSet<u32>,
    pub serve: Serve,
}

/// A partition chosen for the GPUs of a group.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    pub supply: GroupSupply<'a>,
    pub partition: Partition<'a>,
}

impl Choice<'_> {
    /// Returns the number of devices on all its GPUs.
    pub fn devices(&self) -> u32 {
        self.supply.devices(self.partition.instances())
    }
}

/// Makes a profile with comments for its reader.
pub fn first_profile(node: &EmptyNode, answers: &Answers, choices: &[Choice<'_>]) -> DraftProfile {
    let whole = (!answers.whole.is_empty()).then(|| whole_block(answers));
    let parts = choices.iter().map(|choice| partitioned(node, choice));
    let gpus = node.groups.iter();
    let gpus = gpus.map(|group| format!("{} × {}", group.indices.len(), group.product));
    let gpus: Vec<String> = gpus.collect();
    let mut mps = Table::new();
    mps.insert("serve".to_owned(), Value::String(answers.serve.to_string()));
    DraftProfile {
        remarks: vec![
            format!("Written by mig-mps init for {}.", gpus.join(", ")),
            "Change it as you need: mig-mps help profile explains every key.".to_owned(),
        ],
        models: models(node, answers, choices),
        mps_remarks: vec![
            format!("{}.", served(&answers.serve)),
            "Values: one-at-a-time, all, group:NAME, user:NAME, self (mig-mps help security)."
                .to_owned(),
        ],
        mps,
        blocks: whole.into_iter().chain(parts).collect(),
        ..DraftProfile::default()
    }
}

/// The models of the GPUs that the profile selects; none if the catalog lacks one.
fn models(node: &EmptyNode, answers: &Answers, choices: &[Choice<'_>]) -> Vec<String> {
    let is_whole = |group: &&GpuGroup| {
        let mut indices = group.indices.iter();
        indices.any(|index| answers.whole.contains(index))
    };
    let whole = node.groups.iter().filter(is_whole);
    let groups = whole.chain(choices.iter().map(|choice| choice.supply.group));
    let keys: Option<BTreeSet<String>> = groups
        .map(|group| group.model.map(|model| model.key.clone()))
        .collect();
    keys.into_iter().flatten().collect()
}

/// Describes in words which users a device serves.
fn served(serve: &Serve) -> String {
    match serve {
        Serve::OneAtATime => {
            "Any user, one user at a time: the programs of a second user wait".to_owned()
        }
        Serve::All => "Every user at once, in one server: a fault of one can end all".to_owned(),
        Serve::Group(name) => format!("The members of the group {name} at once, in one server"),
        Serve::User(name) => format!("The user {name} alone"),
        Serve::Own => "The user who applies this profile, alone".to_owned(),
    }
}

fn whole_block(answers: &Answers) -> DraftBlock {
    DraftBlock {
        remarks: vec![
            "Whole: one device that has all of the GPU, with a daemon (without one: mps = false)."
                .to_owned(),
        ],
        select: DraftSelect {
            index: Some(answers.whole.iter().copied().collect()),
            product: None,
        },
        devices: DraftDevices::Whole {
            name: None,
            mps: Some(Table::new()),
        },
    }
}

fn partitioned(node: &EmptyNode, choice: &Choice<'_>) -> DraftBlock {
    let group = choice.supply.group;
    let (gpus, each) = (choice.supply.indices.len(), choice.partition.instances());
    let s = if each == 1 { "" } else { "s" };
    let on_each = if gpus == 1 { "" } else { " on each" };
    let product = &group.product;
    let mut remarks = vec![format!("{gpus} × {product}, {each} device{s}{on_each}:")];
    let map = choice.partition.map(&group.profiles);
    remarks.extend(map.map(|map| format!("  {map}")));
    let counts = choice.partition.counts.iter();
    let facts = counts.clone();
    remarks.extend(
        facts.map(|(profile, _)| format!("  {}: {}", profile.name, group.describe(profile))),
    );
    let entries = counts.map(|(profile, count)| DraftEntry {
        count: *count,
        ..DraftEntry::plain(profile.name.clone(), Vec::new())
    });
    DraftBlock {
        remarks,
        select: select(node, choice),
        devices: DraftDevices::Instances(entries.collect()),
    }
}

/// By product, so that the profile is right for other nodes with such GPUs; by index where no name tells them apart.
fn select(node: &EmptyNode, choice: &Choice<'_>) -> DraftSelect {
    let group = choice.supply.group;
    let catalog = group.model.filter(|_| !node.is_real());
    let products: BTreeSet<&str> = match catalog {
        Some(model) => model.product_names.iter().map(String::as_str).collect(),
        None => BTreeSet::from([group.product.as_str()]),
    };
    if products.is_empty() {
        return DraftSelect {
            index: Some(choice.supply.indices.clone()),
            product: None,
        };
    }
    DraftSelect {
        index: None,
        product: Some(regex_of(&products)),
    }
}
