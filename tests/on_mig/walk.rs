//! A GPU that the shipped program partitions, serves and clears.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interrupt;
use crate::node::Node;
use crate::partition::{self, Instance};
use crate::process::{Ended, Notes, Running};
use crate::refusal::Subject;
use crate::rounds::Round;
use crate::scene::{is_client, number};
use crate::transcript::Transcript;

/// No run of mig-mps takes longer: enabling MIG may reset a GPU.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A difference from what is expected.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// Exit status of a refusal because something runs.
const IN_USE: i32 = 4;

/// Exit status of a plan that is not empty.
const NOT_YET: i32 = 3;

/// mig-mps on the named GPU, with a run directory of its own.
pub(crate) struct Walk<'a> {
    pub(crate) node: &'a Node,
    pub(crate) subject: &'a Subject,
    pub(crate) transcript: &'a Transcript,
    /// A directory that belongs to this run.
    pub(crate) dir: &'a Path,
    /// A copy in there: where the owner keeps it is no business of a transcript.
    pub(crate) cuda_app: Option<PathBuf>,
}

/// One of the devices that mig-mps made.
struct Device {
    uuid: String,
    pipe: PathBuf,
}

impl Walk<'_> {
    /// Shows what mig-mps finds.
    pub(crate) fn read(&self) -> Checked {
        self.run(&["--version"], 0)?;
        self.run(&["list", "--offers"], 0)?;
        self.run(&["status"], 0)?;
        Ok(())
    }

    /// From one geometry to the next in place, and at last to none, with MIG mode as it was.
    pub(crate) fn change(&self, rounds: &[Round]) -> Checked {
        for round in rounds {
            let profile = self.profile(round)?;
            self.run(&["plan", &profile, "--exit-code"], NOT_YET)?;
            // What was checked before may have left an instance that mig-mps did not make.
            self.run(&["up", &profile, "--yes", "--destroy-unmanaged"], 0)?;
            self.is_made(round)?;
            self.ready(round.devices())?;
        }
        if self.subject.was_in_mig_mode {
            self.run(&["down", "--destroy-mig", "--yes"], 0)?;
            return check(self.instances()?.is_empty(), "instances are left");
        }
        self.run(&["down", "--disable-mig", "--yes"], 0)?;
        check(!self.is_in_mig_mode(), "MIG mode is still on")
    }

    /// Writes a geometry's profile down.
    fn profile(&self, round: &Round) -> Checked<String> {
        let profile = self.dir.join("profile.toml");
        let text = round.toml(&self.subject.uuid);
        fs::write(&profile, &text).map_err(|error| format!("{}: {error}", profile.display()))?;
        self.transcript.add(&text);
        let path = profile.to_str().ok_or("a path that is no text")?;
        Ok(path.to_owned())
    }

    /// From nothing to this geometry with its daemons, and back.
    pub(crate) fn live(&self, round: &Round, with_clients: bool) -> Checked {
        let profile = &self.profile(round)?;
        self.run(&["up", profile, "--dry-run"], 0)?;
        check(self.instances()?.is_empty(), "--dry-run made something")?;
        self.run(&["up", profile, "--yes"], 0)?;
        self.is_made(round)?;
        let devices = self.ready(round.devices())?;
        self.run(&["status"], 0)?;
        self.run(&["list"], 0)?;
        let made = self.identities()?;
        let again = self.run(&["up", profile, "--yes"], 0)?;
        check(
            again.stderr.starts_with("Nothing to do"),
            "up again does something",
        )?;
        if with_clients && self.clients(&devices)? {
            // The daemons have gone; the instances are still known as ours.
            self.run(&["up", profile, "--yes"], 0)?;
            self.ready(round.devices())?;
        }
        check(self.identities()? == made, "instances have changed")?;
        self.run(&["down"], 0)?;
        self.ready(0)?;
        check(self.identities()? == made, "instances have changed")?;
        self.run(&["down", "--destroy-mig", "--yes"], 0)?;
        check(self.instances()?.is_empty(), "instances are left")
    }

    /// Whatever a round left.
    pub(crate) fn clear(&self) -> Checked {
        let ended = self.start(&["down", "--force", "--destroy-mig", "--yes"]);
        check(ended.status == 0, "down --force fails")?;
        let session = self.node.open();
        let gpu = session.0.by_uuid(&self.subject.uuid);
        gpu.and_then(|gpu| match session.0.mig_mode(gpu)?.0 {
            0 => Ok(()),
            _ => partition::clear(&session.0, gpu),
        })
        .map_err(|code| format!("instances cannot be destroyed: code {code}"))
    }

    /// True if MIG mode is in force.
    pub(crate) fn is_in_mig_mode(&self) -> bool {
        let session = self.node.open();
        let gpu = session.0.by_uuid(&self.subject.uuid);
        gpu.and_then(|gpu| session.0.mig_mode(gpu))
            .is_ok_and(|(current, _)| current == 1)
    }

    /// Programs come, keep `down` off, and go. Says whether there are any.
    fn clients(&self, devices: &[Device]) -> Checked<bool> {
        if self.cuda_app.is_none() {
            self.transcript
                .add("left out: no client, as ON_MIG_CUDA_APP names no program");
            return Ok(false);
        }
        for device in devices {
            let app = self.app(device, &["run", "0"]);
            let pid = app.pid();
            let app = app.wait_for(PATIENCE);
            self.transcript.add(&format!(
                "$ cuda-app run 0    on {}\n{}[pid {pid}, exit status {}]",
                device.uuid, app.stdout, app.status
            ));
            let line = app.stdout.lines().next().unwrap_or_default();
            check(app.status == 0 && line.ends_with(" mps yes"), "no client")?;
            let sm = self.sm(&device.uuid)?;
            self.transcript.add(&format!(
                "observed: CUDA sees {} SMs, NVML says {sm}",
                number(line, "sm")
            ));
        }
        let held = devices.first().ok_or("there is no device")?;
        let mut client = self.app(held, &["hold"]);
        is_client(&client.line());
        self.transcript.add(&format!(
            "$ cuda-app hold    on {}, pid {}",
            held.uuid,
            client.pid()
        ));
        self.run(&["status"], 0)?;
        self.run(&["status", "--json"], 0)?;
        self.run(&["down"], IN_USE)?;
        self.run(&["down", "--drain", "1"], IN_USE)?;
        self.ready(devices.len())?;
        check(client.is_running(), "the client has ended")?;
        self.drain(client)?;
        self.ready(0)?;
        Ok(true)
    }

    /// `down --drain` waits for the client, which ends when it is seen to.
    fn drain(&self, client: Running) -> Checked {
        let begin = Instant::now();
        let mut down = self.command(&["down", "--drain", "60"]);
        let mut down = Running::start(&mut down, &Notes::default());
        let mut said = String::new();
        while !said.contains("waiting up to") {
            said.push_str(&down.error_line());
        }
        let client = client.end();
        self.transcript.add(&format!(
            "cuda-app ends with status {} after {:.3} s",
            client.status,
            begin.elapsed().as_secs_f64()
        ));
        let mut ended = down.wait_for(PATIENCE);
        ended.stderr.insert_str(0, &said);
        self.tell(&["down", "--drain", "60"], &ended, begin);
        check(ended.status == 0 && client.status == 0, "it does not drain")
    }

    fn app(&self, device: &Device, arguments: &[&str]) -> Running {
        let program = self.cuda_app.as_deref().unwrap_or(Path::new(""));
        let mut command = self.node.command(program);
        // As it would be called from `PATH`.
        command
            .arg0("cuda-app")
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", &device.pipe);
        Running::start(&mut command, &Notes::default())
    }

    /// The number of SMs of a MIG device, as NVML says.
    fn sm(&self, uuid: &str) -> Checked<u32> {
        let session = self.node.open();
        let device = session.0.by_uuid(uuid);
        let attributes = device.and_then(|device| session.0.attributes(device));
        attributes
            .map(|attributes| attributes.multiprocessorCount)
            .map_err(|code| format!("{uuid}: code {code}"))
    }

    /// Check that NVML has what the round asks for.
    fn is_made(&self, round: &Round) -> Checked {
        let instances = self.instances()?;
        let mut ids: Vec<u32> = instances.iter().map(|instance| instance.profile).collect();
        ids.sort_unstable();
        let devices: usize = instances
            .iter()
            .map(|instance| instance.compute.len())
            .sum();
        for instance in &instances {
            self.transcript
                .add(&format!("NVML: GI {}: {instance}", instance.id));
        }
        check(
            (ids, devices) == (round.profile_ids(), round.devices()),
            "NVML has other instances than were asked for",
        )
    }

    fn instances(&self) -> Checked<Vec<Instance>> {
        let session = self.node.open();
        let gpu = session.0.by_uuid(&self.subject.uuid);
        gpu.and_then(|gpu| match session.0.mig_mode(gpu)?.0 {
            0 => Ok(Vec::new()),
            _ => partition::read(&session.0, gpu),
        })
        .map_err(|code| format!("instances cannot be listed: code {code}"))
    }

    /// Ids, places and UUIDs.
    fn identities(&self) -> Checked<Vec<(u32, String, Vec<String>)>> {
        let instances = self.instances()?;
        let of_one = |instance: &Instance| {
            let uuids = instance.compute.iter().map(|ci| ci.uuid.clone());
            (instance.id, instance.to_string(), uuids.collect())
        };
        Ok(instances.iter().map(of_one).collect())
    }

    /// The devices of the GPU that are ready: so many, and no other is served.
    fn ready(&self, count: usize) -> Checked<Vec<Device>> {
        // Too long for the transcript.
        let mut status = self.command(&["status", "--json"]);
        let status = Running::start(&mut status, &Notes::default()).wait_for(PATIENCE);
        let status: Value = serde_json::from_str(&status.stdout)
            .map_err(|error| format!("mig-mps status --json: {error}: {status:?}"))?;
        let devices = status["devices"].as_array().ok_or("no devices in JSON")?;
        let served: Vec<&Value> = devices
            .iter()
            .filter(|device| device["state"] != "no daemon")
            .collect();
        let is_ready =
            |device: &&Value| device["state"] == "ready" && device["gpu"] == self.subject.index;
        check(
            served.len() == count && served.iter().all(is_ready),
            &format!("{count} devices should be ready, and this is served: {served:#?}"),
        )?;
        let device = |device: &Value| {
            Some(Device {
                uuid: device["uuid"].as_str()?.to_owned(),
                pipe: device["pipe_directory"].as_str()?.into(),
            })
        };
        let devices: Option<Vec<Device>> = served.into_iter().map(device).collect();
        devices.ok_or_else(|| "a device without a pipe directory".to_owned())
    }

    /// Run mig-mps, which must end with that status.
    fn run(&self, arguments: &[&str], status: i32) -> Checked<Ended> {
        if interrupt::is_wanted() {
            return Err("interrupted".into());
        }
        let ended = self.start(arguments);
        if ended.status == status {
            return Ok(ended);
        }
        let command = arguments.join(" ");
        Err(format!(
            "mig-mps {command} ends with {} instead of {status}: {}",
            ended.status, ended.stderr
        ))
    }

    fn start(&self, arguments: &[&str]) -> Ended {
        let begin = Instant::now();
        let running = Running::start(&mut self.command(arguments), &Notes::default());
        let ended = running.wait_for(PATIENCE);
        self.tell(arguments, &ended, begin);
        ended
    }

    fn tell(&self, arguments: &[&str], ended: &Ended, begin: Instant) {
        let took = begin.elapsed().as_secs_f64();
        let command = arguments.join(" ");
        let Ended {
            status,
            stdout,
            stderr,
        } = ended;
        self.transcript.add(&format!(
            "\n$ mig-mps {command}\n{stdout}{stderr}[exit status {status}, {took:.3} s]"
        ));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.node.command(&self.node.mig_mps);
        command
            .args(arguments)
            .env("MIG_MPS_RUN_DIR", self.dir.join("run"))
            .env("MIG_MPS_LOG_DIR", self.dir.join("log"))
            .env("MIG_MPS_STATE_DIR", self.dir.join("state"));
        command
    }
}

fn check(holds: bool, otherwise: &str) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}
