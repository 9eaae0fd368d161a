//! The pipe directory of a device that stays: containers have it mounted, and a program in them is a client of the daemon
//! that comes.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use testkit::{App, NOBODY, Sim, assert_contains, needs_root, whole};

/// The pipe directory of a device, as a container has it that started before.
struct Mounted {
    directory: File,
    inode: u64,
}

impl Mounted {
    fn of(sim: &Sim, name: &str) -> Self {
        let directory = File::open(sim.pipe(name)).unwrap();
        let inode = directory.metadata().unwrap().ino();
        Self { directory, inode }
    }

    /// Asserts that a program that starts there is a client of the device.
    #[track_caller]
    fn leads_to(&self, sim: &Sim, name: &str) {
        assert_eq!(fs::metadata(sim.pipe(name)).unwrap().ino(), self.inode);
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.directory.as_raw_fd()
        );
        let mut app = sim.node.program("cuda-app");
        app.args(["hold"]).env("CUDA_MPS_PIPE_DIRECTORY", path);
        app.env("CUDA_VISIBLE_DEVICES", sim.uuid(name));
        let up = App::start(app).wait_up();
        assert!(up.ends_with("mps yes"), "{up}");
    }
}

#[test]
fn up_with_other_settings_keeps_it() {
    needs_root!();
    let sim = Sim::whole("");
    let mounted = Mounted::of(&sim, "0");
    for settings in [
        "serve = \"all\"",
        "serve = \"group:root\"",
        "serve = \"user:root\"",
        "serve = \"one-at-a-time\", nofile = 5000",
        "serve = \"all\", server = \"lazy\"",
    ] {
        let daemon = sim.device("0")["daemon_pid"].clone();
        sim.up(&whole(settings), &["--yes"]).ended(0);
        assert_ne!(sim.device("0")["daemon_pid"], daemon, "{settings}");
        mounted.leads_to(&sim, "0");
        sim.up_does_nothing(&whole(settings));
    }
    sim.run(&["down"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// Names are exchanged, and each links to its own device afterwards.
#[test]
fn a_device_with_another_name_keeps_it() {
    let profile = |names: [&str; 2]| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ name = \"{}\", profile = \"2g\", at = 0 }}, {{ name = \"{}\", profile = \"1g\", at = 2 }} ]\n",
            names[0], names[1]
        )
    };
    let sim = Sim::served("a100-80gb", 1, &profile(["large", "small"]));
    let mounted = Mounted::of(&sim, "large");
    let (large, small) = (sim.uuid("large"), sim.uuid("small"));
    let link = |name: &str| fs::read_link(sim.node.run_dir().join("by-name").join(name));
    let to = |uuid: &str| PathBuf::from("..").join(uuid);
    sim.up(&profile(["small", "other"]), &["--yes"]).ended(0);
    mounted.leads_to(&sim, "small");
    assert_eq!(link("small").unwrap(), to(&large));
    assert_eq!(link("other").unwrap(), to(&small));
    assert!(link("large").is_err());
    sim.up(&profile(["other", "small"]), &["--yes"]).ended(0);
    assert_eq!(link("other").unwrap(), to(&large));
    assert_eq!(link("small").unwrap(), to(&small));
    mounted.leads_to(&sim, "other");
    // A failure gives the old names back.
    sim.node.fault("daemon start").fails(1).unwrap();
    sim.up(&profile(["a", "b"]), &["--yes"]).ended(1);
    assert_eq!(link("other").unwrap(), to(&large));
    assert_eq!(link("small").unwrap(), to(&small));
    assert!(link("a").is_err() && link("b").is_err());
    mounted.leads_to(&sim, "other");
}

#[test]
fn a_start_that_fails_keeps_it_for_the_old_daemon() {
    needs_root!();
    let sim = Sim::whole("");
    let mounted = Mounted::of(&sim, "0");
    let all = whole("serve = \"all\"");
    let profile = sim.profile(&all);
    for args in [
        &["up", profile.to_str().unwrap(), "--yes"][..],
        &["restart", "0", "--yes"],
    ] {
        for step in ["daemon start", "server start"] {
            sim.node.fault(step).fails(1).unwrap();
            sim.run(args).ended(1);
            let device = sim.device("0");
            assert_eq!(
                (&device["state"], &device["serve"]),
                (&"ready".into(), &"one-at-a-time".into())
            );
            mounted.leads_to(&sim, "0");
        }
    }
}

#[test]
fn who_is_shut_out_is_named() {
    needs_root!();
    let sim = Sim::whole("");
    let remark = "device 0 will serve only the user nobody. Programs of other users then run outside MPS, also in containers that have the pipe directory.";
    let hers = whole("serve = \"user:nobody\"");
    let path = sim.profile(&hers);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_contains(&plan.stderr, &format!("note: {remark}"));
    let json = sim.run(&["plan", path.to_str().unwrap(), "--json"]).json();
    assert_eq!(json["remarks"][0], remark);
    // A client is in the way, as everywhere.
    let client = sim.client("0");
    assert_contains(
        &sim.up(&hers, &["--yes"]).ended(4).stderr,
        "1 client is still running",
    );
    drop(client);
    assert_contains(&sim.up(&hers, &["--yes"]).ended(0).stderr, remark);
    let pipe = fs::metadata(sim.pipe("0")).unwrap();
    assert_eq!((pipe.uid(), pipe.permissions().mode() & 0o007), (0, 0));
    sim.app_of_nobody("0", &["run", "0"]).wait_up();
    assert_eq!(sim.device("0")["servers"][0]["uid"], NOBODY);
    // Nobody is shut out of what is opened.
    let opened = sim.up(&whole("serve = \"all\""), &["--yes"]).ended(0);
    assert!(
        !opened.stderr.contains("will serve only"),
        "{}",
        opened.stderr
    );
    let vision = sim
        .up(&whole("serve = \"group:daemon\""), &["--yes"])
        .ended(0);
    assert_contains(&vision.stderr, "0 will serve only the group daemon.");
}
