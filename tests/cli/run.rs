//! Programs meet devices: `run` and `env`.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use testkit::{
    App, NOBODY, Ran, SMALL, Sim, WHOLE, assert_contains, can_run, has_python, hearing, needs_root,
    whole,
};

fn small() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    sim
}

/// A GPU that serves one user at a time.
fn one_gpu() -> Sim {
    let sim = Sim::with("h200", 1);
    sim.up(WHOLE, &[]).ended(0);
    sim
}

#[test]
fn the_program_is_a_client_of_the_right_server_in_the_same_process() {
    let sim = small();
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
    let sim = one_gpu();
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
    let refused = |option: &str, value: &str| {
        let ran = sim.run(&["run", "0", option, value, "--", "true"]);
        ran.ended(125).stderr
    };
    assert_snapshot!(refused("--threads", "60"), @"
    error: --threads 60 is more than the device allows: its active-thread-percentage is 50
    hint: use --threads 50, or let the device have more: mig-mps set DEVICE active-thread-percentage=60
    ");
    assert_snapshot!(refused("--memory", "5G"), @"
    error: --memory 5G is more than the device allows: its pinned-memory-limit is 4G
    hint: use --memory 4G, or let the device have more: mig-mps set DEVICE pinned-memory-limit=5G
    ");
    sim.run(&["run", "0", "--threads", "50", "--", "true"])
        .ended(0);
}

#[test]
fn the_exit_status_is_the_programs_or_says_why_there_was_none() {
    let sim = small();
    let run = |words: &[&str]| sim.run(&[&["run", "0.2", "--"], words].concat());
    assert_eq!(run(&["sh", "-c", "exit 2"]).status, 2);
    assert_snapshot!(run(&["no-such-program"]).ended(127).stderr, @"
    error: cannot run no-such-program: No such file or directory
    hint: it is not in PATH: install it, or give its path
    ");
    assert_snapshot!(run(&["/etc/passwd"]).ended(126).stderr, @"
    error: cannot run /etc/passwd: Permission denied
    hint: chmod +x /etc/passwd, if it is a program
    ");
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
    let nearest = sim.run(&["run", "0", "--", "true"]).stderr;
    assert!(nearest.starts_with("error: \"0\" can mean 0.0 or 0.2\nhint: name one device"));
    let several = sim.run(&["run", "0.*", "--", "true"]).stderr;
    assert!(several.starts_with("error: 0.* means several devices: 0.0, 0.2\nhint: "));
    assert_eq!(sim.run(&["run", "--help"]).status, 0);
}

/// Signals that are ignored stay ignored, as under `nohup`; no others are, and the umask, the directory and the limit of
/// open files are the caller's.
#[test]
fn the_program_has_the_callers_surroundings() {
    let sim = small();
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
    let sim = small();
    let show = "0.2 -- sh -c 'ulimit -n'";
    let raised = Ran::of(&mut sim.after("ulimit -Sn 24", show)).ended(0);
    assert_eq!(raised.stdout, "1024\n");
    let refused = Ran::of(&mut sim.after("ulimit -n 24", show)).ended(125);
    assert_snapshot!(refused.stderr, @"
    error: this process may have 24 files open, and needs 64
    hint: ulimit -n 64 allows as many
    ");
    assert_eq!(sim.happened("device wedged"), 0);
}

#[test]
fn a_user_without_a_name_is_refused() {
    let sim = small();
    let unmapped = Command::new("unshare").args(["-U", "true"]).status();
    let can = unmapped.is_ok_and(|status| status.success());
    if !can_run(
        "a_user_without_a_name_is_refused",
        can,
        "allow user namespaces",
    ) {
        return;
    }
    let mig_mps = sim.command(&[]).get_program().to_owned();
    for args in [&["run", "0.2", "--", "true"][..], &["verify"]] {
        let mut unshare = Command::new("unshare");
        unshare.arg("-U").arg(&mig_mps).args(args);
        let ran = Ran::of(unshare.env_clear().envs(sim.node.env()));
        assert!(
            ran.stderr.contains("is not mapped in its user namespace"),
            "{ran:?}"
        );
    }
}

#[test]
fn devices_that_take_no_client_are_refused() {
    let sim = one_gpu();
    let refused = || {
        let begun = Instant::now();
        let ran = sim.run(&["run", "0", "--", "true"]).ended(125);
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "{:?}",
            begun.elapsed()
        );
        ran.stderr
    };
    sim.hang("0");
    assert_snapshot!(refused(), @"
    error: 0 hangs: every new client waits without end
    hint: mig-mps restart 0 starts a new daemon
    ");
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    let daemon = sim.device("0")["daemon_pid"].as_u64().unwrap();
    testkit::shell(format!("kill -9 {daemon}")).ended(0);
    assert_snapshot!(refused(), @"
    error: no daemon serves 0: its daemon is dead
    hint: mig-mps restart 0 starts a new daemon
    ");
    // Without the check the program runs, and outside MPS.
    let ran = sim.run(&["run", "0", "--no-check", "--", "cuda-app", "run", "0"]);
    assert!(ran.ended(0).stdout.contains("mps no"));
}

/// Whatever the daemon seems to be, CUDA has the last word.
#[test]
fn what_cuda_says_counts() {
    let sim = one_gpu();
    let refused = |code: u32| {
        sim.node.fault("cuInit").fails(code).unwrap();
        sim.run(&["run", "0", "--", "true"]).ended(125).stderr
    };
    assert_snapshot!(refused(999), @"
    error: 0: cuInit fails with error 999 (CUDA_ERROR_UNKNOWN)
    hint: mig-mps doctor finds known causes
    ");
    assert_snapshot!(refused(100), @"
    error: 0: cuInit fails with error 100 (CUDA_ERROR_NO_DEVICE)
    hint: the device is gone, or the driver does not show it here: mig-mps status
    ");
    let mut command = sim.command(&["run", "0", "--", "true"]);
    let ran = Ran::of(command.env("MIG_MPS_CUDA_LIBRARY", "/no/libcuda.so.1"));
    assert_snapshot!(ran.ended(125).stderr, @"
    error: 0: libcuda cannot be loaded: /no/libcuda.so.1: cannot open shared object file: No such file or directory
    hint: install the NVIDIA driver, or set MIG_MPS_CUDA_LIBRARY to the path of libcuda.so.1
    ");
}

#[test]
fn a_full_device_is_waited_for() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole("max-clients = 1"), &["--yes"]).ended(0);
    let client = sim.client("0");
    let full = sim.run(&["run", "0", "--", "true"]).ended(125);
    assert_snapshot!(full.stderr, @"
    error: 0 has 1 client, and takes no more
    hint: wait for it with --wait 5m, or use another device: mig-mps status
    ");
    let late = sim
        .run(&["run", "0", "--wait", "0.3", "--", "true"])
        .ended(124);
    assert_snapshot!(late.stderr, @"
    waiting: 0 has 1 client, and takes no more
    error: the time of --wait is over: 0 has 1 client, and takes no more
    hint: wait longer, or use another device: mig-mps status
    ");
    let mut waiting = sim.command(&["run", "0", "--wait", "1m", "--", "true"]);
    let mut waiting = waiting.stderr(Stdio::piped()).spawn().unwrap();
    assert!(waiting.try_wait().unwrap().is_none());
    client.finish();
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn another_users_turn_is_waited_for() {
    needs_root!();
    let sim = one_gpu();
    let client = sim.client("0");
    let pid = client.pid().to_string();
    let queued = Ran::of(&mut sim.by_other(&["run", "0", "--", "true"])).ended(125);
    let queued = queued.stderr.replace(&pid, "PID");
    assert!(
        queued.starts_with("error: 0 serves root now: pid PID ("),
        "{queued}"
    );
    assert_contains(&queued, "hint: wait for it with --wait 5m");
    let words = ["run", "0", "--wait", "1m", "--", "cuda-app", "hold"];
    let mut command = sim.by_other(&words);
    command.stderr(Stdio::piped());
    let mut waiting = App::start(command);
    client.finish();
    let up = waiting.wait_up();
    assert!(
        up.contains(&format!("uid {NOBODY} ")) && up.ends_with("mps yes"),
        "{up}"
    );
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
    let refused = |device: &str| {
        let ran = Ran::of(&mut sim.by_other(&["run", device, "--", "true"]));
        ran.ended(125).stderr
    };
    assert_snapshot!(refused("0"), @"
    error: only daemon may use 0, and this is nobody
    hint: run it as that user (sudo -u daemon COMMAND), or use another device: mig-mps status
    ");
    assert_snapshot!(refused("1"), @"
    error: only the group daemon may use 1, and this is nobody
    hint: run it as a user of that group, or use another device: mig-mps status
    ");
    // Root's client would end the user's server.
    assert_snapshot!(sim.run(&["run", "0", "--", "true"]).ended(125).stderr, @"
    error: only daemon may use 0, and this is root
    hint: run it as that user (runuser -u daemon -- COMMAND), or use another device: mig-mps status
    ");
    assert_eq!(sim.device("0")["servers"][0]["pid"], server);
    let mut own = sim.by_other(&["run", "0", "--", "cuda-app", "run", "0"]);
    let ran = Ran::of(own.uid(1).gid(1)).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!(sim.device("0")["servers"][0]["pid"], server);
}

#[test]
fn each_shell_takes_its_environment() {
    let sim = small();
    let mig_mps = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let commands = [
        ("sh", format!("eval \"$({mig_mps} env 0.2 --threads 50)\"")),
        (
            "bash",
            format!("eval \"$({mig_mps} env 0.2 --threads 50)\""),
        ),
        ("zsh", format!("eval \"$({mig_mps} env 0.2 --threads 50)\"")),
        ("fish", format!("{mig_mps} env 0.2 --threads 50 | source")),
    ];
    for (shell, load) in commands {
        let is_there = Command::new(shell).args(["-c", "true"]).status().is_ok();
        if !can_run(
            &format!("{shell} with env"),
            is_there,
            &format!("install {shell}"),
        ) {
            continue;
        }
        let script = format!("{load}; cuda-app run 0");
        let mut command = Command::new(shell);
        command
            .args(["-c", &script])
            .env_clear()
            .envs(sim.node.env());
        command.env("SHELL", format!("/usr/bin/{shell}"));
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
    let sim = small();
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
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    ");
    assert_snapshot!(printed("slurm"), @"
    export CUDA_MPS_PIPE_DIRECTORY=RUN/by-name/0.2/pipe
    export CUDA_MPS_LOG_DIRECTORY=LOG/UUID
    export CUDA_VISIBLE_DEVICES=UUID
    unset CUDA_MPS_PROTOCOL_VERSION
    unset CUDA_MPS_SM_PARTITION
    unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
    unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    unset CUDA_MPS_CLIENT_PRIORITY
    ");
    assert_snapshot!(sim.run(&["env", "0.7"]).ended(2).stderr, @r#"
    error: no daemon serves "0.7"
    hint: the devices with a daemon are 0.0, 0.2; mig-mps list shows all devices
    "#);
}

/// `docker run --env-file` takes quotes as a part of the value.
#[test]
fn dotenv_quotes_nothing() {
    let sim = Sim::with("h200", 1);
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
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
    assert_snapshot!(broken.ended(1).stderr, @"
    error: a line of NAME=value cannot have a value with a line break
    hint: set MIG_MPS_RUN_DIR to a directory whose name has none, and apply the profile again
    ");
}

/// Neither the driver nor a daemon is asked.
#[test]
fn env_and_run_without_check_ask_nobody() {
    let sim = small();
    let before = sim.node.events().len();
    sim.run(&["env", "0.2"]).ended(0);
    sim.run(&["run", "0.2", "--no-check", "--", "true"])
        .ended(0);
    assert_eq!(sim.node.events()[before..], []);
}

#[test]
fn any_is_the_one_with_the_fewest_clients_and_then_the_most_memory() {
    let sim = small();
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
    hint: mig-mps status shows the devices
    ");
    assert_snapshot!(refused(&["--product", "H100"]), @"
    error: no device with a daemon matches
    hint: mig-mps status shows the devices
    ");
    for name in ["0.0", "0.2"] {
        let daemon = sim.device(name)["daemon_pid"].as_u64().unwrap();
        testkit::shell(format!("kill -9 {daemon}")).ended(0);
    }
    assert_snapshot!(refused(&[]), @"
    error: none of 2 devices takes a program now:
      no daemon serves 0.0: its daemon is dead
      no daemon serves 0.2: its daemon is dead
    hint: mig-mps status shows the state of each device
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
    let sim = Sim::with("h200", 2);
    sim.up(WHOLE, &[]).ended(0);
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
            .starts_with("error: cannot tell the CPUs near the GPU of 0: "),
        "{}",
        refused.stderr
    );
}
