//! An advice as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;

use crate::geometry::{Placement, Segment, SliceMap};
use crate::host::{format_gpus, join_words};
use crate::render::format::{
    display_or, draw_map, escape_text, format_count, format_figure, format_gib, group_by,
    wrap_behind,
};
use crate::render::json::Report;
use crate::render::table::{Column, NONE, Table};

use super::advice::{Advice, AdvisedDevice, AdvisedGpus, AdvisedProgram};
use super::request::longer_effort;
use super::solver::PARTS;

impl Report for Advice {
    fn text(&self, width: usize) -> String {
        let mut text = format!("{}\n\n", self.conclusion());
        for gpus in &self.gpus {
            text.push_str(&gpus.render_maps());
        }
        let _ = write!(text, "\n{}\n", self.program_table(width));
        for remark in self.remarks() {
            text.push_str(&wrap_behind("", &remark, width));
        }
        text
    }
}

impl Advice {
    /// Says how many GPUs are used, and how sure it is that no fewer would do.
    fn conclusion(&self) -> String {
        let gpus = format_count(self.used_gpu_count(), "GPU");
        let slices = format_count(self.slices as usize, "slice");
        if self.is_proven {
            return format!("{gpus}, {slices}, by these figures: no layout has fewer");
        }
        let mut proven = if self.least_gpus as usize == self.used_gpu_count() {
            "no layout has fewer GPUs".to_owned()
        } else {
            let least = format_count(self.least_gpus as usize, "GPU");
            format!("every layout has at least {least}")
        };
        if self.least_slices < self.slices {
            let least = format_count(self.least_slices as usize, "slice");
            let _ = write!(proven, ", and on as many GPUs, at least {least}");
        }
        format!("{gpus}, {slices}, possibly not the best layout: {proven}")
    }

    fn devices(&self) -> impl Iterator<Item = &AdvisedDevice> {
        self.gpus.iter().flat_map(|gpus| &gpus.devices)
    }

    /// Says what is left over, what undivided GPUs would do, and what to know of some programs.
    fn remarks(&self) -> Vec<String> {
        let mut free = Vec::new();
        if !self.unused.is_empty() {
            free.push(format_gpus(&self.unused));
        }
        if self.largest_free_block > 0 {
            let block = format_count(self.largest_free_block as usize, "memory slice");
            free.push(format!("a block of {block} on a GPU in use"));
        }
        for gpus in self.gpus.iter().filter(|gpus| gpus.map.is_none()) {
            let left: u32 = gpus.devices.iter().map(AdvisedDevice::tenths_left).sum();
            if left > 0 {
                let percent = f64::from(left) / 10.0;
                let each = if gpus.indices.len() > 1 {
                    "each of "
                } else {
                    ""
                };
                let indices = format_gpus(&gpus.indices);
                free.push(format!("{percent}% of the SMs of {each}{indices}"));
            }
        }
        if free.is_empty() {
            free.push("nothing".to_owned());
        }
        let mut remarks = vec![format!("Left over: {}.", join_words(&free, "and"))];
        match self.undivided_gpus {
            _ if self.devices().all(|device| device.profile.is_none()) => {}
            Some(gpus) => remarks.push(format!(
                "With undivided GPUs, {} would do.",
                format_count(gpus as usize, "GPU")
            )),
            None => remarks.push(
                "With undivided GPUs: unknown, since a program has no figures for a whole GPU."
                    .to_owned(),
            ),
        }
        remarks.extend(self.unmeasured.iter().cloned());
        if !self.is_proven
            && let Some(effort) = longer_effort(self.effort)
        {
            remarks.push(format!(
                "A longer search may prove it or find better: --effort {effort}."
            ));
        }
        for device in self.devices().filter(|device| device.programs.len() > 1) {
            remarks.extend(device.sharing_remarks());
        }
        let mut programs = self.devices().flat_map(|device| &device.programs);
        if programs.any(|one| one.is_interpolated) {
            remarks.push("* interpolated between two measurements".to_owned());
        }
        let mut seen = BTreeSet::new();
        remarks.retain(|remark| seen.insert(remark.clone()));
        remarks
    }

    fn program_table(&self, width: usize) -> String {
        let mut table = Table::new(vec![
            Column::left_aligned("PROGRAM", 0),
            Column::left_aligned("DEVICES", 0),
            Column::right_aligned("COPIES", 0),
            Column::right_aligned("THREADS", 2),
            Column::right_aligned("RATE", 0),
            Column::right_aligned("WANTED", 0),
            Column::right_aligned("GIB", 1),
            Column::right_aligned("LATENCY", 2).hidden_if_empty(),
        ]);
        for program in &self.programs {
            let mut wanted = match (program.wanted_rate, program.wanted_copies) {
                (Some(rate), _) => format_figure(rate),
                (None, Some(1)) => "1 copy".to_owned(),
                (None, copies) => format!("{} copies", copies.unwrap_or(0)),
            };
            let own = self
                .gpus
                .iter()
                .flat_map(|gpus| {
                    gpus.indices
                        .iter()
                        .flat_map(|_| &gpus.devices)
                        .flat_map(|device| device.programs.iter().map(|one| (&device.profile, one)))
                })
                .filter(|(_, one)| one.program == program.program);
            for alike in group_by(own, |one, other| one == other) {
                let (profile, one) = alike[0];
                let device = display_or(profile.as_ref(), "whole");
                let rate: f64 = alike.iter().map(|(_, one)| one.rate).sum();
                let mark = if one.is_interpolated { "*" } else { "" };
                let marked = |figure: Option<String>| {
                    display_or(figure.map(|figure| format!("{mark}{figure}")), NONE)
                };
                table.add_row(vec![
                    escape_text(&program.program).into_owned(),
                    format!("{} × {device}", alike.len()),
                    format!("{mark}{}", one.copies),
                    format!("{}%", one.threads),
                    format!("{mark}{}", format_figure(rate)),
                    std::mem::take(&mut wanted),
                    marked(one.memory_used_bytes.map(format_gib)),
                    marked(one.latency_ms.map(|ms| format!("{} ms", format_figure(ms)))),
                ]);
            }
        }
        table.render(width, "--json")
    }
}

impl AdvisedGpus {
    /// A heading, the map of the instances, and below it that of their programs.
    fn render_maps(&self) -> String {
        let key = self
            .model
            .as_ref()
            .map(|key| format!("{key}  "))
            .unwrap_or_default();
        let heading = format!("{}  {key}{}", format_gpus(&self.indices), self.product);
        let (kinds, names) = if let Some(kinds) = &self.map {
            (kinds.clone(), self.programs_on(kinds))
        } else {
            let all: Vec<String> = self
                .devices
                .iter()
                .flat_map(|device| &device.programs)
                .map(AdvisedProgram::short_label)
                .collect();
            (one_piece("whole GPU"), one_piece(&all.join(" + ")))
        };
        let heading = style(heading).bold();
        format!("{heading}\n  {}\n  {names}\n", draw_map(&kinds))
    }

    /// Returns a map with the programs of each instance in place of its profile.
    fn programs_on(&self, kinds: &SliceMap) -> SliceMap {
        let mut left: Vec<&AdvisedDevice> = self.devices.iter().collect();
        let segments = kinds.segments().iter().map(|segment| {
            let is_it = |device: &&AdvisedDevice| {
                let profile = device.profile.as_ref();
                profile.is_some_and(|profile| profile.to_string() == segment.label)
            };
            let names = left
                .iter()
                .position(is_it)
                .map(|nth| left.remove(nth))
                .into_iter()
                .flat_map(|device| &device.programs)
                .map(|one| escape_text(&one.program).into_owned());
            Segment {
                label: names.collect::<Vec<_>>().join(" + "),
                ..segment.clone()
            }
        });
        SliceMap::new(kinds.units(), segments.collect())
    }
}

impl AdvisedDevice {
    /// Returns the part of its SMs that no program has, in tenths of a percent.
    fn tenths_left(&self) -> u32 {
        let taken = self
            .programs
            .iter()
            .map(|one| one.threads.to_tenths().saturating_mul(one.copies));
        PARTS.saturating_sub(taken.sum())
    }

    /// Says what to know of the programs that share it.
    fn sharing_remarks(&self) -> Vec<String> {
        let names: Vec<_> = self
            .programs
            .iter()
            .map(|one| escape_text(&one.program))
            .collect();
        let names = join_words(&names, "and");
        let mut remarks = vec![format!(
            "{names} were measured without other programs, and may be slower when they share a device."
        )];
        for one in &self.programs {
            let program = escape_text(&one.program);
            if one.limits_itself {
                remarks.push(format!(
                    "On a device of {names}, start {program} with mig-mps run --threads {}.",
                    one.threads
                ));
            }
            if one.memory_used_bytes.is_none() {
                remarks.push(format!(
                    "The memory that {program} uses was not measured, so it may not fit next to other programs."
                ));
            }
        }
        remarks
    }
}

impl AdvisedProgram {
    /// `bert ×4`
    fn short_label(&self) -> String {
        let program = escape_text(&self.program);
        if self.copies == 1 {
            program.into_owned()
        } else {
            format!("{program} ×{}", self.copies)
        }
    }
}

/// The map of a whole GPU.
fn one_piece(label: &str) -> SliceMap {
    let whole = Segment {
        placement: Placement::new(0, 8),
        label: label.to_owned(),
    };
    SliceMap::new(8, vec![whole])
}
