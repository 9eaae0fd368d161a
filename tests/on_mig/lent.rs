//! The GPU as the conformance suite gets it: its own, to partition as it likes.

use std::path::Path;

use testkit::{copy_program, is_root};

use crate::interrupt;
use crate::node::Node;
use crate::run::Place;
use crate::suite::harness::skip;
use crate::suite::harness::target::Target;
use crate::suite::mig_device::{Machine, Mig};

/// The named GPU of a node.
pub(crate) struct Lent<'a> {
    pub(crate) node: &'a Node,
    pub(crate) gpu: &'a str,
}

impl Place for Lent<'_> {
    fn name(&self) -> String {
        "a MIG device of the named GPU".into()
    }

    fn target(&self, root: &Path) -> Box<dyn Target> {
        if interrupt::is_wanted() {
            skip("the run was interrupted");
        }
        // Where every user can execute it.
        let cuda_app = self.node.cuda_app.as_ref().map(|built| {
            let own = root.join("cuda-app");
            copy_program(built, &own);
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

    /// A real machine's programs are everybody's, and root runs the rows.
    fn has_users(&self, row: &str) -> bool {
        self.node.is_real() || is_root(row)
    }

    fn is_mig(&self) -> bool {
        true
    }
}
