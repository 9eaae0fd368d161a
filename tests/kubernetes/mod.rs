//! The device plugin: what it offers to a kubelet, and that it goes on whatever becomes of kubelet and node.

mod allocation;
mod beside;
mod container;
mod health;
mod kubelet;
mod manifest;
mod metrics;
mod pods;
mod registration;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use testkit::{Running, Sim, built, eventually};

/// Devices that are shared: two of one size, and one with a name.
const SHARED: &str = r#"
[mps]
serve = "all"

[[gpu]]
select = { all = true }
devices = [
  { name = "trainer-{gpu}", profile = "3g" },
  { profile = "1g", count = 2, mps = { share = 2 } },
]
"#;

/// All shares of that profile on one GPU.
const SHARES: [&str; 5] = [
    "mig-mps.io/1g.10gb 0.0::0 Healthy",
    "mig-mps.io/1g.10gb 0.0::1 Healthy",
    "mig-mps.io/1g.10gb 0.1::0 Healthy",
    "mig-mps.io/1g.10gb 0.1::1 Healthy",
    "mig-mps.io/trainer trainer-0::0 Healthy",
];

const SMALL: &str = "mig-mps.io/1g.10gb";
const TRAINER: &str = "mig-mps.io/trainer";

fn shared() -> Sim {
    Sim::served("a100-80gb", 1, SHARED)
}

/// The program, on a node.
fn command(sim: &Sim) -> Command {
    let mut command = Command::new(built().programs.join("mig-mps-device-plugin"));
    command.env_clear().envs(sim.node.env());
    command
}

/// A device plugin that runs, and what it says.
struct Plugin {
    running: Running,
    log: PathBuf,
}

impl Plugin {
    fn on(sim: &Sim) -> Self {
        Self::start(sim, &mut command(sim))
    }

    fn start(sim: &Sim, command: &mut Command) -> Self {
        let log = sim.node.dir().join("plugin.log");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn();
        Self {
            running: Running(child.unwrap()),
            log,
        }
    }

    fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// All that it and its predecessors on this node have said.
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has said a line so often.
    #[track_caller]
    fn await_line(&self, line: &str, times: usize) {
        eventually(&format!("{line}, {times} times"), || {
            let said = self.said();
            if said.lines().filter(|said| *said == line).count() >= times {
                Ok(())
            } else {
                Err(said)
            }
        });
    }
}
