//! The features of NVIDIA's control program, by driver version. No other file has version numbers of MPS.
//!
//! Measured with the control programs of drivers 470, 535, 550, 555, 580, 595 and 615 without a GPU, and with 580.159.04
//! on an H200 (fixtures/transcripts). A version in between has the features of the one below it; a newer or unreadable
//! version has those of the last row.

/// The control program of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the features are independent"
)]
pub struct ControlProgram {
    /// The driver's branch, such as 580; `None` if its version does not begin with one.
    pub branch: Option<u32>,
    pub support: Support,
    /// A session waits while another one is open, and its commands are carried out even if it was killed meanwhile.
    /// Earlier programs refuse it at once.
    pub queues_sessions: bool,
    /// Supports `get_server_status`.
    pub has_server_status: bool,
    /// Supports `-multiuser-server` (CUDA 12.5).
    pub has_multiuser_server: bool,
    /// The most clients of a whole GPU: 48, measured on 580. Drivers from 590 are documented with 60; the limit of a MIG
    /// device has not been measured.
    pub client_limit: Option<u32>,
}

/// The support for a control program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It lacks necessary commands: memory limits, priorities, `ps`, `terminate_client`.
    TooOld,
    /// Not measured.
    Unmeasured,
    /// Measured, or newer than the measured ones.
    Measured,
}

/// The first branch of a row, and its features.
type Row = (u32, ControlProgram);

const TO_470: ControlProgram = ControlProgram {
    branch: None,
    support: Support::TooOld,
    queues_sessions: false,
    has_server_status: false,
    has_multiuser_server: false,
    client_limit: Some(48),
};
const FROM_471: ControlProgram = ControlProgram {
    support: Support::Unmeasured,
    ..TO_470
};
const FROM_535: ControlProgram = ControlProgram {
    support: Support::Measured,
    ..FROM_471
};
const FROM_550: ControlProgram = ControlProgram {
    has_server_status: true,
    ..FROM_535
};
const FROM_555: ControlProgram = ControlProgram {
    has_multiuser_server: true,
    ..FROM_550
};
const FROM_590: ControlProgram = ControlProgram {
    client_limit: None,
    ..FROM_555
};
const FROM_615: ControlProgram = ControlProgram {
    queues_sessions: true,
    ..FROM_590
};

const ROWS: [Row; 7] = [
    (0, TO_470),
    (471, FROM_471),
    (535, FROM_535),
    (550, FROM_550),
    (555, FROM_555),
    (590, FROM_590),
    (615, FROM_615),
];

impl ControlProgram {
    /// Returns the control program of a driver with a version such as `580.159.04`.
    pub fn of(driver: &str) -> Self {
        let branch = driver.split('.').next().and_then(|text| text.parse().ok());
        let known = ROWS
            .iter()
            .rfind(|(since, _)| branch.is_none_or(|branch| branch >= *since));
        let (_, program) = known.unwrap_or(&ROWS[0]);
        Self { branch, ..*program }
    }

    /// Returns the first branch with a feature, or the newest branch if none has it.
    pub fn first_that(can: impl Fn(&Self) -> bool) -> u32 {
        let first = ROWS.iter().find(|(_, program)| can(program));
        let (since, _) = first.unwrap_or(&ROWS[ROWS.len() - 1]);
        *since
    }
}

impl Default for ControlProgram {
    fn default() -> Self {
        FROM_615
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists the features of a version in one line.
    fn traits(driver: &str) -> String {
        let program = ControlProgram::of(driver);
        let mut words = vec![format!("{:?}", program.support)];
        for (has, word) in [
            (program.has_server_status, "status"),
            (program.has_multiuser_server, "multiuser"),
            (program.queues_sessions, "queue"),
            (program.client_limit.is_some(), "48"),
        ] {
            words.extend(has.then(|| word.to_owned()));
        }
        words.join(" ")
    }

    #[test]
    fn each_version_does_what_was_measured() {
        for (driver, wanted) in [
            ("390.157", "TooOld 48"),
            ("470.256.02", "TooOld 48"),
            ("525.147.05", "Unmeasured 48"),
            ("535.183.01", "Measured 48"),
            ("550.163.01", "Measured status 48"),
            ("555.58.02", "Measured status multiuser 48"),
            ("570.86", "Measured status multiuser 48"),
            ("580.159.04", "Measured status multiuser 48"),
            ("595.45.04", "Measured status multiuser"),
            ("615.10", "Measured status multiuser queue"),
        ] {
            assert_eq!(traits(driver), wanted, "{driver}");
        }
    }

    #[test]
    fn unknown_versions_have_the_newest_features() {
        for (driver, branch) in [("700.01", Some(700)), ("", None), ("R550", None)] {
            let newest = ControlProgram { branch, ..FROM_615 };
            assert_eq!(ControlProgram::of(driver), newest, "{driver}");
        }
    }

    #[test]
    fn rows_rise_and_name_their_first_branch() {
        assert!(ROWS.is_sorted_by(|(one, _), (other, _)| one < other));
        let multiuser = ControlProgram::first_that(|program| program.has_multiuser_server);
        assert_eq!(multiuser, 555);
    }
}
