//! Programs in containers of Apptainer and Singularity, which a mount namespace stands for: it hides directories of the host,
//! and has those that the engine's variables name.

use std::process::Command;

use testkit::{Ran, Sim, assert_contains, needs_root, write_program};

/// Does what `apptainer exec [--cleanenv] IMAGE PROGRAM` does of directories and variables. `HIDDEN` names the
/// directories that a container does not have.
const ENGINE: &str = r#"#!/bin/bash
set -e
case ${0##*/} in
apptainer)
  binds=${APPTAINER_BIND-$SINGULARITY_BIND},${APPTAINER_BINDPATH-$SINGULARITY_BINDPATH}
  prefixes="SINGULARITYENV_ APPTAINERENV_"
  for name in BIND BINDPATH; do
    old=SINGULARITY_$name new=APPTAINER_$name
    if [ -v $old ] && [ "${!new-${!old}}" != "${!old}" ]; then
      echo "WARNING: $old and $new have different values, using the latter" >&2
    fi
  done ;;
singularity)
  binds=$SINGULARITY_BIND,$SINGULARITY_BINDPATH
  prefixes=SINGULARITYENV_ ;;
esac
[ "$1" = exec ] && shift
if [ "$1" = --cleanenv ]; then
  shift
  for name in $(compgen -e CUDA_); do unset "$name"; done
fi
shift
# The environment of the image.
[ -z "$IMAGE_MEMORY_LIMIT" ] || export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=$IMAGE_MEMORY_LIMIT
for prefix in $prefixes; do
  for name in $(compgen -e "$prefix"); do export "${name#"$prefix"}=${!name}"; done
done
export binds
exec unshare --mount bash -ec '
  held=/mnt
  mount -t tmpfs none "$held"
  IFS=, read -ra binds <<< "$binds"
  for nth in "${!binds[@]}"; do
    [ -n "${binds[nth]}" ] || continue
    mkdir "$held/$nth"
    mount --bind "${binds[nth]%%:*}" "$held/$nth"
  done
  for directory in $HIDDEN; do mount -t tmpfs none "$directory"; done
  declare -A mounted
  for nth in "${!binds[@]}"; do
    IFS=: read -r source target options <<< "${binds[nth]}"
    [ -n "$source" ] || continue
    if [ -n "${mounted[${target:-$source}]}" ]; then
      echo "WARNING: destination is already in the mount point list" >&2
      continue
    fi
    mounted[${target:-$source}]=1
    mkdir -p "${target:-$source}"
    mount --bind "$held/$nth" "${target:-$source}"
    [ "$options" != ro ] || mount -o remount,bind,ro "${target:-$source}"
  done
  exec "$@"' bash "$@"
"#;

/// A node with the engines in its PATH, and a directory of the user's.
fn node() -> Sim {
    let sim = Sim::small();
    for engine in ["apptainer", "singularity"] {
        write_program(sim.node.dir().join("bin").join(engine), ENGINE);
    }
    std::fs::create_dir(sim.node.dir().join("scratch")).unwrap();
    sim
}

/// The command, of which a container has no run directory and no `TMPDIR`.
fn hiding(sim: &Sim, mut command: Command) -> Command {
    let run_dir = sim.node.run_dir().display().to_string();
    let scratch = sim.node.dir().join("scratch").display().to_string();
    // A short path, in which a private daemon can have its directory.
    let private = sim.node.run_dir().with_file_name("s").display().to_string();
    std::fs::create_dir_all(&private).unwrap();
    command.env("HIDDEN", format!("{run_dir} {scratch} {private}"));
    command.env("TMPDIR", private);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

fn run(sim: &Sim, words: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = hiding(sim, sim.command(words));
    command.envs(variables.iter().copied());
    Ran::of(&mut command)
}

#[test]
fn a_program_in_a_container_is_a_client() {
    needs_root!();
    let sim = node();
    let program = ["image.sif", "cuda-app", "run", "0"];
    for engine in ["apptainer", "singularity"] {
        for options in [&["exec"][..], &["exec", "--cleanenv"]] {
            let words = [
                &["run", "0.2", "--threads", "25", "--", engine],
                options,
                &program,
            ];
            let ran = run(&sim, &words.concat(), &[]).ended(0);
            assert!(
                ran.stdout.lines().next().unwrap().ends_with("mps yes"),
                "{ran:?}"
            );
            // A quarter of 14 SMs, in pairs.
            assert_contains(&ran.stdout, " sm 2 ");
            assert_eq!(ran.stderr, "", "{engine} {options:?}");
        }
    }
    // The container lacks the directory: without the variable, CUDA runs the program outside MPS.
    let without = [
        "env",
        "-u",
        "APPTAINER_BINDPATH",
        "-u",
        "SINGULARITY_BINDPATH",
    ];
    let words = [
        &["run", "0.2", "--"],
        &without[..],
        &["apptainer", "exec"],
        &program,
    ];
    let ran = run(&sim, &words.concat(), &[]).ended(0);
    assert_contains(&ran.stdout, "mps no");
}

#[test]
fn a_container_that_a_job_script_starts_has_clients() {
    needs_root!();
    let sim = node();
    let script = "for i in 1 2; do apptainer exec --cleanenv image.sif cuda-app run 0; done";
    let ran = run(
        &sim,
        &["run", "0.2", "--require-mps", "--", "sh", "-c", script],
        &[],
    )
    .ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 2, "{ran:?}");
    let environment = sim.run(&["env", "0.2", "--shell", "sh"]).ended(0).stdout;
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().envs(sim.node.env());
    shell.args(["-c", &format!("{environment}{script}")]);
    let ran = Ran::of(&mut hiding(&sim, shell)).ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 2, "{ran:?}");
}

#[test]
fn the_directories_of_the_caller_stay() {
    needs_root!();
    let sim = node();
    let scratch = sim.node.dir().join("scratch").display().to_string();
    std::fs::write(sim.node.dir().join("scratch/data"), "data").unwrap();
    let script = format!("cat {scratch}/data && cuda-app run 0");
    for engine in ["apptainer", "singularity"] {
        for variable in ["APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"] {
            let words = [
                "run",
                "0.2",
                "--",
                engine,
                "exec",
                "image.sif",
                "sh",
                "-ec",
                &script,
            ];
            let ran = run(&sim, &words, &[(variable, &scratch)]).ended(0);
            assert!(
                ran.stdout.starts_with("data"),
                "{engine} {variable}: {ran:?}"
            );
            assert_contains(&ran.stdout, "mps yes");
            assert_eq!(ran.stderr, "", "{engine} {variable}");
        }
    }
}

#[test]
fn no_other_directory_of_the_caller_hides_the_run_directory() {
    needs_root!();
    let sim = node();
    let run_dir = sim.node.run_dir().display().to_string();
    let scratch = sim.node.dir().join("scratch").display().to_string();
    for list in [
        format!("{run_dir},{scratch}:{run_dir}"),
        format!("{scratch}:{run_dir}"),
    ] {
        let words = ["run", "0.2", "--", "apptainer", "exec", "image.sif"];
        let words = [&words[..], &["cuda-app", "run", "0"]].concat();
        let ran = run(&sim, &words, &[("APPTAINER_BINDPATH", &list)]).ended(0);
        assert_contains(&ran.stdout, "mps yes");
        assert_eq!(ran.stderr, "", "{list}");
    }
}

/// A list that a script has over several lines.
#[test]
fn white_space_in_the_list_of_the_caller_loses_nothing() {
    needs_root!();
    let sim = node();
    let scratch = sim.node.dir().join("scratch").display().to_string();
    let list = format!("{scratch},\n\t/opt\n");
    let words = ["run", "0.2", "--", "apptainer", "exec", "image.sif"];
    let words = [&words[..], &["cuda-app", "run", "0"]].concat();
    let ran = run(&sim, &words, &[("APPTAINER_BINDPATH", &list)]).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!(ran.stderr, "");
    let printed = run(&sim, &["env", "0.2"], &[("APPTAINER_BINDPATH", &list)]).ended(0);
    let run_dir = sim.node.run_dir().display().to_string();
    let expected = format!("APPTAINER_BINDPATH={scratch},/opt,{run_dir}:{run_dir}:ro\n");
    assert_contains(&printed.stdout, &expected);
    let broken = [("SINGULARITY_BINDPATH", "/a,/b\nX=1")];
    for words in [&["env", "0.2"][..], &["run", "0.2", "--", "true"]] {
        assert_eq!(
            run(&sim, words, &broken).ended(0).stderr,
            "warning: the entry \"/b\\nX=1\" of SINGULARITY_BINDPATH is left out, because it has a control character; a \
             container does not have this directory\n"
        );
    }
}

/// A container gets these variables whatever the host's environment has: the limit would lift that of the device.
#[test]
fn variables_for_containers_from_another_device_are_replaced() {
    needs_root!();
    let sim = node();
    let ran = run(
        &sim,
        &[
            "run",
            "0.2",
            "--memory",
            "1G",
            "--",
            "apptainer",
            "exec",
            "image.sif",
            "cuda-app",
            "run",
            "0",
        ],
        &[
            ("APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY", "/nowhere"),
            ("SINGULARITYENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=9G"),
            ("APPTAINERENV_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10"),
        ],
    )
    .ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_contains(&ran.stdout, " sm 14 ");
    assert_contains(&ran.stdout, " free 943MiB ");
}

#[test]
fn a_container_has_the_private_daemon_of_its_program() {
    needs_root!();
    let sim = node();
    sim.run(&["down"]).ended(0);
    let program = [
        "apptainer",
        "exec",
        "--cleanenv",
        "image.sif",
        "cuda-app",
        "run",
        "0",
    ];
    let words = [&["run", "--private", "-n", "2", "--"], &program[..]].concat();
    let ran = run(&sim, &words, &[]).ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 2, "{ran:?}");
}

/// Whatever the caller has in these variables: the engines read them by different rules.
#[test]
fn a_container_has_the_run_directory_beside_any_list_of_the_caller() {
    needs_root!();
    let sim = node();
    let run_dir = sim.node.run_dir().display().to_string();
    let above = sim.node.run_dir().parent().unwrap().display().to_string();
    // Of two entries with one target, the engines mount the first.
    let other = format!("/tmp:{run_dir}");
    for (variables, engine) in [
        (&[("APPTAINER_BIND", above.as_str())][..], "singularity"),
        (&[("APPTAINER_BINDPATH", &run_dir)], "singularity"),
        (&[("APPTAINER_BIND", &other)], "apptainer"),
        (&[("SINGULARITY_BIND", &other)], "apptainer"),
        (&[("SINGULARITY_BIND", &other)], "singularity"),
        (
            &[("APPTAINER_BIND", ""), ("SINGULARITY_BIND", &above)],
            "apptainer",
        ),
        (
            &[("APPTAINER_BINDPATH", ""), ("SINGULARITY_BINDPATH", &above)],
            "apptainer",
        ),
    ] {
        let words = [
            "run",
            "0.2",
            "--",
            engine,
            "exec",
            "image.sif",
            "cuda-app",
            "run",
            "0",
        ];
        let ran = run(&sim, &words, variables).ended(0);
        assert_contains(&ran.stdout, "mps yes");
    }
}

#[test]
fn an_image_lifts_no_limit() {
    needs_root!();
    let sim = node();
    sim.run(&["set", "0.2", "memory=1G"]).ended(0);
    let words = [
        "run",
        "0.2",
        "--",
        "apptainer",
        "exec",
        "image.sif",
        "cuda-app",
        "run",
        "0",
    ];
    let ran = run(&sim, &words, &[("IMAGE_MEMORY_LIMIT", "5=9G")]).ended(0);
    assert_contains(&ran.stdout, " free 943MiB ");
}

#[test]
fn a_comparison_in_containers_has_a_side_outside_mps() {
    needs_root!();
    let sim = node();
    let shell = sim.run(&["env", "0.2", "--shell", "sh"]).ended(0).stdout;
    let log = sim.node.dir().join("scratch/seen").display().to_string();
    write_program(
        sim.node.dir().join("bin/job"),
        format!("#!/bin/sh\napptainer exec image.sif cuda-app run 0.2 >> {log}\n"),
    );
    let compare = "mig-mps compare 0.2 -n 1 --seconds 0.1 --rounds 1 -- job";
    let mut command = Command::new("/bin/sh");
    command.env_clear().envs(sim.node.env());
    let program = sim.program();
    command.args([
        "-c",
        &format!("{shell}{}", compare.replace("mig-mps", &program)),
    ]);
    let mut command = hiding(&sim, command);
    command.env("HIDDEN", sim.node.run_dir());
    let _ = Ran::of(&mut command);
    let seen = std::fs::read_to_string(&log).unwrap();
    assert_contains(&seen, "mps no");
    assert_contains(&seen, "mps yes");
}
