//! `slurm gres`, and the parts of `slurm` that need no Slurm; `tests/slurm` has the rest.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;

use testkit::{
    App, NOBODY, Ran, SMALL, Sim, assert_contains, built, needs_root, shell, wait_until,
    without_sigkill,
};

const MIXED: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "1g", count = 2 }, { profile = "3g", name = "trainer" } ]
[[gpu]]
select = { all = true }
mig = false
"#;

/// `mig-mps slurm` on node n1, with Slurm's files in the node's directory.
fn slurm(sim: &Sim, words: &[&str]) -> Command {
    let mut command = sim.command(&["slurm"]);
    command
        .args(words)
        .env("SLURM_CONF", sim.node.dir().join("slurm.conf"))
        .env("SLURMD_NODENAME", "n1");
    command
}

fn write(sim: &Sim, name: &str, text: &str) {
    fs::write(sim.node.dir().join(name), text).unwrap();
}

/// Writes the files as `slurm gres` prints them.
fn write_as_printed(sim: &Sim) {
    let printed = Ran::of(&mut slurm(sim, &["gres"])).ended(0).stdout;
    let (gres, line) = printed.split_once("\n\n").unwrap();
    write(sim, "gres.conf", gres);
    let line = line.lines().nth(1).unwrap().trim_start_matches("# ");
    write(sim, "nodes.conf", line);
    write(sim, "slurm.conf", "ClusterName=c\nInclude nodes.conf\n");
}

/// A node with devices, and with the files of Slurm for them.
fn in_slurm() -> Sim {
    let sim = Sim::with("a100-80gb", 2);
    let _ = sim.up(MIXED, &[]).ended(0);
    write_as_printed(&sim);
    sim
}

#[test]
fn gres_prints_devices_by_type() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 2);
    let _ = sim.up(MIXED, &[]).ended(0);
    let printed = Ran::of(&mut slurm(&sim, &["gres", "--shard", "4"])).ended(0);
    assert_snapshot!(printed.stdout, @r"
    # gres.conf
    NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap76 # 0.1
    NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia-caps/nvidia-cap22 # trainer
    NodeName=n1 Name=gpu Type=nvidia_a100-sxm4-80gb File=/dev/nvidia1 # 1
    NodeName=n1 Name=shard Count=4 File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=shard Count=4 File=/dev/nvidia-caps/nvidia-cap76 # 0.1
    NodeName=n1 Name=shard Count=4 File=/dev/nvidia-caps/nvidia-cap22 # trainer
    NodeName=n1 Name=shard Count=4 File=/dev/nvidia1 # 1

    # slurm.conf: append to the line of this node
    # NodeName=n1 Gres=gpu:1g.10gb:2,gpu:3g.40gb:1,gpu:nvidia_a100-sxm4-80gb:1,shard:16
    ");
}

/// Slurm gives it to any user's job, whose prolog then fails.
#[test]
fn gres_warns_of_a_device_that_is_not_for_everybody() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [
  { profile = "3g", name = "nobodys", mps = { serve = "user:nobody" } },
  { profile = "2g", name = "team", mps = { serve = "group:users" } },
  { profile = "1g" },
]
"#;
    let _ = sim.up(profile, &[]).ended(0);
    let many = Ran::of(&mut slurm(&sim, &["gres", "--shard", "8"])).ended(0);
    assert_contains(
        &many.stderr,
        "device 0.0: 6 shards instead of 8, because its daemon accepts no more clients",
    );
    assert_contains(
        &many.stdout,
        "Name=shard Count=6 File=/dev/nvidia-caps/nvidia-cap67 # 0.0",
    );
    assert_contains(&many.stdout, ",shard:22\n");
    let printed = Ran::of(&mut slurm(&sim, &["gres", "--shard", "2"])).ended(0);
    assert_snapshot!(printed.stdout, @r"
    # gres.conf
    NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=gpu Type=2g.20gb File=/dev/nvidia-caps/nvidia-cap40 # team, group:users only
    NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia-caps/nvidia-cap22 # nobodys, user:nobody only
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap40 # team, group:users only
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap22 # nobodys, user:nobody only

    # slurm.conf: append to the line of this node
    # NodeName=n1 Gres=gpu:1g.10gb:1,gpu:2g.20gb:1,gpu:3g.40gb:1,shard:6
    ");
    assert_snapshot!(printed.stderr, @r#"
    warning: only programs of group:users can use team, but Slurm gives such a device to the job of any user and drains the node when that job cannot use it. Keep the jobs of others out of the node's partition (AllowGroups=users, or AllowAccounts=), set serve to "one-at-a-time" or "all", or omit these lines.
    warning: only programs of user:nobody can use nobodys, but Slurm gives such a device to the job of any user and drains the node when that job cannot use it. Keep the jobs of others out of the node's partition (AllowAccounts=), set serve to "one-at-a-time" or "all", or omit these lines.
    "#);
    // The comments are no difference.
    write_as_printed(&sim);
    Ran::of(&mut slurm(&sim, &["gres", "--check"])).ended(0);
}

/// A class of seven is one warning, and the lines of one node are not those of its equals.
#[test]
fn gres_warns_once_of_a_group_and_of_lines_for_several_nodes() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let class = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7, name = \"class-{n}\", \
                 mps = { serve = \"group:users\" } } ]\n";
    let _ = sim.up(class, &[]).ended(0);
    let of = |node: &str| Ran::of(&mut slurm(&sim, &["gres", "--node", node])).ended(0);
    let one = of("n1").stderr;
    assert_eq!(one.lines().count(), 1, "{one}");
    assert!(
        one.starts_with("warning: only programs of group:users can use class-0 … class-6 (7), "),
        "{one}"
    );
    let several = of("n[1-4]").stderr;
    let remark = several.strip_prefix(&one).unwrap();
    assert!(
        remark.starts_with("note: the nvidia-cap files of equal nodes can"),
        "{remark}"
    );
    // The files of whole GPUs have the numbers of the GPUs.
    let sim = Sim::whole("");
    let whole = Ran::of(&mut slurm(&sim, &["gres", "--node", "n[1-4]"])).ended(0);
    assert_eq!(whole.stderr, "");
}

/// To a plain user other users' devices seem broken.
#[test]
fn a_plain_users_health_check_drains_nothing() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile =
        "[[gpu]]\nselect = { all = true }\nmig = false\nmps = { serve = \"user:daemon\" }\n";
    let _ = sim.up(profile, &[]).ended(0);
    write_as_printed(&sim);
    let asked = sim.node.dir().join("asked");
    fs::write(&asked, "").unwrap();
    fs::set_permissions(&asked, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "echo \"$@\" >>{}; echo 'NodeName=n1 State=IDLE Reason=none'",
        asked.display()
    );
    let scontrol = sim.program_script("scontrol", &script);
    let path = format!(
        "{}:{}",
        scontrol.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let health = |command: &mut Command| Ran::of(command.env("PATH", &path));
    let refused = health(slurm(&sim, &["health"]).uid(NOBODY).gid(NOBODY)).ended(1);
    assert_eq!(fs::read_to_string(&asked).unwrap(), "");
    assert_eq!(refused.stdout, "");
    assert_snapshot!(refused.stderr, @"
    error: only root can check the devices of this node for Slurm
    hint: run the command with sudo; `mig-mps doctor` shows what you can see
    ");
    let by_root = health(&mut slurm(&sim, &["health"])).ended(0);
    assert_eq!(by_root.stdout, "");
    assert!(!fs::read_to_string(&asked).unwrap().contains("DRAIN"));
}

/// Runs `slurm install` for the node's own directory.
fn install(sim: &Sim, words: &[&str]) -> Ran {
    let directory = sim.node.dir().join("scripts");
    let mut command = slurm(sim, &["install", "--dir", directory.to_str().unwrap()]);
    command.args(words);
    Ran::of(&mut command)
}

/// Text without the paths of this test.
fn said(sim: &Sim, text: &str) -> String {
    text.replace(built().mig_mps.to_str().unwrap(), "/usr/local/bin/mig-mps")
        .replace(sim.node.dir().to_str().unwrap(), "/node")
}

#[test]
fn what_slurm_needs_is_installed_and_printed() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let trial = install(&sim, &["--dry-run"]).ended(0);
    assert!(!sim.node.dir().join("scripts").exists());
    let ran = install(&sim, &["--shard", "2"]).ended(0);
    assert_snapshot!(said(&sim, &ran.stderr), @"
    wrote /node/scripts/mig-mps-prolog
    wrote /node/scripts/mig-mps-epilog
    wrote /node/scripts/mig-mps-task-prolog
    wrote /node/scripts/mig-mps-health
    note: restart slurmctld and slurmd when their files have these lines
    ");
    assert_snapshot!(said(&sim, &ran.stdout), @"
    # slurm.conf
    GresTypes=gpu,shard
    Prolog=/node/scripts/mig-mps-prolog
    Epilog=/node/scripts/mig-mps-epilog
    TaskProlog=/node/scripts/mig-mps-task-prolog
    HealthCheckProgram=/node/scripts/mig-mps-health
    HealthCheckInterval=300
    HealthCheckNodeState=ANY
    BatchStartTimeout=60

    # gres.conf
    NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap76 # 0.1
    NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia-caps/nvidia-cap22 # trainer
    NodeName=n1 Name=gpu Type=nvidia_a100-sxm4-80gb File=/dev/nvidia1 # 1
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap67 # 0.0
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap76 # 0.1
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia-caps/nvidia-cap22 # trainer
    NodeName=n1 Name=shard Count=2 File=/dev/nvidia1 # 1

    # slurm.conf: append to the line of this node
    # NodeName=n1 Gres=gpu:1g.10gb:2,gpu:3g.40gb:1,gpu:nvidia_a100-sxm4-80gb:1,shard:8
    ");
    let prolog = sim.node.dir().join("scripts/mig-mps-prolog");
    let text = fs::read_to_string(&prolog).unwrap();
    assert_contains(&trial.stdout, &text);
    assert_snapshot!(said(&sim, &text), @r#"
    #!/bin/sh
    # Written by mig-mps slurm install, which replaces this file.
    export PATH="${PATH:-/usr/bin:/bin}":/node/bin
    [ -n "$SLURM_CONF" ] || export SLURM_CONF=/node/slurm.conf
    exec /usr/local/bin/mig-mps slurm prolog
    "#);
    let mode = || fs::metadata(&prolog).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o755);
    // With its lines in place nothing is left to say or to write, but for a script that cannot be run.
    write(&sim, "slurm.conf", ran.stdout.split("\n\n").next().unwrap());
    fs::set_permissions(&prolog, fs::Permissions::from_mode(0o644)).unwrap();
    let again = install(&sim, &["--shard", "2"]).ended(0);
    assert!(again.stdout.starts_with("# gres.conf\n"), "{again:?}");
    assert_contains(&again.stderr, "wrote ");
    assert_eq!(again.stderr.matches(" is up to date").count(), 3);
    assert_eq!(mode(), 0o755);
}

/// root's scripts search no directory that a user controls, also if root's program is linked there.
#[test]
fn a_users_directory_is_not_in_the_path_of_scripts() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 1, SMALL);
    let theirs = sim.node.dir().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let control = "nvidia-cuda-mps-control";
    symlink(
        sim.node.dir().join("bin").join(control),
        theirs.join(control),
    )
    .unwrap();
    let path_of_scripts = || {
        let directory = sim.node.dir().join("scripts");
        let words = ["install", "--dry-run", "--dir", directory.to_str().unwrap()];
        let mut command = slurm(&sim, &words);
        let ran = Ran::of(command.env("PATH", format!("{}:/usr/bin:/bin", theirs.display())));
        ran.ended(0).stdout.matches("/theirs\n").count()
    };
    assert_eq!(path_of_scripts(), 4);
    chown(&theirs, Some(NOBODY), None).unwrap();
    assert_eq!(path_of_scripts(), 0);
}

#[test]
fn a_script_of_the_site_is_never_replaced() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let scripts = sim.node.dir().join("scripts");
    fs::create_dir(&scripts).unwrap();
    fs::write(scripts.join("mig-mps-epilog"), "#!/bin/sh\n").unwrap();
    let refused = install(&sim, &[]).ended(1);
    assert_snapshot!(said(&sim, &refused.stderr), @"
    error: cannot install the scripts for Slurm: /node/scripts/mig-mps-epilog: mig-mps did not write it and does not replace it
    hint: move /node/scripts/mig-mps-epilog away, then run this command again
    ");
    assert_eq!(fs::read_dir(&scripts).unwrap().count(), 1);
    fs::remove_file(scripts.join("mig-mps-epilog")).unwrap();
    fs::create_dir(sim.node.dir().join("epilog.d")).unwrap();
    let (dir, theirs) = (sim.node.dir().display(), "#!/bin/sh\nlogger begins\n");
    write(&sim, "prolog", theirs);
    let conf = format!("GresTypes=gpu\nProlog={dir}/prolog\nEpilog={dir}/epilog.d/*\n");
    write(&sim, "slurm.conf", &conf);
    let ran = install(&sim, &[]).ended(0);
    let of_conf = ran.stdout.split("\n\n").next().unwrap();
    assert_snapshot!(said(&sim, of_conf), @"
    # slurm.conf
    # Prolog=/node/prolog stays. Let that script end with:
    #   exec /node/scripts/mig-mps-prolog
    # Epilog=/node/epilog.d/* stays. Link ours into that directory:
    #   ln -s /node/scripts/mig-mps-epilog /node/epilog.d/
    TaskProlog=/node/scripts/mig-mps-task-prolog
    HealthCheckProgram=/node/scripts/mig-mps-health
    HealthCheckInterval=300
    HealthCheckNodeState=ANY
    BatchStartTimeout=60
    ");
    let kept = fs::read_to_string(sim.node.dir().join("prolog")).unwrap();
    assert_eq!(kept, theirs);
    // As it says.
    let calls = format!("{theirs}exec {dir}/scripts/mig-mps-prolog\n");
    write(&sim, "prolog", &calls);
    // Slurm runs what the pattern stands for, under any name.
    let link = sim.node.dir().join("epilog.d/90-mig-mps");
    symlink(scripts.join("mig-mps-epilog"), link).unwrap();
    assert!(!install(&sim, &[]).ended(0).stdout.contains("stays"));
}

/// slurm.conf names one health check for all nodes.
#[test]
fn a_node_without_gpus_stays_in_service() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let scontrol = sim.program_script("scontrol", "echo 'NodeName=n1 State=IDLE Reason=none'");
    let health = || {
        let path = scontrol.parent().unwrap().display().to_string();
        let mut command = slurm(&sim, &["health"]);
        command.env("PATH", format!("{path}:/usr/bin:/bin"));
        Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/none/libnvidia-ml.so.1"))
    };
    // Without slurm.conf it is not known whether there are some.
    assert_contains(&health().ended(3).stdout, "/none/libnvidia-ml.so.1");
    write(&sim, "slurm.conf", "NodeName=n1 Gres=gpu:1\n");
    assert_contains(&health().ended(3).stdout, "/none/libnvidia-ml.so.1");
    write(&sim, "slurm.conf", "NodeName=n1\n");
    health().ended(0);
    write(
        &sim,
        "gres.conf",
        "NodeName=n2 Name=gpu File=/dev/nvidia0\n",
    );
    health().ended(0);
    write(
        &sim,
        "gres.conf",
        "NodeName=n1 Name=gpu File=/dev/nvidia0\n",
    );
    assert_contains(&health().ended(3).stdout, "/none/libnvidia-ml.so.1");
}

#[test]
fn check_finds_each_difference() {
    needs_root!();
    let sim = in_slurm();
    let check = |words: &[&str]| Ran::of(&mut slurm(&sim, &[&["gres", "--check"], words].concat()));
    let same = check(&[]).ended(0);
    assert_eq!(
        (same.stdout.as_str(), same.stderr.as_str()),
        ("", "gres.conf and slurm.conf match this node.\n")
    );
    let conf = fs::read_to_string(sim.node.dir().join("gres.conf")).unwrap();
    let other = conf.replacen("Type=1g.10gb", "Type=seventh", 1);
    let other = other.replace("/dev/nvidia1 ", "/dev/nvidia7 ");
    write(&sim, "gres.conf", &other);
    let differs = check(&["--shard", "2"]).ended(3);
    assert_snapshot!(differs.stdout, @"
    /dev/nvidia7: no device of mig-mps has this file
    device 1: gres.conf lacks it
    GPUs of type seventh: 1 in gres.conf, 0 in slurm.conf
    GPUs of type 1g.10gb: 1 in gres.conf, 2 in slurm.conf
    the files have 0 shards, but the devices have 8 shares
    ");
    assert_contains(
        &differs.stderr,
        "at a reboot; run `mig-mps slurm gres` for the present lines",
    );
    // Lines that Slurm does not read as they are meant.
    write(&sim, "gres.conf", &conf);
    let line = fs::read_to_string(sim.node.dir().join("slurm.conf")).unwrap();
    write(
        &sim,
        "slurm.conf",
        &format!("{line}\nGresTypes=nic,gpu,shard\n"),
    );
    let differs = check(&[]).ended(3);
    assert_snapshot!(differs.stdout, @"MultipleFiles in gres.conf, and shard in GresTypes: Slurm 22.05 counts each file as a GPU; use `mig-mps slurm gres --one-file`");
    write(
        &sim,
        "slurm.conf",
        &format!("GresTypes=gpu,shard\nGresTypes=gpu\n{line}"),
    );
    check(&[]).ended(0);
    // Where the node has another name, nothing else is said.
    let differs = check(&["--node", "n9"]).ended(3);
    assert_snapshot!(differs.stdout, @"slurm.conf has no line of n9 with Gres=; use --node with the node's name in Slurm");
}

/// Runs a part of `slurm` for a job on the first of the node's GPUs in Slurm's order.
fn of_job(sim: &Sim, words: &str, gpus: &str) -> Ran {
    let mut command = slurm(sim, &[words]);
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "0");
    Ran::of(command.env("SLURM_JOB_GPUS", gpus))
}

/// Runs the health check of a node that is not drained.
fn health(sim: &Sim) -> Ran {
    let scontrol = sim.program_script("scontrol", "echo 'NodeName=n1 State=IDLE Reason=none'");
    let directory = scontrol.parent().unwrap().display().to_string();
    let of_node = sim.node.env().into_iter().find(|(name, _)| name == "PATH");
    let path = format!("{directory}:{}", of_node.unwrap().1.display());
    Ran::of(slurm(sim, &["health"]).env("PATH", path))
}

/// Asserts that jobs, the health check and the comparison find nothing wrong in the files.
fn assert_in_order(sim: &Sim) {
    assert_eq!(of_job(sim, "prolog", "0").ended(0).stdout, "");
    assert_contains(
        &of_job(sim, "task-prolog", "0").ended(0).stdout,
        "/by-name/0.0/pipe\n",
    );
    assert_eq!(health(sim).ended(0).stdout, "");
    let checked = Ran::of(&mut slurm(sim, &["gres", "--check"])).ended(0);
    assert_eq!(checked.stdout, "");
}

/// The lines of both files as they are printed: of gres.conf without comments, and the node's line of slurm.conf.
fn printed_lines(sim: &Sim) -> (String, String) {
    write_as_printed(sim);
    let read = |name| fs::read_to_string(sim.node.dir().join(name)).unwrap();
    let gres = read("gres.conf");
    let lines = gres.lines().map(|line| line.split(" # ").next().unwrap());
    (
        lines.collect::<Vec<_>>().join("\n") + "\n",
        read("nodes.conf"),
    )
}

/// A job on a device that admits no new programs is refused before it starts; when those that run have left, the prolog does
/// what was to follow.
#[test]
fn jobs_do_not_come_to_a_device_that_is_closing() {
    needs_root!();
    for (command, status, state) in [("restart", 0, "ready"), ("down", 1, "stopped")] {
        let sim = Sim::served("a100-80gb", 1, MIXED);
        let _ = printed_lines(&sim);
        let client = sim.client("0.0");
        let args = [command, "0.0", "--drain", "1", "--no-new", "--yes"];
        sim.run(&args).ended(4);
        let said = of_job(&sim, "prolog", "0").ended(1).stdout;
        assert_contains(&said, "device 0.0 is closed to new programs by root");
        assert_contains(&said, "; device 0.1 is free");
        // A device that the job has already is not another one.
        let said = of_job(&sim, "prolog", "0,1").ended(1).stdout;
        assert!(
            said.contains("device 0.0 is closed") && !said.contains("is free"),
            "{said}"
        );
        assert!(client.finish().status.success());
        let said = of_job(&sim, "prolog", "0");
        assert_eq!(said.status, status, "{command}: {said:?}");
        assert_eq!(sim.device("0.0")["state"], state, "{command}");
    }
}

#[test]
fn lines_of_other_resources_fail_no_job() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let (gres, line) = printed_lines(&sim);
    for other in [
        "NodeName=n1 Name=bandwidth Type=lustre Count=4G Flags=CountOnly",
        "Name=nvme Count=-1 File=/dev/nvme[0-",
        "NodeName=n[2-9],n[ Name=gpu Count=many File=/dev/[ stray",
        "NodeName=n[3-2] Name=shard Count=4.5",
        "Name = nic File = \"/dev/a, /dev/b\" Cores=0,1 \\\nLinks=-1,0",
        "Include more.conf",
        "nonsense",
    ] {
        write(&sim, "more.conf", "name=fpga count=1K\n");
        write(&sim, "gres.conf", &format!("{other}\n{gres}"));
        let of_site = "# im K\\\nNodeName=n2 Reason=\"bad fan\" Gres=bandwidth:lustre:no_consume:4G\nInclude none.conf\n";
        let conf =
            format!("{of_site}{line},bandwidth:lustre:no_consume:4G Reason=\"a fan, again\"\n");
        write(&sim, "slurm.conf", &conf);
        assert_in_order(&sim);
    }
    let latin = [b"# im K\xe4fig\n".as_slice(), gres.as_bytes()].concat();
    fs::write(sim.node.dir().join("gres.conf"), latin).unwrap();
    assert_in_order(&sim);
    // The lines of a whole cluster.
    let others = "NodeName=n2 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap67 # 0.0\n"
        .repeat(20_000);
    write(&sim, "gres.conf", &format!("{others}{gres}"));
    assert_in_order(&sim);
    // A file with GPUs that cannot be read would give the others another number.
    write(&sim, "gres.conf", &format!("Include none.conf\n{gres}"));
    assert_contains(
        &of_job(&sim, "prolog", "0").ended(1).stderr,
        "none.conf: No such file",
    );
    write(
        &sim,
        "gres.conf",
        &format!("NodeName=n1 Name=gpu File=/dev/nvidia[0-\n{gres}"),
    );
    assert_contains(
        &of_job(&sim, "prolog", "0").ended(1).stderr,
        "gres.conf: line 1: cannot read \"/dev/nvidia[0-\"",
    );
}

#[test]
fn the_other_resources_of_a_node_stay_in_its_line() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let (gres, line) = printed_lines(&sim);
    for others in [
        "nvme:1600",
        "craynetwork:4,hbm:16G(S:0,1)",
        "bandwidth:lustre:no_consume:4096",
        "mps:200",
    ] {
        write(&sim, "gres.conf", &gres);
        write(&sim, "slurm.conf", &format!("{line},{others}\n"));
        assert_in_order(&sim);
        for node in ["n1", "n[1-4]"] {
            let printed = Ran::of(&mut slurm(&sim, &["gres", "--node", node])).ended(0);
            assert!(
                printed
                    .stdout
                    .ends_with(&format!(",gpu:nvidia_a100-sxm4-80gb:1,{others}\n")),
                "{printed:?}"
            );
            assert_eq!(
                printed
                    .stderr
                    .contains("daemons that Slurm's prolog would start"),
                others.starts_with("mps")
            );
        }
    }
}

#[test]
fn the_types_of_a_site_are_right() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let (gres, line) = printed_lines(&sim);
    let renamed = |text: &str, small: &str, large: &str, whole: &str| {
        let text = text.replace("1g.10gb", small).replace("3g.40gb", large);
        text.replace("nvidia_a100-sxm4-80gb", whole)
    };
    for (small, large, whole) in [
        ("a100_1g.10gb", "a100_3g.40gb", "a100"),
        ("a100l.1", "a100l.3", "a100l"),
        ("1g", "3g.39gb", "a100-80g"),
        ("mig", "mig-large", "whole"),
    ] {
        write(&sim, "gres.conf", &renamed(&gres, small, large, whole));
        write(&sim, "slurm.conf", &renamed(&line, small, large, whole));
        assert_in_order(&sim);
    }
    // No job gets a GPU that slurm.conf does not count.
    write(
        &sim,
        "gres.conf",
        &format!("{gres}NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia7\n"),
    );
    write(&sim, "slurm.conf", &line);
    assert_eq!(health(&sim).ended(0).stdout, "");
    write(&sim, "slurm.conf", "NodeName=n1 Gres=gpu:5\n");
    assert_eq!(
        health(&sim).ended(3).stdout,
        "gres.conf has /dev/nvidia7, but no device of mig-mps has this file\n"
    );
    // They are printed if they are given.
    let of_site = [
        "--type",
        "1g.10gb=a100l.1",
        "--type",
        "nvidia_a100-sxm4-80gb=A100",
    ];
    let printed = Ran::of(slurm(&sim, &["gres"]).args(of_site))
        .ended(0)
        .stdout;
    assert_eq!(
        printed.matches(" Type=a100l.1 File").count()
            + printed.matches(" Type=a100l.1 MultipleFiles").count(),
        2,
        "{printed}"
    );
    assert!(
        printed.ends_with(" Gres=gpu:a100l.1:2,gpu:3g.40gb:1,gpu:A100:1\n"),
        "{printed}"
    );
    let refused = Ran::of(slurm(&sim, &["gres", "--type", "2g=a"]).env("COLUMNS", "200")).ended(2);
    assert_contains(
        &refused.stderr,
        "error: no device has the type 2g: there are 1g.10gb, 3g.40gb, nvidia_a100-sxm4-80gb\n",
    );
    for wrong in ["3g.40gb", "3g.40gb=", "3g.40gb=a b", "3g.40gb=a,b:c"] {
        Ran::of(&mut slurm(&sim, &["gres", "--type", wrong])).ended(2);
    }
    // Slurm forgets types that the node's line does not have, and numbers GPUs as gres.conf lists them.
    write(&sim, "gres.conf", &gres);
    write(&sim, "slurm.conf", "NodeName=n1 Gres=gpu:4\n");
    assert_in_order(&sim);
    write(&sim, "gres.conf", &gres.replace("3g.40gb", "1g.10gb"));
    write(&sim, "slurm.conf", "NodeName=n1 Gres=gpu:4\n");
    let checked = Ran::of(&mut slurm(&sim, &["gres", "--check"])).ended(3);
    assert_eq!(
        checked.stdout,
        "device trainer: its Type is 1g.10gb, but the device is 3g.40gb\n"
    );
}

/// The file of a GPU stands in the lines of its instances, too.
#[test]
fn the_line_of_an_instance_does_not_mean_its_gpu_when_that_is_whole() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    printed_lines(&sim);
    sim.run(&["down", "--destroy-mig", "--disable-mig", "--yes"])
        .ended(0);
    sim.up(
        "[mps]\nserve = \"all\"\n[[gpu]]\nselect = { all = true }\nmig = false\n",
        &[],
    )
    .ended(0);
    let refused = of_job(&sim, "prolog", "0").ended(1);
    assert_contains(
        &refused.stderr,
        "nvidia-cap67, but no device of mig-mps has this file",
    );
    of_job(&sim, "prolog", "3").ended(0);
}

/// Who opens one without a writer waits for ever.
#[test]
fn a_fifo_is_not_read() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    for name in ["gres.conf", "nodes.conf", "slurm.conf"] {
        write_as_printed(&sim);
        let path = sim.node.dir().join(name);
        fs::remove_file(&path).unwrap();
        shell(format!("mkfifo {}", path.display())).ended(0);
        let refused = Ran::of(&mut slurm(&sim, &["gres", "--check"])).ended(1);
        let why = format!("error: cannot read {}: it is a FIFO", path.display());
        assert_contains(&refused.stderr, &why);
        fs::remove_file(path).unwrap();
    }
    let prolog = sim.node.dir().join("prolog");
    shell(format!("mkfifo {}", prolog.display())).ended(0);
    write(
        &sim,
        "slurm.conf",
        &format!("Prolog={}\n", prolog.display()),
    );
    let installed = install(&sim, &[]).ended(0);
    assert_contains(&installed.stdout, "Let that script end with:");
    fs::remove_file(sim.node.dir().join("slurm.conf")).unwrap();
    shell(format!("mkfifo {}/slurm.conf", sim.node.dir().display())).ended(0);
    assert_contains(
        &install(&sim, &[]).ended(1).stderr,
        "slurm.conf: it is a FIFO",
    );
}

/// As Slurm finds and runs them.
#[test]
fn a_script_of_the_site_runs_ours_or_only_names_it() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let (dir, at) = (sim.node.dir(), sim.node.dir().display());
    install(&sim, &[]).ended(0);
    let remark = |prolog: &str, text: &str| {
        write(&sim, "prolog", text);
        write(
            &sim,
            "slurm.conf",
            &format!("GresTypes=gpu\nProlog={at}/{prolog}\n"),
        );
        let printed = install(&sim, &[]).ended(0).stdout;
        let mut lines = printed
            .lines()
            .skip_while(|line| !line.starts_with("# Prolog="));
        said(&sim, lines.next().unwrap_or_default())
    };
    let ours = format!("{at}/scripts/mig-mps-prolog");
    let missing = "# Prolog=/node/prolog stays. Let that script end with:";
    assert_eq!(
        remark("prolog", &format!("#!/bin/sh\n# exec {ours}\n")),
        missing
    );
    assert_eq!(
        remark("prolog", &format!("#!/bin/sh\necho {ours}\n")),
        missing
    );
    assert_eq!(
        remark("prolog", &format!("#!/bin/sh\nexec {ours}.old\n")),
        missing
    );
    let behind =
        "# Prolog=/node/prolog stays. It ends before its line with ours: move that line up:";
    assert_eq!(
        remark("prolog", &format!("#!/bin/sh\nexit 0\nexec {ours}\n")),
        behind
    );
    let python = "# Prolog=/node/prolog stays. Let that program end by running:";
    assert_eq!(remark("prolog", "#!/usr/bin/python3\n"), python);
    assert_eq!(
        remark(
            "prolog",
            &format!("#!/bin/sh\nlogger x; {ours} || exit 1\n")
        ),
        ""
    );
    // By a link, and by a pattern of a directory with another name.
    symlink(&ours, dir.join("linked")).unwrap();
    assert_eq!(remark("linked", ""), "");
    // Relative to slurm.conf.
    write(&sim, "prolog", &format!("#!/bin/sh\nexec {ours}\n"));
    write(
        &sim,
        "slurm.conf",
        "GresTypes=gpu\nProlog=prolog\nEpilog=scripts/mig-mps-epi*\n",
    );
    let printed = install(&sim, &[]).ended(0).stdout;
    assert!(
        !printed.contains("Prolog= ") && !printed.contains("Epilog=scripts"),
        "{printed}"
    );
    write(&sim, "slurm.conf", "Epilog=scripts/*\n");
    assert_contains(
        &install(&sim, &[]).ended(1).stderr,
        "Epilog=scripts/* would run all four",
    );
    symlink(dir.join("scripts"), dir.join("link")).unwrap();
    write(&sim, "slurm.conf", &format!("Prolog={at}/link/*\n"));
    let refused = install(&sim, &[]).ended(1).stderr;
    assert_contains(&refused, "/link/* would run all four scripts of mig-mps");
}

#[test]
fn gres_takes_only_names_that_a_node_can_have() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    write_as_printed(&sim);
    for name in [
        "\u{1b}[31m\u{202e}",
        "n1\nNodeName=n2",
        "n 1",
        "n1 Name=gpu",
        "[",
        "n[1-",
        "n[3-1]",
        "n1]",
        "n[a]",
        ",",
        "",
    ] {
        let refused = |ran: Ran| {
            let ran = ran.ended(2);
            assert!(ran.stdout.is_empty(), "{ran:?}");
            assert!(!ran.stderr.contains(['\u{1b}', '\u{202e}']), "{ran:?}");
            let what = " cannot be the name of a Slurm node";
            assert!(ran.stderr.contains(what), "{ran:?}");
        };
        refused(Ran::of(&mut slurm(&sim, &["gres", "--node", name])));
        if !name.is_empty() {
            let mut check = slurm(&sim, &["gres", "--check"]);
            refused(Ran::of(check.env("SLURMD_NODENAME", name)));
        }
    }
    for name in ["gpu-01.example.org", "n[1-3,07]"] {
        let printed = Ran::of(&mut slurm(&sim, &["gres", "--node", name])).ended(0);
        assert_contains(&printed.stdout, &format!("NodeName={name} "));
    }
}

/// The variables that a task has in Slurm.
fn task(sim: &Sim, more: &[(&str, &str)]) -> Ran {
    let mut command = slurm(sim, &["task-prolog"]);
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "0");
    command.envs(more.iter().copied());
    Ran::of(&mut command)
}

#[test]
fn a_task_is_led_to_its_device_by_number_or_by_uuid() {
    needs_root!();
    let sim = in_slurm();
    let number = |number, rank| {
        task(
            &sim,
            &[("SLURM_STEP_GPUS", number), ("SLURM_LOCALID", rank)],
        )
    };
    for (gpus, rank, name) in [
        ("0", "0", "0.0"),
        ("2", "0", "trainer"),
        ("3", "0", "1"),
        ("1,3", "1", "1"),
    ] {
        let stdout = number(gpus, rank).ended(0).stdout;
        assert!(
            stdout.contains(&format!("/by-name/{name}/pipe\n")),
            "{gpus}: {stdout}"
        );
    }
    let uuid = sim.device("trainer")["uuid"].as_str().unwrap().to_owned();
    let detected = [
        ("SLURM_JOB_GPUS", "5"),
        ("CUDA_VISIBLE_DEVICES", uuid.as_str()),
    ];
    let stdout = task(&sim, &detected).ended(0).stdout;
    assert_contains(&stdout, "/by-name/trainer/pipe\n");
    // Where Slurm has detected only one of two GPUs, both go by their numbers.
    let visible = format!("{uuid},1");
    let mixed = [
        ("SLURM_JOB_GPUS", "0,3"),
        ("CUDA_VISIBLE_DEVICES", visible.as_str()),
    ];
    let stdout = task(&sim, &mixed).ended(0).stdout;
    assert_contains(&stdout, "/by-name/0.0/pipe\n");
    assert_eq!(task(&sim, &[]).ended(0).stdout, "");
    let refused = |more: &[(&str, &str)]| task(&sim, more).ended(1).stderr;
    assert_contains(&number("4", "0").ended(1).stderr, "and ");
    assert!(
        refused(&[("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", "MIG-0")])
            .contains("no daemon serves")
    );
    write(&sim, "slurm.conf", "ClusterName=c\n");
    assert_contains(&number("0", "0").ended(1).stderr, "order of its GPUs");
    write(&sim, "gres.conf", "AutoDetect=nvml\n");
    assert_contains(&number("0", "0").ended(1).stderr, "AutoDetect");
}

/// Slurm shows what a task prolog prints behind `print`.
#[test]
fn a_task_that_gets_one_of_several_devices_is_noted() {
    needs_root!();
    let sim = in_slurm();
    let of_task = |rank, tasks| {
        let more = [
            ("SLURM_STEP_GPUS", "1,3"),
            ("SLURM_LOCALID", rank),
            ("SLURM_STEP_TASKS_PER_NODE", tasks),
        ];
        task(&sim, &more).ended(0).stdout
    };
    let line = "\nprint mig-mps: this task gets device 0.1, 1 of 2 devices of the job here";
    assert_contains(&of_task("0", "1"), line);
    assert_contains(&of_task("0", "1(x2)"), line);
    for (rank, tasks) in [("0", "2"), ("1", "2"), ("0", "4"), ("0", "1,2")] {
        assert!(!of_task(rank, tasks).contains("print"), "{tasks}");
    }
}

#[test]
fn a_job_without_gpus_needs_no_driver() {
    let sim = Sim::with("h200", 1);
    let job = |words: &str| {
        let mut command = slurm(&sim, &[words]);
        command
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_JOB_UID", "1000");
        Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/none"))
    };
    for words in ["prolog", "epilog", "task-prolog"] {
        let ran = job(words).ended(0);
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("", ""),
            "{words}"
        );
    }
}

/// The epilog ends nobody who only says to be of the job.
#[test]
fn another_users_program_is_never_of_the_job() {
    needs_root!();
    let sim = in_slurm();
    let app = |job: &str, nobodys: bool| {
        let mut command = sim.node.program("cuda-app");
        command
            .arg("hold")
            .env("SLURM_JOB_ID", job)
            .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("1"));
        if nobodys {
            std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        }
        let mut app = testkit::App::start(command);
        assert!(app.wait_up().ends_with("mps yes"));
        app
    };
    let (own, other_job, forger) = (app("7", false), app("8", false), app("7", true));
    let mut command = slurm(&sim, &["epilog"]);
    command
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_UID", "0")
        .env("SLURM_JOB_GPUS", "3");
    let ended = Ran::of(&mut command).ended(0);
    let pid = own.pid();
    let line = format!("mig-mps: job 7 left pid {pid} (");
    assert!(
        ended.stdout.starts_with(&line) && ended.stdout.lines().count() == 1,
        "{}",
        ended.stdout
    );
    assert!(!own.await_end().status.success());
    assert!(other_job.finish().status.success() && forger.finish().status.success());
}

/// The epilog goes by what a program does, not by its name.
#[test]
fn a_program_of_the_job_that_is_called_like_mps_is_ended_as_well() {
    needs_root!();
    let sim = in_slurm();
    for (name, listed) in [
        ("nvidia-cuda-mps-x", "outside_mps"),
        ("nvidia-cuda-mps-control", "outside_mps"),
        ("nvidia-cuda-mps-server", "unmanaged"),
    ] {
        let program = sim.node.dir().join(name);
        symlink(sim.node.dir().join("bin/cuda-app"), &program).unwrap();
        let mut command = sim.node.program(&format!("../{name}"));
        command
            .arg("hold")
            .env("SLURM_JOB_ID", "7")
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
            .env(
                "CUDA_VISIBLE_DEVICES",
                sim.device("1")["uuid"].as_str().unwrap(),
            );
        let mut app = testkit::App::start(command);
        assert!(app.wait_up().ends_with("mps no"));
        let status = sim.status();
        let pids = status[listed].as_array().unwrap().iter();
        let pids: Vec<&serde_json::Value> = pids.map(|one| &one["pid"]).collect();
        assert_eq!(pids, [app.pid()], "{name}: {status:#}");
        let mut epilog = slurm(&sim, &["epilog"]);
        epilog.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "0");
        let ended = Ran::of(epilog.env("SLURM_JOB_GPUS", "3")).ended(0);
        let line = format!("mig-mps: job 7 left pid {} (", app.pid());
        assert!(ended.stdout.starts_with(&line), "{name}: {}", ended.stdout);
        assert!(!app.await_end().status.success());
    }
}

/// The epilog of the job with this number, which had the node's only GPU.
fn epilog(sim: &Sim) -> Command {
    let mut epilog = slurm(sim, &["epilog"]);
    epilog.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "0");
    epilog.env("SLURM_JOB_GPUS", "0");
    epilog
}

/// A program of that job, which has left it.
fn left(sim: &Sim, pipe: &Path) -> App {
    let mut command = sim.node.program("cuda-app");
    command
        .arg("hold")
        .env("SLURM_JOB_ID", "7")
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    App::start(command)
}

/// It waits in cuInit behind another user's programs, and would use the device after these.
#[test]
fn a_program_of_the_job_that_waits_is_ended() {
    needs_root!();
    let sim = Sim::whole("");
    let mut hers = sim.app_of_nobody("0", &["hold"]);
    assert!(hers.wait_up().ends_with("mps yes"));
    let left = left(&sim, &sim.pipe_link("0"));
    wait_until("it waits", || {
        sim.status()["waiting"][0]["pid"] == left.pid()
    });
    let ended = Ran::of(&mut epilog(&sim)).ended(0);
    let line = format!("mig-mps: job 7 left pid {} (", left.pid());
    assert!(ended.stdout.starts_with(&line), "{ended:?}");
    assert!(!left.await_end().status.success());
    assert!(hers.finish().status.success());
}

/// Slurm then drains the node: the next job would share the device with it.
#[test]
fn a_program_that_cannot_be_ended_fails_the_epilog() {
    needs_root!();
    let sim = Sim::whole("");
    let mut left = left(&sim, sim.node.dir());
    assert!(left.wait_up().ends_with("mps no"));
    let mut epilog = epilog(&sim);
    without_sigkill(&mut epilog);
    let failed = Ran::of(&mut epilog).ended(1);
    let stays = format!("error: job 7: pid {} (", left.pid());
    assert!(failed.stderr.starts_with(&stays), "{failed:?}");
    assert_contains(&failed.stderr, ") is on device 0 and cannot be ended now\n");
}

/// The device still exists, and the numbers of the others are as they were.
#[test]
fn a_device_that_is_stopped_on_purpose_drains_no_node() {
    needs_root!();
    let sim = in_slurm();
    let lines = |sim: &Sim| Ran::of(&mut slurm(sim, &["gres"])).ended(0).stdout;
    let before = lines(&sim);
    sim.run(&["down", "0.0"]).ended(0);
    assert_eq!(health(&sim).ended(0).stdout, "");
    assert_eq!(lines(&sim), before);
    Ran::of(&mut slurm(&sim, &["gres", "--check"])).ended(0);
    let refused = of_job(&sim, "prolog", "0").ended(1);
    for said in [&refused.stdout, &refused.stderr] {
        assert_contains(said, "device 0.0 was stopped by root at 20");
    }
    assert_contains(
        &refused.stderr,
        "hint: run `mig-mps start 0.0` to start it again\n",
    );
    assert_eq!(sim.device("0.0")["state"], "stopped");
    let task = of_job(&sim, "task-prolog", "0").ended(1);
    assert_contains(&task.stderr, "device 0.0 was stopped by root at 20");
    of_job(&sim, "prolog", "1").ended(0);
    sim.run(&["start", "0.0"]).ended(0);
    of_job(&sim, "prolog", "0").ended(0);
    sim.run(&["down", "0.0"]).ended(0);
    sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(
        &health(&sim).ended(3).stdout,
        "but no device of mig-mps has this file",
    );
}

/// Another user's job has the device: this one waits for it in cuInit, or shares it. Nothing is broken.
#[test]
fn a_device_in_use_drains_no_node() {
    needs_root!();
    let sim = Sim::served("h200", 2, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    write_as_printed(&sim);
    let mut hers = sim.app_of_nobody("0", &["hold"]);
    assert!(hers.wait_up().ends_with("mps yes"));
    let faulty = sim.faulty("1");
    for gpu in ["0", "1"] {
        assert_eq!(of_job(&sim, "prolog", gpu).ended(0).stdout, "");
    }
    assert_eq!(health(&sim).ended(0).stdout, "");
    drop((hers, faulty));
}

#[test]
fn a_gpu_that_is_lost_and_a_device_that_is_gone_drain_the_node() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 2, MIXED);
    let change = sim.node.node().update(|state| {
        let instances = &mut state.gpus[0].instances;
        instances.retain(|instance| instance.placement.start != 0);
        state.contexts.clear();
    });
    change.unwrap();
    assert_contains(
        &health(&sim).ended(3).stdout,
        "device 0.0: its MIG device no longer exists\n",
    );
    sim.node.node().lose_gpu(1).unwrap();
    assert_contains(&health(&sim).ended(3).stdout, "GPU 1 is lost");
}

/// As Slurm passes them on from the script of the job.
#[test]
fn the_limits_of_a_job_are_those_of_its_tasks() {
    needs_root!();
    let sim = in_slurm();
    let own = |value| {
        let more = [
            ("SLURM_STEP_GPUS", "3"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", value),
        ];
        task(&sim, &more).ended(0).stdout
    };
    let line = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20\n";
    assert_contains(&own("20"), &format!("export {line}"));
    assert!(!own("").contains("export CUDA_MPS_ACTIVE"), "{}", own(""));
}

/// A device is checked, and counted, once.
#[test]
fn a_job_has_each_of_its_gpus_once() {
    needs_root!();
    let sim = in_slurm();
    let second = task(
        &sim,
        &[("SLURM_JOB_GPUS", "0,0,0,1"), ("SLURM_LOCALID", "1")],
    )
    .ended(0);
    let alone = task(&sim, &[("SLURM_JOB_GPUS", "1")]).ended(0);
    assert_eq!(second.stdout, alone.stdout);
    let mut prolog = slurm(&sim, &["prolog"]);
    prolog.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "0");
    let gpus = vec!["0"; 20_000].join(",");
    Ran::of(prolog.env("SLURM_JOB_GPUS", gpus)).ended(0);
}
