//! The GPU as the conformance suite gets it: its own, to partition as it likes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::interrupt;
use crate::node::Node;
use crate::run::Skip;
use crate::target::{Machine, Mig, Place, Target};

/// The named GPU of a node.
pub(crate) struct Lent<'a> {
    pub(crate) node: &'a Node,
    pub(crate) gpu: &'a str,
}

impl Place for Lent<'_> {
    fn name(&self) -> &'static str {
        "a MIG device of the named GPU"
    }

    fn target(&self, root: &Path, _for_users: bool) -> Box<dyn Target> {
        if interrupt::is_wanted() {
            std::panic::panic_any(Skip("the run was interrupted".into()));
        }
        // Where every user can execute it.
        let cuda_app = self.node.cuda_app.as_ref().map(|built| {
            let own = root.join("cuda-app");
            fs::copy(built, &own).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
            own
        });
        Box::new(Mig::new(Machine {
            control: self.node.control.clone(),
            cuda_app,
            nvml: self.node.nvml.clone(),
            environment: self.node.environment.clone(),
            gpu: self.gpu.to_owned(),
        }))
    }

    fn is_mig(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        1
    }

    fn time(&self) -> Option<Duration> {
        None
    }
}
