//! Checks that a profile suits this node, before `up` is planned.

use super::refusal::Refusal;
use crate::host::Uid;
use crate::mps::ControlProgram;
use crate::node::{Gpu, Node};
use crate::profile::{Block, Names, Profile, Span};
use crate::settings::Serve;
use crate::state::RunDir;

/// Plans `up`.
pub(super) struct Planner<'a> {
    pub(super) node: &'a Node,
    pub(super) profile: &'a Profile,
    pub(super) run_dir: &'a RunDir,
    pub(super) caller: Uid,
    pub(super) names: Names,
}

impl<'a> Planner<'a> {
    pub(super) fn block_of(&self, gpu: &Gpu) -> Option<&'a Block> {
        self.profile.blocks.iter().find(|block| {
            block
                .select
                .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
        })
    }

    /// Root's daemon is for others, a plain user's for that user alone: NVIDIA's daemon refuses the
    /// other way round, after it has started. One server for several users takes a driver that has it.
    pub(super) fn check_serves(&self) -> Result<(), Refusal> {
        let root = self.caller == Uid::ROOT;
        for (serve, span) in &self.profile.serves {
            if (*serve == Serve::Own) == root {
                let (who, may) = if root {
                    (
                        "root",
                        "\"one-at-a-time\", \"all\", \"group:NAME\" or \"user:NAME\"",
                    )
                } else {
                    ("a plain user", "\"self\"")
                };
                let error = self
                    .profile
                    .error(*span, format!("{who} cannot serve \"{serve}\""));
                let hint = format!("for {who} it is {may}, or leave serve out");
                return Err(error.with_hint(hint).into());
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
                let error = self.profile.error(*span, message);
                return Err(error.with_hint(hint).into());
            }
        }
        Ok(())
    }

    /// A selector that names certain GPUs must find one, and the profile as a whole too.
    pub(super) fn check_selectors(&self) -> Result<(), Refusal> {
        let gpus: Vec<String> = self
            .node
            .gpus
            .iter()
            .map(|gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci))
            .collect();
        let here = format!("this node has:\n  {}", gpus.join("\n  "));
        for block in &self.profile.blocks {
            let missing = block
                .select
                .indices()
                .find(|index| !self.node.gpus.iter().any(|gpu| gpu.index == *index));
            if let Some(index) = missing {
                let message = format!("there is no GPU {index}");
                return Err(self
                    .profile
                    .error(block.span, message)
                    .with_hint(here)
                    .into());
            }
            let selects = |gpu: &Gpu| {
                block
                    .select
                    .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
            };
            let selected = self.node.gpus.iter().filter(|gpu| selects(gpu)).count();
            let mistake = match selected {
                0 if block.select.names_a_gpu() => "this selects a GPU that is not there",
                2.. if block.select.names_one_gpu() => {
                    "several GPUs have UUIDs with this prefix: write more of it"
                }
                _ => continue,
            };
            let error = self.profile.error(block.span, mistake);
            return Err(error.with_hint(here).into());
        }
        if !self
            .node
            .gpus
            .iter()
            .any(|gpu| self.block_of(gpu).is_some())
        {
            let span = self
                .profile
                .blocks
                .first()
                .map_or(Span::default(), |block| block.span);
            let error = self
                .profile
                .error(span, "the profile selects no GPU of this node");
            return Err(error.with_hint(here).into());
        }
        Ok(())
    }
}
