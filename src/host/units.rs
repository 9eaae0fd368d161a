//! systemd: the services that hold GPUs open, and the scopes of daemons.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{env, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::external_program::{Tool, join_output_lines};
use super::{FileResult, Holders, Output, Pid, ToolError};

/// A monitoring service that is known to keep GPUs open. No other service is ever stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Unit(&'static str);

impl Unit {
    /// All units. A unit that restarts another one comes before it, so that no stopped unit is restarted at once.
    pub const ALL: [Self; 9] = [
        // Exporters of metrics, by the names of their packages.
        Self("nvidia-dcgm-exporter.service"),
        Self("dcgm-exporter.service"),
        Self("prometheus-nvidia-exporter.service"),
        Self("nvidia_gpu_exporter.service"),
        // NVIDIA's system management on DGX, which queries DCGM.
        Self("nvsm.service"),
        // DCGM's daemon (nv-hostengine), by its current name and its name before version 2.
        Self("nvidia-dcgm.service"),
        Self("dcgm.service"),
        // Restarts nvidia-persistenced whenever its socket is missing.
        Self("nvidia-persistenced.path"),
        Self("nvidia-persistenced.service"),
    ];

    /// Returns the unit with this name, if it is a known one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.0 == name)
    }

    /// `nvidia-dcgm.service`
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Returns the service that a path unit restarts.
    fn restarted_service(self) -> Option<Self> {
        let path = self.0.strip_suffix(".path")?;
        Self::named(&format!("{path}.service"))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Refuses other units, which a forged journal could name.
impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name)
            .ok_or_else(|| de::Error::custom(format!("{name} is not a known monitoring unit")))
    }
}

/// The longest wait for systemd to take a message.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports to systemd that the service is up, if this process is one of `Type=notify`.
pub fn report_ready() -> FileResult<()> {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&socket)?,
    };
    let own = UnixDatagram::unbound()?;
    own.set_write_timeout(Some(REPORT_TIMEOUT))?;
    own.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

/// systemd gives a unit 90 s to stop before it kills it, and 90 s to start.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(100);
const SHOW_TIMEOUT: Duration = Duration::from_secs(10);

/// The states of a system that do not count as running without failed units.
const SYSTEM_STATES: [&str; 7] = [
    "initializing",
    "starting",
    "degraded",
    "maintenance",
    "stopping",
    "offline",
    "unknown",
];

/// The states of a unit that is not active.
const UNIT_STATES: [&str; 6] = [
    "inactive",
    "failed",
    "activating",
    "deactivating",
    "maintenance",
    "unknown",
];

/// systemd, through `systemctl`.
#[derive(Clone, Debug)]
pub struct Units(Tool);

/// The state of a unit in `systemctl show`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnitState {
    unit: Unit,
    /// `active`, `inactive`, `failed`, `activating`, `deactivating` …
    state: String,
    main: Option<Pid>,
}

impl UnitState {
    fn is_up(&self) -> bool {
        matches!(self.state.as_str(), "active" | "activating" | "reloading")
    }

    fn contains_holder(&self, holders: &Holders) -> bool {
        holders.seen.iter().any(|holder| {
            holder.unit.as_deref() == Some(self.unit.name()) || self.main == Some(holder.pid)
        })
    }
}

impl Units {
    pub fn at(program: PathBuf) -> Self {
        let options = &["--no-pager", "--no-ask-password"];
        Self(Tool::new(program, "systemctl", options))
    }

    /// Returns the known monitoring units that are up and contain a holder, in the order in which to stop them. They are
    /// started again in reverse order.
    pub fn holding(&self, holders: &Holders) -> Result<Vec<Unit>, ToolError> {
        let mut up = self.query_units(&Unit::ALL)?;
        up.retain(UnitState::is_up);
        let holds = |unit: Unit| {
            up.iter()
                .any(|shown| shown.unit == unit && shown.contains_holder(holders))
        };
        // A path unit has no process: it is stopped with the service that it restarts.
        Ok(up
            .iter()
            .map(|shown| shown.unit)
            .filter(|unit| holds(*unit) || unit.restarted_service().is_some_and(holds))
            .collect())
    }

    /// True if a unit is active or starting.
    pub fn is_up(&self, unit: Unit) -> Result<bool, ToolError> {
        Ok(self.query_units(&[unit])?.iter().any(UnitState::is_up))
    }

    /// Stops a unit and checks the result. Succeeds if it is already stopped.
    pub fn stop(&self, unit: Unit) -> Result<(), ToolError> {
        self.change_unit("stop", unit, |shown| {
            matches!(shown.state.as_str(), "inactive" | "failed")
        })
    }

    /// Starts a unit and checks the result. Succeeds if it is already up.
    pub fn start(&self, unit: Unit) -> Result<(), ToolError> {
        self.change_unit("start", unit, UnitState::is_up)
    }

    /// True if the machine is shutting down or restarting.
    pub fn is_shutting_down(&self) -> Result<bool, ToolError> {
        // It exits with 0 only for a system that runs without failed units.
        match self.0.run(&["is-system-running"], SHOW_TIMEOUT) {
            Err(ToolError::Refused { said, .. }) if SYSTEM_STATES.contains(&said.as_str()) => {
                Ok(said == "stopping")
            }
            answer => answer.map(|_| false),
        }
    }

    /// Has systemd read its unit files again.
    pub fn reload_unit_files(&self) -> Result<(), ToolError> {
        self.0.run(&["daemon-reload"], CHANGE_TIMEOUT).map(drop)
    }

    /// Has units start at boot, and these now, if systemd runs.
    pub fn enable(&self, names: &[&str], now: &[&str]) -> Result<(), ToolError> {
        self.0.run(&[&["enable"], names].concat(), CHANGE_TIMEOUT)?;
        now.iter()
            .try_for_each(|name| self.change_if_systemd_runs("start", name))
    }

    /// True if a unit is active.
    pub fn is_active(&self, name: &str) -> Result<bool, ToolError> {
        match self.0.run(&["is-active", name], SHOW_TIMEOUT) {
            Err(ToolError::Refused { said, .. }) if UNIT_STATES.contains(&said.as_str()) => {
                Ok(false)
            }
            answer => answer.map(|_| true),
        }
    }

    /// Restarts or reloads a unit that is active.
    pub fn change_active(&self, verb: &str, name: &str) -> Result<(), ToolError> {
        self.0.run(&[verb, name], CHANGE_TIMEOUT).map(drop)
    }

    /// Undoes [`enable`](Self::enable). What the other units have started goes on.
    pub fn disable(&self, names: &[&str], now: &[&str]) -> Result<(), ToolError> {
        now.iter()
            .try_for_each(|name| self.change_if_systemd_runs("stop", name))?;
        for name in names {
            ignore_unknown_unit(self.0.run(&["disable", name], CHANGE_TIMEOUT))?;
        }
        Ok(())
    }

    /// Starts or stops a unit, if systemd runs. While the image of a machine is made, it does not, but links can be made.
    fn change_if_systemd_runs(&self, verb: &str, name: &str) -> Result<(), ToolError> {
        match self.0.run(&[verb, name], CHANGE_TIMEOUT) {
            Err(ToolError::NoSystemd(_)) => Ok(()),
            done if verb == "stop" => ignore_unknown_unit(done),
            done => done.map(drop),
        }
    }

    fn change_unit(
        &self,
        verb: &str,
        unit: Unit,
        is_done: impl Fn(&UnitState) -> bool,
    ) -> Result<(), ToolError> {
        // A unit that waits for the service that runs this program would wait forever.
        let words: &[&str] = match verb {
            "start" => &[verb, "--job-mode=ignore-dependencies", unit.0],
            _ => &[verb, unit.0],
        };
        let said = join_output_lines(&self.0.run(words, CHANGE_TIMEOUT)?);
        let Some(shown) = self
            .query_units(&[unit])?
            .into_iter()
            .find(|shown| !is_done(shown))
        else {
            return Ok(());
        };
        let it_said = if said.is_empty() {
            ""
        } else {
            "; it printed: "
        };
        Err(ToolError::NotDone {
            asked: self.0.describe_request(words),
            result: format!(", and {unit} is {}{it_said}{said}", shown.state),
            unit: Some(unit),
        })
    }

    /// Returns the state of units. A unit that is also named by an alias is listed once, by its own name.
    fn query_units(&self, units: &[Unit]) -> Result<Vec<UnitState>, ToolError> {
        let mut arguments = vec!["show", "--property=Id,ActiveState,MainPID", "--"];
        arguments.extend(units.iter().map(|unit| unit.0));
        let output = self.0.run(&arguments, SHOW_TIMEOUT)?;
        parse_units(&output.stdout, units).ok_or_else(|| ToolError::Strange {
            asked: self.0.describe_request(&arguments),
            answer: format!("{}{}", output.stdout, output.stderr),
        })
    }
}

/// Takes a unit that systemd does not know for one that is stopped and disabled.
fn ignore_unknown_unit(done: Result<Output, ToolError>) -> Result<(), ToolError> {
    match done {
        Err(error) if error.was_refused_with(&["not loaded", "does not exist"]) => Ok(()),
        done => done.map(drop),
    }
}

/// Parses one block of `Name=value` lines per unit, in the order of the arguments. `Id` is the unit's own name even for an
/// alias.
fn parse_units(text: &str, units: &[Unit]) -> Option<Vec<UnitState>> {
    let blocks: Vec<&str> = text.trim().split("\n\n").collect();
    if blocks.len() != units.len() {
        return None;
    }
    let mut all: Vec<UnitState> = Vec::new();
    for (block, asked) in blocks.into_iter().zip(units) {
        // An alias may be known while the own name is not.
        let unit = Unit::named(property_value(block, "Id")?).unwrap_or(*asked);
        let main = property_value(block, "MainPID")
            .unwrap_or("0")
            .parse()
            .ok()?;
        let shown = UnitState {
            unit,
            state: property_value(block, "ActiveState")?.to_owned(),
            main: (main != 0).then_some(Pid(main)),
        };
        if all.iter().all(|other| other.unit != unit) {
            all.push(shown);
        }
    }
    Some(all)
}

fn property_value<'b>(block: &'b str, name: &str) -> Option<&'b str> {
    block
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// The slice of all daemons.
const SLICE: &str = "mig-mps.slice";

/// The service that stops the daemons, at a shutdown before their scopes end.
const SERVICE: &str = "mig-mps.service";

/// systemd scopes for daemons, through `systemd-run`.
///
/// A process stays in the cgroup of the service or login session that started it, and ends with it. A daemon must not.
#[derive(Clone, Debug)]
pub struct Scopes(pub(super) PathBuf);

impl Scopes {
    /// Returns a command that becomes `command` in a new scope. Its environment is that of `command`.
    pub fn wrap_command(&self, name: &str, description: &str, command: &Command) -> Command {
        let mut scoped = Command::new(&self.0);
        let variables = command.get_envs();
        scoped.env_clear();
        scoped.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        scoped.args(["--scope", "--quiet", "--collect", "--no-ask-password"]);
        // The scope of an earlier daemon may still be there.
        let now = Timestamp::now().as_millisecond();
        scoped.arg(format!("--unit=mig-mps-{name}-{now}.scope"));
        scoped.arg(format!("--slice={SLICE}"));
        scoped.arg(format!("--description={description}"));
        scoped.arg(format!("--property=Before={SERVICE}"));
        scoped
            .arg("--")
            .arg(stable_program_path(command.get_program()));
        scoped.args(command.get_args());
        scoped
    }
}

impl Scopes {
    /// Returns a command that runs `command` as a service, with its variables, and waits for its end. Its daemons have scopes.
    pub fn wrap_service(&self, command: &Command) -> Command {
        let mut service = Command::new(&self.0);
        service.args([
            "--wait",
            "--pipe",
            "--quiet",
            "--collect",
            "--no-ask-password",
        ]);
        service.args([
            "--property=KillMode=process",
            "--property=LimitNOFILE=524288",
        ]);
        for (name, value) in command.get_envs() {
            let mut setting = OsString::from("--setenv=");
            setting.push(name);
            setting.push("=");
            setting.push(value.unwrap_or_default());
            service.arg(setting);
        }
        service.arg("--").arg(command.get_program());
        service.args(command.get_args());
        service
    }
}

/// Returns a path of the program that means the same to another process.
fn stable_program_path(program: &OsStr) -> OsString {
    if program == "/proc/self/exe" {
        return format!("/proc/{}/exe", std::process::id()).into();
    }
    program.to_owned()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::failure::Failure;
    use crate::host::external_program::Fake;
    use crate::host::{Holder, StartTime, root_hint};

    #[test]
    fn no_other_unit_can_be_named() {
        assert_eq!(Unit::named("sshd.service"), None);
        assert_eq!(Unit::named("nvidia-dcgm"), None);
        assert!(serde_json::from_str::<Unit>("\"sshd.service\"").is_err());
        let text = serde_json::to_string(&Unit::named("nvsm.service").unwrap()).unwrap();
        assert_eq!(text, "\"nvsm.service\"");
        assert_eq!(
            serde_json::from_str::<Unit>(&text).unwrap().name(),
            "nvsm.service"
        );
    }

    fn unit(name: &str) -> Unit {
        Unit::named(name).unwrap()
    }

    fn holder(pid: u32, unit: Option<&str>) -> Holder {
        Holder {
            pid: Pid(pid),
            started: StartTime(1),
            user: None,
            command: "nv-hostengine".into(),
            unit: unit.map(str::to_owned),
            workload: None,
        }
    }

    #[test]
    fn an_alias_is_its_unit() {
        let text = "MainPID=12\nId=nvidia-dcgm.service\nActiveState=active\n\nMainPID=12\nId=nvidia-dcgm.service\nActiveState=active\n";
        let units = [unit("nvidia-dcgm.service"), unit("dcgm.service")];
        let shown = parse_units(text, &units).unwrap();
        assert_eq!(shown.len(), 1);
        assert_eq!((shown[0].unit, shown[0].main), (units[0], Some(Pid(12))));
        assert_eq!(
            parse_units(text, &units[..1]),
            None,
            "an answer more than was asked for"
        );
        assert_eq!(
            parse_units("Id=nvsm.service\n", &[unit("nvsm.service")]),
            None
        );
    }

    /// Creates a `systemctl` that shows these units as active with these main processes.
    fn showing(name: &str, active: &[(&str, u32)]) -> Fake {
        let mut script = String::from(
            "while [ \"$1\" != -- ]; do shift; done; shift\nfor unit; do case $unit in\n",
        );
        for (unit, pid) in active {
            let _ = writeln!(script, "{unit}) echo MainPID={pid}; state=active;;");
        }
        script += "*) echo MainPID=0; state=inactive;; esac\necho Id=$unit; echo ActiveState=$state; echo; done\n";
        Fake::new(name, &script)
    }

    #[test]
    fn units_that_are_up_and_hold_the_gpu_are_found() {
        let fake = showing(
            "units-holding",
            &[
                ("nvidia-persistenced.service", 51),
                ("nvidia-persistenced.path", 0),
                ("nvidia-dcgm.service", 52),
                ("nvsm.service", 53),
            ],
        );
        let units = Units::at(fake.path.clone());
        let holders = |seen| Holders { seen, hidden: 0 };
        let by = |seen| -> Vec<_> {
            let units = units.holding(&holders(seen)).unwrap();
            units.into_iter().map(Unit::name).collect()
        };
        assert!(by(vec![holder(60, Some("session-3.scope"))]).is_empty());
        // By a process in its cgroup, or by its main process.
        let two = vec![holder(61, Some("nvidia-dcgm.service")), holder(53, None)];
        assert_eq!(by(two), ["nvsm.service", "nvidia-dcgm.service"]);
        assert_eq!(
            by(vec![holder(51, None)]),
            ["nvidia-persistenced.path", "nvidia-persistenced.service"],
            "the path goes first: it starts the service again"
        );
        assert!(
            by(vec![holder(62, Some("dcgm.service"))]).is_empty(),
            "it is not up"
        );
    }

    #[test]
    fn a_system_without_systemd_differs_from_a_refusal() {
        let ask = |name: &str, script: &str| {
            let fake = Fake::new(name, script);
            Units::at(fake.path.clone())
                .stop(unit("nvidia-dcgm.service"))
                .unwrap_err()
        };
        let none = ask(
            "units-none",
            "echo \"System has not been booted with systemd as init system (PID 1). Can't operate.\" >&2; exit 1",
        );
        assert!(matches!(none, ToolError::NoSystemd(_)), "{none}");
        let denied = ask(
            "units-denied",
            "echo 'Failed to stop nvidia-dcgm.service: Access denied' >&2; exit 4",
        );
        assert_eq!(
            denied.to_string(),
            "systemctl stop nvidia-dcgm.service (exit status: 4) said: Failed to stop nvidia-dcgm.service: Access denied"
        );
        assert_eq!(denied.hint(), Some(root_hint()));
    }

    #[test]
    fn success_is_checked_by_reading_the_state_back() {
        let fake = Fake::new(
            "units-undone",
            "case $* in *show*) echo Id=nvsm.service; echo ActiveState=active; echo MainPID=7;; \
             *) echo 'Warning: Stopping nvsm.service, but it can still be activated by: nvsm.socket' >&2;; esac",
        );
        let units = Units::at(fake.path.clone());
        units.start(unit("nvsm.service")).unwrap();
        let error = units.stop(unit("nvsm.service")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "systemctl stop nvsm.service exited without an error, and nvsm.service is active; it printed: Warning: Stopping nvsm.service, but it can still be activated by: nvsm.socket"
        );
    }
}
