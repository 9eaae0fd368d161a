//! `mig-mps import`: mig-parted's configurations as profiles.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use toml::Table;

use super::manifest::{ConfigChoice, ConfigTexts};
use super::mig_parted::{ConfigEntry, DeviceFilter, Spec, pack};
use crate::catalog::{Model, models};
use crate::commands::args::similar_file_hint;
use crate::commands::{Context, print_or_write_new};
use crate::error::{CommandError, Result, usage_error};
use crate::failure::ExitStatus;
use crate::geometry::ProfileName;
use crate::host::read_text_from;
use crate::profile::{Profile, ProfileError, Span};
use crate::render::{examples, note, warn};
use crate::shared::{
    ConvertedProfile, DraftBlock, DraftProfile, device_entry, merge_equal_entries, mig_devices,
    regex_of, table,
};

/// Convert a mig-parted configuration to a profile
///
/// The profile creates the same GPU instances and compute instances on the same GPUs. If a profile cannot express a
/// setting, the command fails and reports the line.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps import config.yaml -c custom -o custom.toml", "Write a profile"),
    ("kubectl get cm mig-parted -o yaml | mig-mps import -", "Read a ConfigMap"),
]))]
pub struct ImportArgs {
    /// Configuration, or manifest that contains one (YAML), or - for standard input
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Configuration to import, if there are several; also KEY:NAME
    #[arg(long, short, value_name = "CONFIGURATION")]
    config: Option<String>,
    /// Write to a new file instead of standard output
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    options: ImportOptions,
}

/// Converts a configuration of mig-parted to a profile.
pub fn run(args: &ImportArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    let (path, text) = read_text_from(&args.file);
    let text = text.map_err(|error| {
        let what = usage_error(format_args!("cannot read {}: {error}", path.display()));
        match similar_file_hint(path, &["yaml", "yml"]) {
            Some(near) if error.kind() == ErrorKind::NotFound => what.with_hint(near),
            _ => what.with_hint("give a configuration of mig-parted (YAML)"),
        }
    })?;
    let is_encoded = BASE64_WORDS.iter().any(|word| text.contains(word));
    let found = ConfigTexts::find(path, text);
    if found.is_empty() {
        return Err(no_configuration(path, is_encoded));
    }
    let choices = found.choices();
    let wanted = args.config.as_deref();
    // A configuration with a mistake may be the one that is meant.
    let is_doubtful = wanted.is_none() && found.faults.iter().any(|(name, _)| name.is_some());
    let chosen = match choose_configuration(wanted, path, &choices) {
        Ok(chosen) if !is_doubtful => chosen,
        Ok(_) => {
            return Err(found
                .into_fault(None)
                .map_or_else(|| no_configuration(path, is_encoded), Into::into));
        }
        Err(error) => return Err(found.into_fault(wanted).map_or(error, Into::into)),
    };
    let imported = import(chosen.spec, chosen.name, args.options)?;
    let text = imported.draft.to_string();
    Profile::parse(Path::new("the imported profile"), text.clone())?;
    print_or_write_new(&text, args.output.as_deref())?;
    for remark in imported.notes {
        note(&remark);
    }
    for (_, fault) in &found.faults {
        let fault = fault.to_string();
        let fault = fault.lines().next().unwrap_or_default();
        warn(&format!("another part of the file cannot be read: {fault}"));
    }
    Ok(ExitStatus::Done)
}

/// The configuration that the user means, by its name or by its place and name.
fn choose_configuration<'a, 'b>(
    wanted: Option<&str>,
    path: &Path,
    choices: &'b [ConfigChoice<'a>],
) -> Result<&'b ConfigChoice<'a>> {
    let is_meant = |choice: &&ConfigChoice<'_>| {
        wanted.is_none_or(|word| choice.name == word || choice.full_name() == word)
    };
    let meant: Vec<&ConfigChoice<'_>> = choices.iter().filter(is_meant).collect();
    let shown = path.display();
    Err(match (wanted, meant.as_slice()) {
        (_, [only]) => return Ok(*only),
        (Some(wanted), []) => usage_error(format_args!(
            "{shown} has no configuration \"{wanted}\"; it has:\n  {}",
            list_choices(choices)
        )),
        (None, all) => usage_error(format_args!(
            "{shown} has {} configurations; choose one with --config:\n  {}",
            all.len(),
            list_choices(choices)
        )),
        (Some(wanted), several) => {
            let names: Vec<String> = several.iter().map(|choice| choice.full_name()).collect();
            usage_error(format_args!(
                "{shown} has {} configurations \"{wanted}\"; choose one with --config:\n  {}",
                several.len(),
                names.join("\n  ")
            ))
        }
    })
}

/// The configurations line by line; those of several texts by the place of the text.
fn list_choices(choices: &[ConfigChoice<'_>]) -> String {
    let texts: Vec<&[ConfigChoice<'_>]> = choices.chunk_by(|a, b| a.place == b.place).collect();
    let lines: Vec<String> = match texts.as_slice() {
        [only] => only.iter().map(|choice| choice.name.to_owned()).collect(),
        several => several
            .iter()
            .map(|text| {
                let names: Vec<&str> = text.iter().map(|choice| choice.name).collect();
                format!("{}: {}", text[0].place, names.join(", "))
            })
            .collect(),
    };
    lines.join("\n  ")
}

/// Words of manifests whose texts are in base64.
const BASE64_WORDS: [&str; 4] = ["binaryData", "Secret", "base64", "b64"];

fn no_configuration(path: &Path, is_encoded: bool) -> CommandError {
    let shown = path.display();
    let error = usage_error(format_args!(
        "{shown} has no configuration of mig-parted (YAML)"
    ));
    error.with_hint(if path.extension().is_some_and(|end| end == "toml") {
        "use `mig-mps up` for a profile (TOML) directly"
    } else if is_encoded {
        "decode the text first, for example with `base64 -d`"
    } else {
        "check that the text has the keys version and mig-configs"
    })
}

/// The way to take entries that a profile understands otherwise.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    /// Start a daemon for each GPU with mig-enabled: false [default: only disable MIG mode]
    #[arg(long, hide_short_help = true)]
    pub serve_whole: bool,
    /// Use the compute instances of mig-parted even if they lack SMs [default: those with all SMs]
    #[arg(long, hide_short_help = true)]
    pub exact: bool,
}

/// An entry, and its block; none where it is left out.
type Imported<'a> = (&'a ConfigEntry, Option<DraftBlock>);

/// Turns the configuration of that name into a profile.
///
/// # Errors
/// A [`ProfileError`] that points at the entry that a profile has no words for.
///
/// # Panics
/// Where the file has no configuration of that name.
pub fn import(
    spec: &Spec,
    name: &str,
    options: ImportOptions,
) -> Result<ConvertedProfile, ProfileError> {
    let entries = &spec.configs[name];
    let mut blocks: Vec<Imported<'_>> = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.selects_nothing()) {
        let block = if !entry.mig_enabled && entry.is_unknown() {
            None
        } else {
            Some(draft_block(spec, entry, options)?)
        };
        blocks.push((entry, block));
    }
    let mut remarks = vec![format!(
        "Imported from the mig-parted configuration \"{name}\"."
    )];
    // mig-parted carries out one entry after the other, so that the last one for a GPU stays; of our
    // blocks the first one for a GPU has it.
    let is_reversed = has_overlap(&blocks);
    if is_reversed {
        blocks.reverse();
    }
    let mut kept: Vec<Imported<'_>> = Vec::new();
    for (entry, block) in blocks {
        if !kept.iter().any(|(earlier, _)| earlier.covers(entry)) {
            kept.push((entry, block));
        }
    }
    check_left_out(spec, &kept)?;
    let notes = import_notes(entries, &kept, options);
    let blocks: Vec<DraftBlock> = kept.into_iter().filter_map(|(_, block)| block).collect();
    if is_reversed && blocks.len() > 1 {
        let why = "The entries overlap: mig-parted carries out one after the other and the last one for a\n\
                   GPU stays. Here the first block that selects a GPU wins: the order is reversed.";
        remarks.push(why.to_owned());
    }
    remarks.extend(notes.iter().cloned());
    if blocks.is_empty() {
        let first = entries.first().map_or(Span::default(), |entry| entry.span);
        let message = format!("\"{name}\" selects no GPU, so the profile would be empty");
        return Err(spec.text.source.error_at(first, message));
    }
    Ok(ConvertedProfile {
        draft: DraftProfile {
            remarks,
            keys: table([("name", name.into())]),
            blocks,
            ..DraftProfile::default()
        },
        notes,
    })
}

/// True if two entries may select the same GPU, for different devices.
fn has_overlap(blocks: &[Imported<'_>]) -> bool {
    blocks.iter().enumerate().any(|(position, (entry, block))| {
        let want = block.as_ref().map(|block| &block.want);
        blocks[position + 1..].iter().any(|(later, other)| {
            want != other.as_ref().map(|other| &other.want) && entry.overlaps(later)
        })
    })
}

/// The differences between the profile and what mig-parted does.
fn import_notes(
    entries: &[ConfigEntry],
    kept: &[Imported<'_>],
    options: ImportOptions,
) -> Vec<String> {
    let mut notes = Vec::new();
    let words: BTreeSet<String> = entries
        .iter()
        .flat_map(|entry| &entry.filter)
        .filter(|filter| !filter.is_id())
        .map(DeviceFilter::to_string)
        .collect();
    notes.extend(words.iter().map(|word| {
        format!("device-filter {word} is no PCI id, so mig-parted selects no GPU by it")
    }));
    let left_out: BTreeSet<String> = kept
        .iter()
        .filter(|(_, block)| block.is_none())
        .flat_map(|(entry, _)| &entry.filter)
        .map(DeviceFilter::to_string)
        .collect();
    notes.extend(left_out.iter().map(|filter| {
        format!("device-filter {filter} is left out: it only switches MIG off, on GPUs that the catalog does not know")
    }));
    if !options.exact {
        let full: BTreeSet<String> = kept
            .iter()
            .flat_map(|(entry, _)| smaller_with_mig_parted(entry))
            .map(ProfileName::to_string)
            .collect();
        notes.extend(full.iter().map(|name| {
            format!("{name} gets the compute instance with all its SMs; if another one exists, as on an H100, \
             mig-parted creates that one (--exact does too)")
        }));
    }
    notes
}

/// The GPU instances of an entry in which mig-parted makes a compute instance of all slices that lacks SMs.
fn smaller_with_mig_parted(entry: &ConfigEntry) -> impl Iterator<Item = &ProfileName> {
    entry
        .mig_devices
        .iter()
        .filter(|device| device.compute.is_none())
        .map(|device| &device.profile)
        .filter(|profile| {
            entry
                .selected_models()
                .any(|model| model.has_smaller_compute(profile))
        })
}

/// Leaving an entry out leaves its GPUs alone only where no other block selects them.
fn check_left_out(spec: &Spec, kept: &[Imported<'_>]) -> Result<(), ProfileError> {
    for (position, (entry, block)) in kept.iter().enumerate() {
        let mut later = kept[position + 1..].iter();
        if block.is_none() && later.any(|(other, _)| entry.overlaps(other)) {
            let message =
                "without a block for these GPUs, another block of this profile would select them";
            let hint = "give the other entries a device-filter; `mig-mps list` shows the product names of a node";
            return Err(spec
                .text
                .source
                .error_at(entry.span, message)
                .with_hint(hint));
        }
    }
    Ok(())
}

fn draft_block(
    spec: &Spec,
    entry: &ConfigEntry,
    options: ImportOptions,
) -> Result<DraftBlock, ProfileError> {
    let mut remarks = Vec::new();
    let select = selector_for(spec, entry, &mut remarks)?;
    let want = if entry.mig_enabled {
        if select.contains_key("all") {
            let why = "mig-parted passes over GPUs without MIG here; mig-mps refuses a node that has one:\n\
                       select by product or index there.";
            remarks.push(why.to_owned());
        }
        wanted_devices(entry, options.exact)
    } else {
        if options.serve_whole {
            let why = "mig-parted only switches MIG off here; mig-mps also starts a daemon for the whole GPU";
            remarks.push(why.to_owned());
        }
        let mut want = table([("mig", false.into())]);
        if !options.serve_whole {
            want.insert("mps".to_owned(), false.into());
        }
        want
    };
    Ok(DraftBlock {
        remarks,
        select,
        want,
    })
}

/// The MIG devices of an entry; `exact` names the slices of a compute instance that is smaller with mig-parted.
fn wanted_devices(entry: &ConfigEntry, exact: bool) -> Table {
    let smaller: Vec<&ProfileName> = if exact {
        smaller_with_mig_parted(entry).collect()
    } else {
        Vec::new()
    };
    let entries = pack(&entry.mig_devices).into_iter().map(|one| {
        let mut compute = one.compute;
        if compute.is_empty() && smaller.contains(&&one.profile) {
            compute.push(one.profile.slices());
        }
        device_entry(&one.profile, &compute)
    });
    mig_devices(merge_equal_entries(&entries.collect::<Vec<_>>()))
}

fn selector_for(
    spec: &Spec,
    entry: &ConfigEntry,
    remarks: &mut Vec<String>,
) -> Result<Table, ProfileError> {
    let mut select = Table::new();
    if let Some(indices) = &entry.devices {
        let indices: BTreeSet<u32> = indices.iter().copied().collect();
        let indices: Vec<u32> = indices.into_iter().collect();
        select.insert("index".to_owned(), indices.into());
    }
    let mut products: BTreeSet<&str> = BTreeSet::new();
    for filter in entry.filter.iter().filter(|filter| filter.is_id()) {
        let found = filter.product_names();
        remarks.push(match found.as_slice() {
            [] => {
                let message =
                    format!("the catalog has no product name for the device id {filter}");
                let hint = "take this id out of the file, import the rest, and add a block with\nselect = { product = \
                 \"^NAME$\" }; `mig-mps list` shows the product names of a node";
                return Err(spec.text.source.error_at(entry.span, message).with_hint(hint));
            }
            [one] => format!("device-filter {filter}: {one}"),
            several => format!("device-filter {filter}: any of {}", several.join(", ")),
        });
        products.extend(found);
    }
    if entry.filter.iter().any(DeviceFilter::has_subsystem) {
        let why = "a product name does not distinguish subsystem ids, so other boards with that name are selected too";
        remarks.push(why.to_owned());
    }
    if !products.is_empty() {
        select.insert("product".to_owned(), regex_of(&products).into());
    }
    if select.is_empty() {
        return Ok(table([("all", true.into())]));
    }
    Ok(select)
}

impl ConfigEntry {
    /// True if there is no GPU that it selects.
    pub(super) fn selects_nothing(&self) -> bool {
        let has_indices = self.devices != Some(Vec::new());
        let by_id = self.filter.is_empty() || self.filter.iter().any(DeviceFilter::is_id);
        !(has_indices && by_id)
    }

    /// True if it selects only GPUs that the catalog does not know.
    pub(super) fn is_unknown(&self) -> bool {
        !self.filter.is_empty() && self.selected_products().is_empty()
    }

    /// True if both may select the same GPU.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (&self.devices, &other.devices)
            && !a.iter().any(|index| b.contains(index))
        {
            return false;
        }
        let products = other.selected_products();
        self.filter.is_empty()
            || other.filter.is_empty()
            || self
                .selected_products()
                .iter()
                .any(|own| products.contains(own))
    }

    /// True if it selects every GPU that the other selects.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has_indices = match (&self.devices, &other.devices) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(a), Some(b)) => b.iter().all(|index| a.contains(index)),
        };
        // A filter that is no id selects nothing.
        let mut ids = other.filter.iter().filter(|filter| filter.is_id());
        let has_models = self.filter.is_empty()
            || !other.filter.is_empty() && ids.all(|filter| self.covers_filter(filter));
        has_indices && has_models
    }

    /// True if its filter selects every model that the other filter selects.
    fn covers_filter(&self, other: &DeviceFilter) -> bool {
        let (own, products) = (self.selected_products(), other.product_names());
        let is_known = !products.is_empty();
        self.filter.contains(other)
            || is_known && products.iter().all(|product| own.contains(product))
    }

    /// The models of the catalog that it selects.
    pub(super) fn selected_models(&self) -> impl Iterator<Item = &'static Model> {
        let products = self.selected_products();
        let is_any = self.filter.is_empty();
        models().filter(move |model| {
            is_any
                || model
                    .product_names
                    .iter()
                    .any(|name| products.contains(&name.as_str()))
        })
    }

    fn selected_products(&self) -> Vec<&'static str> {
        self.filter
            .iter()
            .flat_map(DeviceFilter::product_names)
            .collect()
    }
}
