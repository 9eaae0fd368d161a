//! The problems and remarks that `status` reports, their ids, and those of one device's daemon, each with its remedy.

use std::fmt;

use super::{Client, DaemonState, Device, LOST, Node, Presence, Served};
use crate::settings::KEYS;

/// Makes the ids from a row each: the name, the id, the meaning, the reason why it matters, and the remedy in general.
macro_rules! ids {
    ($(#[$about:meta])* pub enum $all:ident { $($name:ident $id:literal $meaning:literal $why:literal $remedy:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $all {
            $($name,)*
        }

        impl $all {
            /// Every id.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the id as scripts know it. It never changes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $id,)*
                }
            }

            /// Returns its meaning.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }

            /// Returns the reason why it matters.
            pub const fn why(self) -> &'static str {
                match self {
                    $(Self::$name => $why,)*
                }
            }

            /// Returns the remedy in general.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                }
            }
        }
    };
}

ids! {
    /// The id of a problem or remark.
    pub enum ProblemId {
        DaemonDead "daemon-dead"
            "the daemon of a device has exited"
            "programs that are sent to the device run outside MPS"
            "`mig-mps restart DEVICE` starts it again; `mig-mps heal` does so for all; `mig-mps logs DEVICE` may say why it ended"
        EarlierBoot "earlier-boot"
            "a device was served before the last reboot and is not now"
            "instances and daemons do not survive a reboot"
            "`mig-mps up PROFILE` makes instances and daemons anew"
        DaemonOrphan "daemon-orphan"
            "a daemon runs and its pipe directory is gone"
            "no program reaches it, and programs run outside MPS"
            "`mig-mps restart DEVICE --force` starts another daemon; keep clean-up scripts out of the run directory"
        DeviceHung "device-hung"
            "the daemon of a device waits for a client that died, or can accept no connection"
            "every new client waits in cuInit for ever"
            "`mig-mps restart DEVICE` ends the server; give programs at least 64 open files (`ulimit -n`)"
        DeviceFailing "device-failing"
            "`heal` has given a device up"
            "its daemon ends again and again, and programs that are sent to the device run outside MPS"
            "`mig-mps logs DEVICE` may show the cause; `mig-mps restart DEVICE` starts it again"
        DaemonStopped "daemon-stopped"
            "a daemon is stopped by a signal"
            "its programs wait for it"
            "`kill -CONT PID` resumes it"
        DaemonSilent "daemon-silent"
            "a daemon runs and does not answer"
            "clients may wait in cuInit"
            "`mig-mps restart DEVICE --force` starts another"
        DaemonNotAsked "daemon-not-asked"
            "a daemon cannot be asked"
            "its state and its clients are not known"
            "run the command as root or as the daemon's owner"
        GpuFault "gpu-fault"
            "a server had a fatal GPU fault"
            "it refuses new clients (error 807) until every client has exited"
            "`mig-mps kill DEVICE PID --signal` ends its clients"
        ComputeMode "compute-mode"
            "the compute mode of a GPU keeps programs off, or is not the configured one"
            "in the mode exclusive-process a program beside MPS gets error 46, in the mode prohibited every program"
            "`sudo nvidia-smi -i GPU -c DEFAULT`, or `mig-mps restart DEVICE` where the profile asks for exclusive-process"
        StartUnfinished "start-unfinished"
            "an interrupted change left a daemon unfinished"
            "its settings may be missing"
            "`mig-mps up PROFILE` continues"
        DeviceGone "device-gone"
            "a device that was served is gone"
            "programs that are sent to it fail, and its daemon keeps others from using the GPU"
            "`mig-mps up PROFILE` restores it; `mig-mps down DEVICE` removes what is left"
        SettingsChanged "settings-changed"
            "the settings of a daemon are not the recorded ones"
            "limits that users rely on do not hold"
            "`mig-mps up PROFILE` sets them again"
        StrayServer "stray-server"
            "a server outlived its daemon"
            "it keeps its GPU memory, and its instance cannot be destroyed"
            "`mig-mps heal` ends it if it has no clients, `mig-mps down DEVICE --force` in any case"
        OutsideMps "outside-mps"
            "a program computes on a device without being a client of its daemon"
            "it takes turns with all clients, and no limit holds for it"
            "start it with `mig-mps run DEVICE -- PROGRAM`"
        MemoryOverLimit "memory-over-limit"
            "a client uses more memory than its device lets each client have"
            "a client of driver 580 can lift the limit by an entry of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for another device, also by accident; others may find no memory"
            "`mig-mps kill DEVICE PID --signal` ends it; programs started with `mig-mps run` keep to the limit"
        SeveralDaemons "several-daemons"
            "several daemons serve one device"
            "their clients take turns instead of sharing the device"
            "let the owner of the other daemon end it, or `mig-mps down DEVICE`"
        SeesAllGpus "sees-all-gpus"
            "an unmanaged daemon sees all GPUs"
            "its clients compute on devices that others serve"
            "let its owner end it: `echo quit | CUDA_MPS_PIPE_DIRECTORY=DIRECTORY nvidia-cuda-mps-control`"
        DefaultPipeDirectory "default-pipe-directory"
            "an unmanaged daemon uses the default pipe directory"
            "CUDA programs without a pipe directory of their own become its clients"
            "let its owner end it: `echo quit | CUDA_MPS_PIPE_DIRECTORY=DIRECTORY nvidia-cuda-mps-control`"
        ChangeInterrupted "change-interrupted"
            "a change was killed half-way"
            "instances and daemons may be missing until the next up or down"
            "run the same command again: it continues"
        DriverSilent "driver-silent"
            "the driver does not answer"
            "nothing can be changed, and no CUDA program starts"
            "`nvidia-smi` and `dmesg | grep NVRM` may say why"
        GpuLost "gpu-lost"
            "a GPU is lost or cannot be read"
            "programs on it fail; it may need a reset or a reboot"
            "`dmesg | grep NVRM` may say why; reset the GPU or reboot"
        RecordUnreadable "record-unreadable"
            "a record in the run directory cannot be read"
            "a daemon may run that no command manages"
            "run the command as the owner of the run directory; a record that is damaged must be removed by hand, after its daemon has ended"
        ChangeUnderWay "change-under-way"
            "a change is in progress"
            "other changes wait for it"
            "wait for it"
        NoMigDevices "no-mig-devices"
            "a GPU is in MIG mode and has no MIG device"
            "no CUDA program can use it"
            "`mig-mps up PROFILE` makes MIG devices"
        ServerEnded "server-ended"
            "the server of a device has ended"
            "the next client waits until another has started"
            "nothing is to be done; `mig-mps logs DEVICE` may say why it ended"
        TooManyClients "too-many-clients"
            "a device has more clients than max-clients allows"
            "somebody bypasses mig-mps, and the device may become full"
            "start programs with `mig-mps run`, which keeps to the limit"
        ClientsFull "clients-full"
            "a device has all the clients that it can have"
            "the context of another program fails with error 46"
            "use another device: `mig-mps run --any`"
        UserWaiting "user-waiting"
            "a program waits in cuInit until another user's programs have exited"
            "the program seems to hang, and goes on by itself"
            "wait, or share the device with `serve = \"all\"` in the profile"
    }
}

impl ProblemId {
    /// True if daemons have this problem, rather than the driver, a GPU or a record.
    pub fn is_of_daemons(self) -> bool {
        !matches!(
            self,
            Self::DriverSilent | Self::GpuLost | Self::NoMigDevices | Self::RecordUnreadable
        )
    }
}

/// A problem or a remark, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub id: ProblemId,
    /// The device's name; `None` if it concerns the node.
    pub device: Option<String>,
    /// The description.
    pub seen: String,
    /// The remedy in words, with its commands in backticks.
    pub remedy: Option<String>,
    /// True if a table of `status` shows it already.
    pub is_listed: bool,
}

/// `0.2: its daemon has died: … [daemon-dead]`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}: ")?;
        }
        write!(f, "{} [{}]", self.what(), self.id.name())
    }
}

impl Problem {
    pub(super) fn new(id: ProblemId, seen: impl Into<String>) -> Self {
        Self {
            id,
            device: None,
            seen: seen.into(),
            remedy: None,
            is_listed: false,
        }
    }

    pub(super) fn of(self, device: &str) -> Self {
        let device = Some(device.to_owned());
        Self { device, ..self }
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }

    pub(super) fn listed(self) -> Self {
        Self {
            is_listed: true,
            ..self
        }
    }

    /// Describes it with its remedy, in one sentence.
    pub fn what(&self) -> String {
        let Some(remedy) = &self.remedy else {
            return self.seen.clone();
        };
        let is_divided = self.seen.contains(": ");
        let mark = if is_divided { ";" } else { ":" };
        format!("{}{mark} {remedy}", self.seen)
    }

    /// Returns the first command of the remedy that can be pasted as it is.
    pub fn command(&self) -> Option<&str> {
        let quoted = self.remedy.as_deref()?.split('`').skip(1).step_by(2);
        let mut commands = quoted.filter(|text| text.contains(' '));
        commands.next()
    }
}

/// Returns the problem of a device's daemon, if there is one.
pub(super) fn daemon_problem(node: &Node, device: &Device, served: &Served) -> Option<Problem> {
    let name = &served.record.name;
    let daemon = served.record.daemon;
    let pid = daemon.map_or_else(String::new, |daemon| format!(" (pid {})", daemon.pid));
    if let Some(problem) = absent(node, device, served) {
        return Some(problem);
    }
    if served.is_failing() {
        return Some(failing(served));
    }
    let problem = match &served.state {
        DaemonState::Dead => return dead(node, served),
        DaemonState::Orphan => Problem::new(
            ProblemId::DaemonOrphan,
            format!(
                "its daemon{pid} lives and its pipe directory is gone, so no program reaches it"
            ),
        )
        .with_remedy(format!("`mig-mps restart {name} --force` starts another")),
        DaemonState::Hung(why) => hung(served, why),
        DaemonState::NoAnswer(problem) => Problem::new(
            ProblemId::DaemonSilent,
            format!("its daemon{pid} does not answer: {problem}"),
        )
        .with_remedy(format!("`mig-mps restart {name} --force` starts another")),
        DaemonState::Stopped => stopped(served, &pid),
        DaemonState::NotAsked(problem) => Problem::new(
            ProblemId::DaemonNotAsked,
            format!("its daemon{pid} cannot be asked: {problem}"),
        ),
        DaemonState::Fault => fault(served),
        _ if served.mode_is_lost() => Problem::new(
            ProblemId::ComputeMode,
            "somebody has changed its GPU's compute mode, which was exclusive-process",
        )
        .with_remedy(format!("`mig-mps restart {name}` sets it again")),
        _ if served.is_abandoned => Problem::new(
            ProblemId::StartUnfinished,
            "an interrupted change left it unfinished",
        )
        .with_remedy(format!(
            "`up` continues, `mig-mps restart {name}` starts it again"
        )),
        _ => return None,
    };
    Some(problem)
}

/// Describes a device that is gone, or whose GPU is lost: its daemon is of no use, whatever its state.
fn absent(node: &Node, device: &Device, served: &Served) -> Option<Problem> {
    if let Some(why) = device.lost() {
        let seen = format!("its GPU cannot be read: {why}");
        return Some(Problem::new(ProblemId::GpuLost, seen).with_remedy(LOST));
    }
    if !node.misses(served) {
        return None;
    }
    let seen = match device.presence {
        Presence::MadeAgain => "its device was made again, with another UUID",
        Presence::Gone if served.is_alive() => "its device is gone, and its daemon runs",
        Presence::Gone => "its device is gone",
        Presence::There | Presence::Unseen(_) => return None,
    };
    Some(Problem::new(ProblemId::DeviceGone, seen).with_remedy(restored(node, served)))
}

/// Returns the remedy for a device that is gone.
pub fn restored(node: &Node, served: &Served) -> String {
    let name = &served.record.name;
    let removes = format!("`mig-mps down {name}` removes what is left");
    match node.gpu(&served.record.key.gpu) {
        Some(_) => format!("`mig-mps up PROFILE` restores it, {removes}"),
        None => removes,
    }
}

/// Describes a device that `heal` has given up.
fn failing(served: &Served) -> Problem {
    let name = &served.record.name;
    let times = served.record.healed.len();
    let state = match served.state {
        DaemonState::Hung(_) => "hangs",
        _ => "is dead",
    };
    let seen = format!("`heal` has started it {times} times within an hour, and it {state} again");
    Problem::new(ProblemId::DeviceFailing, seen).with_remedy(format!(
        "`mig-mps logs {name}` may show the cause, `mig-mps restart {name}` starts it again"
    ))
}

fn stopped(served: &Served, pid: &str) -> Problem {
    let name = &served.record.name;
    let seen = format!("its daemon{pid} is stopped (SIGSTOP)");
    let daemon = served
        .record
        .daemon
        .map(|daemon| format!(" {}", daemon.pid));
    Problem::new(ProblemId::DaemonStopped, seen).with_remedy(format!(
        "`kill -CONT{}` resumes it, `mig-mps restart {name} --force` replaces it",
        daemon.unwrap_or_default()
    ))
}

fn dead(node: &Node, served: &Served) -> Option<Problem> {
    if node.is_changing() {
        // The change is stopping or restarting it.
        return None;
    }
    let name = &served.record.name;
    if served.record.boot_id != node.boot_id {
        let seen = "its directory is from an earlier boot";
        let remedy = format!("`up` starts it again, `mig-mps down {name}` removes it");
        return Some(Problem::new(ProblemId::EarlierBoot, seen).with_remedy(remedy));
    }
    let what = match served.record.daemon {
        Some(_) => "its daemon has died",
        None => "an interrupted change has left it without a daemon",
    };
    let dead = Problem::new(ProblemId::DaemonDead, what);
    Some(dead.with_remedy(format!(
        "`mig-mps restart {name}` starts it again, `mig-mps down {name}` removes what it left"
    )))
}

fn fault(served: &Served) -> Problem {
    let name = &served.record.name;
    if served.clients.listed().is_empty() {
        let seen = "a GPU fault whose clients have gone: it clears within a second or so";
        return Problem::new(ProblemId::GpuFault, seen).with_remedy(format!(
            "if it does not, `mig-mps restart {name}` starts another"
        ));
    }
    let clients = served.clients.listed().iter();
    let pids: Vec<String> = clients
        .filter_map(|client| Some(client.pid?.to_string()))
        .collect();
    let remedy = if pids.is_empty() {
        format!("mig-mps restart {name} --force")
    } else {
        format!("mig-mps kill {name} {} --signal", pids.join(" "))
    };
    let seen = "a GPU fault: it serves again when all its clients have ended";
    Problem::new(ProblemId::GpuFault, seen).with_remedy(format!("`{remedy}` ends them"))
}

/// Describes a device that hangs, its clients, and the remedy.
fn hung(served: &Served, why: &str) -> Problem {
    let name = &served.record.name;
    let remedy = match served.clients.listed() {
        [] if served.clients.are_known() => format!("`mig-mps restart {name}` ends that"),
        [] => format!("`mig-mps restart {name} --force` ends that, and terminates them"),
        _ => format!(
            "`mig-mps restart {name} --drain 5m` waits for them and ends that, --force ends them too"
        ),
    };
    let seen = format!(
        "it hangs: {why}, and every new client waits for ever; {}",
        who_works(served)
    );
    Problem::new(ProblemId::DeviceHung, seen).with_remedy(remedy)
}

/// `pid 4711, 4712 still work`
fn who_works(served: &Served) -> String {
    let clients = served.clients.listed().iter();
    let pids: Vec<String> = clients.map(Client::shown_pid).collect();
    match pids.as_slice() {
        [] if served.clients.are_known() => "no client works".to_owned(),
        [] => "whether clients still work is hidden".to_owned(),
        [one] => format!("pid {one} still works"),
        _ => format!("pids {} still work", pids.join(", ")),
    }
}

/// Returns the settings of a daemon that somebody changed, as a problem.
pub(super) fn changed_settings(served: &Served) -> Option<Problem> {
    if !served.record.finished {
        // A change is setting them.
        return None;
    }
    let set = &served.record.settings;
    let reported = served.answered.as_ref()?;
    let changed: Vec<String> = KEYS
        .iter()
        .filter_map(|key| {
            let is = reported.difference(key, set)?;
            let (name, set) = (key.name, (key.show)(set));
            Some(format!("{name} was set to {set} and is {is}"))
        })
        .collect();
    let seen = format!("{}: somebody has changed it", changed.join("; "));
    (!changed.is_empty()).then(|| Problem::new(ProblemId::SettingsChanged, seen))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_can_be_typed() {
        let names: BTreeSet<&str> = ProblemId::ALL.iter().map(|id| id.name()).collect();
        assert_eq!(names.len(), ProblemId::ALL.len());
        let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(names.iter().all(is_plain), "{names:?}");
    }

    #[test]
    fn a_remedy_follows_in_the_same_sentence_and_gives_its_command() {
        let problem = Problem::new(ProblemId::EarlierBoot, "it is old").of("0.2");
        let problem = problem.with_remedy("`up` starts it, `mig-mps down 0.2` removes it");
        let text = "0.2: it is old: `up` starts it, `mig-mps down 0.2` removes it [earlier-boot]";
        assert_eq!(problem.to_string(), text);
        assert_eq!(problem.command(), Some("mig-mps down 0.2"));
        let divided = Problem::new(ProblemId::DeviceHung, "it hangs: so").with_remedy("end it");
        assert_eq!(divided.what(), "it hangs: so; end it");
        assert_eq!(divided.command(), None);
    }
}
