//! Files and directories of others in the places of mig-mps: a container runtime makes a directory of a mount source that
//! is missing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use testkit::{SMALL, Sim, assert_contains, in_state, needs_root, shell, whole};

/// A node whose daemons were taken down, and the directory of links by name.
fn taken_down() -> (Sim, PathBuf) {
    let sim = Sim::small();
    sim.run(&["down"]).ended(0);
    let links = sim.node.run_dir().join("by-name");
    (sim, links)
}

#[track_caller]
fn serves(sim: &Sim) {
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    for name in ["0.0", "0.2"] {
        let target = fs::read_link(sim.node.run_dir().join("by-name").join(name)).unwrap();
        assert_eq!(target, PathBuf::from("..").join(sim.uuid(name)));
    }
}

#[test]
fn mount_sources_of_containers_are_removed() {
    let (sim, links) = taken_down();
    let uuid = sim.uuid("0.2");
    for made in [
        links.join("0.0/pipe"),
        sim.node.run_dir().join(&uuid).join("pipe/control"),
        sim.node.run_dir().join("journal.json"),
        sim.node.run_dir().join("node.json"),
        sim.node.run_dir().join(&uuid).join("device.json"),
        sim.node.run_dir().join(&uuid).join("device.json.new"),
        sim.node.log_dir().join(&uuid).join("control.log"),
    ] {
        let _ = fs::remove_file(&made);
        fs::create_dir_all(&made).unwrap();
    }
    let profile = sim.profile(SMALL);
    let plan = sim.run(&["plan", profile.to_str().unwrap()]).ended(0);
    let freed = links.join("0.0").display().to_string();
    assert_contains(&plan.stderr, &freed);
    sim.up(SMALL, &["--yes"]).ended(0);
    serves(&sim);
    sim.up_does_nothing(SMALL);
    let log = sim.node.log_dir().join(&uuid).join("control.log");
    assert!(fs::metadata(log).unwrap().is_file());
}

#[test]
fn the_lock_is_freed_too() {
    let (sim, _) = taken_down();
    let lock = sim.node.run_dir().join("lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir_all(lock.join("x")).unwrap();
    sim.up(SMALL, &["--yes"]).ended(0);
    serves(&sim);
}

/// Whatever holds anything stays, and the hint leads on.
#[test]
fn anything_else_is_named_and_stays() {
    let (sim, links) = taken_down();
    let run = sim.node.run_dir().to_owned();
    let uuid = sim.uuid("0.2");
    let entry = links.join("0.0");
    let file = "echo hers > PATH";
    for (path, make) in [
        (entry.clone(), file),
        (entry.clone(), "ln -s /somewhere/else PATH"),
        (entry.clone(), "mkfifo PATH"),
        (entry, "mkdir -p PATH/pipe; echo hers > PATH/pipe/file"),
        (run.join(&uuid), file),
        (run.join("by-name"), file),
        (run.join("by-name"), "ln -s /tmp PATH"),
        (
            sim.node.log_dir().join(&uuid),
            "rm -r PATH; echo hers > PATH",
        ),
    ] {
        let parent = path.parent().unwrap();
        if parent != run && !parent.exists() {
            fs::create_dir(parent).unwrap();
        }
        shell(make.replace("PATH", path.to_str().unwrap())).ended(0);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let shown = path.display().to_string();
        let profile = sim.profile(SMALL);
        let plan = sim.run(&["plan", profile.to_str().unwrap()]).ended(1);
        assert_contains(&plan.stderr, &shown);
        let launched = sim.happened("server launch");
        let up = sim.up(SMALL, &["--yes"]).ended(1);
        assert_contains(&up.stderr, &format!("{shown}: it is "));
        let hint = format!("hint: move {shown} away, then run this command again");
        assert_contains(&up.stderr, &hint);
        assert_eq!(sim.happened("server launch"), launched, "{shown}");
        let down = sim.run(&["down", "--force"]).ended(0);
        if path.starts_with(&run) {
            assert_contains(&down.stderr, &format!("{shown}: it is "));
        }
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
        let away = run.with_extension("away");
        fs::rename(&path, &away).unwrap();
        sim.up(SMALL, &["--yes"]).ended(0);
        serves(&sim);
        sim.run(&["down"]).ended(0);
        let _ = fs::remove_file(&away).or_else(|_| fs::remove_dir_all(&away));
    }
}

#[test]
fn down_leaves_no_directory() {
    let sim = Sim::whole("");
    let run = sim.node.run_dir();
    let uuid = sim.uuid("0");
    // Beside a daemon: a runtime makes them of sources in its pipe directory.
    fs::create_dir_all(PathBuf::from(sim.pipe("0")).join("a/b")).unwrap();
    sim.run(&["down", "--force"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
    for args in [&["down"][..], &["down", "--force"]] {
        fs::create_dir_all(run.join("by-name/0/pipe")).unwrap();
        fs::create_dir_all(run.join(&uuid).join("pipe/control")).unwrap();
        sim.run(args).ended(0);
        assert_eq!(sim.run_dir(), ["lock"]);
    }
}

#[test]
fn doctor_tells_what_stays_and_what_goes() {
    let (sim, links) = taken_down();
    fs::create_dir_all(links.join("0.0/pipe")).unwrap();
    fs::write(links.join("0.2"), "hers").unwrap();
    let ran = sim.run(&["doctor"]).ended(3);
    let said = ran.stdout + &ran.stderr;
    assert_contains(&said, "by-name/0.0: it contains only directories");
    assert_contains(&said, "by-name/0.2: it is not a link");
}

/// A file of container engines is kept only where the profile asks for it.
#[test]
fn the_cdi_file_takes_its_place() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let file = sim.machine("var/run/cdi/mig-mps.json");
    fs::create_dir_all(file.join("x")).unwrap();
    let profile = format!("cdi = true\n{}", whole(""));
    sim.up(&profile, &["--yes"]).ended(0);
    assert!(fs::metadata(&file).unwrap().is_file());
}

/// No daemon stops whose successor could not write its logs.
#[test]
fn what_is_in_the_places_of_logs_is_found_first() {
    let sim = Sim::small();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    let all = format!("mps = {{ serve = \"all\" }}\n{SMALL}");
    for log in ["control.log", "server.log"] {
        let path = sim.node.log_dir().join(sim.uuid("0.2")).join(log);
        let shown = path.display().to_string();
        for make in [
            "ln -s /somewhere/else PATH",
            "mkfifo PATH",
            "mkdir PATH; echo hers > PATH/file",
        ] {
            let away = path.with_extension("away");
            fs::rename(&path, &away).unwrap();
            shell(make.replace("PATH", &shown)).ended(0);
            for (ran, status) in [
                (sim.up(&all, &["--yes"]), 1),
                (sim.up(&all, &["--yes", "--keep-going"]), 4),
                (sim.run(&["restart", "0.2", "--yes"]), 1),
            ] {
                let said = ran.ended(status).stderr;
                assert_contains(&said, &format!("{shown}: it is "));
                assert_contains(&said, &format!("move {shown} away"));
            }
            assert_eq!(sim.device("0.2")["daemon_pid"], daemon);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            fs::rename(&away, &path).unwrap();
        }
    }
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
}

/// No daemon stops whose successor would be refused its directories.
#[test]
fn directories_that_others_can_write_to_are_found_first() {
    needs_root!();
    let sim = Sim::small();
    let run = sim.node.run_dir().to_owned();
    let uuid = sim.uuid("0.2");
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    let all = format!("mps = {{ serve = \"all\" }}\n{SMALL}");
    let kept = [
        run.join("by-name"),
        run.join(&uuid),
        run.join(&uuid).join("pipe"),
        sim.node.log_dir().join(&uuid),
    ];
    for path in kept {
        let shown = path.display().to_string();
        let mode = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        for (ran, status) in [
            (sim.up(&all, &["--yes"]), 1),
            (sim.up(&all, &["--yes", "--keep-going"]), 4),
            (sim.run(&["restart", "0.2", "--yes"]), 1),
        ] {
            let said = ran.ended(status).stderr;
            assert_contains(&said, &format!("{shown}: others can write to it"));
        }
        assert_eq!(sim.device("0.2")["daemon_pid"], daemon);
        fs::set_permissions(&path, mode).unwrap();
    }
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
}

/// An unfinished file has another name where others have made a directory.
#[test]
fn directories_in_places_of_unfinished_files_are_in_no_way() {
    let sim = Sim::small();
    let run = sim.node.run_dir().to_owned();
    let all = format!("mps = {{ serve = \"all\" }}\n{SMALL}");
    let places = [
        format!("{}/device.json.new", sim.uuid("0.2")),
        "by-name/.0.2.new".to_owned(),
        "node.json.new".to_owned(),
        "journal.json.new".to_owned(),
    ];
    for place in &places {
        fs::create_dir(run.join(place)).unwrap();
        fs::write(run.join(place).join("file"), "hers").unwrap();
    }
    // Left by a killed process.
    fs::write(run.join("1.journal.json.new"), "").unwrap();
    sim.up(&all, &["--yes"]).ended(0);
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
    serves(&sim);
    sim.up_does_nothing(&all);
    assert!(!run.join("1.journal.json.new").exists());
    for place in &places {
        assert!(run.join(place).join("file").exists(), "{place}");
    }
}

/// `down --force` ends everything, and names what it leaves in its places.
#[test]
fn down_force_goes_past_everything_in_its_places() {
    let sim = Sim::small();
    let run = sim.node.run_dir().to_owned();
    let uuid = sim.uuid("0.2");
    let [file, full] = ["echo hers > PATH", "mkdir PATH; echo hers > PATH/file"];
    let [pipe, link] = ["mkfifo PATH", "ln -s /somewhere/else PATH"];
    let own = format!("{uuid}/device.json");
    let new = format!("{uuid}/device.json.new");
    for (place, make) in [
        ("journal.json.new", full),
        ("journal.json.new", pipe),
        ("node.json.new", full),
        ("node.json.new", link),
        (new.as_str(), full),
        (&new, pipe),
        (&new, link),
        (&own, full),
        (&own, pipe),
        (&own, link),
        ("by-name/.0.2.new", full),
        ("by-name/.0.2.new", file),
        ("by-name/.0.2.new", link),
        ("by-name/0.2", full),
        ("by-name/0.2", link),
        ("by-name", file),
        ("by-name", link),
        ("reserve", file),
        ("reserve", link),
        ("reserve", pipe),
    ] {
        let path = run.join(place);
        let away = run.with_extension("away");
        let _ = fs::remove_file(&path).or_else(|_| fs::rename(&path, &away));
        let shown = path.display().to_string();
        shell(make.replace("PATH", &shown)).ended(0);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let down = sim.run(&["down", "--force"]).ended(0);
        assert_contains(&down.stderr, &format!("{shown}: it is "));
        assert_eq!(sim.node.processes("nvidia-cuda-mps"), [0; 0], "{shown}");
        let after = fs::symlink_metadata(&path).unwrap().ino();
        assert_eq!(after, before, "{shown}");
        let doctor = sim.run(&["doctor"]);
        assert_contains(
            &(doctor.stdout + &doctor.stderr),
            &format!("{shown}: it is "),
        );
        let _ = fs::remove_dir_all(&away);
        fs::rename(&path, &away).unwrap();
        sim.up(SMALL, &["--yes"]).ended(0);
        serves(&sim);
        let _ = fs::remove_file(&away).or_else(|_| fs::remove_dir_all(&away));
    }
}
