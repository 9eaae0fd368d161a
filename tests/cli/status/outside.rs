//! A program outside MPS, as the administrator, its owner and others see it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{App, NOBODY, Ran, Sim, assert_contains, needs_root, whole, write_program};

/// A program of `nobody` that computes outside MPS.
fn stranger(sim: &Sim, name: &str) -> App {
    let mut command = sim.node.program("cuda-app");
    command.arg("hold").uid(NOBODY).gid(NOBODY);
    command.env("CUDA_VISIBLE_DEVICES", sim.uuid(name));
    command.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    let mut app = App::start(command);
    assert!(app.wait_up().ends_with("mps no"));
    app
}

/// The problem that `status` reports, with its remedy.
#[track_caller]
fn problem(command: &mut Command) -> String {
    let status = Ran::of(command).json();
    let problems = status["problems"].as_array().unwrap().iter();
    let mut found = problems.filter(|problem| problem["id"] == "outside-mps");
    let problem = found.next().unwrap_or_else(|| panic!("{status:#}"));
    problem["what"].as_str().unwrap().to_owned()
}

fn to_root(sim: &Sim) -> String {
    problem(&mut sim.command(&["status", "--json"]))
}

#[test]
fn root_sees_who_it_is_and_how_to_end_and_prevent_it() {
    needs_root!();
    let sim = Sim::whole("");
    let app = stranger(&sim, "0");
    let (pid, what) = (app.pid(), to_root(&sim));
    assert!(what.starts_with(&format!("pid {pid} (nobody, ")), "{what}");
    assert_contains(
        &what,
        "cuda-app hold, 516 MiB) computes outside MPS: its pipe directory is /nowhere; ",
    );
    let remedy = format!(
        "run `kill {pid}` to end it; to prevent it, use compute-mode = \"exclusive-process\" in the profile"
    );
    assert!(what.ends_with(&remedy), "{what}");
    assert_contains(
        &sim.run(&["doctor"]).ended(3).stdout,
        &format!("$ kill {pid}\n"),
    );
    assert_contains(
        &sim.run(&["status"]).ended(0).stdout,
        &format!(
            "1 program computes outside MPS (its pipe directory is /nowhere) and is time-sliced with all clients; {remedy}"
        ),
    );
    let second = stranger(&sim, "0");
    assert_contains(
        &sim.run(&["status"]).ended(0).stdout,
        "2 programs compute outside MPS and are time-sliced with all clients; run `mig-mps doctor` to see the causes and remedies",
    );
    drop(second);
    let shown = sim.in_80_columns("status").stdout;
    let (_, table) = shown.split_once("OUTSIDE MPS").unwrap();
    assert_contains(table.lines().next().unwrap(), "MEMORY GIB");
}

/// The driver refuses the mode on GPUs in MIG mode.
#[test]
fn nothing_prevents_it_on_a_mig_device() {
    needs_root!();
    let sim = Sim::small();
    let app = stranger(&sim, "0.2");
    let what = to_root(&sim);
    assert!(
        what.ends_with(&format!("; run `kill {}` to end it", app.pid())),
        "{what}"
    );
}

#[test]
fn what_has_a_supervisor_is_ended_by_it() {
    needs_root!();
    let sim = Sim::whole("");
    let app = stranger(&sim, "0");
    let pid = app.pid();
    let id = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
    let kill = format!("run `kill {pid}` to end it");
    for (group, remedy) in [
        (
            "/slurm/uid_0/job_7/step_0/task_0".to_owned(),
            "slurm 7.0) computes outside MPS: its pipe directory is /nowhere; run `scancel 7` to end it",
        ),
        (
            format!("/system.slice/docker-{id}.scope"),
            "stop the container 9ec39b91f3d7 to end it",
        ),
        // It was not started by systemd itself: others may be in the service, such as those of cron.
        ("/system.slice/cron.service".to_owned(), kill.as_str()),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service".to_owned(),
            kill.as_str(),
        ),
    ] {
        sim.node.node().show_in_cgroup(pid, &group).unwrap();
        assert_contains(&to_root(&sim), remedy);
    }
    let show_below_init = |pid: u32| {
        let node = sim.node.node();
        node.show_in_cgroup(pid, "/system.slice/train@1.service")
            .unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // After the name come the state and the parent.
        let (name, rest) = stat.split_once(") ").unwrap();
        let after = rest.splitn(3, ' ').nth(2).unwrap();
        sim.fake_proc(pid, "stat", &format!("{name}) S 1 {after}"));
    };
    show_below_init(pid);
    let what = to_root(&sim);
    assert_contains(&what, "MiB, train@1.service) computes");
    assert_contains(&what, "; run `systemctl stop train@1.service` to end it");
    // Of two, one was left by its parent, such as a job of cron.
    let other = sim.process("other");
    show_below_init(other.0.id());
    assert_contains(&to_root(&sim), &kill);
}

#[test]
fn the_owner_sees_what_she_can_do() {
    needs_root!();
    let sim = Sim::whole("");
    let app = stranger(&sim, "0");
    let status = ["status", "--json"];
    let to_owner = || problem(&mut sim.by_other(&status));
    assert!(
        to_owner().ends_with("; start it with `mig-mps run 0 -- PROGRAM`"),
        "{}",
        to_owner()
    );
    // Another user can do nothing.
    let mut other = sim.by_other(&status);
    let what = problem(other.uid(1).gid(1));
    assert!(what.ends_with("only nobody or root can end it"), "{what}");
    drop(app);
    // The device of somebody else.
    sim.up(&whole("serve = \"user:daemon\""), &["--yes"])
        .ended(0);
    let app = stranger(&sim, "0");
    assert!(
        to_owner().ends_with("use another device, because 0 does not serve nobody"),
        "{}",
        to_owner()
    );
    drop(app);
    // A directory above keeps her out.
    sim.up(&whole(""), &["--yes"]).ended(0);
    let app = stranger(&sim, "0");
    fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o750)).unwrap();
    assert_contains(
        &to_root(&sim),
        &format!("run `kill {}` to end it", app.pid()),
    );
}

/// Root becomes a client of any device, and its users are shut out all the same.
#[test]
fn a_device_whose_users_are_shut_out_is_not_verified() {
    needs_root!();
    let sim = Sim::whole("");
    sim.run(&["verify"]).ended(0);
    fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o750)).unwrap();
    let run_dir = sim.node.run_dir().display().to_string();
    let ran = sim.run(&["verify"]).ended(1);
    assert_contains(
        &ran.stderr,
        &format!(
            "error: the users of the device may not enter {run_dir}, which leads to the daemon of device 0\nhint: give users access (`chmod o+x {run_dir}`)"
        ),
    );
    let json = sim.run(&["verify", "--json"]).ended(1).stdout;
    assert_contains(&json, "\"result\": \"failed\"");
    // A directory of the device itself.
    fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(sim.pipe("0"), fs::Permissions::from_mode(0o700)).unwrap();
    let ran = sim.run(&["verify"]).ended(1);
    assert_contains(
        &ran.stderr,
        "hint: run `mig-mps restart 0` to give its users access again\n",
    );
    sim.run(&["restart", "0", "--yes"]).ended(0);
    sim.run(&["verify"]).ended(0);
    // Those of a group, and a user.
    fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    for (serve, who) in [
        ("user:nobody", "nobody"),
        ("group:daemon", "the group daemon"),
    ] {
        sim.up(&whole(&format!("serve = \"{serve}\"")), &["--yes"])
            .ended(0);
        sim.run(&["verify"]).ended(0);
        fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o750)).unwrap();
        let ran = sim.run(&["verify"]).ended(1);
        assert_contains(
            &ran.stderr,
            &format!("error: {who} may not enter {run_dir}"),
        );
        fs::set_permissions(sim.node.run_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn run_says_what_a_container_needs() {
    let sim = Sim::small();
    let run_dir = sim.node.run_dir().display().to_string();
    let says = |words: &[&str]| {
        for engine in ["apptainer", "docker", "enroot", "nerdctl", "podman", "srun"] {
            write_program(sim.node.dir().join("bin").join(engine), "#!/bin/sh\n");
        }
        sim.run(&[&["run", "0.2", "--"], words].concat())
            .ended(0)
            .stderr
    };
    for (words, missing) in [
        (
            &["enroot", "start", "image", "true"][..],
            format!("add --mount {run_dir}:{run_dir} --env CUDA_MPS_PIPE_DIRECTORY"),
        ),
        (
            &["srun", "--container-image=x", "true"],
            format!("add --container-mounts={run_dir}:{run_dir}\n"),
        ),
        (
            &["docker", "run", "image"],
            "add these options: docker run $(mig-mps env 0.2 --format docker) …\n".to_owned(),
        ),
        (
            &["env", "A=b", "nerdctl", "run", "image"],
            "add these options: nerdctl run $(mig-mps env 0.2 --format docker) …\n".to_owned(),
        ),
        (
            &["podman", "run", "image"],
            "add these options: podman run $(mig-mps env 0.2 --format podman) …\n".to_owned(),
        ),
    ] {
        let said = says(words);
        assert_contains(
            &said,
            &format!(
                "does not have {run_dir}, and without it the programs run outside MPS; {missing}"
            ),
        );
    }
    let mounted = format!("--mount={run_dir}:{run_dir}");
    let above = sim.node.run_dir().parent().unwrap().display();
    let above = format!("/opt:/opt,{above}:{above}:ro");
    for words in [
        &["enroot", "start", &mounted, "image", "true"][..],
        &["srun", "--container-mounts", &above, "true"],
        &["podman", "run", "--device", "mig-mps/device=0.2", "image"],
        &["docker", "run", "--device=mig-mps/device=0.2", "image"],
        // Its variables have the directory.
        &["apptainer", "exec", "--nv", "image", "true"],
        &["srun", "true"],
        &["true"],
    ] {
        assert_eq!(says(words), "", "{words:?}");
    }
}

/// The driver knows a program in a container by its pid on the host, whatever its pid is in there.
#[test]
fn a_program_with_a_pid_namespace_of_its_own_is_seen() {
    needs_root!();
    let sim = Sim::whole("");
    let mut program = sim.node.program("cuda-app");
    program.arg("hold");
    program.env("CUDA_VISIBLE_DEVICES", sim.uuid("0"));
    program.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    let namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let mut app = App::start(testkit::under(&namespace, &program));
    assert_eq!(app.wait_up().split(' ').nth(1), Some("1"), "its own pid");
    let children = format!("/proc/{0}/task/{0}/children", app.pid());
    let children = fs::read_to_string(children).unwrap();
    let pid = children.trim();
    assert!(to_root(&sim).starts_with(&format!("pid {pid} (root, ")));
    let said = sim.node.program("nvidia-smi");
    let said = Ran::of({ said }.args(["--query-compute-apps=pid", "--format=csv,noheader"]));
    assert!(
        said.stdout.lines().any(|line| line == pid),
        "{}",
        said.stdout
    );
    drop(app);
    let status = sim.status();
    assert_eq!(
        status["problems"].as_array().unwrap().len(),
        0,
        "{status:#}"
    );
}
