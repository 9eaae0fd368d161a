//! `systemd`: units that apply a profile at boot, heal daemons and write metrics; and daemons in scopes of their own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use serde_json::Value;
use testkit::{
    ONE_EACH, Ran, SMALL, Sim, assert_contains, built, can_run, in_state, is_root, needs_root,
    skip, wait_until, whole,
};

const NAMES: [&str; 3] = [
    "mig-mps.service",
    "mig-mps-heal.service",
    "mig-mps-heal.timer",
];

/// Those that write metrics.
const OF_METRICS: [&str; 4] = [
    "mig-mps-metrics.service",
    "mig-mps-metrics.timer",
    "mig-mps-drift.service",
    "mig-mps-drift.timer",
];

/// The one of the device plugin.
const PLUGIN: &str = "mig-mps-device-plugin.service";

fn etc(sim: &Sim, name: &str) -> PathBuf {
    sim.node.dir().join("root/etc").join(name)
}

fn unit(sim: &Sim, name: &str) -> PathBuf {
    etc(sim, "systemd/system").join(name)
}

fn profile(sim: &Sim) -> PathBuf {
    etc(sim, "mig-mps/profile.toml")
}

/// Runs `mig-mps systemd` with a profile of that text.
fn systemd(sim: &Sim, profile: &str, args: &[&str]) -> Ran {
    let path = sim.profile(profile);
    let all = [&["systemd", path.to_str().unwrap()], args].concat();
    sim.run(&all)
}

/// Text without the paths of this test.
fn said(sim: &Sim, text: &str) -> String {
    let program = built().mig_mps.to_str().unwrap();
    let root = sim.node.dir().join("root");
    let lines = text.split_inclusive('\n');
    let text: String = lines
        .filter(|line| !line.starts_with("Environment="))
        .collect();
    // A path with a blank is quoted.
    text.replace(sim.node.run_dir().to_str().unwrap(), "/run/mig-mps")
        .replace(sim.node.log_dir().to_str().unwrap(), "/var/log/mig-mps")
        .replace(&format!("\"{program}\""), "/usr/local/bin/mig-mps")
        .replace(program, "/usr/local/bin/mig-mps")
        .replace(root.to_str().unwrap(), "")
}

/// Runs a command line of the service that applies the profile, as systemd does.
fn execute(sim: &Sim, key: &str) -> Ran {
    execute_in(sim, NAMES[0], key)
}

/// The same of another service.
fn execute_in(sim: &Sim, service: &str, key: &str) -> Ran {
    let text = fs::read_to_string(unit(sim, service)).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    // A shell takes the quotation marks as systemd does.
    let mut command = Command::new("/bin/sh");
    command.env_clear().envs(sim.node.env());
    Ran::of(command.arg("-c").arg(format!("exec {line}")))
}

#[test]
fn the_units_are_printed() {
    let sim = Sim::with("h200", 1);
    let ran = systemd(&sim, &whole(""), &[]).ended(0);
    assert_snapshot!(said(&sim, &ran.stdout), @"
    # /etc/systemd/system/mig-mps.service
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=MIG partitions and MPS daemons
    ConditionPathExists=/etc/mig-mps/profile.toml
    After=nvidia-persistenced.service nvidia-fabricmanager.service nss-user-lookup.target
    Before=slurmd.service pbs.service pbs_mom.service torque-mom.service condor.service lsfd.service sge_execd.service gridengine-exec.service flux.service oar-node.service nomad.service
    Before=docker.service containerd.service crio.service podman.service podman-restart.service incus.service lxd.service lxc.service snap.lxd.daemon.service libvirtd.service virtqemud.service
    Before=kubelet.service k3s.service k3s-agent.service rke2-server.service rke2-agent.service k0scontroller.service k0sworker.service snap.microk8s.daemon-kubelite.service
    Before=nvidia-dcgm.service dcgm-exporter.service nvidia-dcgm-exporter.service nvidia-cdi-refresh.service
    Before=jupyterhub.service gitlab-runner.service ollama.service
    Before=cron.service crond.service atd.service
    StartLimitIntervalSec=30min
    StartLimitBurst=5

    # Without a sandbox: the daemons would inherit it. Not oneshot: systemd before 244 starts no such service again.
    [Service]
    Type=notify
    RemainAfterExit=yes
    ExecStart=/usr/local/bin/mig-mps up /etc/mig-mps/profile.toml --yes --stop-holders --reset --keep-going
    Restart=on-failure
    RestartSec=1min
    RestartPreventExitStatus=2 3 5
    ExecReload=/usr/local/bin/mig-mps up /etc/mig-mps/profile.toml --yes
    ExecStop=/usr/local/bin/mig-mps down --yes --at-shutdown 60
    KillMode=process
    TimeoutStartSec=15min
    TimeoutStopSec=180
    LimitNOFILE=524288

    [Install]
    WantedBy=multi-user.target

    # /etc/systemd/system/mig-mps-heal.service
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Restart MPS daemons that died, and MPS devices that hang
    After=mig-mps.service

    [Service]
    Type=oneshot
    ExecStart=/usr/local/bin/mig-mps heal
    TimeoutStartSec=5min
    LimitNOFILE=524288

    # /etc/systemd/system/mig-mps-heal.timer
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Heal MPS devices every minute

    [Timer]
    OnBootSec=1min
    OnUnitInactiveSec=1min
    AccuracySec=5s

    [Install]
    WantedBy=timers.target
    ");
    assert!(!etc(&sim, "systemd").exists());
}

#[test]
fn systemd_takes_the_units() {
    let has_analyze = Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_ok();
    if !can_run("systemd_takes_the_units", has_analyze, "no systemd-analyze")
        || !is_root("systemd_takes_the_units")
    {
        return;
    }
    let sim = Sim::with("h200", 1);
    // A path that has to be quoted.
    let args = [
        "--install",
        "--kubernetes",
        "--metrics",
        "/var/lib/node exporter/100%",
    ];
    systemd(&sim, &whole(""), &args).ended(0);
    let names = NAMES.iter().chain(&OF_METRICS).chain(&[PLUGIN]);
    let mut verify = Command::new("systemd-analyze");
    verify
        .arg("verify")
        .args(names.map(|name| unit(&sim, name)));
    let ran = Ran::of(&mut verify).ended(0);
    // It prints what it does not understand, and what is missing.
    assert_eq!(format!("{}{}", ran.stdout, ran.stderr), "");
}

/// Shortens the sandboxes of units after the first one, if they are the same but for the directories that they write to.
fn shortened(text: &str) -> String {
    const FIRST: &str = "NoNewPrivileges=";
    let Some((before, rest)) = text.split_once(FIRST) else {
        return text.to_owned();
    };
    let (sandbox, rest) = rest.split_once("ReadWritePaths=").unwrap();
    let rest = rest.replace(&format!("{FIRST}{sandbox}"), "(the sandbox)\n");
    format!("{before}{FIRST}{sandbox}ReadWritePaths={rest}")
}

#[test]
fn the_units_of_the_metrics_are_printed() {
    let sim = Sim::with("h200", 1);
    let ran = systemd(&sim, &whole(""), &["--metrics", "/var/lib/node_exporter"]).ended(0);
    let text = shortened(&said(&sim, &ran.stdout));
    let (_, text) = text
        .split_once("# /etc/systemd/system/mig-mps-metrics.service\n")
        .unwrap();
    assert_snapshot!(text, @"
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Write metrics of MPS devices

    [Service]
    Type=oneshot
    ExecStart=/usr/local/bin/mig-mps metrics --output /var/lib/node_exporter/mig-mps.prom
    TimeoutStartSec=1min
    LimitNOFILE=524288
    NoNewPrivileges=yes
    ProtectSystem=strict
    ProtectHome=read-only
    ProtectKernelTunables=yes
    ProtectKernelModules=yes
    ProtectKernelLogs=yes
    ProtectControlGroups=yes
    ProtectHostname=yes
    RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
    RestrictNamespaces=yes
    RestrictRealtime=yes
    RestrictSUIDSGID=yes
    LockPersonality=yes
    SystemCallArchitectures=native
    CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_BOOT CAP_SYS_RAWIO CAP_SYS_TIME CAP_SYSLOG CAP_WAKE_ALARM
    ReadWritePaths=-/var/lib/node_exporter -/run/mig-mps -/var/log/mig-mps

    # /etc/systemd/system/mig-mps-metrics.timer
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Write metrics of MPS devices every minute

    [Timer]
    OnBootSec=1min
    OnUnitInactiveSec=1min
    AccuracySec=5s

    [Install]
    WantedBy=timers.target

    # /etc/systemd/system/mig-mps-drift.service
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Compare MIG partitions and MPS daemons with their profile
    After=mig-mps.service

    [Service]
    Type=oneshot
    ExecStart=/usr/local/bin/mig-mps metrics --drift /etc/mig-mps/profile.toml --output /var/lib/node_exporter/mig-mps-drift.prom
    TimeoutStartSec=5min
    LimitNOFILE=524288
    (the sandbox)
    ReadWritePaths=-/var/lib/node_exporter -/run/mig-mps -/var/log/mig-mps

    # /etc/systemd/system/mig-mps-drift.timer
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Compare MIG partitions and MPS daemons with their profile every ten minutes

    [Timer]
    OnBootSec=10min
    OnUnitInactiveSec=10min
    AccuracySec=1min

    [Install]
    WantedBy=timers.target
    ");
}

#[test]
fn timers_write_metrics_and_drift() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let files = sim.node.dir().join("collected");
    fs::create_dir(&files).unwrap();
    let with_metrics = [
        "--install",
        "--enable",
        "--metrics",
        files.to_str().unwrap(),
    ];
    let ran = systemd(&sim, &whole(""), &with_metrics).ended(0);
    assert_contains(
        &ran.stderr,
        "enabled mig-mps.service, mig-mps-heal.timer, mig-mps-metrics.timer and mig-mps-drift.timer",
    );
    let wanted = |name: &str| unit(&sim, "timers.target.wants").join(name);
    assert!(wanted("mig-mps-metrics.timer").is_symlink());
    assert!(wanted("mig-mps-drift.timer").is_symlink());
    execute_in(&sim, "mig-mps-metrics.service", "ExecStart=").ended(0);
    execute_in(&sim, "mig-mps-drift.service", "ExecStart=").ended(0);
    let [metrics, drift] = ["mig-mps.prom", "mig-mps-drift.prom"]
        .map(|name| fs::read_to_string(files.join(name)).unwrap());
    assert_contains(&metrics, "mig_mps_driver_answers 1\n");
    assert!(!metrics.contains("drift"), "{metrics}");
    assert_contains(&drift, "mig_mps_drift 1\n");
    execute(&sim, "ExecStart=").ended(0);
    execute_in(&sim, "mig-mps-drift.service", "ExecStart=").ended(0);
    let drift = fs::read_to_string(files.join("mig-mps-drift.prom")).unwrap();
    assert_contains(&drift, "mig_mps_drift 0\n");
    // Without the option they stay as they are.
    let ran = systemd(&sim, &whole(""), &["--install"]).ended(0);
    assert!(!ran.stderr.contains("metrics"), "{ran:?}");
    systemd(&sim, &whole(""), &["--uninstall"]).ended(0);
    assert!(OF_METRICS.iter().all(|name| !unit(&sim, name).exists()));
    assert!(!wanted("mig-mps-metrics.timer").is_symlink());
    assert!(!wanted("mig-mps-drift.timer").is_symlink());
}

#[test]
fn the_unit_of_the_device_plugin_comes_and_goes() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let all = ["--kubernetes", "--metrics", "/var/lib/node_exporter"];
    let ran = systemd(&sim, &whole(""), &all).ended(0);
    let text = shortened(&said(&sim, &ran.stdout));
    let (_, text) = text.split_once(&format!("system/{PLUGIN}\n")).unwrap();
    assert_snapshot!(text, @"
    # Written by mig-mps systemd, which replaces and removes it.
    [Unit]
    Description=Offer MPS devices to the kubelet
    After=mig-mps.service
    Before=kubelet.service k3s.service k3s-agent.service rke2-server.service rke2-agent.service k0scontroller.service k0sworker.service snap.microk8s.daemon-kubelite.service
    StartLimitIntervalSec=0

    [Service]
    Type=notify
    ExecStart=/usr/local/bin/mig-mps-device-plugin
    Restart=always
    RestartSec=5s
    RestartPreventExitStatus=2 4
    LimitNOFILE=524288
    (the sandbox)
    ReadWritePaths=-/run -/var/lib -/var/snap -/etc/kubernetes/node-feature-discovery -/var/log/mig-mps -/run/mig-mps

    [Install]
    WantedBy=multi-user.target
    ");
    let install = ["--install", "--enable", "--kubernetes"];
    // The sandbox lets the plugin write only to directories that exist when it starts.
    let labels = sim.machine("etc/kubernetes/node-feature-discovery/features.d");
    assert!(!labels.exists());
    let ran = systemd(&sim, &whole(""), &install).ended(0);
    assert_contains(
        &ran.stderr,
        "enabled mig-mps.service, mig-mps-heal.timer and mig-mps-device-plugin.service",
    );
    let wanted = unit(&sim, "multi-user.target.wants").join(PLUGIN);
    assert!(wanted.is_symlink() && labels.is_dir());
    // It starts at once, and waits for a kubelet.
    let is_active = || systemctl(&sim, &["is-active", PLUGIN]).stdout;
    assert_eq!(is_active(), "active\n");
    systemd(&sim, &whole(""), &["--uninstall"]).ended(0);
    assert_ne!(is_active(), "active\n");
    assert!(!unit(&sim, PLUGIN).exists() && !wanted.is_symlink());
}

#[test]
fn the_plugin_of_another_kubelet_reaches_its_directory() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let there = "/opt/k0s 1/kubelet";
    let install = [
        "--install",
        "--enable",
        "--kubernetes",
        "--kubelet",
        there,
        "--plugin-metrics",
        "[::1]:0",
    ];
    systemd(&sim, &whole(""), &install).ended(0);
    let text = fs::read_to_string(unit(&sim, PLUGIN)).unwrap();
    assert_contains(&text, &format!("--kubelet \"{there}\" --metrics [::1]:0\n"));
    assert_contains(&text, &format!(" \"-{there}\""));
    // The plugin of the unit waits for that kubelet.
    let plugins = sim.machine("opt/k0s 1/kubelet/device-plugins");
    fs::create_dir_all(&plugins).unwrap();
    wait_until("the plugin has its lock", || {
        plugins.join("mig-mps.lock").exists()
    });
}

#[test]
fn an_installation_comes_and_goes() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let ran = systemd(&sim, &whole(""), &["--install", "--enable"]).ended(0);
    assert_snapshot!(said(&sim, &ran.stderr), @"
    wrote /etc/mig-mps/profile.toml
    wrote /etc/systemd/system/mig-mps.service
    wrote /etc/systemd/system/mig-mps-heal.service
    wrote /etc/systemd/system/mig-mps-heal.timer
    enabled mig-mps.service and mig-mps-heal.timer
    note: run `systemctl start mig-mps` to apply the profile now, without a reboot
    ");
    assert_eq!(fs::read_to_string(profile(&sim)).unwrap(), whole(""));
    let wanted = unit(&sim, "multi-user.target.wants/mig-mps.service");
    assert!(wanted.is_symlink());
    assert!(unit(&sim, "timers.target.wants/mig-mps-heal.timer").is_symlink());
    let ran = systemd(&sim, &whole(""), &["--install"]).ended(0);
    assert!(!ran.stderr.contains("wrote"), "{ran:?}");
    let ran = systemd(&sim, &whole(""), &["--uninstall"]).ended(0);
    assert_snapshot!(said(&sim, &ran.stderr), @"
    removed /etc/systemd/system/mig-mps.service
    removed /etc/systemd/system/mig-mps-heal.service
    removed /etc/systemd/system/mig-mps-heal.timer
    removed /etc/mig-mps/profile.toml
    ");
    assert!(NAMES.iter().all(|name| !unit(&sim, name).exists()));
    assert!(!wanted.is_symlink() && !profile(&sim).exists());
    let ran = sim.run(&["systemd", "--uninstall"]).ended(0);
    assert_contains(&ran.stderr, "No unit of mig-mps is installed.");
}

#[test]
fn what_the_administrator_wrote_stays() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    fs::create_dir_all(profile(&sim).parent().unwrap()).unwrap();
    fs::write(profile(&sim), "# mine\n").unwrap();
    let ran = systemd(&sim, &whole(""), &["--install"]).ended(1);
    assert_snapshot!(said(&sim, &ran.stderr), @"
    error: /etc/mig-mps/profile.toml: it is another profile; mig-mps does not replace it
    hint: edit that file and run `systemctl reload mig-mps`; or remove the file, and run this command again
    ");
    assert!(!unit(&sim, NAMES[0]).exists());
    fs::remove_file(profile(&sim)).unwrap();
    systemd(&sim, &whole(""), &["--install"]).ended(0);
    // The administrator edits the profile, and replaces a unit.
    fs::write(profile(&sim), "# mine\n").unwrap();
    let ran = sim.run(&["systemd", "--uninstall"]).ended(0);
    assert_contains(&ran.stderr, "profile.toml remains");
    assert_eq!(fs::read_to_string(profile(&sim)).unwrap(), "# mine\n");
    fs::write(unit(&sim, NAMES[0]), "[Service]\n").unwrap();
    fs::remove_file(profile(&sim)).unwrap();
    let ran = systemd(&sim, &whole(""), &["--install"]).ended(1);
    assert_contains(&ran.stderr, "mig-mps did not write it");
    assert_eq!(
        fs::read_to_string(unit(&sim, NAMES[0])).unwrap(),
        "[Service]\n"
    );
    // Nothing is written if one of the files cannot be.
    assert!(!profile(&sim).exists());
    fs::remove_file(unit(&sim, NAMES[0])).unwrap();
    fs::write(unit(&sim, NAMES[2]), "[Timer]\n").unwrap();
    systemd(&sim, &whole(""), &["--install"]).ended(1);
    assert!(!profile(&sim).exists());
    assert!(!unit(&sim, NAMES[0]).exists() && !unit(&sim, NAMES[1]).exists());
}

/// As after an installation that systemd has not seen, or one that was removed in part.
#[test]
fn units_that_systemd_does_not_know_are_removed() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    systemd(&sim, &whole(""), &["--install", "--enable"]).ended(0);
    fs::remove_file(unit(&sim, NAMES[0])).unwrap();
    let script = "case \"$*\" in *stop*) echo 'Failed to stop mig-mps-heal.timer: Unit mig-mps-heal.timer not loaded.' >&2; exit 5;; esac\n\
                  exec $real \"$@\"";
    let systemctl = sim.program_script("systemctl", script);
    let mut uninstall = sim.command(&["systemd", "--uninstall"]);
    Ran::of(uninstall.env("MIG_MPS_SYSTEMCTL", systemctl)).ended(0);
    assert!(NAMES.iter().all(|name| !unit(&sim, name).exists()));
    assert!(!unit(&sim, "timers.target.wants/mig-mps-heal.timer").is_symlink());
}

#[test]
fn without_systemd_the_files_are_written_all_the_same() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let node = sim.node.node();
    node.update(|state| state.policy.systemd = false).unwrap();
    systemd(&sim, &whole(""), &["--install"]).ended(0);
    assert!(unit(&sim, NAMES[0]).exists());
    systemd(&sim, &whole(""), &["--uninstall"]).ended(0);
    assert!(!unit(&sim, NAMES[0]).exists());
}

/// Runs `systemctl` of the node.
fn systemctl(sim: &Sim, args: &[&str]) -> Ran {
    Ran::of(sim.node.program("systemctl").args(args))
}

/// True if systemd would start the service again after this exit status.
fn is_tried_again(sim: &Sim, status: i32) -> bool {
    let text = fs::read_to_string(unit(sim, "mig-mps.service")).unwrap();
    let last = text
        .lines()
        .find_map(|line| line.strip_prefix("RestartPreventExitStatus="))
        .unwrap();
    assert!(text.contains("\nRestart=on-failure\n"), "{text}");
    status != 0 && !last.split(' ').any(|last| last == status.to_string())
}

/// How a program uses a device when the first daemons have started, and the boot as long as no unit is enabled.
#[test]
fn up_says_once_what_comes_next() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    sim.node.node().boot_with_systemd().unwrap();
    let up = |text: &str, args: &[&str]| {
        let ran = sim.up(text, &[args, &["--yes"]].concat()).ended(0);
        let is_said = |what: &str| ran.stderr.contains(what) || ran.stdout.contains(what);
        [is_said("Use a device: "), is_said("At every boot: ")]
    };
    let nothing = [false, false];
    let path = sim.profile(SMALL);
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    let boot = format!(
        "Use a device: mig-mps run 0.0 -- PROGRAM\nAt every boot: mig-mps systemd {} --install --enable\n",
        path.display()
    );
    assert!(ran.stderr.ends_with(&boot), "{}", ran.stderr);
    assert_eq!(up(SMALL, &[]), nothing, "nothing changes");
    assert_eq!(up(ONE_EACH, &[]), nothing, "it is known");
    let down = || sim.run(&["down"]).ended(0);
    down();
    assert_eq!(up(SMALL, &["-q"]), nothing);
    down();
    assert_eq!(up(SMALL, &["--json"]), nothing);
    down();
    assert_eq!(up(SMALL, &[]), [true, true]);
    systemd(&sim, SMALL, &["--install", "--enable"]).ended(0);
    down();
    assert_eq!(up(SMALL, &[]), [true, false], "a unit is enabled");
}

/// Else the next boot undoes what was applied.
#[test]
fn up_says_that_the_next_boot_brings_another_profile() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let up = |text: &str| sim.up(text, &["--yes"]).ended(0).stderr;
    let is_said = |stderr: &str| stderr.contains("another profile is applied at boot, ");
    systemd(&sim, SMALL, &["--install"]).ended(0);
    assert!(!is_said(&up(ONE_EACH)), "the service is not enabled");
    systemd(&sim, SMALL, &["--install", "--enable"]).ended(0);
    // Though there is nothing to do.
    let shown = up(ONE_EACH);
    assert!(is_said(&shown), "{shown}");
    let path = profile(&sim);
    let keeps = format!(
        "run `mig-mps profiles --applied | sudo tee {}`\n",
        path.display()
    );
    assert_contains(&shown, &keeps);
    assert!(is_said(&up(&format!("# Another.\n{ONE_EACH}"))));
    assert!(!is_said(&up(SMALL)));
    let applied = sim.run(&["profiles", "--applied"]).ended(0).stdout;
    fs::write(&path, applied).unwrap();
    assert!(!is_said(&up(SMALL)));
    // The next pod would refuse a profile that is not from a pod.
    let mark = "# Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.\n";
    fs::write(&path, format!("{SMALL}{mark}")).unwrap();
    let shown = up(ONE_EACH);
    assert_contains(
        &shown,
        "to keep this one, change the profile of the pod that has installed mig-mps on this host\n",
    );
    assert!(!shown.contains("tee"), "{shown}");
}

/// Tried again after a cause that may end by itself, such as a holder of a GPU, and not after a mistake.
#[test]
fn on_a_bad_day_the_service_serves_what_it_can_and_is_tried_again() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 2);
    systemd(&sim, SMALL, &["--install", "--enable"]).ended(0);
    let holder = sim.node.holder(&[1]);
    systemctl(&sim, &["start", "mig-mps"]).ended(1);
    assert_contains(&systemctl(&sim, &["status", "mig-mps"]).stdout, "failed");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    let ran = execute(&sim, "ExecStart=");
    assert_contains(
        &ran.stderr,
        "cannot switch the MIG mode of GPU 1: kept open by",
    );
    assert!(is_tried_again(&sim, ran.status), "{ran:?}");
    holder.finish();
    systemctl(&sim, &["start", "mig-mps"]).ended(0);
    assert_eq!(
        systemctl(&sim, &["is-active", "mig-mps"]).stdout,
        "active\n"
    );
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    systemctl(&sim, &["stop", "mig-mps"]).ended(0);
    for (profile, status) in [
        ("[[gpu]]\n", 2),
        (
            "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 8 } ]\n",
            5,
        ),
    ] {
        fs::write(self::profile(&sim), profile).unwrap();
        let ran = execute(&sim, "ExecStart=").ended(status);
        assert!(!is_tried_again(&sim, ran.status), "{ran:?}");
        systemctl(&sim, &["start", "mig-mps"]).ended(1);
    }
}

#[test]
fn a_reboot_brings_every_device_back_under_its_name() {
    needs_root!();
    let sim = Sim::with("h100-80gb-sxm", 2);
    systemd(&sim, SMALL, &["--install", "--enable"]).ended(0);
    execute(&sim, "ExecStart=").ended(0);
    let before = sim.status();
    let devices = in_state(&before, "ready");
    assert_eq!(devices.len(), 4);
    sim.node.reboot();
    assert!(in_state(&sim.status(), "ready").is_empty());
    // It is up before the service, and holds every GPU.
    sim.node.service("nvidia-persistenced.service");
    execute(&sim, "ExecStart=").ended(0);
    let after = sim.status();
    assert_eq!(in_state(&after, "ready"), devices);
    for device in &devices {
        let link = fs::read_link(sim.node.run_dir().join("by-name").join(device)).unwrap();
        let uuid = sim.device(device)["uuid"].as_str().unwrap().to_owned();
        assert_eq!(link, Path::new("..").join(uuid));
        sim.client(device).finish();
    }
    execute(&sim, "ExecReload=").ended(0);
    assert_eq!(
        sim.device(&devices[0])["daemon_pid"],
        after["devices"][0]["daemon_pid"]
    );
    execute(&sim, "ExecStop=").ended(0);
    assert!(in_state(&sim.status(), "ready").is_empty());
}

/// A stop of the service refuses as `down` does, so that a restart leaves the node as it is.
#[test]
fn only_a_shutdown_ends_work() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    systemd(&sim, SMALL, &["--install", "--enable"]).ended(0);
    let is_active = || systemctl(&sim, &["is-active", "mig-mps"]).stdout;
    systemctl(&sim, &["start", "mig-mps"]).ended(0);
    let client = sim.client("0.2");
    let daemons = || ["0.0", "0.2"].map(|name| sim.device(name)["daemon_pid"].clone());
    let before = daemons();
    systemctl(&sim, &["restart", "mig-mps"]).ended(0);
    assert_eq!(is_active(), "active\n");
    assert_eq!(daemons(), before);
    let refused = execute(&sim, "ExecStop=").ended(4);
    assert_contains(
        &refused.stderr,
        "error: 1 client is still running:\n  0.2: pid ",
    );
    assert_contains(
        &refused.stderr,
        "hint: wait for the clients with `mig-mps down --drain DURATION`, or end them with `mig-mps down --force`; the daemons still run, and `systemctl start mig-mps` makes the service active again\n",
    );
    systemctl(&sim, &["stop", "mig-mps"]).ended(0);
    assert_eq!(is_active(), "failed\n");
    assert_eq!(daemons(), before);
    systemctl(&sim, &["start", "mig-mps"]).ended(0);
    assert_eq!(is_active(), "active\n");
    assert_eq!(daemons(), before);
    assert!(
        client.finish().status.success(),
        "it has been served all the time"
    );

    let _late = sim.client("0.2");
    let node = sim.node.node();
    // What cannot be found out is no shutdown.
    let asked = sim.node.fault("systemctl is-system-running");
    asked.nth(1).fails(1).unwrap();
    let refused = sim.run(&["down", "--yes", "--at-shutdown", "1"]).ended(4);
    assert_contains(
        &refused.stderr,
        "cannot find out whether the machine is shutting down: ",
    );
    node.update(|state| state.policy.shutting_down = true)
        .unwrap();
    sim.run(&["down", "--yes", "--at-shutdown", "1"]).ended(0);
    assert!(in_state(&sim.status(), "ready").is_empty());
}

/// The cgroup in which a process of the node is.
fn cgroup(sim: &Sim, pid: &Value) -> String {
    let pid = u32::try_from(pid.as_u64().unwrap()).unwrap();
    sim.node.node().cgroup(pid).unwrap_or_default()
}

/// The environment of a process.
fn environment(pid: &Value) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    text.split('\0').map(str::to_owned).collect()
}

#[test]
fn each_daemon_has_a_scope_of_its_own() {
    needs_root!();
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    let bare = sim.device(&devices[0]);
    assert_eq!(
        cgroup(&sim, &bare["daemon_pid"]),
        "",
        "systemd does not run this node"
    );
    sim.node.node().boot_with_systemd().unwrap();
    sim.run(&["restart", &devices[0], &devices[1], "--yes"])
        .ended(0);
    let scopes = || -> BTreeSet<String> {
        let scopes = devices.iter().map(|name| {
            let device = sim.device(name);
            let scope = cgroup(&sim, &device["daemon_pid"]);
            let start = format!(
                "/mig.slice/mig-mps.slice/mig-mps-{}-",
                device["uuid"].as_str().unwrap()
            );
            assert!(
                scope
                    .strip_suffix(".scope")
                    .is_some_and(|scope| scope.starts_with(&start)),
                "{scope}"
            );
            assert_eq!(cgroup(&sim, &device["servers"][0]["pid"]), scope);
            scope
        });
        scopes.collect()
    };
    let first = scopes();
    assert_eq!(first.len(), 2);
    assert_eq!(
        environment(&sim.device(&devices[0])["daemon_pid"]),
        environment(&{
            // The same daemon without a scope.
            let node = sim.node.node();
            node.update(|state| state.policy.booted_with_systemd = false)
                .unwrap();
            fs::remove_dir_all(sim.node.dir().join("root/run/systemd")).unwrap();
            sim.run(&["restart", &devices[0], "--yes"]).ended(0);
            sim.device(&devices[0])["daemon_pid"].clone()
        }),
    );
    sim.node.node().boot_with_systemd().unwrap();
    for name in &devices {
        sim.kill_daemon(name);
    }
    sim.run(&["heal"]).ended(0);
    assert!(scopes().is_disjoint(&first), "each start makes another");
}

#[test]
fn the_daemon_of_a_user_has_one_too() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.node.node().boot_with_systemd().unwrap();
    sim.up(&whole("serve = \"user:nobody\""), &[]).ended(0);
    let device = sim.device("0");
    let scope = cgroup(&sim, &device["daemon_pid"]);
    assert!(scope.starts_with("/mig.slice/mig-mps.slice/"), "{scope}");
    let server = &device["servers"][0]["pid"];
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    assert_contains(&status, "Uid:\t65534\t65534");
}

/// A timer's service ends with all its processes, and the client that keeps a closed device must not.
#[test]
fn the_idle_client_of_a_closed_device_has_one_too() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.node.node().boot_with_systemd().unwrap();
    sim.up(&whole("serve = \"user:nobody\""), &[]).ended(0);
    let mut client = sim.app_of_nobody("0", &["hold"]);
    client.wait_up();
    let args = ["restart", "0", "--drain", "1", "--no-new", "--yes"];
    sim.run(&args).ended(4);
    let path = sim.node.run_dir().join(sim.uuid("0")).join("device.json");
    let record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let held = &record["closing"]["held"]["pid"];
    let scope = cgroup(&sim, held);
    assert!(scope.starts_with("/mig.slice/mig-mps.slice/"), "{scope}");
    assert!(scope.contains("-client-"), "{scope}");
    assert!(client.finish().status.success());
    // It runs as the user, and stays until heal goes on.
    let status = fs::read_to_string(format!("/proc/{held}/status")).unwrap();
    assert_contains(&status, "Uid:\t65534\t65534");
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
}

#[test]
fn a_scope_that_systemd_refuses_fails_the_start_in_its_words() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.node.node().boot_with_systemd().unwrap();
    sim.node.fault("systemd-run").nth(1).fails(1).unwrap();
    let ran = sim.up(&whole(""), &[]).ended(1);
    assert_contains(
        &ran.stderr,
        "Failed to start transient scope unit: Access denied",
    );
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0"]);
    sim.up(&whole(""), &[]).ended(0);
}

/// The simulated one takes what the real one takes: that parses its options before it looks for systemd.
#[test]
fn the_real_systemd_run_takes_the_options() {
    let real = Path::new("/usr/bin/systemd-run");
    let is_booted = Path::new("/run/systemd/system").exists();
    let name = "the_real_systemd_run_takes_the_options";
    if is_booted {
        skip(name, "it would start a scope of this machine's systemd");
        return;
    }
    if !can_run(name, real.exists(), "no systemd-run") || !is_root(name) {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.node.node().boot_with_systemd().unwrap();
    let path = sim.profile(&whole(""));
    let mut up = sim.command(&["up", path.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_SYSTEMD_RUN", real)).ended(1);
    assert_contains(&ran.stderr, "System has not been booted with systemd");
}

/// The variables that a unit sets.
fn set_by(text: &str) -> Vec<(String, String)> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("Environment="));
    let assignments = lines.map(|line| line.trim_matches('"').replace("%%", "%"));
    assignments
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

#[test]
fn services_have_what_the_command_had_and_find_its_programs() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let files = sim.node.dir().join("collected");
    fs::create_dir(&files).unwrap();
    let all = [
        "--install",
        "--kubernetes",
        "--metrics",
        files.to_str().unwrap(),
    ];
    systemd(&sim, &whole(""), &all).ended(0);
    let services = [NAMES[0], NAMES[1], OF_METRICS[0], OF_METRICS[2], PLUGIN];
    for name in services {
        let set = set_by(&fs::read_to_string(unit(&sim, name)).unwrap());
        let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "MIG_MPS_RUN_DIR",
            "MIG_MPS_LOG_DIR",
            "MIG_MPS_NVML_LIBRARY",
            "PATH",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        // Those are about one call.
        for name in ["MIG_MPS_ROOT", "MIG_MPS_LOG"] {
            assert!(!names.contains(&name), "{names:?}");
        }
        let (_, path) = set.iter().find(|(name, _)| name == "PATH").unwrap();
        assert!(
            path.ends_with(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            "{path}"
        );
    }
    // As systemd runs it, with nothing but this.
    for (name, key) in [
        (NAMES[0], "ExecStart="),
        (OF_METRICS[2], "ExecStart="),
        (NAMES[0], "ExecStop="),
    ] {
        let text = fs::read_to_string(unit(&sim, name)).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap();
        let is_of_node = |(name, _): &(OsString, OsString)| {
            let name = name.to_string_lossy();
            name == "MIG_MPS_ROOT" || name != "PATH" && !name.starts_with("MIG_MPS_")
        };
        let of_node = sim.node.env().into_iter().filter(is_of_node);
        let mut command = Command::new("/bin/sh");
        command.env_clear().envs(of_node).envs(set_by(&text));
        Ran::of(command.arg("-c").arg(format!("exec {line}"))).ended(0);
    }
}

#[test]
fn a_program_that_another_user_could_replace_is_not_carried() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let hers = sim.node.dir().join("hers");
    fs::create_dir(&hers).unwrap();
    let program = hers.join("nvidia-smi");
    fs::copy("/bin/true", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(1000), Some(1000)).unwrap();
    let path = sim.profile(&whole(""));
    let mut command = sim.command(&["systemd", path.to_str().unwrap(), "--install"]);
    let before = sim
        .node
        .env()
        .into_iter()
        .find(|(name, _)| name == "PATH")
        .unwrap()
        .1;
    let with_hers = format!("{}:{}", hers.display(), before.to_str().unwrap());
    let ran = Ran::of(command.env("PATH", with_hers)).ended(1);
    assert_contains(&ran.stderr, "but another user can change it");
    assert!(!unit(&sim, NAMES[0]).exists());
}

#[test]
fn a_program_that_does_not_exist_is_called_so() {
    let sim = Sim::with("h200", 1);
    let path = sim.profile(&whole(""));
    let mut command = sim.command(&["systemd", path.to_str().unwrap(), "--install"]);
    let ran = Ran::of(command.env("MIG_MPS_SYSTEMD_RUN", "/nowhere/systemd-run")).ended(1);
    let missing = "error: cannot run /nowhere/systemd-run: it does not exist\n";
    assert_contains(&ran.stderr, missing);
}

/// The sandbox of systemd is a mount namespace with the same directories.
#[test]
fn a_sandbox_sees_the_daemon_of_a_lost_record() {
    needs_root!();
    let sim = Sim::small();
    let record = sim.node.run_dir().join(sim.uuid("0.2")).join("device.json");
    fs::remove_file(record).unwrap();
    let outside = sim.run(&["metrics"]).ended(0).stdout;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "slave"])
        .arg(&built().mig_mps)
        .arg("metrics");
    let inside = Ran::of(command.env_clear().envs(sim.node.env()))
        .ended(0)
        .stdout;
    let of_records = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|line| line.contains("record-unreadable") || line.contains("unmanaged"));
        lines.map(str::to_owned).collect()
    };
    assert_contains(&outside, "mig_mps_problems{id=\"record-unreadable\"} 1");
    assert_eq!(of_records(&inside), of_records(&outside));
}

/// `systemd-analyze security` gives a unit without a sandbox 9.6 of 10.
#[test]
fn services_that_start_nothing_have_a_sandbox() {
    let ran = Command::new("systemd-analyze")
        .args(["security", "--help"])
        .output();
    let is_offline =
        ran.is_ok_and(|ran| String::from_utf8_lossy(&ran.stdout).contains("--offline"));
    if !can_run(
        "services_that_start_nothing_have_a_sandbox",
        is_offline,
        "no systemd-analyze",
    ) || !is_root("services_that_start_nothing_have_a_sandbox")
    {
        return;
    }
    let sim = Sim::with("h200", 1);
    systemd(
        &sim,
        &whole(""),
        &[
            "--install",
            "--kubernetes",
            "--metrics",
            "/var/lib/node_exporter",
        ],
    )
    .ended(0);
    for (name, status) in [
        (OF_METRICS[0], 0),
        (OF_METRICS[2], 0),
        (PLUGIN, 0),
        (NAMES[0], 1),
    ] {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=yes", "--threshold=65", "--no-pager"]);
        Ran::of(analyze.arg(unit(&sim, name))).ended(status);
    }
}
