//! A system that gives too little: processes, or room for files.

use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{CLOSE_INHERITED, NOBODY, Ran, SMALL, Sim, in_state, is_alive, needs_root};

/// The same command as another user, with so many processes and threads for that user.
fn with_processes(command: &Command, user: u32, processes: usize) -> Command {
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--nproc={processes}"))
        .arg(command.get_program())
        .args(command.get_args())
        .uid(user)
        .gid(user)
        .env_clear();
    for (name, value) in command.get_envs() {
        limited.envs(value.map(|value| (name, value)));
    }
    limited
}

#[test]
fn too_few_processes_end_no_change_half_way() {
    needs_root!();
    // Nobody else has processes of this user.
    let user = 61_000 + std::process::id() % 4000;
    let sim = Sim::with("h200", 2);
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
    let profile = profile.to_str().unwrap();
    let own = sim.node.dir().join("own");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(user), Some(user)).unwrap();
    let run_dir = own.join("mig-mps");
    let command = |args: &[&str]| {
        let mut command = sim.by_nobody(args);
        command
            .env("XDG_RUNTIME_DIR", &own)
            .env("XDG_STATE_HOME", own.join("state"));
        command.uid(user).gid(user);
        command
    };
    let records = || {
        let entries = std::fs::read_dir(&run_dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().join("device.json").exists())
            .count()
    };
    let (mut done, mut failed) = (0, 0);
    let mut processes = 1;
    while done < 3 {
        let up = ["up", profile, "--yes"];
        let ran = Ran::of(&mut with_processes(&command(&up), user, processes));
        let said = format!("{processes} processes: {}{}", ran.stdout, ran.stderr);
        assert!([0, 1].contains(&ran.status), "{} with {said}", ran.status);
        if ran.status == 0 {
            done += 1;
            assert_eq!(records(), 2, "{said}");
        } else {
            failed += 1;
            done = 0;
            let has_journal = run_dir.join("journal.json").exists();
            assert_eq!(
                has_journal,
                ran.stderr.contains("the journal stays"),
                "{said}"
            );
            assert!(records() == 0 || has_journal, "{said}");
            Ran::of(&mut command(&up)).ended(0);
        }
        let down = Ran::of(&mut with_processes(&command(&["down"]), user, processes));
        let said = format!("{processes} processes: {}{}", down.stdout, down.stderr);
        // It refuses where the daemons cannot be asked for their clients, and does not take them for dead.
        let refuses = down
            .stderr
            .contains("cannot be asked for its clients: cannot start");
        let expected = if refuses { &[4][..] } else { &[0, 1] };
        assert!(
            expected.contains(&down.status),
            "{} with {said}",
            down.status
        );
        Ran::of(&mut command(&["down"])).ended(0);
        assert_eq!(records(), 0, "{said}");
        assert!(!run_dir.join("journal.json").exists(), "{said}");
        processes += 1;
    }
    assert!(failed > 3, "the limit was met {failed} times");
}

/// Everything a change leaves where the run directory is a file system of its own with these options, and what is left
/// after the next one.
fn on_a_small_disk(sim: &Sim, options: &str) -> Ran {
    let profile = sim.profile(SMALL);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let script = format!(
        "run={run}; mkdir -p $run; mount -t tmpfs -o mode=0755,{options} none $run || exit 99
         {program} up {profile} --yes >&2; echo status $?; cd $run; find . | sort; cd /
         mount -o remount,nr_inodes=10000,size=16m $run || exit 99
         {program} up {profile} --yes >/dev/null 2>&1; echo then $?
         {program} down --force --destroy-mig --yes >/dev/null 2>&1; echo down $?
         cd $run; find . -type f | grep -v lock | grep -v node.json",
        run = sim.node.run_dir().display(),
        profile = profile.display(),
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .env_clear()
        .envs(sim.node.env());
    Ran::of(&mut command)
}

#[test]
fn a_full_disk_leaves_no_half_made_file_and_no_record_unsaid() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let inodes = (2..40).map(|count| format!("size=1m,nr_inodes={count}"));
    let pages = (1..12).map(|count| format!("size={}k,nr_inodes=1000", count * 4));
    let (mut done, mut failed) = (0, 0);
    for options in inodes.chain(pages) {
        let ran = on_a_small_disk(&sim, &options);
        let said = format!("{options}: {}{}", ran.stdout, ran.stderr);
        assert!(!ran.stdout.contains(".new"), "{said}");
        let (first, rest) = ran.stdout.split_once('\n').unwrap();
        let (left, after) = rest.split_once("then ").unwrap();
        match first {
            "status 0" => done += 1,
            "status 1" => {
                failed += 1;
                // NVIDIA's programs only say that they cannot use the directory.
                let why = ["No space left on device", "did not start"];
                assert!(why.iter().any(|why| ran.stderr.contains(why)), "{said}");
                if left.contains("device.json") {
                    let names_it = ["not undone: ", "missing: "]
                        .iter()
                        .any(|word| ran.stderr.contains(word));
                    assert!(names_it, "{said}");
                }
            }
            other => panic!("{other} with {said}"),
        }
        assert_eq!(after, "0\ndown 0\n", "{said}");
    }
    assert!(done > 2 && failed > 10, "{done} done, {failed} failed");
}

/// A daemon with the limits of root's shell is ended by the kernel after so many minutes, with all its clients.
#[test]
fn daemons_do_not_inherit_the_limits_of_the_shell() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
    // Without CAP_SYS_RESOURCE nobody lifts a hard limit, and the change is refused.
    let can_lift = testkit::shell("ulimit -t 600; ulimit -t unlimited").status == 0;
    let (kind, end) = if can_lift { ("", "") } else { ("-S", ":") };
    let shell = format!(
        "ulimit {kind} -t 600; ulimit {kind} -f 1000; exec chrt -i 0 nice -n 5 prlimit --sigpending=7{end} \"$@\""
    );
    let limited = |args: &[&str]| {
        let command = sim.command(args);
        let mut limited = Command::new("/bin/sh");
        limited
            .args(["-c", &shell, "sh"])
            .arg(command.get_program());
        limited.args(command.get_args()).env_clear();
        Ran::of(limited.envs(sim.node.env())).ended(0)
    };
    let first = std::fs::read_to_string("/proc/1/limits").unwrap();
    let row = |limits: &str, name: &str| {
        let row = limits.lines().find(|row| row.starts_with(name)).unwrap();
        let words: Vec<&str> = row[name.len()..].split_whitespace().collect();
        (words[0].to_owned(), words[1].to_owned())
    };
    let both = |limit: &str| (limit.to_owned(), limit.to_owned());
    for args in [
        &["up", profile.to_str().unwrap()][..],
        &["restart", "0", "--yes"],
    ] {
        limited(args);
        let device = sim.device("0");
        for pid in [&device["daemon_pid"], &device["servers"][0]["pid"]] {
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            assert_eq!(row(&limits, "Max cpu time"), both("unlimited"));
            assert_eq!(row(&limits, "Max file size"), both("unlimited"));
            assert_eq!(row(&limits, "Max core file size").0, "0");
            let signals = row(&first, "Max pending signals").0;
            assert_eq!(row(&limits, "Max pending signals").0, signals);
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let rest = stat.rsplit(')').next().unwrap();
            let nice = rest.split_whitespace().nth(16);
            assert_eq!(nice, Some("0"), "{stat}");
            let policy = rest.split_whitespace().nth(38);
            assert_eq!(policy, Some("0"), "{stat}");
        }
    }
    // Only a start needs that: this limit is an error like any other, and ends no change half-way.
    let command = sim.command(&["down", "--force"]);
    let mut down = Command::new("prlimit");
    down.arg("--fsize=1000").arg(command.get_program());
    down.args(command.get_args()).env_clear();
    Ran::of(down.envs(sim.node.env())).ended(0);
}

#[test]
fn a_limit_that_cannot_be_lifted_is_refused_before_anything_is_stopped() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
    let profile = profile.to_str().unwrap();
    let limited = |limit: &[&str], args: &[&str]| {
        let command = sim.by_nobody(args);
        let mut limited = Command::new(limit[0]);
        limited.args(&limit[1..]).arg(command.get_program());
        limited.args(command.get_args()).uid(NOBODY).gid(NOBODY);
        limited.env_clear();
        for (name, value) in command.get_envs() {
            limited.envs(value.map(|value| (name, value)));
        }
        Ran::of(&mut limited)
    };
    Ran::of(&mut sim.by_nobody(&["up", profile])).ended(0);
    for (limit, said) in [
        (
            &["prlimit", "--cpu=600"][..],
            "error: a daemon would inherit a limit of CPU time (RLIMIT_CPU): 600 s\nhint: run `ulimit -t unlimited`",
        ),
        (
            &["prlimit", "--fsize=10240"],
            "error: a daemon would inherit a limit of the size of files (RLIMIT_FSIZE): 10 KiB\nhint: run `ulimit -f unlimited`",
        ),
        (
            &["nice", "-n", "5"],
            "error: a daemon would inherit the priority of this shell: nice 5\nhint: use a shell ",
        ),
        (
            &["chrt", "-i", "0"],
            "error: a daemon would inherit the scheduling policy of this shell\nhint: use a shell ",
        ),
    ] {
        let ran = limited(limit, &["restart", "0", "--yes"]).ended(1);
        assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    }
    assert_eq!(sim.happened("daemon end"), 0);
    // Where only the soft limit is low it is raised.
    limited(
        &["prlimit", "--cpu=600:unlimited"],
        &["restart", "0", "--yes"],
    )
    .ended(0);
    // An end needs none of it.
    limited(&["prlimit", "--cpu=600"], &["down"]).ended(0);
}

/// The limit that the profile asks for is tried before anything is stopped, not where the daemon starts.
#[test]
fn more_open_files_than_are_allowed_are_refused_before_anything_is_stopped() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let up = |files: u64| {
        let nofile = format!("nofile = {files}");
        let profile = sim.profile(&testkit::whole(&nofile));
        let command = sim.by_nobody(&["up", profile.to_str().unwrap(), "--yes"]);
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=20000:20000").args(["setpriv"]);
        limited.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        limited
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear();
        for (name, value) in command.get_envs() {
            limited.envs(value.map(|value| (name, value)));
        }
        Ran::of(&mut limited)
    };
    up(20000).ended(0);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    let mut refused = vec![(20001, "hint: run `ulimit -Hn` to see the maximum ")];
    // A profile may ask for as many.
    if most < 1 << 30 {
        refused.push((
            most + 1,
            "hint: run `sysctl fs.nr_open` to see the maximum ",
        ));
    }
    for (files, hint) in refused {
        let ran = up(files).ended(1);
        let said = format!(
            "error: cannot start the daemon of device 0\n  cause: the system does not allow {files} open files: Operation not permitted\n{hint}"
        );
        assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
    }
    assert_eq!(sim.happened("daemon end"), 0);
}

/// At a limit of memory this program or a daemon aborts wherever it is. A soft limit is no more than a default.
#[test]
fn limits_of_memory_are_raised_for_what_is_started_too() {
    let sim = Sim::with("a100-80gb", 1);
    let seven = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    let profile = sim.profile(seven);
    let limited = |limit: &str, args: &[&str]| {
        let command = sim.command(args);
        let mut limited = Command::new("prlimit");
        limited.arg(limit).arg(command.get_program());
        limited.args(command.get_args());
        Ran::of(limited.env_clear().envs(sim.node.env()))
    };
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    limited("--as=4000000000", &["status"]).ended(0);
    for limit in [
        "--as=200000000:unlimited",
        "--data=50000000:unlimited",
        "--stack=65536:unlimited",
    ] {
        limited(limit, &up).ended(0);
        assert_eq!(testkit::in_state(&sim.status(), "ready").len(), 7);
        let name = match &limit[2..4] {
            "as" => "Max address space",
            "da" => "Max data size",
            _ => "Max stack size",
        };
        let daemon = sim.device("0.0")["daemon_pid"].clone();
        let limits = std::fs::read_to_string(format!("/proc/{daemon}/limits")).unwrap();
        let row = limits.lines().find(|row| row.starts_with(name)).unwrap();
        assert!(!row.contains("65536 ") && !row.contains("00000 "), "{row}");
        limited(limit, &["down", "--destroy-mig", "--yes"]).ended(0);
    }
}

/// A file that cannot be opened would seem not to be there, and a living daemon would seem dead.
#[test]
fn few_open_files_make_no_daemon_dead() {
    let sim = Sim::with("h200", 2);
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
    let profile = profile.to_str().unwrap();
    sim.run(&["up", profile]).ended(0);
    let limited = |limit: String, args: &[&str]| {
        let command = sim.command(args);
        let mut limited = Command::new("/bin/sh");
        let script = format!("{CLOSE_INHERITED}; exec prlimit \"$@\"");
        limited.args(["-c", &script, "sh"]);
        limited.arg(format!("--nofile={limit}"));
        limited.arg(command.get_program()).args(command.get_args());
        Ran::of(limited.env_clear().envs(sim.node.env()))
    };
    for files in 4..40 {
        let ran = limited(format!("{files}:4096"), &["plan", profile]);
        assert!(ran.stderr.starts_with("Nothing to do"), "{files}: {ran:?}");
        let status = limited(format!("{files}:4096"), &["status", "--json"]).json();
        assert_eq!(in_state(&status, "ready"), ["0", "1"], "{files}");
    }
    needs_root!();
    // A limit that cannot be raised ends the program before it says anything untrue.
    let runs = sim.node.run_dir();
    let command = sim.by_nobody(&["status"]);
    let mut status = Command::new("prlimit");
    status.args(["--nofile=16:16"]).arg(command.get_program());
    status.arg("status").uid(NOBODY).gid(NOBODY).env_clear();
    status.envs(sim.node.env()).env("MIG_MPS_RUN_DIR", runs);
    let ran = Ran::of(&mut status).ended(1);
    assert_eq!(
        ran.stderr,
        "error: this process may have only 16 files open, but needs 64\nhint: run `ulimit -n 64`\n"
    );
}

/// Runs a program for which `pidfd_open` (434 on every architecture) fails with ENFILE (23).
const WITHOUT_PIDFD: &str = r"
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x50000 | 23), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
program = Program(len(rules), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program)) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// A full table of files must not make a daemon, its directory and its record disappear from each other.
#[test]
fn a_process_that_cannot_be_opened_is_not_taken_for_gone() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&testkit::whole(""), &["--yes"]).ended(0);
    let device = sim.device("0");
    let command = sim.command(&["down", "--force", "--yes"]);
    let mut down = Command::new("python3");
    down.args(["-c", WITHOUT_PIDFD]).arg(command.get_program());
    down.args(command.get_args())
        .env_clear()
        .envs(sim.node.env());
    let ran = Ran::of(&mut down).ended(1);
    let said = "cannot tell if process ";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(is_alive(&device["daemon_pid"]), "{ran:?}");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["down"]).ended(0);
    assert!(!is_alive(&device["daemon_pid"]));
}

/// Naming a directory that others use as well loses nothing of theirs.
#[test]
fn what_others_keep_in_the_run_directory_stays() {
    let sim = Sim::served("h200", 1, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    let run_dir = sim.node.run_dir();
    let record = std::fs::read_dir(run_dir).unwrap().flatten();
    let record = record
        .map(|entry| entry.path().join("device.json"))
        .find(|file| file.exists());
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record.unwrap()).unwrap()).unwrap();
    let journal = serde_json::json!({
        "command": "mig-mps up", "since": record["since"], "pid": 1, "start-time": 1, "boot-id": "",
        "units": [], "taken": [],
    });
    std::fs::create_dir_all(run_dir.join("others/empty")).unwrap();
    std::fs::create_dir(run_dir.join("theirs")).unwrap();
    for theirs in ["settings.new", "others/half.new"] {
        std::fs::write(run_dir.join(theirs), "").unwrap();
    }
    for ours in ["node.json.new", "journal.json.new"] {
        std::fs::write(run_dir.join(ours), "").unwrap();
    }
    std::fs::create_dir(run_dir.join("GPU-1")).unwrap();
    std::fs::write(run_dir.join("journal.json"), journal.to_string()).unwrap();
    sim.run(&["down"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock", "others", "settings.new", "theirs"]);
    assert!(run_dir.join("others/half.new").exists());
}
