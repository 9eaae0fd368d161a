//! Checks that a profile suits this node, before `up` is planned.

use std::collections::BTreeSet;

use crate::catalog;
use crate::host::{Uid, as_root};
use crate::mps::ControlProgram;
use crate::node::{Gpu, Lost, Node, lost_hint};
use crate::profile::{Block, Profile, ProfileError, Span};
use crate::settings::Serve;
use crate::state::RunDir;

use super::Obstacle;

/// The node, profile and run directory that `up` is planned for.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) node: &'a Node,
    pub(super) profile: &'a Profile,
    pub(super) run_dir: &'a RunDir,
}

impl<'a> Planner<'a> {
    pub(super) fn block_of(self, gpu: &Gpu) -> Option<&'a Block> {
        let mut blocks = self.profile.blocks.iter();
        blocks.find(|block| selects(block, gpu))
    }

    /// Root's daemon is for others, a plain user's for that user alone: NVIDIA's daemon refuses the
    /// other way round, after it has started. One server for several users takes a driver that has it.
    pub(super) fn serve_mistakes(self, caller: Uid) -> Vec<ProfileError> {
        let (who, may) = if caller == Uid::ROOT {
            (
                "root",
                "\"one-at-a-time\", \"all\", \"group:NAME\" or \"user:NAME\"",
            )
        } else {
            ("a plain user", "\"self\"")
        };
        let mut mistakes = Vec::new();
        for (serve, span) in &self.profile.serves {
            if (*serve == Serve::Own) == (caller == Uid::ROOT) {
                let message = format!("{who} cannot serve \"{serve}\"");
                let mut hint = format!("for {who} it is {may}, or leave serve out");
                if caller != Uid::ROOT {
                    hint = format!("{}; {hint}", as_root());
                }
                mistakes.push(self.profile.error(*span, message).with_hint(hint));
                continue;
            }
            if serve.is_shared() && !self.node.control_program().has_multiuser_server {
                let since = ControlProgram::FIRST_MULTIUSER;
                let message = format!(
                    "\"{serve}\" is not possible here: driver {} has no multi-user server",
                    self.node.driver
                );
                let hint = format!(
                    "it needs driver {since} or newer; \"one-at-a-time\" and \"user:NAME\" work with any"
                );
                mistakes.push(self.profile.error(*span, message).with_hint(hint));
            }
        }
        mistakes
    }

    /// A GPU that a selector names may be one that is lost.
    pub(super) fn lost_gpu(self) -> Option<Obstacle> {
        let blocks = self.profile.blocks.iter();
        let is_named = |block: &&Block, lost: &Lost| match lost.index {
            _ if block.select.names_one_gpu() => {
                !self.node.gpus.iter().any(|gpu| selects(block, gpu))
            }
            Some(index) => block.select.indices().any(|named| named == index),
            None => false,
        };
        let mut named = self.node.lost.iter();
        let lost = named.find(|lost| blocks.clone().any(|block| is_named(&block, lost)))?;
        let hint = format!("{}; or leave it out of the profile", lost_hint());
        Some(Obstacle::new(&lost.why, hint))
    }

    /// A selector that names certain GPUs must find one, and the profile as a whole too. The first mistake shows the
    /// GPUs.
    pub(super) fn selector_mistakes(self) -> Vec<ProfileError> {
        let gpus = &self.node.gpus;
        let mut mistakes: Vec<(Span, String)> = Vec::new();
        for block in &self.profile.blocks {
            if let Some(missing) = missing(block, gpus) {
                mistakes.push((block.span, missing));
                continue;
            }
            let selected = gpus.iter().filter(|gpu| selects(block, gpu)).count();
            let mistake = match selected {
                0 if block.select.names_a_gpu() => "this selects a GPU that is not there",
                2.. if block.select.names_one_gpu() => {
                    "several GPUs have UUIDs with this prefix: write more of it"
                }
                _ => continue,
            };
            mistakes.push((block.span, mistake.to_owned()));
        }
        if mistakes.is_empty() && gpus.iter().all(|gpu| self.block_of(gpu).is_none()) {
            let first = self.profile.blocks.first();
            let span = first.map_or(Span::default(), |block| block.span);
            mistakes.push((span, "the profile selects no GPU of this node".to_owned()));
        }
        let line = |gpu: &Gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci);
        let lines: Vec<String> = gpus.iter().map(line).collect();
        let mut here = Some(format!("this node has:\n  {}", lines.join("\n  ")));
        let mistakes = mistakes.into_iter().map(|(span, message)| {
            let error = self.profile.error(span, message);
            match here.take() {
                Some(here) => error.with_hint(here),
                None => error,
            }
        });
        mistakes.collect()
    }

    /// Describes blocks that select no GPU here and no model that the catalog knows: probably by a typing error, which a
    /// block for all other GPUs hides.
    pub(super) fn remarks(self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (position, block) in self.profile.blocks.iter().enumerate() {
            let is_here = self.node.gpus.iter().any(|gpu| selects(block, gpu));
            if !is_here && !catalog::has_product(|name| block.select.may_select(name)) {
                remarks.push(format!(
                    "{}: selects no GPU of this node, and no model that mig-mps knows",
                    self.profile.heading(position)
                ));
            }
        }
        remarks
    }
}

/// Names the indices of a selector that no GPU has.
fn missing(block: &Block, gpus: &[Gpu]) -> Option<String> {
    let indices: BTreeSet<u32> = block.select.indices().collect();
    let is_missing = |index: &u32| !gpus.iter().any(|gpu| gpu.index == *index);
    let missing = indices.into_iter().filter(is_missing);
    let missing: Vec<String> = missing.map(|index| index.to_string()).collect();
    match missing.as_slice() {
        [] => None,
        [one] => Some(format!("there is no GPU {one}")),
        several => Some(format!("there are no GPUs {}", several.join(", "))),
    }
}

fn selects(block: &Block, gpu: &Gpu) -> bool {
    let selector = &block.select;
    selector.selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
}
