//! What NVIDIA's control program has and does, by driver version. Nothing else in this program knows a version number
//! of MPS.
//!
//! Read off NVIDIA's own control programs of drivers 470, 535, 550, 555, 580, 595 and 615 run beside each other without
//! a GPU, and off 580.159.04 on an H200 (fixtures/transcripts). A version in between does what the one below it does;
//! one after the last row, or one that cannot be read, is taken for the last row's.

/// The control program of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a trait of its own")]
pub struct ControlProgram {
    /// The driver's branch, such as 580; `None` where its version does not begin with one.
    pub branch: Option<u32>,
    /// How well its behaviour is known.
    pub support: Support,
    /// A session opened while another one is open waits for its turn. Its commands are then carried out even if it has
    /// been killed meanwhile. Earlier programs refuse it at once.
    pub queues_sessions: bool,
    /// It has `get_server_status`.
    pub has_server_status: bool,
    /// It has `-multiuser-server` (CUDA 12.5).
    pub has_multiuser_server: bool,
    /// How many clients a whole GPU takes: 48, measured on 580. Drivers from 590 are said to take 60, and how many a
    /// MIG device takes nobody has measured.
    pub client_limit: Option<u32>,
}

/// How well a control program is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It lacks commands that every daemon here needs: memory limits, priorities, `ps`, `terminate_client`.
    TooOld,
    /// Nobody has measured it.
    Unmeasured,
    /// It was measured, or is newer than what was.
    Measured,
}

/// From which branch on a row holds.
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
    /// The one that comes with a driver, by NVML's version string: `580.159.04`.
    pub fn of(driver: &str) -> Self {
        let branch = driver.split('.').next().and_then(|text| text.parse().ok());
        let known = ROWS
            .iter()
            .rfind(|(since, _)| branch.is_none_or(|branch| branch >= *since));
        let (_, program) = known.unwrap_or(&ROWS[0]);
        Self { branch, ..*program }
    }

    /// The first branch that can do something.
    pub fn first_that(can: impl Fn(&Self) -> bool) -> u32 {
        let mut rows = ROWS.iter();
        rows.find(|(_, program)| can(program))
            .map_or(u32::MAX, |(since, _)| *since)
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

    /// What differs between versions, in one line each.
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
    fn what_is_to_come_or_cannot_be_read_is_taken_for_the_newest() {
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
