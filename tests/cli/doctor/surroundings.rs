//! The machine around GPUs and daemons.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{NOBODY, Sim, as_typed, built, needs_root, under};

use super::{Report, doctor, healthy};

#[test]
fn a_hard_limit_of_open_files() {
    needs_root!();
    let sim = healthy();
    let by_nobody = sim.by_nobody(&["doctor", "--json"]);
    let with = |files: u64| {
        let limit = format!("--nofile={files}:{files}");
        let mut limited = under(&["prlimit", &limit], &by_nobody);
        Report::of(limited.uid(NOBODY).gid(NOBODY))
    };
    let command = with(1000)
        .check("open-files")
        .is("warn", None, "the hard limit is 1000 files");
    assert_eq!(command, "ulimit -Hn");
    with(16384)
        .check("open-files")
        .is("ok", None, "16384 files");
    // Root raises it.
    assert!(!doctor(&sim, &[]).ills().contains("open-files"));
}

fn of_driver(version: &str) -> Sim {
    let sim = Sim::with("h200", 1);
    let update = sim.node.node();
    update
        .update(|state| version.clone_into(&mut state.driver.version))
        .unwrap();
    sim
}

#[test]
fn shared_memory_where_the_driver_needs_it() {
    let sim = of_driver("550.163.01");
    doctor(&sim, &[])
        .check("shared-memory")
        .is("ok", None, "MiB left");
    fs::remove_dir(sim.machine("dev/shm")).unwrap();
    doctor(&sim, &[])
        .check("shared-memory")
        .is("fail", None, "/dev/shm is missing");
    let newer = of_driver("580.159.04");
    fs::remove_dir(newer.machine("dev/shm")).unwrap();
    doctor(&newer, &[])
        .check("shared-memory")
        .is("ok", None, "does not need it");
}

#[test]
fn shared_memory_that_is_small_or_read_only() {
    needs_root!();
    let sim = of_driver("550.163.01");
    let with = |options: &str| {
        let script =
            format!("mount -t tmpfs -o {options} tmpfs \"$1\"; \"$0\" doctor --json || [ $? = 3 ]");
        let mut shell = Command::new("unshare");
        shell.args(["-m", "/bin/sh", "-ec", &script]);
        shell
            .arg(sim.command(&[]).get_program())
            .arg(sim.machine("dev/shm"));
        Report::after_any(shell.env_clear().envs(sim.node.env()))
    };
    with("size=1m")
        .check("shared-memory")
        .is("fail", None, "/dev/shm has 1 MiB left");
    with("ro")
        .check("shared-memory")
        .is("fail", None, "/dev/shm is read-only");
}

#[test]
fn memory_of_servers_that_have_ended() {
    let sim = healthy();
    let server = sim.device("0.2")["servers"][0]["pid"].to_string();
    sim.prepare(&format!("dev/shm/mps.shm.0.{server}"), "");
    sim.prepare("dev/shm/other", "");
    assert!(doctor(&sim, &[]).ills().is_empty());
    sim.prepare("dev/shm/mps.shm.0.4194304", "");
    let command = doctor(&sim, &[]).check("leftover-shared-memory").is(
        "warn",
        None,
        "belongs to a server that has exited",
    );
    assert_eq!(command, as_typed("sudo rm /dev/shm/mps.shm.0.4194304"));
}

#[test]
fn nvswitches_without_a_fabric_manager() {
    let sim = healthy();
    sim.prepare("dev/nvidia-nvswitchctl", "");
    let command =
        doctor(&sim, &[])
            .check("fabric-manager")
            .is("fail", None, "nv-fabricmanager does not run");
    assert_eq!(
        command,
        as_typed("sudo systemctl enable --now nvidia-fabricmanager")
    );
    let _manager = sim.process("nv-fabricmanager");
    doctor(&sim, &[])
        .check("fabric-manager")
        .is("ok", None, "it runs");
}

#[test]
fn confinement_by_selinux_and_apparmor() {
    let sim = healthy();
    assert!(!doctor(&sim, &[]).ills().contains("security-module"));
    let check = |label: &str, severity: &str, seen: &str| {
        sim.fake_proc("self", "attr/current", label);
        doctor(&sim, &[])
            .check("security-module")
            .is(severity, None, seen)
    };
    check("unconfined\n", "ok", "unconfined");
    let command = check(
        "docker-default (enforce)\n",
        "warn",
        "AppArmor confines this process: docker-default",
    );
    assert_eq!(command, as_typed("sudo dmesg | grep -i apparmor"));
    let container = "system_u:system_r:container_t:s0:c1,c2\0";
    check(container, "ok", "container_t");
    sim.prepare("sys/fs/selinux/enforce", "1");
    let command = check(
        container,
        "warn",
        "SELinux confines this process: system_u:system_r:container_t",
    );
    assert_eq!(command, as_typed("sudo ausearch -m avc -ts recent"));
    check(
        "unconfined_u:unconfined_r:unconfined_t:s0\0",
        "ok",
        "unconfined_t",
    );
}

#[test]
fn a_container() {
    let sim = healthy();
    for (mark, engine) in [
        ("run/systemd/container", "systemd"),
        ("run/.containerenv", "podman"),
        (".dockerenv", "docker"),
    ] {
        sim.prepare(mark, "");
        let seen = format!("this is a container ({engine})");
        doctor(&sim, &[]).check("container").is("warn", None, &seen);
    }
}

#[test]
fn limits_of_the_control_group() {
    let sim = healthy();
    sim.fake_proc("self", "cgroup", "0::/system.slice/shell.service\n");
    let group = "sys/fs/cgroup/system.slice";
    sim.prepare(&format!("{group}/pids.max"), "40\n");
    sim.prepare(&format!("{group}/pids.current"), "30\n");
    doctor(&sim, &[])
        .check("cgroup-limits")
        .is("warn", None, "10 more processes");
    sim.prepare(&format!("{group}/pids.max"), "4000\n");
    sim.prepare(&format!("{group}/shell.service/memory.max"), "67108864\n");
    doctor(&sim, &[])
        .check("cgroup-limits")
        .is("warn", None, "may use 64 MiB");
    sim.prepare(&format!("{group}/shell.service/memory.max"), "max\n");
    assert!(!doctor(&sim, &[]).ills().contains("cgroup-limits"));
}

#[test]
fn a_user_without_a_mapping() {
    let sim = healthy();
    assert!(!doctor(&sim, &[]).ills().contains("user-mapping"));
    sim.fake_proc("self", "uid_map", "4000000000 0 1\n");
    doctor(&sim, &[])
        .check("user-mapping")
        .is("fail", None, "is not mapped");
}

#[test]
fn other_tools_that_manage_the_node() {
    let sim = healthy();
    sim.prepare(
        "etc/systemd/system/multi-user.target.wants/nvidia-mig-manager.service",
        "",
    );
    let command = doctor(&sim, &[]).check("other-managers").is(
        "warn",
        None,
        "nvidia-mig-manager starts at boot",
    );
    assert_eq!(
        command,
        as_typed("sudo systemctl disable --now nvidia-mig-manager.service")
    );
    let sim = healthy();
    let _plugin = sim.process("nvidia-device-plugin");
    let command =
        doctor(&sim, &[])
            .check("other-managers")
            .is("warn", None, "nvidia-device-plugin runs");
    assert_eq!(
        command,
        "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false"
    );
    let sim = healthy();
    let _own = sim.process("mig-mps-device-plugin");
    let report = doctor(&sim, &[]);
    let check = report.check("other-managers");
    check.is("ok", None, "mig-mps-device-plugin runs");
    let sim = healthy();
    let _scheduler = sim.process("slurmd");
    doctor(&sim, &[])
        .check("other-managers")
        .is("ok", None, "slurmd runs");
}

#[test]
fn the_dra_driver_of_kubernetes_with_dynamic_mig() {
    let sim = healthy();
    assert!(!doctor(&sim, &[]).ills().contains("dra-dynamic-mig"));
    let _plugin = sim.process_with(
        "gpu-kubelet-plugin",
        &[("FEATURE_GATES", "MPSSupport=false,DynamicMIG=true,")],
    );
    let report = doctor(&sim, &[]);
    let check = report.check("dra-dynamic-mig");
    check.is("fail", None, "(gpu-kubelet-plugin) runs with DynamicMIG");
    for gates in [&[][..], &[("FEATURE_GATES", "DynamicMIG=false,")]] {
        let sim = healthy();
        let _plugin = sim.process_with("gpu-kubelet-plugin", gates);
        let report = doctor(&sim, &[]);
        let check = report.check("dra-dynamic-mig");
        check.is("ok", None, "runs without DynamicMIG");
    }
}

/// A plain user cannot read the environment of root's processes.
#[test]
fn the_dra_driver_of_root_whose_gates_are_hidden() {
    needs_root!();
    let sim = healthy();
    let gates = [("FEATURE_GATES", "DynamicMIG=true,")];
    let _plugin = sim.process_with("gpu-kubelet-plugin", &gates);
    let report = Report::after_any(&mut sim.by_nobody(&["doctor", "--json"]));
    let check = report.check("dra-dynamic-mig");
    check.is("unknown", None, "its feature gates are hidden");
}

#[test]
fn the_default_pipe_directory() {
    let sim = healthy();
    let directory = sim.machine("tmp/nvidia-mps");
    fs::create_dir_all(&directory).unwrap();
    assert!(!doctor(&sim, &[]).ills().contains("default-leftovers"));
    for file in ["control", "control_lock", "nvidia-cuda-mps-control.pid"] {
        fs::write(directory.join(file), "").unwrap();
        let report = doctor(&sim, &[]);
        let check = report.check("default-leftovers");
        let command = check.is("warn", None, "/tmp/nvidia-mps has files of a daemon that");
        assert_eq!(command, as_typed("sudo rm -r /tmp/nvidia-mps"), "{file}");
        fs::remove_file(directory.join(file)).unwrap();
    }
}

/// The variable alone decides: the daemon makes no file where others could meet it.
#[test]
fn a_daemon_in_the_default_pipe_directory() {
    needs_root!();
    let sim = healthy();
    let uuid = sim.uuid("0.2");
    // A mount namespace has a /tmp of its own, in which the node and the programs are where they were.
    let mut shell = Command::new("unshare");
    let script = "mount -t tmpfs tmpfs /mnt; mkdir /mnt/tmp; mount --rbind /tmp /mnt/tmp; mount -t tmpfs tmpfs /tmp
                  for kept in \"$@\"; do case $kept in /tmp/*)
                      mkdir -p \"$kept\"; mount --rbind \"/mnt$kept\" \"$kept\"
                  esac; done
                  mkdir /tmp/nvidia-mps; nvidia-cuda-mps-control -d; \"$0\" doctor --json || [ $? = 3 ]";
    shell.args(["-m", "/bin/sh", "-ec", script]);
    shell.arg(sim.command(&[]).get_program());
    shell.args([sim.node.dir().parent().unwrap(), &built().programs]);
    shell.env_clear().envs(sim.node.env());
    shell
        .env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
        .env("CUDA_MPS_LOG_DIRECTORY", "/tmp/nvidia-mps")
        .env("CUDA_VISIBLE_DEVICES", uuid);
    let report = Report::after_any(&mut shell);
    let command =
        report
            .check("default-pipe-directory")
            .is("fail", None, "uses the default pipe directory");
    assert_eq!(
        command,
        "echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control"
    );
}
