//! The interfaces to the host and to NVML against a simulated node: who holds a GPU, the services in the way, and the reset.

mod crowd;
mod sessions;

use std::path::Path;
use std::time::Duration;

use mig_mps::internals::host::{Holders, Host, NvidiaSmi, ToolError, Unit, Units};
use mig_mps::internals::nvml::Nvml;
use testkit::{TestNode, assert_contains, wait_until};

/// A node with what mig-mps would make of its environment.
struct Machine {
    node: TestNode,
    host: Host,
    nvidia_smi: NvidiaSmi,
    units: Units,
}

impl Machine {
    fn with(model: &str) -> Self {
        let node = TestNode::builder().gpu(model, 1).build();
        Self {
            host: Host::at(&node.node().root()),
            nvidia_smi: NvidiaSmi::at(node.dir().join("bin/nvidia-smi")),
            units: Units::at(node.dir().join("bin/systemctl")),
            node,
        }
    }

    fn holders(&self) -> Holders {
        self.host.holders(0).unwrap()
    }

    fn set_mode(&self, enable: bool) {
        let set = self
            .node
            .node()
            .update(|state| state.set_mig_mode(0, enable));
        set.unwrap();
    }

    /// Current and pending.
    fn mode(&self) -> (bool, bool) {
        let mig = self.node.node().state().unwrap().gpus[0].mig;
        (mig.current, mig.pending)
    }

    fn reset(&self) -> Result<(), ToolError> {
        self.nvidia_smi.reset("0000:07:00.0")
    }

    fn happened(&self, what: &str) -> usize {
        let events = self.node.events();
        events.iter().filter(|event| event.what == what).count()
    }
}

fn unit(name: &str) -> Unit {
    Unit::named(name).unwrap()
}

#[test]
fn a_process_that_holds_a_gpu_is_named_with_its_service() {
    let machine = Machine::with("a100-80gb");
    assert_eq!(machine.holders(), Holders::default());
    machine.node.service("nvidia-dcgm.service");
    machine.node.service("someones-own.service");
    let python = machine.node.holder(&[0]);
    let mut app = machine.node.cuda_app(Path::new("/nonexistent"), &["hold"]);
    app.wait_up();
    let holders = machine.holders();
    assert_eq!((holders.seen.len(), holders.hidden), (4, 0), "{holders:?}");
    let of = |pid: u32| {
        holders
            .seen
            .iter()
            .find(|holder| holder.pid.0 == pid)
            .unwrap()
    };
    assert_eq!(of(python.pid()).unit.as_deref(), Some("session-1.scope"));
    assert!(of(app.pid()).command.ends_with("cuda-app hold"));
    let dcgm = machine
        .node
        .node()
        .unit("nvidia-dcgm.service")
        .unwrap()
        .unwrap();
    let dcgm = of(dcgm.main_pid().unwrap());
    assert_eq!(dcgm.unit.as_deref(), Some("nvidia-dcgm.service"));
    assert_contains(&dcgm.to_string(), "serve");
    // What is not known to be for monitoring is nobody's to stop.
    let in_the_way = machine.units.holding(&holders).unwrap();
    assert_eq!(in_the_way, [unit("nvidia-dcgm.service")]);
}

#[test]
fn a_pending_mode_is_in_force_after_the_service_has_gone_and_a_reset() {
    let machine = Machine::with("a100-80gb");
    machine.node.service("nvidia-dcgm.service");
    machine.set_mode(true);
    assert_eq!(machine.mode(), (false, true));
    let busy = machine.reset().unwrap_err();
    assert!(busy.is_in_use(), "{busy}");
    assert_contains(
        &busy.to_string(),
        "GPU 00000000:07:00.0: In use by another client",
    );
    for unit in machine.units.holding(&machine.holders()).unwrap() {
        machine.units.stop(unit).unwrap();
        machine.units.stop(unit).unwrap();
        assert!(!machine.units.is_up(unit).unwrap());
    }
    assert_eq!(machine.holders(), Holders::default());
    machine.reset().unwrap();
    assert_eq!(machine.mode(), (true, true));
    machine.units.start(unit("nvidia-dcgm.service")).unwrap();
    assert_eq!(machine.holders().seen.len(), 1);
    assert_eq!(machine.happened("gpu reset"), 2);
}

#[test]
fn no_gpu_is_reset_that_this_very_program_has_open() {
    let machine = Machine::with("a100-80gb");
    // A copy: the dynamic linker takes two symlinks to one file for one library.
    let library = machine.node.dir().join("lib/own.so");
    std::fs::copy(machine.node.dir().join("lib/libnvidia-ml.so.1"), &library).unwrap();
    let nvml = Nvml::open(Some(&library)).unwrap();
    assert_eq!(
        machine.holders(),
        Holders::default(),
        "it does not report itself"
    );
    assert!(machine.reset().unwrap_err().is_in_use());
    nvml.while_shut_down(|| machine.reset()).unwrap().unwrap();
    let gpu = nvml.supervise(|session| session.read_gpu(0)).unwrap();
    assert_eq!((gpu.minor, gpu.pci.as_str()), (Some(0), "0000:07:00.0"));
    assert!(machine.reset().unwrap_err().is_in_use(), "it is open again");
}

#[test]
fn what_the_programs_say_is_quoted() {
    let machine = Machine::with("a100-80gb");
    machine.node.service("nvsm.service");
    machine.node.fault("gpu reset").fails(3).unwrap();
    let error = machine.reset().unwrap_err();
    assert_eq!(
        error.to_string(),
        "nvidia-smi --gpu-reset -i 0000:07:00.0 (exit status: 255) said: The following GPUs could not be \
         reset: GPU 00000000:07:00.0: Not Supported"
    );
    machine.node.fault("systemctl stop").fails(1).unwrap();
    let error = machine.units.stop(unit("nvsm.service")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "systemctl stop nvsm.service (exit status: 1) said: Failed to stop nvsm.service: Connection timed out \
         See system logs and 'systemctl status nvsm.service' for details."
    );
    let unknown = machine.units.start(unit("dcgm.service")).unwrap_err();
    assert_contains(&unknown.to_string(), "Unit dcgm.service not found.");
    machine
        .node
        .node()
        .update(|state| state.policy.systemd = false)
        .unwrap();
    let none = machine.units.holding(&machine.holders()).unwrap_err();
    assert!(matches!(none, ToolError::NoSystemd(_)), "{none}");
}

#[test]
fn a_program_that_hangs_is_ended_with_what_it_started() {
    let machine = Machine::with("h200");
    machine.node.fault("gpu reset").hangs().unwrap();
    let script = format!(
        "{} --gpu-reset -i 0; true",
        machine.node.dir().join("bin/nvidia-smi").display()
    );
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", &script]);
    let late = mig_mps::internals::host::run(&shell, "", Duration::from_millis(500));
    assert!(late.is_err(), "{late:?}");
    wait_until("all of its processes have ended", || {
        simnode::node::processes::of_node(machine.node.dir()).is_empty()
    });
}
