//! Programs meet devices: `run` and `env`.

mod apptainer;
pub(crate) mod containers;
mod copies;
mod environment;
mod ignored_signals;
mod near;
mod private;
mod ranks;
mod require_mps;
mod visible;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use insta::assert_snapshot;
use testkit::{
    Dialogue, NOBODY, Ran, Sim, WHOLE, assert_contains, can_run, has_python, hearing, needs_root,
    wait_until,
};

#[test]
fn the_program_is_a_client_of_the_right_server_in_the_same_process() {
    let sim = Sim::small();
    let mut app = sim.started(&["0.2"]);
    let up = app.wait_up();
    assert!(up.starts_with(&format!("pid {} ", app.pid())), "{up}");
    assert!(
        up.contains("MIG 1g.10gb") && up.ends_with("mps yes"),
        "{up}"
    );
    let client = &sim.status()["clients"][0];
    assert_eq!(client["device"], "0.2");
    assert_eq!(client["pid"], app.pid());
    assert!(app.finish().status.success());
}

#[test]
fn limits_are_the_programs_own() {
    let sim = Sim::whole("");
    let mut app = sim.started(&["0", "--threads", "25", "--memory", "2G"]);
    let up = app.wait_up();
    assert_contains(&up, " sm 32 free 1901MiB ");
    let words = ["run", "0", "--priority", "below-normal", "--", "sh", "-c"];
    let show = "echo $CUDA_MPS_CLIENT_PRIORITY $CUDA_MPS_PROTOCOL_VERSION.";
    let ran = Ran::of(
        sim.command(&[&words[..], &[show]].concat())
            .env("CUDA_MPS_PROTOCOL_VERSION", "3"),
    );
    assert_eq!(ran.ended(0).stdout, "1 .\n");
    sim.run(&[
        "set",
        "0",
        "active-thread-percentage=50",
        "pinned-memory-limit=4G",
    ])
    .ended(0);
    sim.run(&["run", "0", "--threads", "50", "--", "true"])
        .ended(0);
}

#[test]
fn the_exit_status_is_the_programs_or_says_why_there_was_none() {
    let sim = Sim::small();
    let run = |words: &[&str]| sim.run(&[&["run", "0.2", "--"], words].concat());
    assert_eq!(run(&["sh", "-c", "exit 2"]).status, 2);
    assert_eq!(run(&["no-such-program"]).status, 127);
    assert_eq!(run(&["/etc/passwd"]).status, 126);
    let mut killed = sim.command(&["run", "0.2", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status().unwrap().signal(), Some(15));
    // Usage errors as well: 2 is always the program's.
    for wrong in [
        &["run"][..],
        &["run", "0.2"],
        &["run", "0.2", "--no-such-option", "--", "true"],
        &["run", "0.2", "--wait", "soon", "--", "true"],
        &["run", "0.2", "--threads", "101", "--", "true"],
        &["run", "7.7", "--", "true"],
        &["run", "0", "--", "true"],
        &["run", "0.*", "--", "true"],
    ] {
        assert_eq!(sim.run(wrong).status, 125, "{wrong:?}");
    }
    assert_eq!(sim.run(&["run", "--help"]).status, 0);
}

/// Signals that are ignored stay ignored, as under `nohup`; no others are, and the umask, the directory and the limit of
/// open files are the caller's.
#[test]
fn the_program_has_the_callers_surroundings() {
    let sim = Sim::small();
    // SIGHUP is 1, the last bit, and SIGUSR1 the second of the next digit.
    let show = "0.2 -- sh -c 'umask; pwd; ulimit -n; grep SigIgn /proc/self/status'";
    let ran = |before: &str| {
        let ran = Ran::of(&mut hearing(&sim.after(before, show))).ended(0);
        let (lines, mask) = ran.stdout.split_once("SigIgn:\t").unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        (lines.to_owned(), mask & 1 == 1, mask >> 9 & 1 == 1)
    };
    let plain = ran("umask 027; cd /usr; ulimit -n 100; trap '' USR1");
    assert_eq!(plain, ("0027\n/usr\n100\n".to_owned(), false, true));
    let ignoring = ran("trap '' HUP; cd /; umask 022; ulimit -n 200");
    assert_eq!(ignoring, ("0022\n/\n200\n".to_owned(), true, false));
    if has_python("an ignored SIGCHLD") {
        let ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])";
        let mig_mps = sim.command(&[]).get_program().to_owned();
        let mut python = Command::new("python3");
        python.args(["-c", ignore]).arg(mig_mps);
        python.args(["run", "0.2", "--", "grep", "SigIgn", "/proc/self/status"]);
        let ran = Ran::of(python.env_clear().envs(sim.node.env())).ended(0);
        let mask = u64::from_str_radix(ran.stdout.trim().trim_start_matches("SigIgn:\t"), 16);
        assert_eq!(mask.unwrap() >> 16 & 1, 1, "{}", ran.stdout);
    }
}

/// A client with few open files would hang the device for everybody.
#[test]
fn a_program_gets_the_open_files_that_a_client_needs() {
    let sim = Sim::small();
    let show = "0.2 -- sh -c 'ulimit -n'";
    let raised = Ran::of(&mut sim.after("ulimit -Sn 24", show)).ended(0);
    assert_eq!(raised.stdout, "1024\n");
    let _ = Ran::of(&mut sim.after("ulimit -n 24", show)).ended(125);
    assert_eq!(sim.happened("device wedged"), 0);
}

/// At once: nobody tries to become a client, for which there is a limit of 10 s.
#[test]
fn nobody_tries_to_become_a_client_where_none_is_taken() {
    let sim = Sim::whole("");
    sim.hang("0");
    sim.node.fault("cuInit").every().fails(999).unwrap();
    sim.run(&["run", "0", "--", "true"]).ended(125);
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    sim.kill_daemon("0");
    sim.run(&["run", "0", "--", "true"]).ended(125);
    assert_eq!(sim.happened("fault"), 0);
    sim.node.node().clear_faults().unwrap();
    // Without the check the program runs, and outside MPS.
    let ran = sim.run(&["run", "0", "--no-check", "--", "cuda-app", "run", "0"]);
    assert_contains(&ran.ended(0).stdout, "mps no");
}

#[test]
fn a_full_device_is_waited_for() {
    let sim = Sim::whole("max-clients = 1");
    let client = sim.client("0");
    let mut waiting = sim.talk(&["run", "0", "--wait", "1m", "--", "true"]);
    waiting.await_text("waiting: device 0 is full");
    client.finish();
    waiting.end().ended(0);
}

#[test]
fn a_device_that_recovers_from_a_fault_is_waited_for() {
    let sim = Sim::whole("");
    let [_, faulty] = sim.faulty("0");
    let recovers = format!(
        "device 0 is recovering from a GPU fault and accepts no clients until pid {} (",
        faulty.pid()
    );
    let refused = sim.run(&["run", "0", "--", "true"]).ended(125).stderr;
    assert_contains(&refused, &format!("error: {recovers}"));
    assert_contains(&refused, "hint: wait for the device with --wait 5m");
    let mut waiting = sim.talk(&["run", "0", "--wait", "1m", "--", "cuda-app", "run", "0"]);
    waiting.await_text(&format!("waiting: {recovers}"));
    drop(faulty);
    assert_contains(&waiting.end().ended(0).stdout, "mps yes");
}

#[test]
fn another_users_turn_is_waited_for() {
    needs_root!();
    let sim = Sim::whole("");
    let client = sim.client("0");
    let queued = Ran::of(&mut sim.by_other(&["run", "0", "--", "true"])).ended(125);
    let serves = format!("device 0 is in use by root: pid {} (", client.pid());
    assert_contains(&queued.stderr, &format!("error: {serves}"));
    assert_contains(&queued.stderr, "hint: wait for the device with --wait 5m");
    let words = ["run", "0", "--wait", "1m", "--", "cuda-app", "hold"];
    let mut waiting = Dialogue::start(sim.by_other(&words));
    waiting.await_text(&format!("waiting: {serves}"));
    client.finish();
    let up = waiting.await_text("mps yes");
    assert_contains(&up, &format!("uid {NOBODY} "));
    assert_eq!(sim.device("0")["servers"][0]["uid"], NOBODY);
}

#[test]
fn a_users_device_and_a_groups_are_refused_to_others() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { serve = \"user:daemon\" }\n\
         [[gpu]]\nselect = { index = [1] }\nmig = false\nmps = { serve = \"group:daemon\" }\n";
    sim.up(profile, &[]).ended(0);
    let server = sim.device("0")["servers"][0]["pid"].clone();
    for device in ["0", "1"] {
        let _ = Ran::of(&mut sim.by_other(&["run", device, "--", "true"])).ended(125);
    }
    // Root's client would end the user's server.
    sim.run(&["run", "0", "--", "true"]).ended(125);
    assert_eq!(sim.device("0")["servers"][0]["pid"], server);
    let mut own = sim.by_other(&["run", "0", "--", "cuda-app", "run", "0"]);
    let ran = Ran::of(own.uid(1).gid(1)).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!(sim.device("0")["servers"][0]["pid"], server);
}

/// Returns the command by which a shell takes what `env` prints.
fn load_command(shell: &str, env: &str) -> String {
    match shell {
        "fish" => format!("{env} | source"),
        "csh" | "tcsh" => format!("eval \"`{env}`\""),
        _ => format!("eval \"$({env})\""),
    }
}

fn has_shell(shell: &str) -> bool {
    let is_there = Command::new(shell).args(["-c", "true"]).status().is_ok();
    let test = format!("{shell} with env");
    can_run(&test, is_there, &format!("install {shell}"))
}

/// Characters that shells take for something else.
#[test]
fn each_shell_takes_any_value() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(testkit::SMALL);
    let run_dir = sim.node.run_dir().with_file_name("r'u  n!x!$y\\z`w*");
    let run = |args: &[&str]| Ran::of(sim.command(args).env("MIG_MPS_RUN_DIR", &run_dir));
    run(&["up", profile.to_str().unwrap()]).ended(0);
    for shell in ["sh", "bash", "dash", "ksh", "zsh", "fish", "tcsh"] {
        if !has_shell(shell) {
            continue;
        }
        let env = format!("{} env 0.2 --shell {shell}", sim.program());
        let load = load_command(shell, &env);
        let mut command = Command::new(shell);
        command.args(["-c", &format!("{load}; printenv CUDA_MPS_PIPE_DIRECTORY")]);
        command.env_clear().envs(sim.node.env());
        command.env("MIG_MPS_RUN_DIR", &run_dir);
        let ran = Ran::of(&mut command).ended(0);
        let expected = run_dir.join("by-name/0.2/pipe").display().to_string();
        assert_eq!(ran.stdout.trim_end(), expected, "{shell}");
        assert_eq!(ran.stderr, "", "{shell}");
    }
    run(&["down"]).ended(0);
    let run_dir = sim.node.run_dir().with_file_name("r\nn");
    let run = |args: &[&str]| Ran::of(sim.command(args).env("MIG_MPS_RUN_DIR", &run_dir));
    run(&["up", profile.to_str().unwrap()]).ended(0);
    let refused = run(&["env", "0.2", "--shell", "csh"]).ended(1);
    assert_contains(
        &refused.stderr,
        "error: a command of csh cannot have a value with a line break\n",
    );
    assert_eq!(refused.stdout, "");
}

#[test]
fn each_shell_takes_its_environment() {
    let sim = Sim::small();
    // The shell, the one in `SHELL`, and options.
    for (shell, of_user, options) in [
        ("sh", "sh", ""),
        ("bash", "bash", ""),
        ("zsh", "zsh", ""),
        ("fish", "fish", ""),
        ("sh", "fish", "--shell sh"),
        ("bash", "fish", "--shell bash"),
        ("zsh", "fish", "--shell zsh"),
        ("fish", "sh", "--shell fish"),
        ("dash", "dash", ""),
        ("ksh", "ksh", ""),
        ("ksh", "fish", "--shell ksh"),
        ("tcsh", "tcsh", ""),
        ("tcsh", "csh", ""),
        ("tcsh", "sh", "--shell tcsh"),
    ] {
        if !has_shell(shell) {
            continue;
        }
        let env = format!("{} env 0.2 --threads 50 {options}", sim.program());
        let load = load_command(shell, &env);
        let mut command = Command::new(shell);
        command.args(["-c", &format!("{load}; cuda-app run 0")]);
        command.env_clear().envs(sim.node.env());
        command.env("SHELL", format!("/usr/bin/{of_user}"));
        command.env("CUDA_MPS_PROTOCOL_VERSION", "3");
        command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=600M");
        let ran = Ran::of(&mut command).ended(0);
        assert!(
            ran.stdout.contains(" sm 6 ") && ran.stdout.contains("mps yes"),
            "{shell}: {ran:?}"
        );
        assert!(!ran.stdout.contains("total 600"), "{shell}: {ran:?}");
        assert_eq!(ran.stderr, "", "{shell}");
    }
}

#[test]
fn env_has_formats_for_other_programs() {
    let sim = Sim::small();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let printed = |format: &str| {
        let text = sim.run(&["env", "0.2", "--format", format]).ended(0).stdout;
        text.replace(&uuid, "UUID")
            .replace(sim.node.run_dir().to_str().unwrap(), "RUN")
            .replace(sim.node.log_dir().to_str().unwrap(), "LOG")
    };
    assert_snapshot!(printed("dotenv"), @"
    CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    CUDA_MPS_LOG_DIRECTORY=LOG/UUID
    CUDA_VISIBLE_DEVICES=UUID
    APPTAINER_BINDPATH=RUN:RUN:ro
    APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    APPTAINERENV_CUDA_VISIBLE_DEVICES=UUID
    APPTAINERENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    APPTAINERENV_CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    SINGULARITY_BINDPATH=RUN:RUN:ro
    SINGULARITYENV_CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    SINGULARITYENV_CUDA_VISIBLE_DEVICES=UUID
    SINGULARITYENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    SINGULARITYENV_CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    ");
    assert_snapshot!(printed("slurm"), @"
    export CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    export CUDA_MPS_LOG_DIRECTORY=LOG/UUID
    export CUDA_VISIBLE_DEVICES=UUID
    export APPTAINER_BINDPATH=RUN:RUN:ro
    export APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    export APPTAINERENV_CUDA_VISIBLE_DEVICES=UUID
    export APPTAINERENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    export APPTAINERENV_CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    export SINGULARITY_BINDPATH=RUN:RUN:ro
    export SINGULARITYENV_CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    export SINGULARITYENV_CUDA_VISIBLE_DEVICES=UUID
    export SINGULARITYENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    export SINGULARITYENV_CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    unset CUDA_MPS_PROTOCOL_VERSION
    unset CUDA_MPS_SM_PARTITION
    unset CUDA_DEVICE_ORDER
    unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
    unset CUDA_MPS_CLIENT_PRIORITY
    unset CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING
    ");
    assert_snapshot!(sim.run(&["env", "0.7"]).ended(2).stderr, @r#"
    error: no daemon serves "0.7"
    hint: choose one of the devices with a daemon: 0.0, 0.2; `mig-mps list` shows all devices
    "#);
}

/// `docker run --env-file` takes quotes as a part of the value.
#[test]
fn dotenv_quotes_nothing() {
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(WHOLE);
    let dotenv = |run_dir: &str| {
        let run_dir = sim.node.dir().join(run_dir);
        let mut up = sim.command(&["up", profile.to_str().unwrap()]);
        Ran::of(up.env("MIG_MPS_RUN_DIR", &run_dir)).ended(0);
        let mut env = sim.command(&["env", "0", "--format", "dotenv"]);
        let ran = Ran::of(env.env("MIG_MPS_RUN_DIR", &run_dir));
        let mut down = sim.command(&["down"]);
        Ran::of(down.env("MIG_MPS_RUN_DIR", &run_dir)).ended(0);
        (ran, run_dir)
    };
    let (blank, run_dir) = dotenv("a b's");
    let line = format!(
        "CUDA_MPS_PIPE_DIRECTORY={}/by-name/0/pipe\n",
        run_dir.display()
    );
    assert!(blank.stdout.starts_with(&line), "{blank:?}");
    let (broken, _) = dotenv("a\nb");
    broken.ended(1);
}

/// Neither the driver nor a daemon is asked.
#[test]
fn env_and_run_without_check_ask_nobody() {
    let sim = Sim::small();
    // The daemon notes the end of a session after that has ended.
    wait_until("the sessions of up are closed", || {
        sim.happened("session open") == sim.happened("session closed")
    });
    let before = sim.node.events().len();
    sim.run(&["env", "0.2"]).ended(0);
    sim.run(&["run", "0.2", "--no-check", "--", "true"])
        .ended(0);
    assert_eq!(sim.node.events()[before..], []);
}

#[test]
fn memory_that_others_use_is_not_free() {
    let sim = Sim::whole("serve = \"all\"");
    let mut other = sim.app("0", &["hold", "--alloc", "100000"]);
    other.wait_up();
    let run = || sim.run(&["run", "--any", "--min-memory", "100G", "--", "true"]);
    let refused = run().ended(125).stderr;
    assert!(refused.starts_with("error: device 0 has "), "{refused}");
    assert_contains(
        &refused,
        " MiB for a program, less than 100G\nhint: wait for the device with --wait 5m",
    );
    other.finish();
    run().ended(0);
}

#[test]
fn any_is_the_one_with_the_fewest_clients_and_then_the_most_memory() {
    let sim = Sim::small();
    let chosen = |words: &[&str]| {
        let show = [
            "--",
            "sh",
            "-c",
            "basename $(dirname $CUDA_MPS_PIPE_DIRECTORY)",
        ];
        let ran = sim
            .run(&[&["run", "--any"], words, &show].concat())
            .ended(0);
        ran.stdout.trim().to_owned()
    };
    assert_eq!(chosen(&[]), "0.0");
    assert_eq!(chosen(&["--profile", "1g"]), "0.2");
    assert_eq!(chosen(&["--profile", "1g.10gb"]), "0.2");
    assert_eq!(chosen(&["--min-memory", "15G"]), "0.0");
    assert_eq!(chosen(&["--product", "A100.*80GB"]), "0.0");
    assert_eq!(chosen(&["0.2"]), "0.2");
    let client = sim.client("0.0");
    assert_eq!(chosen(&[]), "0.2");
    client.finish();
    // One that fails the check is passed over.
    sim.node.fault("cuInit").fails(999).unwrap();
    assert_eq!(chosen(&[]), "0.2");
    let refused = |words: &[&str]| {
        let ran = sim.run(&[&["run", "--any"], words, &["--", "true"]].concat());
        ran.ended(125).stderr
    };
    assert_snapshot!(refused(&["--profile", "3g"]), @"
    error: no device with a daemon matches
    hint: use --profile with one of the sizes on this node: 1g.10gb, 2g.20gb
    ");
    assert_snapshot!(refused(&["--product", "H100"]), @"
    error: no device with a daemon matches
    hint: run `mig-mps status` to see the devices
    ");
    for name in ["0.0", "0.2"] {
        sim.kill_daemon(name);
    }
    assert_snapshot!(refused(&[]), @"
    error: none of 2 devices accepts the program:
      device 0.0 accepts no programs: its daemon has died
      device 0.2 accepts no programs: its daemon has died
    hint: run `mig-mps status` to see the state of each device
    ");
    // Without a way to choose there is nothing to choose by.
    assert_eq!(
        sim.run(&["run", "0.0", "--profile", "1g", "--", "true"])
            .status,
        125
    );
}

#[test]
fn a_program_is_bound_to_the_cpus_near_its_gpu() {
    let sim = Sim::served("h200", 2, WHOLE);
    let allowed = |device: &str| {
        let words = [
            "run",
            device,
            "--bind",
            "near",
            "--",
            "grep",
            "Cpus_allowed_list",
            "/proc/self/status",
        ];
        sim.run(&words).ended(0).stdout
    };
    let near = |gpu: usize| {
        let devices = sim.node.dir().join("root/sys/bus/pci/devices");
        let mut lists: Vec<_> = std::fs::read_dir(devices).unwrap().flatten().collect();
        lists.sort_by_key(std::fs::DirEntry::path);
        let cpus = std::fs::read_to_string(lists[gpu].path().join("local_cpulist")).unwrap();
        // The kernel writes one CPU without a dash.
        let (first, last) = cpus.trim().split_once('-').unwrap();
        if first == last { first } else { cpus.trim() }.to_owned()
    };
    for (gpu, device) in ["0", "1"].iter().enumerate() {
        assert_eq!(
            allowed(device),
            format!("Cpus_allowed_list:\t{}\n", near(gpu))
        );
    }
    std::fs::remove_dir_all(sim.node.dir().join("root/sys")).unwrap();
    let refused = sim
        .run(&["run", "0", "--bind", "near", "--", "true"])
        .ended(125);
    assert!(
        refused
            .stderr
            .starts_with("error: cannot determine the CPUs near the GPU of device 0: "),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_program_without_a_name_is_named() {
    let sim = Sim::small();
    let ran = sim.run(&["run", "0.0", "--", ""]).ended(127);
    assert_contains(&ran.stderr, "error: cannot run '': ");
}

/// A device that is too small is not waited for, whoever is on it.
#[test]
fn a_device_that_never_fits_is_not_waited_for() {
    needs_root!();
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", name = \"small\" }, \
                   { profile = \"3g\", name = \"trainer\", mps = { serve = \"user:root\" } } ]\n";
    let sim = Sim::served("a100-80gb", 1, profile);
    let busy = sim.client("small");
    let run = [
        "run",
        "--any",
        "--min-memory",
        "30G",
        "--wait",
        "2s",
        "--",
        "true",
    ];
    let ran = Ran::of(&mut sim.by_other(&run)).ended(125);
    assert!(!ran.stderr.contains("--wait"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("waiting"), "{}", ran.stderr);
    assert_contains(&ran.stderr, "device small has ");
    assert_contains(&ran.stderr, "less than 30G");
    assert_contains(&ran.stderr, "device trainer serves only user root");
    assert!(busy.finish().status.success());
}
