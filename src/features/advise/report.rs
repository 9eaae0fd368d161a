//! An advice as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;

use crate::geometry::{Placement, Segment, SliceMap};
use crate::host::ranges;
use crate::render::format::{count, escaped, figure, gib, grouped, hanging, map, shown_or};
use crate::render::json::Report;
use crate::render::table::{Column, NONE, Table};

use super::advice::{Advice, AdvisedDevice, AdvisedGpus, AdvisedProgram};

impl Report for Advice {
    fn text(&self, width: usize) -> String {
        let mut text = format!("{}\n\n", self.conclusion());
        self.gpus
            .iter()
            .for_each(|gpus| text.push_str(&gpus.text()));
        let _ = write!(text, "\n{}\n", self.table(width));
        self.remarks()
            .iter()
            .for_each(|remark| text.push_str(&hanging("", remark, width)));
        text
    }
}

impl Advice {
    /// Says how many GPUs are used, and how sure it is that no fewer would do.
    fn conclusion(&self) -> String {
        let gpus = |number: u32| count(number as usize, "GPU");
        let slices = |number: u32| count(number as usize, "slice");
        let what = format!("{}, {}", count(self.used(), "GPU"), slices(self.slices));
        if self.is_proven {
            return format!("{what}: no layout has fewer");
        }
        let mut proven = if self.least_gpus as usize == self.used() {
            "no layout has fewer GPUs".to_owned()
        } else {
            format!("{} are needed at least", gpus(self.least_gpus))
        };
        if self.least_slices < self.slices {
            let least = slices(self.least_slices);
            let _ = write!(proven, ", and {least} are needed at least on so many GPUs");
        }
        format!("{what}, and perhaps not the best layout: {proven}")
    }

    fn devices(&self) -> impl Iterator<Item = &AdvisedDevice> {
        self.gpus.iter().flat_map(|gpus| &gpus.devices)
    }

    /// Says what is left over, what undivided GPUs would do, and what to know of some programs.
    fn remarks(&self) -> Vec<String> {
        let mut free = Vec::new();
        if !self.unused.is_empty() {
            free.push(format!("GPU {}", ranges(&self.unused)));
        }
        if self.largest_free_block > 0 {
            let block = count(self.largest_free_block as usize, "memory slice");
            free.push(format!("a block of {block} on a GPU in use"));
        }
        if free.is_empty() {
            free.push("nothing".to_owned());
        }
        let mut remarks = vec![format!("Left over: {}.", free.join(", and "))];
        match self.undivided_gpus {
            _ if self.devices().all(|device| device.profile.is_none()) => {}
            Some(gpus) => remarks.push(format!(
                "With undivided GPUs, {} would be needed.",
                count(gpus as usize, "GPU")
            )),
            None => remarks.push(
                "With undivided GPUs: not known, since a program has no figures for them."
                    .to_owned(),
            ),
        }
        for device in self.devices().filter(|device| device.programs.len() > 1) {
            let names = device.programs.iter().map(|one| one.program.as_str());
            let names: Vec<&str> = names.collect();
            remarks.push(format!(
                "{} were measured apart: beside each other they may be slower.",
                names.join(" and ")
            ));
        }
        let programs = || self.devices().flat_map(|device| &device.programs);
        remarks.extend(programs().filter(|one| one.limits_itself).map(|one| {
            format!(
                "Start {} with mig-mps run --threads {}.",
                one.program, one.threads
            )
        }));
        if programs().any(|one| one.is_interpolated) {
            remarks.push("* computed from two measurements, and not measured".to_owned());
        }
        let mut seen = BTreeSet::new();
        remarks.retain(|remark| seen.insert(remark.clone()));
        remarks
    }

    fn table(&self, width: usize) -> String {
        let mut table = Table::new(vec![
            Column::left("PROGRAM", 0),
            Column::left("DEVICES", 0),
            Column::right("COPIES", 0),
            Column::right("THREADS", 2),
            Column::right("RATE", 0),
            Column::right("WANTED", 0),
            Column::right("GIB", 1),
            Column::right("LATENCY", 2).for_values(),
        ]);
        for program in &self.programs {
            let mut wanted = match (program.wanted_rate, program.wanted_copies) {
                (Some(rate), _) => figure(rate),
                (None, copies) => format!("{} copies", copies.unwrap_or(0)),
            };
            let all = self.gpus.iter().flat_map(|gpus| {
                let devices = gpus.indices.iter().flat_map(|_| &gpus.devices);
                devices.flat_map(|device| device.programs.iter().map(|one| (&device.profile, one)))
            });
            let own = all.filter(|(_, one)| one.program == program.program);
            for alike in grouped(own, |one, other| one == other) {
                let (profile, one) = alike[0];
                let device = shown_or(profile.as_ref(), "whole");
                let rate: f64 = alike.iter().map(|(_, one)| one.rate).sum();
                let mark = if one.is_interpolated { "*" } else { "" };
                table.row(vec![
                    escaped(&program.program).into_owned(),
                    format!("{} × {device}", alike.len()),
                    format!("{mark}{}", one.copies),
                    format!("{}%", one.threads),
                    format!("{mark}{}", figure(rate)),
                    std::mem::take(&mut wanted),
                    shown_or(one.memory_used_bytes.map(gib), NONE),
                    shown_or(one.latency_ms.map(|ms| format!("{ms} ms")), NONE),
                ]);
            }
        }
        table.within(width, "--json")
    }
}

impl AdvisedGpus {
    /// A heading, the map of the instances, and below it that of their programs.
    fn text(&self) -> String {
        let key = self.model.as_ref().map(|key| format!("{key}  "));
        let key = key.unwrap_or_default();
        let heading = format!("GPU {}  {key}{}", ranges(&self.indices), self.product);
        let (kinds, names) = if let Some(kinds) = &self.map {
            (kinds.clone(), self.programs_on(kinds))
        } else {
            let all = self.devices.iter().flat_map(|device| &device.programs);
            let all: Vec<String> = all.map(AdvisedProgram::short).collect();
            (one_piece("whole GPU"), one_piece(&all.join(" + ")))
        };
        let heading = style(heading).bold();
        format!("{heading}\n  {}\n  {names}\n", map(&kinds))
    }

    /// Returns a map with the programs of each instance in place of its profile.
    fn programs_on(&self, kinds: &SliceMap) -> SliceMap {
        let mut left: Vec<&AdvisedDevice> = self.devices.iter().collect();
        let segments = kinds.segments().iter().map(|segment| {
            let is_it = |device: &&AdvisedDevice| {
                let profile = device.profile.as_ref();
                profile.is_some_and(|profile| profile.to_string() == segment.label)
            };
            let found = left.iter().position(is_it).map(|nth| left.remove(nth));
            let programs = found.into_iter().flat_map(|device| &device.programs);
            let names = programs.map(|one| escaped(&one.program).into_owned());
            Segment {
                label: names.collect::<Vec<_>>().join(" + "),
                ..segment.clone()
            }
        });
        SliceMap::new(kinds.units(), segments.collect())
    }
}

impl AdvisedProgram {
    /// `bert ×4`
    fn short(&self) -> String {
        let program = escaped(&self.program);
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
