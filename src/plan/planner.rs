//! Checks that a profile suits this node, before `up` is planned.

use super::refusal::Refusal;
use crate::host::Uid;
use crate::mps::ControlProgram;
use crate::node::{Gpu, Node};
use crate::profile::{Block, Profile, Span};
use crate::settings::Serve;
use crate::state::RunDir;

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
    pub(super) fn check_serves(self, caller: Uid) -> Result<(), Refusal> {
        let (who, may) = if caller == Uid::ROOT {
            (
                "root",
                "\"one-at-a-time\", \"all\", \"group:NAME\" or \"user:NAME\"",
            )
        } else {
            ("a plain user", "\"self\"")
        };
        for (serve, span) in &self.profile.serves {
            if (*serve == Serve::Own) == (caller == Uid::ROOT) {
                let message = format!("{who} cannot serve \"{serve}\"");
                let hint = format!("for {who} it is {may}, or leave serve out");
                return Err(self.profile.error(*span, message).with_hint(hint).into());
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
                return Err(self.profile.error(*span, message).with_hint(hint).into());
            }
        }
        Ok(())
    }

    /// A selector that names certain GPUs must find one, and the profile as a whole too.
    pub(super) fn check_selectors(self) -> Result<(), Refusal> {
        let gpus = &self.node.gpus;
        let refuse = |span: Span, message: String| {
            let line =
                |gpu: &Gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci);
            let lines: Vec<String> = gpus.iter().map(line).collect();
            let here = format!("this node has:\n  {}", lines.join("\n  "));
            Err(self.profile.error(span, message).with_hint(here).into())
        };
        for block in &self.profile.blocks {
            let mut indices = block.select.indices();
            let missing = indices.find(|index| !gpus.iter().any(|gpu| gpu.index == *index));
            if let Some(index) = missing {
                return refuse(block.span, format!("there is no GPU {index}"));
            }
            let selected = gpus.iter().filter(|gpu| selects(block, gpu)).count();
            let mistake = match selected {
                0 if block.select.names_a_gpu() => "this selects a GPU that is not there",
                2.. if block.select.names_one_gpu() => {
                    "several GPUs have UUIDs with this prefix: write more of it"
                }
                _ => continue,
            };
            return refuse(block.span, mistake.to_owned());
        }
        if gpus.iter().all(|gpu| self.block_of(gpu).is_none()) {
            let first = self.profile.blocks.first();
            let span = first.map_or(Span::default(), |block| block.span);
            let message = "the profile selects no GPU of this node";
            return refuse(span, message.to_owned());
        }
        Ok(())
    }
}

fn selects(block: &Block, gpu: &Gpu) -> bool {
    let selector = &block.select;
    selector.selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
}
