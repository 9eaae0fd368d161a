//! Users and groups that the name service does not know any more, or knows by another id, or that it does not name. These
//! tests run as root, and give the program another /etc/passwd and /etc/group.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use serde_json::Value;

use testkit::{NOBODY, Ran, Sim, assert_contains, needs_root, whole};

/// A node whose only device serves these users.
fn serving(serve: &str) -> Sim {
    Sim::whole(&format!("serve = \"{serve}\""))
}

/// Runs `mig-mps` where a file of the system is another one, which a shell makes of it. In the script `$new` is its path.
fn where_file_is(sim: &Sim, file: &str, script: &str, args: &[&str]) -> Ran {
    let plain = sim.command(args);
    let mut shell = Command::new("unshare");
    let script = format!(
        "printf 'passwd: files\\ngroup: files\\n' > \"$new.nss\"; mount --bind \"$new.nss\" /etc/nsswitch.conf; \
         {script}; mount --bind \"$new\" {file}; exec \"$0\" \"$@\""
    );
    shell.args(["-m", "--propagation", "private", "sh", "-ec", &script]);
    shell.arg(plain.get_program()).args(plain.get_args());
    shell.env_clear();
    for (name, value) in plain.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    shell.env("new", sim.node.dir().join("accounts"));
    Ran::of(&mut shell)
}

/// Without the user `nobody`.
fn without_nobody(sim: &Sim, args: &[&str]) -> Ran {
    let script = "sed /^nobody:/d /etc/passwd > \"$new\"";
    where_file_is(sim, "/etc/passwd", script, args)
}

/// With a name service that fails: what it reads is no file.
fn without_answers(sim: &Sim, args: &[&str]) -> Ran {
    let socket = sim.pipe("0") + "/control";
    let keep = sim.node.dir().join("a-socket");
    if !keep.exists() {
        fs::hard_link(socket, &keep).unwrap();
    }
    let script = format!("new='{}'; mount --bind $new /etc/group", keep.display());
    where_file_is(sim, "/etc/passwd", &script, args)
}

fn record(sim: &Sim) -> Value {
    let path = sim.node.run_dir().join(sim.uuid("0")).join("device.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The prolog becomes the job's user, and reaches the daemon by a group that is not the user's first.
#[test]
fn a_job_of_a_member_of_the_group_begins() {
    needs_root!();
    let sim = serving("group:users");
    let prolog_with_members = |members: &str| {
        let script = format!(
            "export SLURM_JOB_ID=7 SLURM_JOB_UID={NOBODY} SLURM_JOB_GPUS=0 CUDA_VISIBLE_DEVICES={}; \
             sed 's/^users:.*/&{members}/' /etc/group > \"$new\"",
            sim.uuid("0")
        );
        where_file_is(&sim, "/etc/group", &script, &["slurm", "prolog"])
    };
    assert_contains(
        &prolog_with_members("").ended(1).stdout,
        "device 0 serves only the group users, not user nobody",
    );
    assert_eq!(prolog_with_members("nobody").ended(0).stdout, "");
}

#[test]
fn a_daemon_whose_user_is_gone_goes_on() {
    needs_root!();
    let sim = serving("user:nobody");
    let before = sim.device("0");
    let refused = without_nobody(&sim, &["restart", "0", "--yes"]).ended(1);
    assert_snapshot!(refused.stderr, @r#"
    error: cannot start the daemon of device 0
      cause: there is no user "nobody" on this machine
    hint: create the user, or change the profile
    "#);
    let dry = without_nobody(&sim, &["restart", "0", "--dry-run"]).ended(1);
    assert_eq!(dry.stderr, refused.stderr);
    assert_eq!(sim.device("0")["daemon_pid"], before["daemon_pid"]);
    assert_eq!(sim.device("0")["state"], "ready");
    assert_eq!(sim.happened("daemon end"), 0);
    // What hangs without clients is as it was, too.
    sim.hang("0");
    let servers = sim.device("0")["servers"].clone();
    let healed = without_nobody(&sim, &["heal"]).ended(1);
    assert_contains(&healed.stderr, "there is no user \"nobody\"");
    assert_eq!(sim.device("0")["servers"], servers);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
    // `heal` goes on with the others, and the next one starts it.
    sim.kill_daemon("0");
    without_nobody(&sim, &["heal"]).ended(1);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
}

/// The problems of `status`, as ids and texts.
fn problems(status: &Value) -> Vec<(String, String)> {
    let problems = status["problems"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    problems
        .map(|problem| (text(&problem["id"]), text(&problem["what"])))
        .collect()
}

/// A name that belongs to another uid or gid, with the files of accounts in which it does.
const RENUMBERED: [(&str, &str, &str); 2] = [
    (
        "user:nobody",
        "/etc/passwd",
        "sed s/^nobody:x:65534:/nobody:x:61000:/ /etc/passwd > \"$new\"",
    ),
    (
        "group:nogroup",
        "/etc/group",
        "sed s/^nogroup:x:65534:/nogroup:x:61000:/ /etc/group > \"$new\"",
    ),
];

#[test]
fn a_name_with_another_id_is_found_and_up_serves_the_new_one() {
    needs_root!();
    for (serve, file, script) in RENUMBERED {
        let sim = serving(serve);
        let before = sim.device("0");
        let ran = |args: &[&str]| where_file_is(&sim, file, script, args);
        let (what, name) = serve.split_once(':').unwrap();
        let changed =
            format!("the {what} {name} now has the id 61000, but the daemon serves the id 65534");
        let status = ran(&["status", "--json"]).json();
        let found = problems(&status);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "user-changed");
        let remedy = "run `mig-mps restart 0` to start a daemon for the new id";
        assert_eq!(found[0].1, format!("{changed}: {remedy}"));
        ran(&["status", "--exit-code"]).ended(3);
        assert_contains(&ran(&["doctor"]).ended(3).stdout, &changed);
        // What nobody has asked for serves nobody new.
        sim.kill_daemon("0");
        let healed = ran(&["heal"]).ended(1);
        assert_contains(&healed.stderr, &changed);
        sim.run(&["heal"]).ended(0);
        let profile = sim.profile(&whole(&format!("serve = \"{serve}\"")));
        let plan = ran(&["plan", profile.to_str().unwrap(), "--exit-code"]).ended(3);
        assert_contains(&plan.stdout, &changed);
        let up = ["up", profile.to_str().unwrap(), "--yes"];
        ran(&up).ended(0);
        assert_eq!(record(&sim)["served-id"], 61000);
        let after = ran(&["status", "--json"]).json();
        assert_eq!(problems(&after), []);
        assert_ne!(after["devices"][0]["daemon_pid"], before["daemon_pid"]);
        assert_contains(&ran(&up).ended(0).stderr, "Nothing to do");
        // Where the name has its former id again, the remedy does what it says.
        assert_eq!(problems(&sim.status())[0].0, "user-changed");
        sim.run(&["restart", "0", "--yes"]).ended(0);
        assert_eq!(record(&sim)["served-id"], NOBODY);
        assert_eq!(problems(&sim.status()), []);
    }
}

#[test]
fn a_device_whose_user_is_gone_is_a_problem() {
    needs_root!();
    let sim = serving("user:nobody");
    let status = without_nobody(&sim, &["status", "--json"]).json();
    let gone = "the user nobody no longer exists, but the daemon serves the id 65534: run `mig-mps down 0` to close the device";
    assert_eq!(
        problems(&status),
        [("user-changed".to_owned(), gone.to_owned())]
    );
    // A name service that does not answer says nothing of it.
    let silent = without_answers(&sim, &["status", "--json"]).json();
    assert_eq!(problems(&silent), []);
    without_nobody(&sim, &["down", "0"]).ended(0);
    assert_eq!(sim.device("0")["state"], "stopped");
}

/// Gives a directory a list: pairs of kind and id with permissions.
fn set_list(directory: &Path, attribute: &str, entries: &[(u8, u8, u32)]) {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (kind, permissions, id) in entries {
        list.extend([*kind, 0, *permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(directory, attribute, &list, flags).unwrap();
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NONE: u32 = u32::MAX;

/// The list of a device of nobody's, with another mask and other entries.
fn list_of_nobody(mask: u8, more: &[(u8, u8, u32)]) -> Vec<(u8, u8, u32)> {
    let mut list = vec![(1, 7, NONE), (2, 1, NOBODY)];
    list.extend(more.iter().filter(|(kind, ..)| *kind == 2));
    list.push((4, 0, NONE));
    list.extend(more.iter().filter(|(kind, ..)| *kind == 8));
    list.extend([(16, mask, NONE), (32, 0, NONE)]);
    list
}

/// Changes the permissions of a pipe directory.
type Breaks<'a> = &'a dyn Fn(&Path);

/// Who may enter the pipe directory is read back, and `up` mends it without a restart.
#[test]
fn other_permissions_of_a_pipe_directory_are_found_and_mended() {
    needs_root!();
    let others = [(2, 7, 61_001), (8, 1, 61_002)];
    let mode = |mode: u32| {
        move |pipe: &Path| fs::set_permissions(pipe, Permissions::from_mode(mode)).unwrap()
    };
    let list = |mask: u8, more: &'static [(u8, u8, u32)]| {
        move |pipe: &Path| set_list(pipe, ACCESS, &list_of_nobody(mask, more))
    };
    let foreign: &'static [(u8, u8, u32)] = Box::leak(Box::new(others));
    let to_group = |pipe: &Path| std::os::unix::fs::chown(pipe, None, Some(61_003)).unwrap();
    let cases: [(&str, &str, Breaks<'_>); 8] = [
        (
            "user:nobody",
            "the users of the device may not enter it",
            &list(0, &[]),
        ),
        (
            "user:nobody",
            "the users of the device may not enter it",
            &mode(0o700),
        ),
        (
            "user:nobody",
            "the user 61001 may enter it",
            &list(1, &foreign[..1]),
        ),
        (
            "user:nobody",
            "the user 61001 may write to it, the group 61002 may enter it",
            &list(7, foreign),
        ),
        ("user:nobody", "every user may enter it", &mode(0o711)),
        (
            "group:nogroup",
            "the users of the device may not enter it",
            &mode(0o700),
        ),
        (
            "group:nogroup",
            "the users of the device may not enter it, the group 61003 may enter it",
            &to_group,
        ),
        (
            "one-at-a-time",
            "the users of the device may not enter it",
            &mode(0o750),
        ),
    ];
    for (serve, said, breaks) in cases {
        let sim = serving(serve);
        let before = sim.device("0");
        let client = (serve != "group:nogroup").then(|| {
            let mut app = sim.app_of_nobody("0", &["hold"]);
            assert!(app.wait_up().ends_with("mps yes"), "{serve}");
            app
        });
        breaks(Path::new(&sim.pipe("0")));
        let inode = || fs::metadata(sim.pipe("0")).unwrap().ino();
        let inode_before = inode();
        let said = format!("its pipe directory has wrong permissions: {said}");
        let found = problems(&sim.status());
        assert_eq!(found.len(), 1, "{serve}: {found:?}");
        assert_eq!(found[0].0, "pipe-access");
        assert!(found[0].1.starts_with(&said), "{serve}: {found:?}");
        sim.run(&["status", "--exit-code"]).ended(3);
        assert_contains(&sim.run(&["doctor"]).ended(3).stdout, &said);
        let text = whole(&format!("serve = \"{serve}\""));
        let profile = sim.profile(&text);
        let plan = sim.run(&["plan", profile.to_str().unwrap(), "--exit-code"]);
        assert_contains(&plan.ended(3).stdout, &said);
        // Where others could write, the files may be theirs: a restart makes another directory.
        let needs_restart = said.contains("write");
        if needs_restart {
            drop(client);
            sim.up(&text, &["--yes"]).ended(0);
        } else {
            sim.up(&text, &[]).ended(0);
            if let Some(client) = client {
                assert!(client.finish().status.success());
            }
        }
        assert_eq!(problems(&sim.status()), [], "{serve}");
        let after = &sim.device("0")["daemon_pid"];
        assert_eq!(*after != before["daemon_pid"], needs_restart, "{said}");
        assert_eq!(inode() != inode_before, needs_restart, "{said}");
        sim.up_does_nothing(&text);
        if serve != "group:nogroup" {
            sim.app_of_nobody("0", &["run", "0"]).wait_up();
        }
    }
}

/// The same of a log directory, which its users read. Nothing that others write there reaches a daemon, so `up` changes
/// all of it without a restart.
#[test]
fn other_permissions_of_a_log_directory_are_found_and_reset() {
    needs_root!();
    let mode = |mode: u32| {
        move |logs: &Path| fs::set_permissions(logs, Permissions::from_mode(mode)).unwrap()
    };
    let list = |user: u8, mask: u8, more: &'static [(u8, u8, u32)]| {
        move |logs: &Path| {
            let mut list = list_of_nobody(mask, more);
            list[1].1 = user;
            set_list(logs, ACCESS, &list);
        }
    };
    let cases: [(&str, &str, Breaks<'_>); 8] = [
        (
            "user:nobody",
            "the users of the device may not read it",
            &list(5, 0, &[]),
        ),
        (
            "user:nobody",
            "the users of the device may not read it",
            &list(1, 5, &[]),
        ),
        (
            "user:nobody",
            "the users of the device may not read it",
            &mode(0o700),
        ),
        (
            "user:nobody",
            "the user 61001 may write to it, the group 61002 may enter it",
            &list(5, 7, &[(2, 7, 61_001), (8, 5, 61_002)]),
        ),
        ("user:nobody", "every user may enter it", &mode(0o755)),
        (
            "group:nogroup",
            "the users of the device may not read it",
            &mode(0o710),
        ),
        ("group:nogroup", "every user may enter it", &mode(0o755)),
        (
            "one-at-a-time",
            "the users of the device may not read it",
            &mode(0o711),
        ),
    ];
    for (serve, said, breaks) in cases {
        let sim = serving(serve);
        let before = sim.device("0");
        let logs = sim.node.log_dir().join(sim.uuid("0"));
        assert_eq!(problems(&sim.status()), [], "{serve}");
        breaks(&logs);
        let said = format!("its log directory has wrong permissions: {said}");
        let found = problems(&sim.status());
        assert_eq!(found.len(), 1, "{serve}: {found:?}");
        assert_eq!(found[0].0, "log-access");
        assert!(found[0].1.starts_with(&said), "{serve}: {found:?}");
        sim.run(&["status", "--exit-code"]).ended(3);
        assert_contains(&sim.run(&["doctor"]).ended(3).stdout, &said);
        let text = whole(&format!("serve = \"{serve}\""));
        let profile = sim.profile(&text);
        let plan = sim.run(&["plan", profile.to_str().unwrap(), "--exit-code"]);
        assert_contains(&plan.ended(3).stdout, &said);
        sim.up(&text, &[]).ended(0);
        assert_eq!(problems(&sim.status()), [], "{serve}");
        assert_eq!(
            sim.device("0")["daemon_pid"],
            before["daemon_pid"],
            "{said}"
        );
        sim.up_does_nothing(&text);
    }
}

/// Both directories are named, and set at once.
#[test]
fn other_permissions_of_both_directories_are_reset_together() {
    needs_root!();
    let sim = serving("all");
    let logs = sim.node.log_dir().join(sim.uuid("0"));
    let pipe = fs::canonicalize(sim.pipe("0")).unwrap();
    for directory in [&logs, &pipe] {
        fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
    }
    let ids: Vec<String> = problems(&sim.status())
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(ids, ["pipe-access", "log-access"]);
    let text = whole("serve = \"all\"");
    let profile = sim.profile(&text);
    let plan = sim
        .run(&["plan", profile.to_str().unwrap()])
        .ended(0)
        .stdout;
    assert_contains(
        &plan,
        "the users of the device may not enter it; its log directory has",
    );
    sim.up(&text, &[]).ended(0);
    assert_eq!(problems(&sim.status()), []);
}

#[test]
fn a_log_directory_of_another_user_is_replaced() {
    needs_root!();
    let sim = serving("user:nobody");
    let logs = sim.node.log_dir().join(sim.uuid("0"));
    std::os::unix::fs::chown(&logs, Some(61_001), None).unwrap();
    let found = problems(&sim.status());
    let said = "its log directory belongs to 61001: run `mig-mps restart 0` to start a daemon in a new directory";
    assert_eq!(found, [("log-access".to_owned(), said.to_owned())]);
    // What can be changed meanwhile, is.
    sim.run(&["set", "0", "active-thread-percentage=50"])
        .ended(0);
    let text = whole("serve = \"user:nobody\"");
    sim.up(&text, &["--yes"]).ended(0);
    assert_eq!(problems(&sim.status()), []);
    sim.up_does_nothing(&text);
}

/// Nothing is made in a directory into which every user may write, so the remedy comes first.
#[test]
fn a_pipe_directory_that_every_user_may_write_to_is_closed_by_the_remedy() {
    needs_root!();
    let sim = serving("all");
    let pipe = fs::canonicalize(sim.pipe("0")).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o757)).unwrap();
    let found = problems(&sim.status());
    let said = "its pipe directory has wrong permissions: every user may write to it; ";
    let remedy = format!("chmod go-w {}", pipe.display());
    let what = format!("{said}run `{remedy}` to correct them");
    assert_eq!(found, [("pipe-access".to_owned(), what)]);
    sim.up_does_nothing(&whole("serve = \"all\""));
    testkit::shell(remedy).ended(0);
    assert_eq!(problems(&sim.status()), []);
    let logs = sim.node.log_dir().join(sim.uuid("0"));
    fs::set_permissions(&logs, Permissions::from_mode(0o777)).unwrap();
    let (id, what) = problems(&sim.status()).remove(0);
    let remedy = format!("chmod go-w {}", logs.display());
    assert_eq!(id, "log-access");
    assert!(
        what.ends_with(&format!(
            "every user may write to it; run `{remedy}` to correct them"
        )),
        "{what}"
    );
    sim.up_does_nothing(&whole("serve = \"all\""));
    testkit::shell(remedy).ended(0);
    assert_eq!(problems(&sim.status()), []);
}

/// A user has taken the pipe directory: a restart makes another one.
#[test]
fn a_pipe_directory_of_another_user_is_replaced() {
    needs_root!();
    let sim = serving("user:nobody");
    std::os::unix::fs::chown(sim.pipe("0"), Some(61_001), None).unwrap();
    let found = problems(&sim.status());
    let said = "its pipe directory belongs to 61001: run `mig-mps restart 0` to start a daemon in a new directory";
    assert_eq!(found, [("pipe-access".to_owned(), said.to_owned())]);
    let text = whole("serve = \"user:nobody\"");
    sim.up(&text, &["--yes"]).ended(0);
    assert_eq!(problems(&sim.status()), []);
    sim.up_does_nothing(&text);
}

/// A list that entries of a directory inherit neither keeps a server from starting nor lets anybody in.
#[test]
fn inherited_lists_do_no_harm() {
    needs_root!();
    for serve in ["user:nobody", "group:nogroup", "one-at-a-time", "all"] {
        let sim = Sim::with("h200", 1);
        let inherited = [
            (1, 7, NONE),
            (2, 7, 61_001),
            (4, 5, NONE),
            (16, 7, NONE),
            (32, 5, NONE),
        ];
        for directory in [sim.node.run_dir(), sim.node.log_dir()] {
            fs::create_dir_all(directory).unwrap();
            set_list(directory, DEFAULT, &inherited);
        }
        sim.up(&whole(&format!("serve = \"{serve}\"")), &[])
            .ended(0);
        assert_eq!(problems(&sim.status()), [], "{serve}");
        let logs = sim.node.log_dir().join(sim.uuid("0"));
        let pipe = fs::canonicalize(sim.pipe("0")).unwrap();
        let log = logs.join("control.log");
        let own = [pipe.as_path(), pipe.parent().unwrap(), &logs, &log];
        for path in own {
            let list = |attribute: &str| {
                let mut value = [0; 512];
                let length = rustix::fs::getxattr(path, attribute, &mut value[..]);
                length
                    .map(|length| value[..length].to_vec())
                    .unwrap_or_default()
            };
            assert_eq!(
                list(DEFAULT),
                Vec::<u8>::new(),
                "{serve} {}",
                path.display()
            );
            let id = 61_001_u32.to_le_bytes();
            let names = list(ACCESS).windows(4).any(|bytes| bytes == id);
            assert!(!names, "{serve} {}", path.display());
        }
    }
}

/// The directories above those of devices are made without lists, too.
#[test]
fn inherited_lists_do_not_open_new_directories() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let directories = [sim.node.run_dir(), sim.node.log_dir()];
    let inherited = [
        (1, 7, NONE),
        (2, 7, 61_001),
        (4, 5, NONE),
        (16, 7, NONE),
        (32, 5, NONE),
    ];
    for directory in directories {
        assert!(!directory.exists());
        set_list(directory.parent().unwrap(), DEFAULT, &inherited);
    }
    sim.up(&whole(""), &[]).ended(0);
    for directory in directories {
        for attribute in [ACCESS, DEFAULT] {
            let mut value = [0; 512];
            let list = rustix::fs::getxattr(directory, attribute, &mut value[..]);
            assert!(list.is_err(), "{} {attribute}", directory.display());
        }
    }
}

#[test]
fn a_silent_name_service_leaves_what_is_recorded() {
    needs_root!();
    for serve in ["user:nobody", "group:nogroup"] {
        let sim = serving(serve);
        assert_eq!(record(&sim)["served-id"], NOBODY);
        // An earlier version recorded none.
        sim.edit(&format!("{}/device.json", sim.uuid("0")), |record| {
            record.as_object_mut().unwrap().remove("served-id");
        });
        without_answers(&sim, &["restart", "0", "--yes"]).ended(0);
        assert_eq!(record(&sim)["served-id"], NOBODY);
        let profile = sim.profile(&whole(&format!("serve = \"{serve}\", nofile = 5000")));
        let up = ["up", profile.to_str().unwrap(), "--yes"];
        without_answers(&sim, &up).ended(0);
        sim.kill_daemon("0");
        without_answers(&sim, &["heal"]).ended(0);
        let device = sim.device("0");
        assert_eq!(device["state"], "ready");
        if serve == "user:nobody" {
            assert_eq!(device["servers"][0]["uid"], NOBODY);
            sim.app_of_nobody("0", &["run", "0"]).wait_up();
        }
        // For a user who is not recorded, nothing is known.
        let other = sim.profile(&whole("serve = \"user:daemon\""));
        let refused = without_answers(&sim, &["up", other.to_str().unwrap(), "--yes"]).ended(1);
        let said = "cannot check whether the user \"daemon\" exists";
        assert_contains(&refused.stderr, said);
    }
}

#[test]
fn a_group_that_is_gone_is_refused() {
    needs_root!();
    let sim = serving("group:nogroup");
    let before = sim.device("0");
    let script = "sed /^nogroup:/d /etc/group > \"$new\"";
    let ran = where_file_is(&sim, "/etc/group", script, &["restart", "0", "--yes"]).ended(1);
    assert_contains(&ran.stderr, "there is no group \"nogroup\" on this machine");
    assert_eq!(sim.device("0"), before);
}

/// A limit that the system does not allow: the record asks for more than it did when the daemon started.
#[test]
fn what_the_system_does_not_allow_stops_no_daemon() {
    needs_root!();
    let sim = serving("user:nobody");
    let uuid = sim.uuid("0");
    sim.edit(&format!("{uuid}/device.json"), |record| {
        record["settings"]["nofile"] = Value::from(u64::MAX >> 1);
    });
    let before = sim.device("0")["daemon_pid"].clone();
    for args in [
        &["restart", "0", "--yes"][..],
        &["restart", "0", "--force", "--yes"],
    ] {
        let ran = sim.run(args).ended(1);
        assert_contains(&ran.stderr, "the system does not allow");
    }
    assert_eq!(sim.device("0")["daemon_pid"], before);
}
