//! The features of NVIDIA's control program, by driver version. No other file has version numbers of MPS.
//!
//! Measured with the control programs of drivers 470, 535, 550, 555, 580, 595 and 615 without a GPU, and with 580.159.04
//! on an H200 (fixtures/transcripts). A version in between has the features of the one below it; a newer or unreadable
//! version has those of the newest.

/// The control program of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the features are independent"
)]
pub struct ControlProgram {
    /// The driver's branch, such as 580; `None` if its version does not begin with one.
    pub branch: Option<u32>,
    /// It is older than [`Self::FIRST_SUPPORTED_BRANCH`]: no change is made with it.
    pub is_too_old: bool,
    /// A session waits while another one is open, and its commands are carried out even if it was killed meanwhile.
    /// Earlier programs refuse it at once.
    pub queues_sessions: bool,
    /// Every user who reaches the daemon's socket may change its settings. From 550 on, only root and its owner may.
    pub has_open_settings: bool,
    /// Supports `get_server_status`.
    pub has_server_status: bool,
    /// While a `quit` waits for clients, newcomers get CUDA error 805. Measured with 580 alone.
    pub refuses_newcomers: bool,
    /// Supports `-multiuser-server`.
    pub has_multiuser_server: bool,
    /// The most clients of a whole GPU: 48, measured on 580. Drivers from 590 are documented with 60.
    pub client_limit: u32,
}

impl ControlProgram {
    /// The first branch that was measured. 470 lacks memory limits, priorities, `get_server_status`, `ps` and
    /// `terminate_client`; nobody has tried those in between.
    pub const FIRST_SUPPORTED_BRANCH: u32 = 535;
    /// The first branch that supports `-multiuser-server` (CUDA 12.5).
    pub const FIRST_MULTIUSER_BRANCH: u32 = 555;

    /// Returns the control program of a driver with a version such as `580.159.04`.
    pub fn for_driver(driver: &str) -> Self {
        let branch = driver.split('.').next().and_then(|text| text.parse().ok());
        Self {
            branch,
            is_too_old: !is_at_least(Self::FIRST_SUPPORTED_BRANCH, branch),
            queues_sessions: is_at_least(615, branch),
            has_open_settings: !is_at_least(550, branch),
            has_server_status: is_at_least(550, branch),
            refuses_newcomers: branch == Some(580),
            has_multiuser_server: is_at_least(Self::FIRST_MULTIUSER_BRANCH, branch),
            // Of an unknown driver no more is promised than of an old one.
            client_limit: if branch.is_some_and(|branch| branch >= 590) {
                60
            } else {
                48
            },
        }
    }

    /// Returns the most clients of a whole GPU where that was measured.
    pub fn measured_client_limit(self) -> Option<u32> {
        let is_measured = self.branch.is_some_and(|branch| branch < 590);
        is_measured.then_some(self.client_limit)
    }

    /// Returns the most clients of a MIG device with so many of the compute slices of its GPU. NVIDIA's MIG guide: the
    /// maximum "is lowered proportionally to the Compute Instance size". It has not been measured.
    pub fn client_limit_of_instance(self, slices: u32, of: u32) -> u32 {
        (self.client_limit * slices / of.max(1)).max(1)
    }
}

/// True if a driver's branch is this one or newer, or unknown.
fn is_at_least(first: u32, branch: Option<u32>) -> bool {
    branch.is_none_or(|branch| branch >= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists the features of a version in one line.
    fn traits(driver: &str) -> String {
        let program = ControlProgram::for_driver(driver);
        let mut words = Vec::new();
        for (has, word) in [
            (program.is_too_old, "old"),
            (program.has_open_settings, "open"),
            (program.has_server_status, "status"),
            (program.refuses_newcomers, "closes"),
            (program.has_multiuser_server, "multiuser"),
            (program.queues_sessions, "queue"),
        ] {
            words.extend(has.then(|| word.to_owned()));
        }
        words.push(program.client_limit.to_string());
        words.join(" ")
    }

    #[test]
    fn each_version_does_what_was_measured() {
        for (driver, wanted) in [
            ("390.157", "old open 48"),
            ("470.256.02", "old open 48"),
            ("525.147.05", "old open 48"),
            ("535.183.01", "open 48"),
            ("550.163.01", "status 48"),
            ("555.58.02", "status multiuser 48"),
            ("570.86", "status multiuser 48"),
            ("580.159.04", "status closes multiuser 48"),
            ("595.45.04", "status multiuser 60"),
            ("615.10", "status multiuser queue 60"),
        ] {
            assert_eq!(traits(driver), wanted, "{driver}");
        }
    }

    #[test]
    fn unknown_versions_have_the_newest_features() {
        for (driver, branch) in [("700.01", Some(700)), ("", None), ("R550", None)] {
            let newest = ControlProgram {
                branch,
                client_limit: if branch.is_some() { 60 } else { 48 },
                ..ControlProgram::for_driver("615.10")
            };
            assert_eq!(ControlProgram::for_driver(driver), newest, "{driver}");
        }
    }

    #[test]
    fn a_part_of_a_gpu_takes_a_part_of_the_clients() {
        let (old, new) = (
            ControlProgram::for_driver("580.1"),
            ControlProgram::for_driver("590.1"),
        );
        let limits = |slices, of| {
            let limit = |program: ControlProgram| program.client_limit_of_instance(slices, of);
            (limit(old), limit(new))
        };
        assert_eq!(limits(1, 7), (6, 8));
        assert_eq!(limits(3, 7), (20, 25));
        assert_eq!(limits(7, 7), (48, 60));
        assert_eq!(limits(1, 4), (12, 15));
    }

    #[test]
    fn the_first_branches_are_those_where_a_feature_begins() {
        let before = |branch: u32| ControlProgram::for_driver(&(branch - 1).to_string());
        let multiuser = ControlProgram::FIRST_MULTIUSER_BRANCH;
        assert!(ControlProgram::for_driver(&multiuser.to_string()).has_multiuser_server);
        assert!(!before(multiuser).has_multiuser_server);
        assert!(before(ControlProgram::FIRST_SUPPORTED_BRANCH).is_too_old);
        assert!(
            !ControlProgram::for_driver(&ControlProgram::FIRST_SUPPORTED_BRANCH.to_string())
                .is_too_old
        );
    }
}
