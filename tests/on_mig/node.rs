//! The machine, real or simulated, and its programs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use simnode::node::node_of;
use testkit::{TestNode, built};

use crate::raw::{Answer, Nvml};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// The variables that a real machine's programs inherit. The rest, such as who called sudo, is no business of a transcript.
const INHERITED: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "HOME"];

/// The variables that tell mig-mps where NVIDIA's files are.
const NVML_LIBRARY: &str = "MIG_MPS_NVML_LIBRARY";
const MPS_CONTROL: &str = "MIG_MPS_CONTROL";

/// The machine.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) mig_mps: PathBuf,
    pub(crate) control: PathBuf,
    /// A CUDA program, which a real machine may not have.
    pub(crate) cuda_app: Option<PathBuf>,
    pub(crate) nvml: PathBuf,
    /// The whole environment of a program.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The directory of a simulated node.
    simulated: Option<PathBuf>,
}

impl Node {
    /// This machine.
    pub(crate) fn real() -> Self {
        // Programs run in another directory.
        let path = |name| std::path::absolute(env::var_os(name)?).ok();
        let inherited = INHERITED
            .into_iter()
            .filter_map(|name| Some((name.into(), env::var_os(name)?)));
        let paths = [NVML_LIBRARY, MPS_CONTROL]
            .into_iter()
            .filter_map(|name| Some((name.into(), path(name)?.into())));
        let plain = [("TERM", "dumb"), ("LANG", "C.UTF-8")];
        Self {
            mig_mps: path("ON_MIG_MIG_MPS").unwrap_or_else(|| built().mig_mps.clone()),
            control: path(MPS_CONTROL)
                .or_else(|| in_path(CONTROL))
                .unwrap_or_else(|| CONTROL.into()),
            cuda_app: path("ON_MIG_CUDA_APP"),
            nvml: path(NVML_LIBRARY).unwrap_or_else(|| "libnvidia-ml.so.1".into()),
            environment: inherited
                .chain(paths)
                .chain(plain.map(|(name, value)| (name.into(), value.into())))
                .collect(),
            simulated: None,
        }
    }

    /// A simulated one.
    pub(crate) fn simulated(node: &TestNode) -> Self {
        let bin = node.dir().join("bin");
        // The dynamic linker takes two links to one file for one library, with the node of the first.
        let nvml = node.dir().join("lib/own.so");
        if !nvml.exists() {
            fs::copy(&built().driver, &nvml).expect("a copy");
        }
        Self {
            mig_mps: node.mig_mps().get_program().into(),
            control: bin.join(CONTROL),
            cuda_app: Some(bin.join("cuda-app")),
            nvml,
            environment: node.env(),
            simulated: Some(node.dir().into()),
        }
    }

    pub(crate) fn is_real(&self) -> bool {
        self.simulated.is_none()
    }

    /// True if a process runs here. Those of simulated nodes run on no other, and the machine's not on them.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.simulated == node_of(pid)
    }

    /// A program with the whole environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment.iter().cloned());
        command.current_dir("/");
        command
    }

    /// NVML, for as long as it is needed: the suite counts its users.
    pub(crate) fn open(&self) -> Session {
        let nvml = Nvml::open(&self.nvml);
        nvml.init()
            .unwrap_or_else(|code| panic!("nvmlInit: {}", nvml.error_string(code)));
        Session(nvml)
    }
}

/// An initialised library.
pub(crate) struct Session(pub(crate) Nvml);

impl Session {
    pub(crate) fn gpus(&self) -> Answer<Vec<nvmlDevice_t>> {
        (0..self.0.count()?)
            .map(|index| self.0.gpu(index))
            .collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nobody is left to hear that it failed.
        let _ = self.0.shutdown();
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}
