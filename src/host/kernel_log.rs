//! The Xids in the kernel's log: what the driver reports there of a GPU.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::files::read_text_from;
use super::{FileResult, Host};

/// The age up to which an Xid is reported.
const MAX_XID_AGE: Duration = Duration::from_secs(24 * 3600);

/// The most that is read of the log, in bytes. The largest ring buffers have 32 MiB.
const MAX_LOG_BYTES: usize = 64 << 20;

/// Longer than any record: the kernel cuts them to 8 KiB.
const MAX_RECORD_BYTES: usize = 16 << 10;

/// The first words of the kernel module when it is loaded. What was before is over.
const MODULE_LOADING: &str = "NVRM: loading NVIDIA";

/// An Xid of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The PCI address of the GPU without the function: `0000:17:00`.
    pub pci: String,
    pub number: u32,
    pub age: Duration,
}

impl Host {
    /// Returns the recent Xids in the kernel's log, the oldest first, or the reason why they cannot be read.
    pub fn recent_xids(&self) -> Result<Vec<Xid>, String> {
        let text = self
            .read_kernel_log()
            .map_err(|error| format!("the kernel log, /dev/kmsg, cannot be read: {error}"))?;
        let (_, uptime) = read_text_from(Path::new(&self.under_root("/proc/uptime")));
        let uptime = uptime.ok().and_then(|text| {
            let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok()
        });
        let uptime = uptime.ok_or("the uptime of this machine is not known")?;
        Ok(find_xids(&text, uptime))
    }

    /// Reads the kernel's log to its present end: each read returns one record.
    fn read_kernel_log(&self) -> FileResult<String> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = rustix::fs::open(self.under_root("/dev/kmsg"), flags, Mode::empty())?;
        let mut file = std::fs::File::from(file);
        let mut text = Vec::new();
        let mut record = vec![0; MAX_RECORD_BYTES];
        while text.len() < MAX_LOG_BYTES {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => text.extend_from_slice(&record[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // EPIPE: the next record was overwritten meanwhile.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Finds the recent Xids of the loaded kernel module in records of `/dev/kmsg`.
fn find_xids(log: &str, uptime: Duration) -> Vec<Xid> {
    let mut found = Vec::new();
    for (at, message) in log.lines().filter_map(parse_kernel_record) {
        if message.starts_with(MODULE_LOADING) {
            found.clear();
        }
        let age = uptime.saturating_sub(at);
        if age <= MAX_XID_AGE
            && let Some((pci, number)) = parse_xid(message)
        {
            let pci = pci.to_ascii_lowercase();
            found.push(Xid { pci, number, age });
        }
    }
    found
}

/// Returns the time since boot and the message of a record of the kernel itself: `3,1234,5678901,-;NVRM: …`, priority and
/// facility, number, microseconds. What programs write there has a facility other than 0.
fn parse_kernel_record(record: &str) -> Option<(Duration, &str)> {
    let (head, message) = record.split_once(';')?;
    let (priority, head) = head.split_once(',')?;
    let priority: u32 = priority.parse().ok()?;
    let micros: u64 = head.split(',').nth(1)?.parse().ok()?;
    (priority < 8).then(|| (Duration::from_micros(micros), message))
}

/// Returns the address and number of `NVRM: Xid (PCI:0000:17:00): 79, pid=…`; with MIG the address is followed by an
/// instance: `(PCI:0000:17:00 GPU-I:05)`.
fn parse_xid(message: &str) -> Option<(&str, u32)> {
    let rest = message.strip_prefix("NVRM: Xid (PCI:")?;
    let (place, rest) = rest.split_once("): ")?;
    let pci = place.split(' ').next()?;
    let is_address = pci.chars().all(|c| c.is_ascii_hexdigit() || c == ':');
    let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    if !is_address {
        return None;
    }
    Some((pci, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    fn numbers(log: &str) -> Vec<u32> {
        let uptime = Duration::from_secs(2 * DAY);
        let found = find_xids(log, uptime);
        found.iter().map(|xid| xid.number).collect()
    }

    #[test]
    fn xids_are_found_with_gpu_and_age() {
        let log = "6,1,5,-;Linux version 6.1\n SUBSYSTEM=pci\n\
                   3,2,172700000000,-;NVRM: Xid (PCI:0000:1B:00): 79, pid=4711, name=python, GPU has fallen\n\
                   3,3,172799000000,c;NVRM: Xid (PCI:0000:17:00 GPU-I:05): 95, pid='<unknown>'\n";
        let xid = |pci: &str, number, age| Xid {
            pci: pci.to_owned(),
            number,
            age: Duration::from_secs(age),
        };
        let expected = [xid("0000:1b:00", 79, 100), xid("0000:17:00", 95, 1)];
        assert_eq!(find_xids(log, Duration::from_secs(2 * DAY)), expected);
    }

    #[test]
    fn what_is_old_or_of_an_earlier_module_or_of_a_program_is_left_out() {
        let line = "NVRM: Xid (PCI:0000:17:00): 79, pid=1";
        let at = |seconds: u64| seconds * 1_000_000;
        assert_eq!(numbers(&format!("3,1,{},-;{line}\n", at(DAY))), [79]);
        assert_eq!(numbers(&format!("3,1,{},-;{line}\n", at(DAY) - 1)), [0; 0]);
        // A clock that is ahead of that of the log's.
        assert_eq!(numbers(&format!("3,1,{},-;{line}\n", at(3 * DAY))), [79]);
        // Facility 1, of user programs.
        assert_eq!(numbers(&format!("11,1,{},-;{line}\n", at(DAY))), [0; 0]);
        assert_eq!(numbers(&format!("3,1,{},-;x {line}\n", at(DAY))), [0; 0]);
        let loaded = format!(
            "4,2,{},-;{MODULE_LOADING} UNIX Open Kernel Module\n",
            at(DAY) + 1
        );
        assert_eq!(
            numbers(&format!("3,1,{},-;{line}\n{loaded}", at(DAY))),
            [0; 0]
        );
    }

    #[test]
    fn lines_that_are_cut_or_garbled_are_left_out() {
        for message in [
            "",
            "NVRM: Xid",
            "NVRM: Xid (PCI:0000:17:00)",
            "NVRM: Xid (PCI:0000:17:00): ",
            "NVRM: Xid (PCI:0000:17:00): x79",
            "NVRM: Xid (PCI:0000:17:00): 99999999999",
            "NVRM: Xid (PCI:\u{1b}[31m): 79",
        ] {
            assert_eq!(
                numbers(&format!("3,1,0,-;{message}\n")),
                [0; 0],
                "{message}"
            );
        }
        for record in ["", ";", "3;x", "3,1;x", "3,1,x,-;NVRM: Xid (PCI:0:0): 1"] {
            assert_eq!(parse_kernel_record(record), None, "{record}");
        }
    }
}
