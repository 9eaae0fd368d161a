//! The manifest: what is in it, and what its pods do on a host, which is the simulated node.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use serde_json::{Value, json};
use testkit::{Ran, Sim, built, can_run, is_root, judges, repository};

use super::{SHARED, command};

/// The documents of a manifest of this profile, and its text.
fn manifest(sim: &Sim, profile: &str, options: &[&str]) -> (Vec<Value>, String) {
    let mut plugin = command(sim);
    plugin.args(["--manifest", "-"]).args(options);
    let mut plugin = plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = plugin.stdin.take().unwrap();
    input.write_all(profile.as_bytes()).unwrap();
    drop(input);
    let output = plugin.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    (serde_saphyr::from_multiple(&text).unwrap(), text)
}

/// The name of the profile that the pods of a manifest mount.
fn mounted_profile(documents: &[Value]) -> &Value {
    let volumes = &documents[2]["spec"]["template"]["spec"]["volumes"];
    &volumes[1]["configMap"]["name"]
}

#[test]
fn a_namespace_a_profile_and_pods_without_access_to_the_cluster() {
    let sim = Sim::with("h200", 1);
    let (documents, _) = manifest(&sim, SHARED, &[]);
    let kinds: Vec<_> = documents
        .iter()
        .map(|one| {
            (
                one["kind"].as_str().unwrap(),
                one["metadata"]["name"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            ("Namespace", "mig-mps"),
            ("ConfigMap", mounted_profile(&documents).as_str().unwrap()),
            ("DaemonSet", "mig-mps")
        ]
    );
    let pod = &documents[2]["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["hostPID"], true);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(
        pod["tolerations"],
        json!([{ "key": "nvidia.com/gpu", "operator": "Exists" }])
    );
    assert_eq!(pod["nodeSelector"], Value::Null);
    let image = concat!("localhost/mig-mps:", env!("CARGO_PKG_VERSION"));
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        assert_eq!(container["image"], image);
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    }
    // What stays needs no rights.
    let stays = &pod["containers"][0]["securityContext"];
    assert_eq!(stays["privileged"], Value::Null);
    assert_eq!(stays["capabilities"]["drop"], json!(["ALL"]));
    let options = [
        "--image",
        "registry.example:5000/a/b:1",
        "--node-selector",
        "nvidia.com/gpu.present=true",
        "--node-selector",
        "pool=gpu",
        "--kubelet",
        "/var/lib/k0s/\"a b\"",
    ];
    let (documents, _) = manifest(&sim, SHARED, &options);
    let pod = &documents[2]["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "registry.example:5000/a/b:1");
    assert_eq!(
        pod["nodeSelector"],
        json!({ "nvidia.com/gpu.present": "true", "pool": "gpu" })
    );
    let words = pod["initContainers"][0]["command"].as_array().unwrap();
    assert_eq!(
        words[words.len() - 2..],
        ["--kubelet", "/var/lib/k0s/\"a b\""]
    );
    // The kubelet expands the words of a command, and no value is a part of the template.
    let options = ["--kubelet", "/$(HOSTNAME)/$$x/@PROFILE@/@IMAGE@"];
    let (documents, _) = manifest(&sim, SHARED, &options);
    let pod = &documents[2]["spec"]["template"]["spec"];
    let words = pod["initContainers"][0]["command"].as_array().unwrap();
    assert_eq!(
        words.last().unwrap(),
        "/$$(HOSTNAME)/$$$$x/@PROFILE@/@IMAGE@"
    );
}

/// Without a profile, it is that of the boot: as its author has it, also on a node on which a pod has installed it.
#[test]
fn a_manifest_without_a_profile_has_that_of_the_boot() {
    let sim = Sim::with("h200", 1);
    let print = |args: &[&str]| Ran::of(command(&sim).arg("--manifest").args(args));
    let refused = print(&[]).ended(2).stderr;
    assert!(
        refused.contains("no profile is selected, and "),
        "{refused}"
    );
    let image = ["--image", "registry.example/a:1"];
    for mark in ["", MARK] {
        sim.prepare("etc/mig-mps/profile.toml", &format!("{SHARED}{mark}"));
        for options in [&[][..], &image] {
            let text = print(options).ended(0).stdout;
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            assert_eq!(documents[1]["data"]["profile.toml"], SHARED);
        }
    }
    let given = sim
        .profile(&format!("{SHARED}{MARK}"))
        .display()
        .to_string();
    assert!(!print(&[&given]).ended(0).stdout.contains(MARK.trim_end()));
}

/// The last line of a profile that a pod has installed.
const MARK: &str =
    "# Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.\n";

#[test]
fn a_manifest_has_every_character_of_its_profile() {
    let sim = Sim::with("h200", 1);
    let python = judges().join("bin/python");
    let read = "import sys, yaml\nsys.stdout.reconfigure(newline='')\n\
                sys.stdout.write([d for d in yaml.safe_load_all(sys.stdin) if d['kind'] == 'ConfigMap'][0]['data']['profile.toml'])";
    let has_yaml = Command::new(&python).args(["-c", "import yaml"]).output();
    let has_yaml = has_yaml.is_ok_and(|ran| ran.status.success());
    for text in [
        SHARED.to_owned(),
        SHARED.trim_end().to_owned(),
        format!("{SHARED}\n\n"),
        format!("   # indented\n\n  \n{SHARED}"),
        format!("# --- ... @IMAGE@ @PROFILE@ $(A) $$ : \" ' \\ %TAG & * ! ä 🦀\n---\n{SHARED}")
            .replace("\n---", ""),
        format!("# \u{85}\u{2028}\u{feff}\u{9f}\n{SHARED}"),
        SHARED.replace('\n', "\r\n"),
        format!("\t# a tab\n{SHARED}\t\n"),
        format!("# blanks   \n   \n{SHARED}  \n"),
        format!("# a tab\t\n\t\n{SHARED}"),
    ] {
        let (documents, manifest) = manifest(&sim, &text, &[]);
        assert_eq!(documents[1]["data"]["profile.toml"], *text);
        // The library of another language, as kubectl has another one.
        if has_yaml {
            let mut python = Command::new(&python);
            let mut python = python
                .args(["-c", read])
                .env("PYTHONUTF8", "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = python.stdin.take().unwrap();
            input.write_all(manifest.as_bytes()).unwrap();
            drop(input);
            let output = python.wait_with_output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}

#[test]
fn a_changed_profile_replaces_the_pods_and_leaves_the_profile_of_the_old_ones() {
    let sim = Sim::with("h200", 1);
    let [first, again, other] = [SHARED, SHARED, &SHARED.replace("share = 2", "share = 3")]
        .map(|profile| manifest(&sim, profile, &[]).0);
    assert_eq!(first, again);
    for documents in [&first, &other] {
        let profile = &documents[1];
        assert_eq!(profile["metadata"]["name"], *mounted_profile(documents));
        assert_eq!(profile["metadata"]["labels"]["app"], "mig-mps");
        assert_eq!(profile["immutable"], true);
    }
    assert_ne!(mounted_profile(&first), mounted_profile(&other));
    // The same from every build.
    assert_eq!(mounted_profile(&first), "mig-mps-86babc4bb0fec9da");
}

#[test]
fn manifests_with_other_names_are_of_other_pods() {
    let sim = Sim::with("h200", 1);
    // One that YAML would take for a number.
    for name in ["pool-b", "0x1f"] {
        let (documents, _) = manifest(&sim, SHARED, &["--name", name]);
        assert_eq!(documents[0]["metadata"]["name"], "mig-mps");
        let profile = format!("{name}-86babc4bb0fec9da");
        assert_eq!(documents[1]["metadata"]["name"], *profile);
        assert_eq!(documents[1]["metadata"]["labels"], json!({ "app": name }));
        assert_eq!(mounted_profile(&documents), &profile);
        let set = &documents[2];
        let metadata = json!({
            "name": name,
            "namespace": "mig-mps",
            "labels": { "app.kubernetes.io/name": name },
        });
        assert_eq!(set["metadata"], metadata);
        let selector = json!({ "matchLabels": { "app.kubernetes.io/name": name } });
        assert_eq!(set["spec"]["selector"], selector);
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/name"], name);
    }
}

#[test]
fn a_mark_of_the_byte_order_stays_out_of_the_manifest() {
    let sim = Sim::with("h200", 1);
    let (documents, _) = manifest(&sim, &format!("\u{feff}{SHARED}"), &[]);
    assert_eq!(documents, manifest(&sim, SHARED, &[]).0);
    assert_eq!(documents[1]["data"]["profile.toml"], SHARED);
}

#[test]
fn what_kubernetes_or_the_host_would_refuse_is_refused() {
    let sim = Sim::with("h200", 1);
    let long = "x".repeat(64);
    for (options, expected) in [
        (
            &["--node-selector", "pool"][..],
            "invalid value 'pool' for '--node-selector <LABEL>': expected LABEL=VALUE",
        ),
        (
            &["--node-selector", "a b=c"],
            "invalid value 'a b=c' for '--node-selector <LABEL>': expected the name of a label, such as pool or \
             example.com/pool, before =",
        ),
        (
            &["--node-selector", "pool=a b"],
            "invalid value 'pool=a b' for '--node-selector <LABEL>': expected the value of a label after =: at most 63 \
             letters, digits and -_., which begin and end with a letter or digit",
        ),
        (
            &["--node-selector", &format!("pool={long}")],
            "expected the value of a label after =",
        ),
        (
            &["--node-selector", "pool=a", "--node-selector", "pool=b"],
            "--node-selector has pool twice",
        ),
        (
            &["--image", ""],
            "expected the name of an image, such as registry.example/mig-mps:1",
        ),
        (
            &["--image", "a b"],
            "invalid value 'a b' for '--image <NAME>': expected the name of an image, such as registry.example/mig-mps:1",
        ),
        (
            &["--image", "https://registry.example/mig-mps"],
            "expected the name of an image, such as registry.example/mig-mps:1",
        ),
        (
            &["--image", "Registry/Mig-MPS:1"],
            "expected the name of an image, such as registry.example/mig-mps:1",
        ),
        (
            &["--name", "pool_b"],
            "invalid value 'pool_b' for '--name <NAME>': expected at most 40 lower-case letters, digits and hyphens",
        ),
        (
            &["--metrics", "0.0.0.0:0"],
            "--metrics has port 0, which is another port at each start",
        ),
        (
            &["--kubelet", "kubelet"],
            "invalid value 'kubelet' for '--kubelet <DIR>': expected the absolute path of a directory without control characters",
        ),
        (
            &["--kubelet", "/var\n/lib"],
            "expected the absolute path of a directory without control characters",
        ),
    ] {
        let ran = Ran::of(
            command(&sim)
                .args(["--manifest", "all-small"])
                .args(options),
        )
        .ended(2);
        let (first, _) = ran.stderr.split_once("\n\n").unwrap_or((&ran.stderr, ""));
        assert!(first.contains(expected), "{ran:?}");
    }
}

#[test]
fn options_of_a_manifest_are_refused_with_a_list() {
    let sim = Sim::with("h200", 1);
    for options in [
        ["--list", "--image", "x"],
        ["--list", "--node-selector", "a=b"],
        ["--list", "--name", "a"],
        ["--hardware", "--manifest", "all-small"],
    ] {
        let ran = Ran::of(command(&sim).args(options)).ended(2);
        assert!(ran.stderr.contains("cannot be used with"), "{ran:?}");
    }
}

#[test]
fn a_validator_of_kubernetes_takes_the_manifest() {
    let test = "a_validator_of_kubernetes_takes_the_manifest";
    let validate = judges().join("bin/kubernetes-validate");
    if !can_run(
        test,
        validate.exists(),
        "kubernetes-validate is not installed",
    ) {
        return;
    }
    let sim = Sim::with("h200", 1);
    for (profile, options) in [
        (SHARED, &[][..]),
        (
            &SHARED.replace('\n', "\r\n"),
            &["--node-selector", "a=b", "--kubelet", "/a b", "--name", "1"],
        ),
    ] {
        let path = sim.node.dir().join("manifest.yaml");
        fs::write(&path, manifest(&sim, profile, options).1).unwrap();
        let mut validator = Command::new(&validate);
        Ran::of(validator.arg("--strict").arg(&path)).ended(0);
    }
}

#[test]
fn a_validator_of_kubernetes_takes_what_the_manual_shows() {
    let test = "a_validator_of_kubernetes_takes_what_the_manual_shows";
    let validate = judges().join("bin/kubernetes-validate");
    if !can_run(
        test,
        validate.exists(),
        "kubernetes-validate is not installed",
    ) {
        return;
    }
    let sim = Sim::with("h200", 1);
    let manual = fs::read_to_string(repository().join("src/manual/kubernetes.md")).unwrap();
    let blocks = manual
        .split("```yaml\n")
        .skip(1)
        .filter_map(|block| block.split("```").next());
    let objects: Vec<&str> = blocks
        .filter(|block| block.starts_with("apiVersion"))
        .collect();
    assert_eq!(objects.len(), 2);
    for object in objects {
        let path = sim.node.dir().join("object.yaml");
        fs::write(&path, object).unwrap();
        let mut validator = Command::new(&validate);
        Ran::of(validator.arg("--strict").arg(&path)).ended(0);
    }
}

/// A host that pods are played on: a mount namespace and a pid namespace in which the first process stands for systemd.
struct Host {
    sim: Sim,
    script: String,
}

impl Host {
    /// A host with systemd, unless a program is missing.
    fn of(test: &str) -> Option<Self> {
        let tools = ["busybox", "unshare", "chroot", "nsenter"];
        let has_tools = tools.iter().all(|tool| {
            let found = Command::new("sh")
                .args(["-c", &format!("command -v {tool}")])
                .output();
            found.is_ok_and(|ran| ran.status.success())
        });
        if !is_root(test) || !can_run(test, has_tools, "busybox-static is not installed") {
            return None;
        }
        let sim = Sim::with("a100-80gb", 1);
        sim.node.node().boot_with_systemd().unwrap();
        let host = Self {
            sim,
            script: "mount -t tmpfs -o mode=755 tmpfs /opt; PATH=/opt/mig-mps/bin:$PATH\n"
                .to_owned(),
        };
        host.make_image("image");
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sim.node.dir().join(name)
    }

    /// Makes the files of the image as its Containerfile has them.
    fn make_image(&self, name: &str) {
        let (context, image) = (self.path("context"), self.path(name));
        fs::create_dir_all(context.join("bin")).unwrap();
        let packages = repository().join(".ci/packages");
        for (from, to) in [
            (Path::new("/bin/busybox"), "busybox"),
            (&built().mig_mps, "bin/mig-mps"),
            (
                &built().programs.join("mig-mps-device-plugin"),
                "bin/mig-mps-device-plugin",
            ),
            (&packages.join("install-on-host.sh"), "install-on-host.sh"),
        ] {
            if !context.join(to).exists() {
                fs::copy(from, context.join(to)).unwrap();
            }
        }
        let text = fs::read_to_string(packages.join("Containerfile")).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let (to, from) = words.split_last().unwrap();
            for name in from {
                let mut target = image.join(&to[1..]);
                if to.ends_with('/') {
                    target.push(Path::new(name).file_name().unwrap());
                }
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::copy(context.join(name), target).unwrap();
            }
        }
    }

    /// Adds a pod of this profile and image: its first container until its end, and what it says.
    fn pod(&mut self, image: &str, profile: &str) {
        let (documents, _) = manifest(&self.sim, profile, &[]);
        let pod = &documents[2]["spec"]["template"]["spec"];
        let container = &pod["initContainers"][0];
        let number = self.script.len();
        let mut mounts = String::new();
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volumes = pod["volumes"].as_array().unwrap();
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .unwrap();
            let from = if let Some(path) = volume["hostPath"]["path"].as_str() {
                PathBuf::from(path)
            } else {
                assert_eq!(
                    volume["configMap"]["name"],
                    documents[1]["metadata"]["name"]
                );
                let directory = self.path(&format!("configmap-{number}"));
                fs::create_dir(&directory).unwrap();
                for (name, text) in documents[1]["data"].as_object().unwrap() {
                    fs::write(directory.join(name), text.as_str().unwrap()).unwrap();
                }
                directory
            };
            let (from, to) = (from.display(), mount["mountPath"].as_str().unwrap());
            let _ = writeln!(
                mounts,
                "mkdir -p {from} /mnt{to}; mount --bind {from} /mnt{to}"
            );
        }
        assert_eq!(pod["hostPID"], true);
        let words: Vec<_> = container["command"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        let (image, words) = (self.path(image), words.join(" "));
        let _ = writeln!(
            self.script,
            "unshare --mount sh -euc 'mount --bind {image} /mnt\n{mounts}\
             mkdir -p /mnt/proc; mount --rbind /proc /mnt/proc; exec chroot /mnt {words}' \
             >pod.log 2>&1 && status=0 || status=$?; echo \"pod: $status\"; cat pod.log >>pods.log",
            image = image.display()
        );
    }

    /// Adds the list of pods that the plugin of a host with a kubelet writes.
    fn list_no_pods(&mut self) {
        self.then(
            "printf '{\"boot-id\": \"%s\", \"at\": \"%s\", \"pods\": []}' \
             \"$(cat $MIG_MPS_ROOT/proc/sys/kernel/random/boot_id)\" $(date -u +%FT%TZ) >$MIG_MPS_RUN_DIR/pods.json",
        );
    }

    /// Adds a line of the script of the host.
    fn then(&mut self, line: &str) {
        let _ = writeln!(self.script, "{line}");
    }

    /// Runs the script, and returns what it says.
    fn run(self) -> String {
        let mut shell = Command::new("unshare");
        shell.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        shell.args(["--mount", "--propagation", "private", "bash", "-euc"]);
        shell.arg(format!(
            "cd {}\n{}",
            self.sim.node.dir().display(),
            self.script
        ));
        let ran = Ran::of(shell.env_clear().envs(self.sim.node.env())).ended(0);
        // Shown if the test fails.
        eprintln!(
            "{}",
            fs::read_to_string(self.path("pods.log")).unwrap_or_default()
        );
        let root = self.sim.node.dir().join("root");
        format!("{}{}", ran.stdout, ran.stderr)
            .replace(root.to_str().unwrap(), "")
            .replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }
}

/// The state of a host: what serves, and what is installed. Two of them are compared.
const STATE: &str = "mig-mps status --json | grep daemon_pid; \
                     find $MIG_MPS_ROOT/etc /opt/mig-mps/bin -type f -exec md5sum {} +";

/// An administrator makes users find it in their PATH.
#[test]
fn a_link_to_the_installed_program_is_no_other_installation() {
    let Some(mut host) = Host::of("a_link_to_the_installed_program_is_no_other_installation")
    else {
        return;
    };
    host.pod("image", SHARED);
    host.then("local=$MIG_MPS_ROOT/usr/local/bin; mkdir -p $local /opt/links");
    for link in [
        "ln -s /opt/mig-mps/bin/mig-mps $local/mig-mps",
        "ln -s /opt/mig-mps/bin/mig-mps /opt/links/inner; ln -s /opt/links/inner $local/mig-mps",
        // It is on the file system of the installed program.
        "ln /opt/mig-mps/bin/mig-mps /opt/links/hard; ln -s /opt/links/hard $local/mig-mps",
    ] {
        host.then(link);
        host.pod("image", SHARED);
        host.then("grep -E '^(error|hint):' pod.log || true; rm $local/mig-mps");
    }
    assert_snapshot!(host.run(), @"
    pod: 0
    pod: 0
    pod: 0
    pod: 0
    ");
}

/// What the last pod has said of files and of errors.
const LAST_WORDS: &str = r"grep -E '^(wrote|mig-mps|error:|hint:) ' pod.log";

#[test]
fn a_pod_installs_mig_mps_on_its_host() {
    let Some(mut host) = Host::of("a_pod_installs_mig_mps_on_its_host") else {
        return;
    };
    host.pod("image", SHARED);
    host.then(LAST_WORDS);
    host.then("mig-mps status --columns name,profile,state");
    host.then("systemctl is-active mig-mps mig-mps-heal.timer mig-mps-device-plugin");
    host.then("tail -n 1 $MIG_MPS_ROOT/etc/mig-mps/profile.toml; ls /opt/mig-mps");
    // The daemons are in scopes of systemd, and so outlive the pod.
    host.then("cat $MIG_MPS_ROOT/proc/*/cgroup | grep -c mig-mps.slice");
    // A pod that starts again changes nothing.
    host.then(&format!("({STATE}) >before"));
    host.pod("image", SHARED);
    host.then(&format!("({STATE}) | diff before - && echo unchanged"));
    // The container that stays ends at once.
    host.then("chroot image /bin/busybox sleep 2147483647 & kill -TERM $!; wait $! || echo $?");
    let said = host.run();
    assert_snapshot!(said, @"
    pod: 0
    wrote /opt/mig-mps/bin/mig-mps
    wrote /opt/mig-mps/bin/mig-mps-device-plugin
    wrote /etc/mig-mps/profile.toml
    wrote /etc/systemd/system/mig-mps.service
    wrote /etc/systemd/system/mig-mps-heal.service
    wrote /etc/systemd/system/mig-mps-heal.timer
    wrote /etc/systemd/system/mig-mps-device-plugin.service
    mig-mps VERSION is installed in /opt/mig-mps/bin
    NAME       PROFILE  STATE
    0.0        1g.10gb  ready
    0.1        1g.10gb  ready
    trainer-0  3g.40gb  ready
    active
    active
    active
    # Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.
    bin
    profile.toml
    3
    pod: 0
    unchanged
    143
    ");
}

/// Adds a change of the image: another build of the device plugin.
fn make_new_version(host: &Host) {
    let plugin = host.path("context/bin/mig-mps-device-plugin");
    let mut text = fs::read(&plugin).unwrap();
    text.extend(b"another build");
    fs::write(plugin, text).unwrap();
    host.make_image("new");
}

#[test]
fn what_serves_stays_until_another_profile_can_be_applied() {
    let test = "what_serves_stays_until_another_profile_can_be_applied";
    let Some(mut host) = Host::of(test) else {
        return;
    };
    make_new_version(&host);
    host.pod("image", SHARED);
    host.then(&format!("({STATE}) >before"));
    let unchanged = format!("{LAST_WORDS}; ({STATE}) | diff before - && echo unchanged");
    host.list_no_pods();
    // It does not fit.
    host.pod("new", &SHARED.replace("\"3g\"", "\"7g\""));
    host.then(&unchanged);
    // A client is in the way.
    host.then("mkfifo hold; mig-mps run trainer-0 -- cuda-app hold <hold >/dev/null & exec 3>hold");
    host.then("until mig-mps status --json | grep -q '\"clients\": \\[$'; do :; done");
    let other = format!("cdi = true\n{}", SHARED.replace("\"3g\"", "\"2g\""));
    host.list_no_pods();
    host.pod("new", &other);
    host.then(&unchanged);
    host.then("exec 3>&-; wait %1");
    // The kubelet tries again.
    host.list_no_pods();
    host.pod("new", &other);
    host.then(LAST_WORDS);
    host.then("cmp /opt/mig-mps/bin/mig-mps-device-plugin new/mig-mps/mig-mps-device-plugin");
    host.then("cmp /proc/$(systemctl show --property=MainPID mig-mps-device-plugin | cut -d = -f 2)/exe new/mig-mps/mig-mps-device-plugin");
    host.then("mig-mps status --columns name,profile,state");
    // The hook of the CDI file is not the program that the pod has brought.
    host.then(
        "grep -oh '/opt/mig-mps/.*/mig-mps' $MIG_MPS_ROOT/var/run/cdi/mig-mps.json | sort -u",
    );
    assert_snapshot!(host.run(), @"
    pod: 0
    pod: 4
    error: /opt/mig-mps/profile.toml:6:10: this does not fit on a selected GPU
    hint: request 2 × 1g.10gb, or 7g.80gb, or 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb instead
    error: the profile was not applied, and nothing was installed
    hint: see the lines above; the kubelet starts this pod again
    unchanged
    pod: 4
    error: 1 client is still running:
    error: the profile was not applied, and nothing was installed
    hint: end the programs or delete the pods in the lines above; the kubelet starts this pod again
    unchanged
    pod: 0
    wrote /opt/mig-mps/bin/mig-mps-device-plugin
    wrote /etc/mig-mps/profile.toml
    mig-mps VERSION is installed in /opt/mig-mps/bin
    NAME       PROFILE  STATE
    0.0        1g.10gb  ready
    0.1        1g.10gb  ready
    trainer-0  2g.20gb  ready
    /opt/mig-mps/bin/mig-mps
    ");
}

#[test]
fn a_host_has_one_mig_mps() {
    let Some(mut host) = Host::of("a_host_has_one_mig_mps") else {
        return;
    };
    // A package.
    host.then(
        "units=$MIG_MPS_ROOT/usr/lib/systemd/system; mkdir -p $units; touch $units/mig-mps.service",
    );
    host.pod("image", SHARED);
    host.then(&format!("{LAST_WORDS}; rm $units/mig-mps.service"));
    // By hand.
    host.then("mkdir /opt/hand; cp context/bin/* /opt/hand; /opt/hand/mig-mps systemd all-small --install 2>/dev/null");
    host.pod("image", SHARED);
    host.then(&format!(
        "{LAST_WORDS}; /opt/hand/mig-mps systemd --uninstall 2>/dev/null"
    ));
    // A profile of the administrator.
    host.pod("image", SHARED);
    host.then(&format!("{LAST_WORDS}; rm -r $MIG_MPS_ROOT/etc/mig-mps"));
    host.then("ls /opt/mig-mps; ls $MIG_MPS_ROOT/etc/systemd/system");
    // After a pod, by hand.
    host.pod("image", SHARED);
    host.then("/opt/hand/mig-mps systemd all-small --install || echo $?");
    host.then("/opt/hand/mig-mps systemd --uninstall || echo $?");
    host.then("mig-mps systemd --uninstall");
    assert_snapshot!(host.run(), @"
    pod: 4
    error: a package of mig-mps is installed on this host
    hint: remove the package (`apt purge mig-mps`, or `dnf remove mig-mps`), or delete the DaemonSet of this pod
    pod: 4
    error: units on this host run /opt/hand/mig-mps
    hint: run `/opt/hand/mig-mps systemd --uninstall` to remove them; or delete the DaemonSet of this pod
    pod: 4
    error: /etc/mig-mps/profile.toml is not from a pod
    hint: move /etc/mig-mps/profile.toml away, or delete the DaemonSet of this pod
    multi-user.target.wants
    timers.target.wants
    pod: 0
    4
    4
    error: a pod of Kubernetes has installed mig-mps on this host
    hint: delete its DaemonSet (`kubectl delete namespace mig-mps`), then run `/opt/mig-mps/bin/mig-mps systemd --uninstall`
    error: a pod of Kubernetes has installed mig-mps on this host
    hint: delete its DaemonSet (`kubectl delete namespace mig-mps`), then run `/opt/mig-mps/bin/mig-mps systemd --uninstall`
    removed /etc/systemd/system/mig-mps.service
    removed /etc/systemd/system/mig-mps-heal.service
    removed /etc/systemd/system/mig-mps-heal.timer
    removed /etc/systemd/system/mig-mps-device-plugin.service
    removed /etc/mig-mps/profile.toml
    ");
}

/// Nobody can end a program that is not there.
#[test]
fn a_pod_passes_on_the_hints_about_what_is_no_program() {
    let test = "a_pod_passes_on_the_hints_about_what_is_no_program";
    let Some(mut host) = Host::of(test) else {
        return;
    };
    host.then("nvidia-smi -i 0 -mig 1 >/dev/null; nvidia-smi mig -i 0 -cgi 4g.40gb -C >/dev/null");
    host.pod("image", SHARED);
    host.then(LAST_WORDS);
    assert_snapshot!(host.run(), @"
    pod: 4
    error: GPU 0: 4g.40gb at slices 0-3 would be destroyed, but mig-mps has no record of creating it
    hint: run `mig-mps up` in a terminal without --yes and confirm, or use --destroy-unmanaged
    error: the profile was not applied, and nothing was installed
    hint: see the lines above; the kubelet starts this pod again
    ");
}

/// A host of a pod that has another profile in force than the one that is installed, and another plugin running.
#[test]
fn what_an_ended_pod_has_left_undone_is_done_by_the_next() {
    let test = "what_an_ended_pod_has_left_undone_is_done_by_the_next";
    let Some(mut host) = Host::of(test) else {
        return;
    };
    make_new_version(&host);
    host.pod("image", SHARED);
    let devices = "mig-mps status --columns name,profile,state | tail -n +2";
    // The change of a pod goes on after its end, and its profile is taken back.
    fs::write(host.path("other.toml"), SHARED.replace("\"3g\"", "\"2g\"")).unwrap();
    host.then("cp other.toml /opt/mig-mps/profile.toml; mig-mps up /opt/mig-mps/profile.toml --yes --quiet");
    // Unless a pod may hold a share of a device.
    host.pod("image", SHARED);
    host.then(LAST_WORDS);
    host.then(devices);
    host.list_no_pods();
    host.pod("image", SHARED);
    host.then(devices);
    host.then("mig-mps down --quiet");
    host.pod("image", SHARED);
    host.then(devices);
    // The plugin was not restarted.
    host.then("simnode fault $(dirname $MIG_MPS_ROOT) --on 'systemctl restart' --fail 1");
    host.pod("new", SHARED);
    host.then("simnode fault $(dirname $MIG_MPS_ROOT) --clear");
    host.pod("new", SHARED);
    host.then("cmp /proc/$(systemctl show --property=MainPID mig-mps-device-plugin | cut -d = -f 2)/exe new/mig-mps/mig-mps-device-plugin && ls /opt/mig-mps /opt/mig-mps/bin");
    assert_snapshot!(host.run(), @"
    pod: 0
    pod: 4
    error: the device plugin does not report which pods hold shares of this host's devices
    hint: run `journalctl -u mig-mps-device-plugin` on this host to see why
    0.0        1g.10gb  ready
    0.1        1g.10gb  ready
    trainer-0  2g.20gb  ready
    pod: 0
    0.0        1g.10gb  ready
    0.1        1g.10gb  ready
    trainer-0  3g.40gb  ready
    pod: 0
    0.0        1g.10gb  ready
    0.1        1g.10gb  ready
    trainer-0  3g.40gb  ready
    pod: 1
    pod: 0
    /opt/mig-mps:
    bin
    profile.toml

    /opt/mig-mps/bin:
    mig-mps
    mig-mps-device-plugin
    ");
}

#[test]
fn a_host_of_others_is_left_as_it_is() {
    let Some(mut host) = Host::of("a_host_of_others_is_left_as_it_is") else {
        return;
    };
    let unchanged =
        format!("{LAST_WORDS}; ({STATE}) 2>/dev/null | diff before - && echo unchanged");
    // Units of others.
    host.then("units=$MIG_MPS_ROOT/etc/systemd/system; mkdir -p $units");
    for unit in ["mig-mps.service", "mig-mps-device-plugin.service"] {
        host.then(&format!("printf '[Service]\\nExecStart=/usr/local/sbin/wrapper\\n' >$units/{unit}; ({STATE}) >before 2>/dev/null || true"));
        host.pod("image", SHARED);
        host.then(&format!("{unchanged}; rm $units/{unit}"));
    }
    // A tarball, of which no unit is installed.
    host.then(&format!("local=$MIG_MPS_ROOT/usr/local/bin; mkdir -p $local; cp context/bin/mig-mps $local; ({STATE}) >before 2>/dev/null || true"));
    host.pod("image", SHARED);
    host.then(&format!("{unchanged}; rm $local/mig-mps"));
    // Programs of others, to which links lead.
    for link in ["ln -s", "ln"] {
        host.then(&format!("cp context/bin/mig-mps $local/other; {link} $local/other $local/mig-mps; ({STATE}) >before 2>/dev/null || true"));
        host.pod("image", SHARED);
        host.then(&format!("{unchanged}; rm $local/mig-mps $local/other"));
    }
    // Devices that somebody has made.
    host.then(&format!("mkdir /opt/hand; cp context/bin/* /opt/hand; /opt/hand/mig-mps up all-small --yes --quiet; ({STATE}) >before 2>/dev/null || true"));
    host.pod("image", SHARED);
    host.then(&format!("{unchanged}; /opt/hand/mig-mps down --quiet"));
    // Devices of idle pods, of which nothing is known while the plugin does not report them.
    host.pod("image", SHARED);
    host.then(&format!("systemctl stop mig-mps-device-plugin; echo '{{\"boot-id\": \"-\", \"at\": \"2026-01-01T00:00:00Z\", \"pods\": []}}' >$MIG_MPS_RUN_DIR/pods.json; ({STATE}) >before"));
    host.pod("image", &SHARED.replace("count = 2", "count = 1"));
    host.then(&unchanged);
    // Nor while it has not reported any.
    host.then(&format!("rm $MIG_MPS_RUN_DIR/pods.json; ({STATE}) >before"));
    host.pod("image", &SHARED.replace("count = 2", "count = 1"));
    host.then(&unchanged);
    assert_snapshot!(host.run(), @"
    pod: 4
    error: /etc/systemd/system/mig-mps.service: mig-mps did not write it and does not replace it
    hint: disable and remove /etc/systemd/system/mig-mps.service, or delete the DaemonSet of this pod
    unchanged
    pod: 4
    error: /etc/systemd/system/mig-mps-device-plugin.service: mig-mps did not write it and does not replace it
    hint: disable and remove /etc/systemd/system/mig-mps-device-plugin.service, or delete the DaemonSet of this pod
    unchanged
    pod: 4
    error: the tarball of mig-mps has installed /usr/local/bin/mig-mps on this host
    hint: run `install.sh --uninstall` of the tarball, or delete the DaemonSet of this pod
    unchanged
    pod: 4
    error: the tarball of mig-mps has installed /usr/local/bin/mig-mps on this host
    hint: run `install.sh --uninstall` of the tarball, or delete the DaemonSet of this pod
    unchanged
    pod: 4
    error: the tarball of mig-mps has installed /usr/local/bin/mig-mps on this host
    hint: run `install.sh --uninstall` of the tarball, or delete the DaemonSet of this pod
    unchanged
    pod: 4
    error: this host has devices of the profile all-small, which root applied
    hint: stop them with `mig-mps down`, or delete the DaemonSet of this pod
    unchanged
    pod: 0
    pod: 4
    error: the device plugin does not report which pods hold shares of this host's devices
    hint: run `journalctl -u mig-mps-device-plugin` on this host to see why
    unchanged
    pod: 4
    error: the device plugin does not report which pods hold shares of this host's devices
    hint: run `journalctl -u mig-mps-device-plugin` on this host to see why
    unchanged
    ");
}

#[test]
fn two_pods_do_not_install_at_once() {
    let Some(mut host) = Host::of("two_pods_do_not_install_at_once") else {
        return;
    };
    host.then("mkdir -p /opt/mig-mps; exec 9</opt/mig-mps; flock 9");
    host.pod("image", SHARED);
    host.then(LAST_WORDS);
    host.then("exec 9<&-; mkdir /opt/mig-mps/new-4000000");
    host.pod("image", SHARED);
    host.then("ls /opt/mig-mps");
    assert_snapshot!(host.run(), @"
    pod: 4
    error: another pod is installing mig-mps on this host
    hint: wait until that pod has finished
    pod: 0
    bin
    profile.toml
    ");
}

#[test]
fn a_pod_needs_a_host_with_systemd() {
    let Some(mut host) = Host::of("a_pod_needs_a_host_with_systemd") else {
        return;
    };
    fs::remove_dir_all(host.sim.machine("run/systemd")).unwrap();
    host.pod("image", SHARED);
    host.then(LAST_WORDS);
    host.then("ls -A /opt/mig-mps");
    assert_snapshot!(host.run(), @"
    pod: 1
    error: this host does not run systemd, or systemd-run is missing
    hint: select nodes with systemd: `mig-mps-device-plugin --manifest PROFILE --node-selector LABEL=VALUE`
    ");
}

/// By the command of its Containerfile.
#[test]
fn the_image_is_built_without_a_network() {
    let test = "the_image_is_built_without_a_network";
    let has_podman = Command::new("podman").arg("--version").output();
    let has_podman = has_podman.is_ok_and(|ran| ran.status.success());
    if !can_run(test, has_podman, "podman is missing") {
        return;
    }
    let Some(host) = Host::of(test) else {
        return;
    };
    let own = host.path("podman");
    let podman = format!(
        "podman --root {0}/storage --runroot {0}/run --tmpdir {0}/tmp --storage-driver=vfs",
        own.display()
    );
    let script = format!(
        "cd {context}; cp {packages}/Containerfile .
        {podman} build --quiet --tag localhost/mig-mps:1 . >/dev/null
        {podman} export $({podman} create localhost/mig-mps:1) | tar --list --verbose | sed 's/ .* / /' | grep -v '^d'
        {podman} rm --all >/dev/null; {podman} rmi --all >/dev/null",
        context = host.path("context").display(),
        packages = repository().join(".ci/packages").display(),
    );
    let mut offline = Command::new("unshare");
    let ran = Ran::of(offline.args(["--net", "sh", "-ec", &script])).ended(0);
    assert_snapshot!(ran.stdout, @"
    -rwxr-xr-x bin/busybox
    -rwxr-xr-x mig-mps/install-on-host.sh
    -rwxr-xr-x mig-mps/mig-mps
    -rwxr-xr-x mig-mps/mig-mps-device-plugin
    ");
}
