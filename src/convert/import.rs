use regex::escape;
use toml::Table;

use super::mig_parted::{ConfigEntry, DeviceFilter, GpuChoice, Spec};
use super::packing::pack;
use super::{Converted, DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect};
use crate::profile::{ProfileError, Span};

/// Turns the configuration of that name into a profile; `serve_whole` takes `mig-enabled: false` as
/// `mig = false`, for which a daemon is started that mig-parted knows nothing of.
///
/// # Errors
/// A [`ProfileError`] that points at the entry that a profile has no words for.
///
/// # Panics
/// Where the file has no configuration of that name.
pub fn import(spec: &Spec, name: &str, serve_whole: bool) -> Result<Converted, ProfileError> {
    let entries = &spec.configs[name];
    let mut blocks = Vec::new();
    for entry in entries {
        if entry.devices != GpuChoice::Index(Vec::new()) {
            blocks.push((entry, block(spec, entry, serve_whole)?));
        }
    }
    let mut remarks = vec![format!(
        "Imported from the mig-parted configuration \"{name}\"."
    )];
    // mig-parted carries out one entry after the other, so that the last one for a GPU stays; of our
    // blocks the first one for a GPU has it.
    let overlap = blocks.iter().enumerate().any(|(position, (entry, block))| {
        let mut later = blocks[position + 1..].iter();
        later.any(|(other, with)| may_overlap(entry, other) && block.devices != with.devices)
    });
    if overlap {
        blocks.reverse();
        let why = "The entries overlap: mig-parted carries out one after the other and the last one for a\n\
                   GPU stays. Here the first block that selects a GPU wins: the order is reversed.";
        remarks.push(why.to_owned());
    }
    let mut kept: Vec<(&ConfigEntry, DraftBlock)> = Vec::new();
    for (entry, block) in blocks {
        if !kept.iter().any(|(earlier, _)| covers(earlier, entry)) {
            kept.push((entry, block));
        }
    }
    check_left_out(spec, &kept)?;
    let mut notes = Vec::new();
    if kept.iter().any(|(_, block)| block.is_remark) {
        let note = "GPUs with mig-enabled: false are left alone: mig-parted switches MIG off there, and \
                    mig = false would also start a daemon. --serve-whole takes it as mig = false.";
        notes.push(note.to_owned());
    }
    let blocks: Vec<DraftBlock> = kept.into_iter().map(|(_, block)| block).collect();
    if blocks.iter().all(|block| block.is_remark) {
        let first = entries.first().map_or(Span::default(), |entry| entry.span);
        let message =
            format!("\"{name}\" partitions no GPU: there is nothing for a profile to say");
        let hint =
            "--serve-whole takes mig-enabled: false as mig = false: the whole GPU with a daemon";
        return Err(spec.source.error(first, message).with_hint(hint));
    }
    Ok(Converted {
        draft: DraftProfile {
            remarks,
            name: Some(name.to_owned()),
            blocks,
            ..DraftProfile::default()
        },
        notes,
    })
}

/// A GPU that mig-parted takes out of MIG is left alone by leaving its block out, which is right only
/// where no other block then selects it.
fn check_left_out(spec: &Spec, kept: &[(&ConfigEntry, DraftBlock)]) -> Result<(), ProfileError> {
    for (position, (entry, block)) in kept.iter().enumerate() {
        let mut later = kept[position + 1..].iter();
        if block.is_remark && later.any(|(other, _)| may_overlap(entry, other)) {
            return Err(spec.refuse(
                entry,
                "without a block for these GPUs another one of this profile would select them",
                "--serve-whole makes a block with mig = false of it: the whole GPU with a daemon",
            ));
        }
    }
    Ok(())
}

fn block(spec: &Spec, entry: &ConfigEntry, serve_whole: bool) -> Result<DraftBlock, ProfileError> {
    let mut remarks = Vec::new();
    let select = select(spec, entry, &mut remarks)?;
    if entry.mig_enabled && entry.mig_devices.is_empty() {
        return Err(spec.refuse(
            entry,
            "MIG mode on without MIG devices cannot be said in a profile of mig-mps",
            "switch it on with nvidia-smi -mig 1, or let up do so when devices are wanted",
        ));
    }
    let devices = if entry.mig_enabled {
        if select == DraftSelect::All {
            let why = "mig-parted passes over GPUs without MIG here; mig-mps refuses a node that has one:\n\
                       select by product or index there.";
            remarks.push(why.to_owned());
        }
        let instances = pack(&entry.mig_devices).into_iter();
        let entries = instances.map(|one| DraftEntry::plain(one.profile, one.compute));
        DraftDevices::Instances(DraftEntry::counted(&entries.collect::<Vec<_>>()))
    } else {
        let why = if serve_whole {
            "mig-parted only switches MIG off here; mig-mps also starts a daemon for the whole GPU,\n\
             and does not switch MIG off by itself: it refuses a GPU in MIG mode."
        } else {
            "mig-parted switches MIG off here. mig-mps leaves these GPUs as they are: mig = false would\n\
             also start a daemon for the whole GPU. If that is wanted:"
        };
        remarks.push(why.to_owned());
        DraftDevices::Whole {
            name: None,
            mps: Table::new(),
        }
    };
    Ok(DraftBlock {
        remarks,
        select,
        devices,
        is_remark: !entry.mig_enabled && !serve_whole,
    })
}

fn select(
    spec: &Spec,
    entry: &ConfigEntry,
    remarks: &mut Vec<String>,
) -> Result<DraftSelect, ProfileError> {
    match (&entry.devices, entry.filter.is_empty()) {
        (GpuChoice::All, true) => return Ok(DraftSelect::All),
        (GpuChoice::Index(indices), true) => {
            let mut indices = indices.clone();
            indices.sort_unstable();
            indices.dedup();
            return Ok(DraftSelect::Index(indices));
        }
        (GpuChoice::Index(_), false) => {
            return Err(spec.refuse(
                entry,
                "a list of devices together with device-filter cannot be said in a profile: \
                 a block selects by index or by product",
                "leave device-filter out where the indices say enough, or write devices: all",
            ));
        }
        (GpuChoice::All, false) => {}
    }
    let mut products: Vec<&str> = Vec::new();
    for filter in &entry.filter {
        let found = filter.products();
        remarks.push(match found.as_slice() {
            [] => {
                return Err(spec.refuse(
                    entry,
                    format!("the catalog has no product name for the device id {filter}"),
                    "mig-mps list shows the product names of a node: take this id out of the file,\n\
                     import the rest, and add a block with select = { product = \"^NAME$\" }",
                ));
            }
            [one] => format!("device-filter {filter}: {one}"),
            several => format!("device-filter {filter}: any of {}", several.join(", ")),
        });
        products.extend(found);
    }
    if entry.filter.iter().any(|filter| filter.subsystem.is_some()) {
        let why = "A product name does not tell subsystem ids apart: other boards of that name are selected too.";
        remarks.push(why.to_owned());
    }
    products.sort_unstable();
    products.dedup();
    Ok(DraftSelect::Product(regex_of(&products)))
}

/// A regular expression for exactly these names.
fn regex_of(products: &[&str]) -> String {
    // A hyphen means nothing outside of brackets, and people read this.
    let plain = |product: &&str| escape(product).replace(r"\-", "-");
    let names: Vec<String> = products.iter().map(plain).collect();
    match names.as_slice() {
        [one] => format!("^{one}$"),
        names => format!("^({})$", names.join("|")),
    }
}

fn products(entry: &ConfigEntry) -> Vec<&'static str> {
    let filters = entry.filter.iter();
    filters.flat_map(DeviceFilter::products).collect()
}

/// True if both may match the same GPU.
fn may_overlap(a: &ConfigEntry, b: &ConfigEntry) -> bool {
    if let (GpuChoice::Index(a), GpuChoice::Index(b)) = (&a.devices, &b.devices) {
        return a.iter().any(|index| b.contains(index));
    }
    if a.filter.is_empty() || b.filter.is_empty() {
        return true;
    }
    let b = products(b);
    products(a).iter().any(|product| b.contains(product))
}

/// True if `a` matches every GPU that `b` matches.
fn covers(a: &ConfigEntry, b: &ConfigEntry) -> bool {
    match (&a.devices, &b.devices) {
        (GpuChoice::Index(a), GpuChoice::Index(b)) => b.iter().all(|index| a.contains(index)),
        (GpuChoice::Index(_), GpuChoice::All) => false,
        (GpuChoice::All, _) if a.filter.is_empty() => true,
        (GpuChoice::All, _) => {
            let a = products(a);
            !b.filter.is_empty() && products(b).iter().all(|product| a.contains(product))
        }
    }
}
