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

/// The warnings of `run` about these command lines, of which nothing is run.
struct Engines(Sim);

impl Engines {
    const NAMES: [&str; 16] = [
        "apptainer",
        "ch-run",
        "docker",
        "docker-compose",
        "enroot",
        "mpirun",
        "nerdctl",
        "podman",
        "podman-compose",
        "podman-remote",
        "python3",
        "singularity",
        "srun",
        "sudo",
        "systemd-run",
        "x",
    ];

    fn new() -> Self {
        let sim = Sim::small();
        for engine in Self::NAMES {
            write_program(sim.node.dir().join("bin").join(engine), "#!/bin/sh\n");
        }
        Self(sim)
    }

    /// The run directory.
    fn directory(&self) -> String {
        self.0.node.run_dir().display().to_string()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.node.dir().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn says(&self, line: &str) -> String {
        self.says_of(&format!("run 0.2 -- {line}"), &[])
    }

    /// What this command line of mig-mps says with these variables.
    fn says_of(&self, line: &str, variables: &[(&str, &str)]) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = self.0.command(&words);
        command.envs(variables.iter().copied());
        Ran::of(&mut command).ended(0).stderr
    }

    #[track_caller]
    fn lacks(&self, line: &str, lacks: &str, remedy: &str) {
        let said = self.says(line);
        let it = if lacks.contains(" and ") {
            "them"
        } else {
            "it"
        };
        let expected = format!(
            " does not have {lacks}, and without {it} the programs run outside MPS; {remedy}\n"
        );
        assert!(said.ends_with(&expected), "{line}: {said}");
    }
}

#[test]
fn run_says_what_a_container_needs() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let variables = "--env CUDA_MPS_PIPE_DIRECTORY --env CUDA_VISIBLE_DEVICES";
    let bind = format!("--mount type=bind,src={run_dir},dst={run_dir}");
    let docker = "these options: docker run $(mig-mps env 0.2 --format docker) …";
    let podman = "these options: podman run $(mig-mps env 0.2 --format podman) …";
    let both = format!("{run_dir} and CUDA_MPS_PIPE_DIRECTORY");
    let enroot = format!("--mount {run_dir}:{run_dir} {variables}");
    let pyxis = format!("--container-mounts={run_dir}:{run_dir}");
    let bundle = format!("a bind mount of {run_dir} to /bundle/config.json");
    let pipe = format!("CUDA_MPS_PIPE_DIRECTORY={run_dir}/by-name/0.2/pipe");
    let elsewhere = engines.file("elsewhere.env", "A=b\nCUDA_MPS_PIPE_DIRECTORY=/elsewhere\n");
    let nothing = engines.file("nothing.env", "# CUDA_MPS_PIPE_DIRECTORY\nA=b\n");
    let omit = "omit the options that change CUDA_MPS_PIPE_DIRECTORY";
    for (line, lacks, remedy) in [
        ("enroot start image true", &*both, &*enroot),
        ("srun --container-image=x true", &run_dir, &pyxis),
        ("srun -n 8 --container-image x true", &run_dir, &pyxis),
        ("docker run image", &both, docker),
        ("docker --context far container run image", &both, docker),
        ("podman create image", &both, podman),
        (
            "podman-remote run image",
            &both,
            &podman.replace("podman run", "podman-remote run"),
        ),
        (
            "env A=b nerdctl run image",
            &both,
            &docker.replace("docker run", "nerdctl run"),
        ),
        ("nice -n 5 srun -n 2 podman run image", &both, podman),
        // Words that name the directory, or one above it, in another way.
        ("docker run -e OUT=RUN/x image", &both, docker),
        ("docker run --tmpfs ABOVE image", &both, docker),
        ("docker run -w ABOVE image", &both, docker),
        ("docker run image ls RUN", &both, docker),
        (
            "docker run image prog -v RUN:RUN -e CUDA_MPS_PIPE_DIRECTORY",
            &both,
            docker,
        ),
        ("docker run -v RUN image", &both, docker),
        ("docker run -v /scratch:ABOVE image", &both, docker),
        ("docker run -v RUN:/elsewhere image", &both, docker),
        (
            "srun --container-image=x --container-mounts=/scratch:ABOVE x",
            &run_dir,
            &pyxis,
        ),
        (
            "ch-run -b /scratch image -- x",
            &run_dir,
            &format!("--bind={run_dir}:{run_dir}"),
        ),
        // Options of another program, and words that are no values.
        ("docker run --net host --label --env image", &both, docker),
        (
            "docker run --userns keep-id image -v RUN:RUN",
            &both,
            docker,
        ),
        (
            "srun --label --container-image=x --no-kill true",
            &run_dir,
            &pyxis,
        ),
        // Another directory at the place.
        (
            "docker run -v RUN/by-name/0.0/pipe:RUN/by-name/0.0/pipe --env CUDA_MPS_PIPE_DIRECTORY image",
            &run_dir,
            &bind,
        ),
        (
            "docker run -v RUN:RUN -v /scratch:RUN -e CUDA_MPS_PIPE_DIRECTORY image",
            &run_dir,
            &bind,
        ),
        (
            "podman run -v RUN:RUN -e CUDA_MPS_PIPE_DIRECTORY=/elsewhere image",
            &pipe,
            variables,
        ),
        (
            "podman run -v RUN:RUN --env-file ELSEWHERE image",
            &pipe,
            variables,
        ),
        (
            "podman run -v RUN:RUN --env-file NOTHING image",
            "CUDA_MPS_PIPE_DIRECTORY",
            variables,
        ),
        (
            "podman run -v RUN:RUN --env-host --unsetenv CUDA_MPS_PIPE_DIRECTORY image",
            "CUDA_MPS_PIPE_DIRECTORY",
            variables,
        ),
        (
            "apptainer exec --env A=b,CUDA_MPS_PIPE_DIRECTORY=/elsewhere image x",
            &pipe,
            omit,
        ),
        (
            "apptainer -c file exec --env CUDA_MPS_PIPE_DIRECTORY= image x",
            &pipe,
            omit,
        ),
        (
            "apptainer exec -B /a:RUN image x",
            &run_dir,
            &format!("omit the options that change {run_dir}"),
        ),
        ("podman --noout run image", &both, podman),
        (
            "mpirun -np 2 --oversubscribe docker run image",
            &both,
            docker,
        ),
        (
            "srun --export NONE --get-user-env docker run image",
            &both,
            docker,
        ),
        (
            "apptainer exec --cleanenv --env-file ELSEWHERE image x",
            &pipe,
            omit,
        ),
        (
            "ch-run -b RUN --unset-env=CUDA_* image -- x",
            "CUDA_MPS_PIPE_DIRECTORY",
            omit,
        ),
        (
            "ch-run --set-env=CUDA_MPS_PIPE_DIRECTORY=/x image -- x",
            &format!("{run_dir} and {pipe}"),
            &format!("add --bind={run_dir}:{run_dir} and {omit}"),
        ),
        (
            "srun --export=NONE --container-image=x --container-mounts=RUN:RUN x",
            "CUDA_MPS_PIPE_DIRECTORY",
            "--export=ALL",
        ),
        (
            "srun --export=NONE --container-image=x x",
            &both,
            &format!("{pyxis} --export=ALL"),
        ),
        // A container of Slurm itself has its mounts by a file.
        ("srun --container=/bundle x", &run_dir, &bundle),
        (
            "srun --export=NONE -n 2 --container /bundle x",
            &both,
            &format!("{bundle} and --export=ALL"),
        ),
        // One of the two.
        (
            "podman run -v RUN:RUN image x",
            "CUDA_MPS_PIPE_DIRECTORY",
            variables,
        ),
        (
            "podman run --mount type=bind,src=RUN,dst=RUN image x",
            "CUDA_MPS_PIPE_DIRECTORY",
            variables,
        ),
        (
            "enroot start --mount RUN:RUN image x",
            "CUDA_MPS_PIPE_DIRECTORY",
            variables,
        ),
        (
            "docker run --env CUDA_MPS_PIPE_DIRECTORY image",
            &run_dir,
            &bind,
        ),
    ] {
        let above = engines.0.node.run_dir().parent().unwrap();
        let line = line
            .replace("RUN", &run_dir)
            .replace("ABOVE", above.to_str().unwrap())
            .replace("ELSEWHERE", &elsewhere)
            .replace("NOTHING", &nothing);
        let starts_with_verb = ["add ", "omit "]
            .iter()
            .any(|verb| remedy.starts_with(verb));
        let verb = if starts_with_verb { "" } else { "add " };
        engines.lacks(&line, lacks, &format!("{verb}{remedy}"));
    }
}

#[test]
fn run_says_nothing_about_a_container_that_has_what_it_needs() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let options = |format: &str| {
        let ran = engines.0.run(&["env", "0.2", "--format", format]).ended(0);
        ran.stdout.trim_end().to_owned()
    };
    let (docker, podman) = (options("docker"), options("podman"));
    let dotenv = engines.file("dotenv", &(options("dotenv") + "\n"));
    let elsewhere = engines.file("elsewhere.env", "CUDA_MPS_PIPE_DIRECTORY=/elsewhere\n");
    let uuid = engines.0.uuid("0.2");
    let mounts = format!("{{\"mounts\": [{{\"source\": \"{run_dir}\"}}]}}");
    let bundle = engines.file("config.json", &mounts);
    for line in [
        "srun --container=BUNDLE x",
        "docker run --rm -it DOCKER image x",
        "docker run --volumes-from other -e CUDA_MPS_PIPE_DIRECTORY image",
        // These do not hide the directory of the variables.
        "apptainer exec -B RUN:RUN:ro -B /scratch:/scratch image true",
        "apptainer exec --mount type=bind,src=/a,dst=RUN image true",
        "podman run PODMAN image x",
        "podman run --device mig-mps/device=0.2 image",
        "docker run --device=mig-mps/device=0.2 image",
        "docker run --device=mig-mps/device=UUID image",
        "docker run -v ABOVE:ABOVE:ro -e CUDA_MPS_PIPE_DIRECTORY=RUN/UUID/pipe image",
        "docker run -v RUN/by-name/0.2:/mps:ro -e CUDA_MPS_PIPE_DIRECTORY=/mps/pipe image",
        "docker run -v=RUN/:/RUN/./ -e=CUDA_MPS_PIPE_DIRECTORY image",
        "docker run -v RUN:RUN -v /scratch:ABOVE -e CUDA_MPS_PIPE_DIRECTORY image",
        "docker run --volume=RUN:RUN --env-file DOTENV image",
        "docker run --volume=RUN:RUN --env CUDA_MPS_PIPE_DIRECTORY --env-file ELSEWHERE image",
        "podman run --userns keep-id --net host -v RUN:RUN --new-flag --env CUDA_MPS_PIPE_DIRECTORY image",
        "podman run --memory-swap -1 -v RUN:RUN --env CUDA_MPS_PIPE_DIRECTORY image",
        "apptainer exec --cleanenv --env A=b image true",
        "apptainer exec --env CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe image true",
        "srun --export=ALL,A=b --container-image=x --container-mounts RUN:RUN true",
        "apptainer exec --net --pid image docker run image",
        "docker run -vRUN:RUN --env=CUDA_MPS_PIPE_DIRECTORY image",
        "docker run --volume=RUN:RUN --env-file x image",
        "podman run --mount=type=bind,source=RUN,target=RUN,ro --env-host image",
        "podman run -v RUN:RUN -e CUDA_* image",
        "enroot start --mount=RUN:RUN -e CUDA_MPS_PIPE_DIRECTORY image true",
        "srun --container-image=x --container-mounts /opt:/opt,ABOVE:ABOVE:ro true",
        "ch-run -b RUN image -- true",
        // Its variables have the directory.
        "apptainer exec --nv image true",
        // They start no container.
        "docker ps",
        "srun true",
        "srun x --container-image",
        "srun -n 2 python3 docker run image",
        "python3 -c pass docker run image",
        "x podman run image",
        "true",
    ] {
        let above = engines.0.node.run_dir().parent().unwrap();
        let line = line
            .replace("BUNDLE", bundle.trim_end_matches("/config.json"))
            .replace("DOCKER", &docker)
            .replace("PODMAN", &podman)
            .replace("RUN", &run_dir)
            .replace("ABOVE", above.to_str().unwrap())
            .replace("DOTENV", &dotenv)
            .replace("ELSEWHERE", &elsewhere)
            .replace("UUID", &uuid);
        assert_eq!(engines.says(&line), "", "{line}");
    }
}

/// The file of `mig-mps env --format compose` may have any name.
#[test]
fn a_second_file_of_compose_may_have_the_device() {
    let engines = Engines::new();
    let file = |name: &str, text: &str| engines.file(name, text);
    let ours = engines.0.run(&["env", "0.2", "--format", "compose"]);
    let ours = file("gpu.yaml", &ours.ended(0).stdout);
    let theirs = file("compose.yaml", "services: {}\n");
    for start in [
        "docker compose",
        "docker-compose",
        "podman-compose",
        "nerdctl compose",
    ] {
        for options in [
            format!("-f {theirs} -f {ours}"),
            format!("--file={theirs} --file={ours}"),
            format!("-f {theirs} -f -"),
        ] {
            assert_eq!(
                engines.says(&format!("{start} {options} up")),
                "",
                "{start}"
            );
        }
        for options in [
            "up".to_owned(),
            format!("-f {theirs} up"),
            format!("-f {theirs} -f {theirs} up"),
        ] {
            let said = engines.says(&format!("{start} {options}"));
            assert_contains(
                &said,
                "; add -f device.yaml, a file that `mig-mps env 0.2 --format compose` writes; in this file, replace the name \
                 main with that of your service\n",
            );
        }
    }
}

/// Compose has its files by a variable, and without options those of the directory.
#[test]
fn the_files_that_compose_reads_without_options_may_have_the_device() {
    let engines = Engines::new();
    let env = |device: &str| {
        let ran = engines.0.run(&["env", device, "--format", "compose"]);
        ran.ended(0).stdout
    };
    let place = engines.0.node.dir().join("project");
    fs::create_dir_all(place.join("inner")).unwrap();
    let says = |directory: &str, variables: &[(&str, &str)]| {
        let mut command = engines
            .0
            .command(&["run", "0.2", "--", "docker", "compose", "up"]);
        command.current_dir(place.join(directory));
        command.envs(variables.iter().copied());
        Ran::of(&mut command).ended(0).stderr
    };
    let lacks = |said: &str| {
        assert_contains(said, "-f device.yaml, a file that `mig-mps env 0.2");
    };
    lacks(&says("", &[]));
    fs::write(place.join("compose.yml"), "services: {}\n").unwrap();
    // With an option, Compose reads no file that it would find.
    assert_contains(&says("", &[]), "; add -f compose.yml -f device.yaml, ");
    for name in ["compose.override.yaml", "docker-compose.override.yml"] {
        // Of another device, and of this one.
        fs::write(place.join(name), env("0.0")).unwrap();
        lacks(&says("", &[]));
        fs::write(place.join(name), env("0.2")).unwrap();
        assert_eq!(says("", &[]), "", "{name}");
        assert_eq!(says("inner", &[]), "", "{name}");
        fs::rename(place.join(name), place.join("gpu.yaml")).unwrap();
    }
    for (list, separator) in [("compose.yml:gpu.yaml", ""), ("compose.yml;gpu.yaml", ";")] {
        let variables = [
            ("COMPOSE_FILE", list),
            ("COMPOSE_PATH_SEPARATOR", separator),
        ];
        assert_eq!(says("", &variables), "", "{list}");
    }
    lacks(&says("", &[("COMPOSE_FILE", "compose.yml")]));
    let run_dir = engines.directory();
    let variable = "services:\n  main:\n    environment:\n    - CUDA_MPS_PIPE_DIRECTORY\n";
    let value = format!("CUDA_MPS_PIPE_DIRECTORY: {run_dir}/by-name/0.2/pipe");
    for text in [
        "services: {main: {devices: [mig-mps/device=0.2]}}".to_owned(),
        format!("{variable}    volumes:\n    - {run_dir}:{run_dir}:ro\n"),
        format!(
            "{variable}    volumes:\n    - type: bind\n      source: {run_dir}\n      target: {run_dir}\n"
        ),
        format!("{variable}    volumes: [\"$RUN:{run_dir}\"]\n"),
        format!(
            "services: {{main: {{environment: {{{value}}}, volumes: [\"{run_dir}:{run_dir}\"]}}}}"
        ),
    ] {
        fs::write(place.join("compose.yml"), &text).unwrap();
        assert_eq!(says("", &[]), "", "{text}");
    }
    // The variable without a mount of the directory.
    for text in [
        variable.to_owned(),
        format!("{variable}    volumes: [\"/scratch:/scratch\"]\n"),
        format!("{variable}    volumes: [\"/scratch:{run_dir}\"]\n"),
        format!("services:\n  main:\n    environment:\n      {value}\n"),
    ] {
        fs::write(place.join("compose.yml"), &text).unwrap();
        lacks(&says("", &[]));
    }
    let text = "# mig-mps/device=0.2\nservices: {main: {devices: [\"mig-mps/device=0.0\"]}}";
    fs::write(place.join("compose.yml"), text).unwrap();
    assert_contains(
        &says("", &[]),
        "the programs in a container of docker are clients of device 0.0 instead of device 0.2; use mig-mps/device=0.2 in \
         the place of mig-mps/device=0.0\n",
    );
}

#[test]
fn commands_that_start_no_container_of_compose_need_nothing() {
    let engines = Engines::new();
    let file = engines.file("compose.yaml", "services: {}\n");
    for start in ["docker compose", "docker-compose", "nerdctl compose"] {
        for verb in [
            "ps", "down", "build", "version", "logs -f", "pull", "config",
        ] {
            let said = engines.says(&format!("{start} -f {file} {verb}"));
            assert_eq!(said, "", "{start} {verb}");
        }
        for verb in [
            "up -d",
            "run main x",
            "create",
            "start",
            "restart",
            "exec web x",
        ] {
            let said = engines.says(&format!("{start} -f {file} {verb}"));
            assert_contains(&said, " run outside MPS; add -f device.yaml");
        }
    }
}

#[test]
fn a_container_with_another_device_is_told_apart() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    for engine in ["docker", "podman"] {
        let said = engines.says(&format!("{engine} run --device mig-mps/device=0.0 image"));
        let expected = format!(
            "warning: the programs in a container of {engine} are clients of device 0.0 instead of device 0.2; use \
             mig-mps/device=0.2 in the place of mig-mps/device=0.0\n"
        );
        assert_eq!(said, expected);
    }
    let said = engines.says(&format!(
        "podman run -v={run_dir}:{run_dir} -e=CUDA_MPS_PIPE_DIRECTORY={run_dir}/by-name/0.0/pipe image"
    ));
    assert_contains(
        &said,
        ", and without it the programs are clients of device 0.0; add --env ",
    );
}

#[test]
fn a_launcher_that_loses_the_variables_is_named() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let kept = format!("env MIG_MPS_RUN_DIR={run_dir} mig-mps run 0.2 -- …`\n");
    let mount = format!("-v {run_dir}:{run_dir}");
    for (line, lost) in [
        ("sudo x", "CUDA_MPS_PIPE_DIRECTORY"),
        (
            "sudo apptainer exec image x",
            "CUDA_MPS_PIPE_DIRECTORY and APPTAINER_BINDPATH",
        ),
        (
            "sudo singularity exec --cleanenv image x",
            "CUDA_MPS_PIPE_DIRECTORY and SINGULARITY_BINDPATH",
        ),
        (
            "sudo docker run MOUNT -e CUDA_MPS_PIPE_DIRECTORY image",
            "CUDA_MPS_PIPE_DIRECTORY",
        ),
    ] {
        let said = engines.says(&line.replace("MOUNT", &mount));
        assert_contains(
            &said,
            &format!("warning: sudo does not pass on {lost}, and without "),
        );
        assert!(said.ends_with(&format!("; write `sudo {kept}")), "{said}");
    }
    let docker = engines
        .0
        .run(&["env", "0.2", "--format", "docker"])
        .ended(0);
    let docker = docker.stdout.trim_end().to_owned();
    for line in [
        "sudo docker run DOCKER image",
        "sudo docker ps",
        "sudo docker run --device mig-mps/device=0.2 image",
        "sudo -E apptainer exec image x",
        "sudo mig-mps run 0.2 -- x",
    ] {
        let said = engines.says(&line.replace("DOCKER", &docker));
        assert_eq!(said, "", "{line}");
    }
    // Its own options bring all values in.
    let said = engines.says("sudo docker run image");
    assert!(!said.contains("sudo does"), "{said}");
}

#[test]
fn a_launcher_that_loses_the_limits_is_named() {
    let engines = Engines::new();
    let (pipe, threads) = (
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    );
    let own = "run 0.2 --threads 20 --";
    for (launcher, options) in [
        ("sudo", "--preserve-env=PIPE,CUDA_VISIBLE_DEVICES"),
        ("srun", "--export=PIPE"),
        ("systemd-run", "-E PIPE"),
        ("systemd-run", "-p PassEnvironment=PIPE"),
        ("env", "-u THREADS"),
    ] {
        let options = options.replace("PIPE", pipe).replace("THREADS", threads);
        let said = engines.says_of(&format!("{own} {launcher} {options} x"), &[]);
        let expected = format!(
            "warning: {launcher} does not pass on {threads}, and without it the limits (--threads 20) have no effect; write \
             `{launcher} {options} "
        );
        assert!(said.starts_with(&expected), "{said}");
        // Without a limit, nothing is lost.
        let said = engines.says(&format!("{launcher} {options} x"));
        assert_eq!(said, "", "{launcher}");
    }
    assert_contains(
        &engines.says_of(&format!("{own} sudo x"), &[]),
        &format!(
            "sudo does not pass on {pipe} and {threads}, and without them the programs run outside MPS; "
        ),
    );
    let run_dir = engines.directory();
    for line in [
        "sudo --preserve-env=PIPE,THREADS x",
        "srun --export=PIPE,THREADS x",
        "sudo --preserve-env=PIPE docker run -v RUN:RUN -e PIPE -e THREADS=20 image",
    ] {
        let line = line.replace("PIPE", pipe).replace("THREADS", threads);
        let line = line.replace("RUN", &run_dir);
        assert_eq!(engines.says_of(&format!("{own} {line}"), &[]), "", "{line}");
    }
}

/// It has what it got when it was created.
#[test]
fn a_container_that_exists_already_does_not_get_the_device() {
    let engines = Engines::new();
    for (line, command) in [
        ("docker exec c x", "docker exec"),
        ("docker --context far exec -it c x", "docker exec"),
        ("docker start -a c", "docker start"),
        ("docker container restart c", "docker container restart"),
        ("nerdctl exec -it c x", "nerdctl exec"),
        ("podman exec -u 1000 c x", "podman exec"),
        ("podman start c", "podman start"),
        ("podman pod start p", "podman pod start"),
        ("podman kube play p.yaml", "podman kube play"),
        ("podman play kube p.yaml", "podman play kube"),
        ("podman-remote exec c x", "podman-remote exec"),
    ] {
        let expected = format!(
            "warning: {command} does not pass on CUDA_MPS_PIPE_DIRECTORY, and without it the programs run outside MPS, \
             unless the container has a device; create the container with a device (`mig-mps help containers`)\n"
        );
        assert_eq!(engines.says(line), expected, "{line}");
    }
    for line in [
        "docker exec -e CUDA_MPS_PIPE_DIRECTORY c x",
        "podman exec -ite CUDA_MPS_PIPE_DIRECTORY c x",
        "docker stop c",
        "docker container ls",
        "podman kube down p.yaml",
        "podman pod ps",
    ] {
        assert_eq!(engines.says(line), "", "{line}");
    }
    let exec = "exec -e CUDA_MPS_PIPE_DIRECTORY c x";
    assert_contains(
        &engines.says_of(&format!("run 0.2 --threads 25 -- docker {exec}"), &[]),
        " does not have CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, and without it the limits (--threads 25) have no effect; add --env \
         CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\n",
    );
    assert_contains(
        &engines.says(&format!("sudo podman {exec}")),
        "sudo does not pass on CUDA_MPS_PIPE_DIRECTORY, ",
    );
}

/// Apptainer and Singularity read it as `--env-file`.
#[test]
fn a_file_of_variables_may_be_named_by_a_variable() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let elsewhere = engines.file("elsewhere.env", "CUDA_MPS_PIPE_DIRECTORY=/elsewhere\n");
    let nothing = engines.file("nothing.env", "A=b\n");
    let says = |line: &str, variables: &[(&str, &str)]| {
        engines.says_of(&format!("run 0.2 -- {line} image x"), variables)
    };
    let (new, old) = ("APPTAINER_ENV_FILE", "SINGULARITY_ENV_FILE");
    for (line, variable) in [
        ("apptainer exec", new),
        ("apptainer run --cleanenv", old),
        ("singularity exec", old),
    ] {
        assert_contains(
            &says(line, &[(variable, &elsewhere)]),
            &format!(
                " does not have CUDA_MPS_PIPE_DIRECTORY={run_dir}/by-name/0.2/pipe, and without it the programs run outside \
                 MPS; omit the options, or the lines of the file in {variable}, that change CUDA_MPS_PIPE_DIRECTORY\n"
            ),
        );
    }
    for (line, variables) in [
        ("apptainer exec", [(new, &*nothing), (old, &elsewhere)]),
        ("singularity exec", [(new, &elsewhere), (old, "")]),
        (
            &*format!("apptainer exec --env-file {nothing}"),
            [(new, &elsewhere), (old, &elsewhere)],
        ),
    ] {
        assert_eq!(says(line, &variables), "", "{line}");
    }
}

/// A launcher that begins the command line is to start mig-mps as it was started, for a device that this may choose again.
#[test]
fn a_remedy_repeats_the_words_of_the_caller() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let variable = format!("env MIG_MPS_RUN_DIR={run_dir}");
    for own in [
        "run 0.2 --visible index --wait 5m",
        "run -n 2 '0.*'",
        "run --any --min-memory 1G",
    ] {
        let said = engines.says_of(&format!("{} -- sudo x", own.replace('\'', "")), &[]);
        let remedy = format!("; write `sudo {variable} mig-mps {own} -- …`\n");
        assert_eq!(said.matches(&remedy).count(), 1, "{said}");
    }
    // Without PATH, the program has to be found.
    let said = engines.says("env -i true");
    assert_contains(&said, &format!("; write `env -i {variable} /"));
    assert_contains(&said, "/mig-mps run 0.2 -- …`\n");
    let rank = [("SLURM_LOCALID", "1")];
    let said = engines.says_of("run --by-rank -- sudo x", &rank);
    assert_contains(
        &said,
        "; start mig-mps behind sudo, with the variables of the rank\n",
    );
    let said = engines.says_of("run --by-rank -- srun --export=NONE x", &rank);
    assert_contains(
        &said,
        &format!("; write `srun --export=NONE {variable} mig-mps run --by-rank -- …`\n"),
    );
    // No options of one device.
    let mount = format!(
        "; add --volume {run_dir}:{run_dir} --env CUDA_MPS_PIPE_DIRECTORY --env CUDA_VISIBLE_DEVICES\n"
    );
    for own in ["run --by-rank", "run -n 2 0.*", "run --any"] {
        let said = engines.says_of(&format!("{own} -- docker run image"), &rank);
        assert_contains(&said, &mount);
    }
}

#[test]
fn a_variable_of_slurm_is_its_list_also_with_a_container() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let line = format!("srun --container-image=i --container-mounts={run_dir}:{run_dir}");
    let variables = [("SLURM_EXPORT_ENV", "NONE")];
    let says =
        |options: &str| engines.says_of(&format!("run 0.2 -- {line}{options} x"), &variables);
    assert_contains(
        &says(""),
        " does not have CUDA_MPS_PIPE_DIRECTORY, and without it the programs run outside MPS; add --export=ALL\n",
    );
    assert_eq!(says(" --export=ALL"), "");
}

/// A warning about a text that other texts complete may be wrong.
#[test]
fn files_of_compose_with_other_texts_are_not_judged() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let place = engines.0.node.dir().join("project");
    fs::create_dir_all(&place).unwrap();
    let says = |text: &str, own: &str| {
        fs::write(place.join("compose.yaml"), text.replace("RUN", &run_dir)).unwrap();
        let words: Vec<&str> = own.split(' ').collect();
        let words = [&words[..], &["--", "docker", "compose", "up"]].concat();
        let mut command = engines.0.command(&words);
        command.current_dir(&place);
        Ran::of(&mut command).ended(0).stderr
    };
    let variable = "services: {main: {environment: [CUDA_MPS_PIPE_DIRECTORY]";
    for text in [
        "include: [device.yaml]\nservices: {}\n",
        "services: {main: {extends: {file: device.yaml, service: main}}}\n",
        &format!("{variable}, volumes: [\"${{MPS:-RUN}}:RUN\"]}}}}\n"),
    ] {
        assert_eq!(says(text, "run 0.2"), "", "{text}");
    }
    for text in [
        "services:\n  main:\n    environment:\n      CUDA_MPS_PIPE_DIRECTORY: \"\"\n    volumes: [\"RUN:RUN\"]\n",
        "services:\n  main:\n    environment:\n    - CUDA_MPS_PIPE_DIRECTORY=\n    volumes: [\"RUN:RUN\"]\n",
        "services:\n  main:\n    image: x # mig-mps/device=0.2\n",
    ] {
        assert_contains(
            &says(text, "run 0.2"),
            "; add -f compose.yaml -f device.yaml, ",
        );
    }
    // The CDI file has no limits of a program.
    let text = "services: {main: {devices: [mig-mps/device=0.2]}}\n";
    assert_eq!(says(text, "run 0.2"), "");
    assert_contains(
        &says(text, "run 0.2 --threads 20"),
        " does not have CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, and without it the limits (--threads 20) have no effect; add -f \
         compose.yaml -f device.yaml, a file that `mig-mps env 0.2 --threads 20 --format compose` writes",
    );
    // A memory limit of its own, whatever the service has.
    let text = "services: {main: {devices: [mig-mps/device=0.2], environment: \
                [CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT]}}\n";
    assert_eq!(says(text, "run 0.2 --threads 20"), "");
    let said = says(text, "run 0.2 --threads 20 --memory 2G");
    assert_contains(
        &said,
        " does not have CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, and without it the limits ",
    );
    assert_contains(
        &said,
        "the name main with that of your service, in the place of the CDI device\n",
    );
    fs::write(
        place.join(".env"),
        "COMPOSE_FILE=compose.yaml:device.yaml\n",
    )
    .unwrap();
    assert_eq!(says("services: {}\n", "run 0.2"), "");
}

#[test]
fn limits_reach_the_programs_in_a_container() {
    let engines = Engines::new();
    let run_dir = engines.directory();
    let says = |line: &str| {
        let line = line.replace("RUN", &run_dir);
        let words: Vec<&str> = line.split(' ').collect();
        let limits = ["run", "0.2", "--threads", "25", "--memory", "2G", "--"];
        engines
            .0
            .run(&[&limits, &words[..]].concat())
            .ended(0)
            .stderr
    };
    assert_contains(
        &says("docker run image"),
        "; add these options: docker run $(mig-mps env 0.2 --threads 25 --memory 2G --format docker) …\n",
    );
    assert_contains(
        &says("docker compose up"),
        "`mig-mps env 0.2 --threads 25 --memory 2G --format compose`",
    );
    let names = [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ];
    let [threads, memory] = names;
    let both = format!(
        "{threads} and {memory}, and without them the limits (--threads 25 --memory 2G) have no effect; add"
    );
    let device = "podman run -v RUN:RUN --env CUDA_MPS_PIPE_DIRECTORY";
    assert_contains(
        &says(&format!("{device} image")),
        &format!("{both} --env {threads} --env {memory}\n"),
    );
    assert_contains(
        &says(&format!("{device} -e {threads} -e {memory}= image")),
        &format!(" does not have {memory}, and without it "),
    );
    assert_contains(
        &says("podman run --device mig-mps/device=0.2 image"),
        &format!(
            "{both} these options: podman run $(mig-mps env 0.2 --threads 25 --memory 2G --format podman) …, in the"
        ),
    );
    let said = says(&format!(
        "docker run --device mig-mps/device=0.2 -e {threads} -e {memory} image"
    ));
    assert_contains(&said, &format!(" does not have {memory}, and without it "));
    assert_contains(&said, " …, in the place of the CDI device\n");
    assert_eq!(
        says(&format!("{device} -e {threads} -e {memory} image")),
        ""
    );
    assert_eq!(says("apptainer exec image x"), "");
}

/// Their programs are no descendants of mig-mps.
#[test]
fn what_a_daemon_starts_is_not_seen() {
    let engines = Engines::new();
    let says = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let start = ["run", "0.2", "--require-mps", "--"];
        engines
            .0
            .run(&[&start, &words[..]].concat())
            .ended(0)
            .stderr
    };
    for (line, engine) in [
        ("docker run --device mig-mps/device=0.2 image", "docker"),
        ("docker exec container x", "docker"),
        ("docker container start container", "docker"),
        ("nerdctl run --device mig-mps/device=0.2 image", "nerdctl"),
        ("docker compose up", "docker"),
        ("docker-compose up", "docker-compose"),
        ("podman-remote run image", "podman-remote"),
        ("podman --remote run image", "podman"),
        ("podman -r exec container x", "podman"),
        ("docker compose exec web x", "docker"),
        ("docker-compose -f file exec web x", "docker-compose"),
        (
            "srun --container-image=i --container-mounts=RUN:RUN x",
            "srun",
        ),
    ] {
        let expected = format!(
            "warning: --require-mps does not see the programs in a container of {engine}, because a daemon starts them; use \
             podman or Apptainer, or run `mig-mps status`, which shows programs outside MPS\n"
        );
        let line = line.replace("RUN", &engines.directory());
        assert_contains(&says(&line), &expected);
    }
    assert_contains(
        &says("srun x"),
        "does not see the programs that srun has its service start; write `srun mig-mps run 0.2 --require-mps -- …`\n",
    );
    for line in [
        "docker ps",
        "docker compose ps",
        "podman run --device mig-mps/device=0.2 image",
        "apptainer exec image x",
        "x",
    ] {
        assert_eq!(says(line), "", "{line}");
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
