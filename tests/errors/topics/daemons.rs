//! Daemons and servers that do not start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with("h200", 1);
    stage.profile(WHOLE);
    let up = "mig-mps up profile.toml";
    for status in [100, 244, 34, 35, 1, 7] {
        stage.sim.node.fault("daemon start").fails(status).unwrap();
        let title = format!("nvidia-cuda-mps-control ends with {status}");
        stage.show(topic, &title, up);
    }
    let script = |script: &str| stage.sim.control_script(script);
    for (title, text) in [
        (
            "An option that nvidia-cuda-mps-control does not know",
            r#"case " $* " in *" -d "*) echo "Unrecognized option"; exit 0;; esac; exec "$real" "$@""#,
        ),
        (
            "nvidia-cuda-mps-control gives a strange answer",
            r#"case " $* " in *" -d "*) exec "$real" "$@";; esac; echo strange"#,
        ),
    ] {
        stage.show_with(topic, title, up, &[("MIG_MPS_CONTROL", &script(text))]);
    }
    stage.show_with(
        topic,
        "MIG_MPS_CONTROL names no program",
        up,
        &[("MIG_MPS_CONTROL", &PathBuf::from("/no/control"))],
    );
    stage.show_raw(
        topic,
        "nvidia-cuda-mps-control is not in PATH",
        up,
        |command| {
            command.env("PATH", stage.path_without(&["nvidia-cuda-mps-control"]));
        },
    );
    stage.show_raw(
        topic,
        "nvidia-cuda-mps-server is not in PATH",
        up,
        |command| {
            command.env("PATH", stage.path_without(&["nvidia-cuda-mps-server"]));
        },
    );
    for (title, text) in [
        ("The server ends at once", "exit 1"),
        ("The server may not serve this user", "exit 126"),
    ] {
        let server = stage.sim.program_script("nvidia-cuda-mps-server", text);
        let first = server.parent().unwrap().join("first");
        let _ = fs::create_dir(&first);
        let _ = fs::remove_file(first.join("nvidia-cuda-mps-server"));
        std::os::unix::fs::symlink(&server, first.join("nvidia-cuda-mps-server")).unwrap();
        let path = format!("{}:{}", first.display(), stage.path().display());
        stage.show_raw(topic, title, up, |command| {
            command.env("PATH", &path);
        });
    }
    let closed = stage.sim.node.run_dir().with_file_name("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o750)).unwrap();
    stage.profile(&format!("{WHOLE}mps = {{ serve = \"user:nobody\" }}\n"));
    stage.show_with(
        topic,
        "A user may not enter the way to the daemon",
        up,
        &[("MIG_MPS_RUN_DIR", &closed.join("run"))],
    );
    stage.profile(&format!("{WHOLE}mps = {{ nofile = 1073741824 }}\n"));
    stage.show(topic, "More open files than the system allows", up);
    stage.profile(&format!("{WHOLE}mps = {{ cpus = \"1023\" }}\n"));
    stage.show(topic, "CPUs that are not there", up);
}
