//! A cluster on this machine: real Slurm on simulated nodes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fmt::{self, Display};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Ran, Sim, TestNode, can_run, eventually, write_program};

/// The time that the processes of a cluster may take to end.
const END: Duration = Duration::from_secs(60);

/// The users of the jobs, which every Linux has.
pub(crate) const USERS: [(&str, u32); 3] = [("daemon", 1), ("bin", 2), ("sys", 3)];

/// The scripts that slurm.conf names.
const SCRIPTS: [&str; 4] = ["prolog", "epilog", "task-prolog", "health"];

/// A node of the cluster before it starts.
pub(crate) struct Setup {
    pub(crate) sim: Sim,
    pub(crate) profile: &'static str,
    /// The jobs that share each device; `None` for one.
    pub(crate) shard: Option<u32>,
    /// More for its line in slurm.conf.
    pub(crate) more: &'static str,
    /// False if nobody serves its devices once Slurm knows them.
    pub(crate) has_daemons: bool,
}

impl Setup {
    pub(crate) fn new(model: &str, count: usize, profile: &'static str) -> Self {
        Self {
            sim: Sim::with(model, count),
            profile,
            shard: None,
            more: "",
            has_daemons: true,
        }
    }

    pub(crate) fn without_daemons(self) -> Self {
        Self {
            has_daemons: false,
            ..self
        }
    }

    pub(crate) fn shards(self, shard: u32) -> Self {
        Self {
            shard: Some(shard),
            ..self
        }
    }
}

/// A running cluster. Dropping it ends everything in it.
pub(crate) struct Lab {
    /// `n1` is the first.
    pub(crate) nodes: Vec<Sim>,
    directory: tempfile::TempDir,
    daemons: Child,
    /// The mount namespace that everything in the cluster is in.
    namespace: File,
    _ports: Vec<Port>,
}

/// True if a cluster can run here.
pub(crate) fn can_start(test: &str) -> bool {
    let has = |program: &&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        found.is_ok_and(|output| output.status.success())
    };
    let programs = ["slurmctld", "slurmd", "sbatch", "munged", "unshare"];
    let is_met = testkit::is_root(test) && programs.iter().all(has);
    can_run(test, is_met, "it needs root, slurm-wlm and munge")
}

impl Lab {
    /// Starts a cluster, with more lines for slurm.conf.
    pub(crate) fn start(setups: Vec<Setup>, more: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("lab").tempdir().unwrap();
        let at = directory.path().to_owned();
        fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [
            ("munge", 0o711),
            ("state", 0o700),
            ("log", 0o755),
            ("out", 0o777),
        ] {
            fs::create_dir(at.join(name)).unwrap();
            fs::set_permissions(at.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let key = at.join("munge/key");
        fs::write(&key, at.display().to_string().repeat(40)).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
        let has_shards = setups.iter().any(|setup| setup.shard.is_some());
        let (mut gres, mut lines) = (String::new(), String::new());
        let ports = free_ports(setups.len() + 1);
        let controller = ports[0].number;
        for (nth, setup) in setups.iter().enumerate() {
            let name = format!("n{}", nth + 1);
            setup.sim.up(setup.profile, &["--yes"]).ended(0);
            write_environment(&at, &name, &setup.sim.node);
            let (conf, node_gres) = printed(setup, &name, has_shards);
            gres.push_str(&conf);
            if !setup.has_daemons {
                setup.sim.run(&["down", "--yes"]).ended(0);
            }
            let (port, more) = (ports[nth + 1].number, setup.more);
            let _ = writeln!(
                lines,
                "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 Gres={node_gres} {more}"
            );
        }
        let types = if has_shards { "gpu,shard" } else { "gpu" };
        fs::write(at.join("gres.conf"), &gres).unwrap();
        fs::write(
            at.join("slurm.conf"),
            slurm_conf(&at, controller, types, &lines, more),
        )
        .unwrap();
        if setups.iter().all(|setup| setup.has_daemons) {
            write_scripts(&at, &setups[0].sim);
        } else {
            write_empty_scripts(&at);
        }
        let dev = write_devices(&at, &gres);
        let names: Vec<String> = (1..=setups.len()).map(|nth| format!("n{nth}")).collect();
        let daemons = start_daemons(&at, &dev, &names);
        let namespace = eventually("the cluster has a namespace of its own", || {
            let namespace = File::open(format!("/proc/{}/ns/mnt", daemons.id()))?;
            let own = fs::metadata("/proc/self/ns/mnt")?;
            if namespace.metadata()?.ino() == own.ino() {
                return Err(io::Error::other("it has that of the tests"));
            }
            Ok(namespace)
        });
        let lab = Self {
            nodes: setups.into_iter().map(|setup| setup.sim).collect(),
            directory,
            daemons,
            namespace,
            _ports: ports,
        };
        lab.until("every node is idle", || {
            let idle = lab.slurm("sinfo", &["-h", "-N", "-t", "idle", "-o", "%N"]);
            idle.status == 0 && idle.stdout.lines().count() == lab.nodes.len()
        });
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs one of Slurm's programs.
    pub(crate) fn slurm(&self, program: &str, words: &[&str]) -> Ran {
        let mut command = Command::new(program);
        command
            .args(words)
            .env("SLURM_CONF", self.path("slurm.conf"));
        Ran::of(command.current_dir("/"))
    }

    /// Runs `mig-mps` on a node, as its slurmd would.
    pub(crate) fn mig_mps(&self, node: usize, words: &[&str]) -> Ran {
        let mut command = self.nodes[node].command(words);
        command
            .env("SLURM_CONF", self.path("slurm.conf"))
            .env("SLURMD_NODENAME", format!("n{}", node + 1));
        Ran::of(&mut command)
    }

    /// Submits a job of a user, and returns its id. The script is on its node, with the programs of the node in `PATH`.
    pub(crate) fn submit(&self, (_, uid): (&str, u32), options: &[&str], script: &str) -> u32 {
        let out = self.path("out");
        let text = format!(
            "#!/bin/sh\n. {}/$SLURMD_NODENAME.env\nout={}\n{script}\n",
            self.directory.path().display(),
            out.display()
        );
        let file = self.path("job.sh");
        fs::write(&file, text).unwrap();
        let (user, group) = (format!("--uid={uid}"), format!("--gid={uid}"));
        let output = format!("--output={}/%j.log", out.display());
        let mut words = vec!["--parsable", "--chdir=/", &user, &group, &output];
        words.extend(options);
        words.push(file.to_str().unwrap());
        let ran = self.slurm("sbatch", &words).ended(0);
        ran.stdout.trim().parse().unwrap()
    }

    /// The state of a job, as `scontrol` shows it.
    pub(crate) fn state(&self, job: u32) -> String {
        let shown = self.slurm("scontrol", &["show", "job", &job.to_string()]);
        field(&shown.stdout, "JobState=")
    }

    pub(crate) fn await_state(&self, job: u32, states: &[&str]) -> String {
        self.until(&format!("job {job} is {states:?}"), || {
            states.contains(&self.state(job).as_str())
        });
        self.state(job)
    }

    /// The state of a node, and the reason for it.
    pub(crate) fn node_state(&self, node: usize) -> (String, String) {
        let name = format!("n{}", node + 1);
        let shown = self.slurm("scontrol", &["show", "node", &name]).ended(0);
        let reason = shown
            .stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix("Reason="));
        let reason = reason
            .and_then(|reason| reason.rsplit_once(" ["))
            .map(|(reason, _)| reason);
        (
            field(&shown.stdout, "State="),
            reason.unwrap_or_default().to_owned(),
        )
    }

    /// True if Slurm starts no jobs on a node.
    pub(crate) fn is_drained(&self, node: usize) -> bool {
        self.node_state(node).0.contains("DRAIN")
    }

    /// The output of a job's script.
    pub(crate) fn output(&self, job: u32) -> String {
        fs::read_to_string(self.path(&format!("out/{job}.log"))).unwrap_or_default()
    }

    /// The log of a node's slurmd.
    pub(crate) fn log(&self, node: usize) -> String {
        fs::read_to_string(self.path(&format!("log/n{}.log", node + 1))).unwrap_or_default()
    }

    /// The lines of the nodes' logs that tell what went wrong.
    fn complaints(&self) -> String {
        let nodes = 0..self.nodes.len();
        let logs = nodes.map(|node| {
            let log = self.log(node);
            let lines = log.lines();
            let lines = lines.filter(|line| line.contains("mig-mps") || line.contains("error"));
            let lines: Vec<&str> = lines.collect();
            format!("n{}:\n{}\n", node + 1, lines.join("\n"))
        });
        logs.collect()
    }

    /// Waits for something, and shows the state of the cluster if it does not happen.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut happens: impl FnMut() -> bool) {
        eventually(what, || if happens() { Ok(()) } else { Err(self) });
    }
}

/// The state of the cluster.
impl Display for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.slurm("squeue", &[]).stdout;
        let nodes = self.slurm("sinfo", &["-N", "-o", "%N %T %G %E"]).stdout;
        write!(f, "{jobs}{nodes}{}", self.complaints())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Jobs, and daemons that were started in them, have nothing else in common.
        let until = Instant::now() + END;
        loop {
            let left = processes_in(&self.namespace);
            if left.is_empty() || Instant::now() > until {
                break;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = self.daemons.try_wait();
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.daemons.kill();
        let _ = self.daemons.wait();
    }
}

/// Everything in a mount namespace. Its number is its own for as long as it is open.
fn processes_in(namespace: &File) -> Vec<Pid> {
    let wanted = namespace.metadata().unwrap().ino();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let mounts = fs::metadata(format!("/proc/{pid}/ns/mnt"));
        mounts.is_ok_and(|mounts| mounts.ino() == wanted)
    })
    .filter_map(Pid::from_raw)
    .collect()
}

/// The word after a key.
fn field(text: &str, key: &str) -> String {
    let mut words = text.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix(key));
    value.unwrap_or_default().to_owned()
}

/// A port of this machine that no other lab gets, in this process or in another one.
struct Port {
    number: u16,
    _claim: UnixListener,
}

/// Ports that nobody uses now. They are below those that the kernel gives to connections, which would take one before its
/// daemon does.
fn free_ports(count: usize) -> Vec<Port> {
    let claimed = (20_000..32_768).filter_map(|number| {
        let name = SocketAddr::from_abstract_name(format!("mig-mps lab, port {number}"));
        let claim = UnixListener::bind_addr(&name.ok()?).ok()?;
        TcpListener::bind(("0.0.0.0", number)).ok()?;
        Some(Port {
            number,
            _claim: claim,
        })
    });
    claimed.take(count).collect()
}

/// The output of `mig-mps slurm gres`: the lines of gres.conf, and the node's `Gres=`.
fn printed(setup: &Setup, name: &str, has_shards: bool) -> (String, String) {
    let mut command = setup.sim.command(&["slurm", "gres", "--node", name]);
    if has_shards {
        command.arg("--one-file");
    }
    if let Some(shard) = setup.shard {
        command.args(["--shard", &shard.to_string()]);
    }
    let ran = Ran::of(&mut command).ended(0);
    let (conf, line) = ran.stdout.split_once("\n\n").unwrap();
    let gres = line.trim().rsplit_once(" Gres=").unwrap().1;
    (format!("{conf}\n"), gres.to_owned())
}

/// Writes the environment of programs on a node, for shells.
fn write_environment(at: &Path, name: &str, node: &TestNode) {
    let mut text = String::new();
    for (variable, value) in node.env() {
        let (variable, value) = (variable.display(), value.display());
        let _ = writeln!(text, "export {variable}='{value}'");
    }
    let _ = writeln!(text, "export SLURM_CONF='{}/slurm.conf'", at.display());
    fs::write(at.join(format!("{name}.env")), text).unwrap();
}

fn slurm_conf(at: &Path, port: u16, types: &str, nodes: &str, more: &str) -> String {
    let at = at.display();
    let names = nodes.matches("NodeName=").count();
    format!(
        "ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge/socket
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool.%n
SlurmctldPidFile={at}/controller.pid
SlurmdPidFile={at}/%n.pid
SlurmctldLogFile={at}/log/controller.log
SlurmdLogFile={at}/log/%n.log
SlurmdDebug=debug
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes={types}
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=10000,batch_sched_delay=0
MpiDefault=none
KillWait=2
BatchStartTimeout=60
ReturnToService=2
Prolog={at}/prolog
Epilog={at}/epilog
TaskProlog={at}/task-prolog
HealthCheckProgram={at}/health
{more}
{nodes}PartitionName=all Nodes=n[1-{names}] Default=YES State=UP OverSubscribe=NO
"
    )
}

/// Installs the scripts, and writes those of the site, which slurm.conf names and which end with them. Here each finds its
/// simulated node first.
fn write_scripts(at: &Path, sim: &Sim) {
    let conf = at.join("slurm.conf");
    let installed = at.join("installed");
    let install = || {
        let words = ["slurm", "install", "--dir", installed.to_str().unwrap()];
        let mut command = sim.command(&words);
        command.args(["--node", "n1"]).env("SLURM_CONF", &conf);
        Ran::of(&mut command).ended(0)
    };
    // What slurm.conf names is the site's.
    assert_eq!(
        install()
            .stdout
            .matches(" stays. Let that script end with:")
            .count(),
        4
    );
    for name in SCRIPTS {
        let (at, installed) = (at.display(), installed.display());
        let text =
            format!("#!/bin/sh\n. {at}/$SLURMD_NODENAME.env\nexec {installed}/mig-mps-{name}\n");
        write_program(format!("{at}/{name}"), text);
    }
    let again = install();
    assert_eq!(
        again.stderr.matches(" is up to date").count(),
        4,
        "{again:?}"
    );
    assert!(!again.stdout.contains("stays"), "{again:?}");
}

/// Writes scripts that do nothing, for a cluster without daemons.
fn write_empty_scripts(at: &Path) {
    for name in SCRIPTS {
        write_program(at.join(name), "#!/bin/sh\n");
    }
}

/// Makes the device files of all nodes in a directory that is to become `/dev`. slurmd 22.05 gives a job no GPU whose file is
/// no device; which device it is does not matter here.
fn write_devices(at: &Path, gres: &str) -> PathBuf {
    let dev = at.join("dev");
    let of_instances = dev.join("nvidia-caps");
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&of_instances)
        .unwrap();
    let words = gres.split([' ', '\n', '=', ',']);
    let files: BTreeSet<&str> = words
        .filter_map(|word| word.strip_prefix("/dev/"))
        .collect();
    let files = files.into_iter().map(|file| dev.join(file));
    let null = rustix::fs::stat("/dev/null").unwrap().st_rdev;
    for file in files {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &file, kind, mode, null).unwrap();
    }
    dev
}

/// Starts Slurm in a mount namespace of its own.
fn start_daemons(at: &Path, dev: &Path, names: &[String]) -> Child {
    let (at, dev) = (at.display(), dev.display());
    let mut script = format!(
        "set -e
mount --make-rprivate /
for file in null zero full random urandom tty; do touch {dev}/$file; mount --bind /dev/$file {dev}/$file; done
for directory in shm pts; do mkdir {dev}/$directory; mount --rbind /dev/$directory {dev}/$directory; done
ln -s /proc/self/fd {dev}/fd
mount --rbind {dev} /dev
munged --key-file={at}/munge/key --socket={at}/munge/socket --pid-file={at}/munge/pid --log-file={at}/munge/log \
 --seed-file={at}/munge/seed --num-threads=2 --force
slurmctld -c -D > {at}/log/controller.out 2>&1 &
"
    );
    for name in names {
        let _ = writeln!(script, "slurmd -D -N {name} > {at}/log/{name}.out 2>&1 &");
    }
    script.push_str("wait\n");
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .env_clear()
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("SLURM_CONF", format!("{at}/slurm.conf"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}
