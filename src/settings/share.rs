//! The setting `share`: equal parts of a device for a number of clients, as the hardware rounds them.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{
    ACTIVE_THREAD_PERCENTAGE, MAX_CLIENTS, MemoryLimit, PINNED_MEMORY_LIMIT, Percentage, Settings,
    WrongValue,
};

/// The settings that follow from a share, unless somebody gives them.
pub const FOLLOW_A_SHARE: [&str; 3] = [ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, MAX_CLIENTS];

/// The number of clients that a device is meant for, each with an equal part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Share {
    pub clients: u32,
    /// True if somebody has given the active thread percentage, in place of that of an equal part.
    #[serde(default)]
    pub(super) threads_are_given: bool,
    /// True if somebody has given the memory limit, or none.
    #[serde(default)]
    pub(super) memory_is_given: bool,
    /// True if somebody has given `max-clients`.
    #[serde(default)]
    pub(super) max_clients_is_given: bool,
    /// The device for which the parts were computed.
    #[serde(default)]
    pub device: DeviceSize,
}

impl Share {
    /// A share that decides everything, for a device that is not known yet.
    pub(super) fn for_clients(clients: u32) -> Self {
        Self {
            clients,
            threads_are_given: false,
            memory_is_given: false,
            max_clients_is_given: false,
            device: DeviceSize::default(),
        }
    }

    /// True if it decides the value of the setting with that name.
    pub fn decides(&self, key: &str) -> bool {
        match key {
            ACTIVE_THREAD_PERCENTAGE => !self.threads_are_given,
            PINNED_MEMORY_LIMIT => !self.memory_is_given,
            MAX_CLIENTS => !self.max_clients_is_given,
            _ => false,
        }
    }
}

/// The factor by which the SMs of a device with a share are given out more than once.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Oversubscription(f64);

impl Oversubscription {
    /// Every SM is given out once at most.
    pub const NONE: Self = Self(1.0);

    /// Every SM is given out twice, as NVIDIA's MPS guide advises for clients that do not keep the device busy.
    pub const TWICE: Self = Self(2.0);

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// Without decimals where it has none: `2`, `1.5`.
impl fmt::Display for Oversubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Oversubscription {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        let factor = text.parse().ok();
        factor
            .filter(|factor| (1.0..=1024.0).contains(factor))
            .map(Self)
            .ok_or_else(|| WrongValue::Range("from 1 to 1024".to_owned()))
    }
}

/// The SMs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Multiprocessors {
    pub all: u32,
    /// The fewest that a client gets, whatever its percentage.
    pub least: u32,
}

/// The size of a device, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceSize {
    pub multiprocessors: Option<Multiprocessors>,
    /// The memory that its clients can have, in MiB.
    pub memory: Option<u64>,
    /// The most clients that its daemon takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
}

/// The memory that driver and server keep of a whole GPU, in MiB: this, and one part in [`RESERVED_DIVISOR`] of it. Measured with
/// driver 580.159.04: 480 MiB of the driver and 74 of the server on an H100 80GB HBM3 (81559 MiB), and 616 of the driver on
/// an H200 (143771 MiB).
const RESERVED_MIB: u64 = 512;
const RESERVED_DIVISOR: u64 = 400;

/// The memory that the server keeps of a MIG device, in MiB. Not measured: NVIDIA's MIG guide shows 60.
const RESERVED_OF_INSTANCE_MIB: u64 = 128;

/// The memory of a client that does not count against its limit, in MiB: 1 to 2 where 2 to 40 clients had filled theirs
/// (H100, driver 580.159.04).
const UNCOUNTED_MIB: u64 = 2;

/// The tenths of a percent of all SMs.
const ALL_TENTHS: u32 = 1000;

impl Multiprocessors {
    /// Returns the SMs that a client gets with so many tenths of a percent: whole pairs, rounded down (measured on an H100
    /// and an H200 with 132 SMs: 25 % are 32, 10 % are 12), and never fewer than the least.
    pub fn usable_at(self, tenths: u32) -> u32 {
        if tenths >= ALL_TENTHS {
            return self.all;
        }
        let pairs = u64::from(self.all) * u64::from(tenths) / 2000;
        let paired = u32::try_from(2 * pairs).unwrap_or(self.all);
        paired.max(self.least).min(self.all)
    }

    /// Returns the number of clients, `most` at most, that get all SMs in equal parts, if there is one near this number.
    fn nearest_even_split(self, clients: u32, most: u32) -> Option<u32> {
        let largest = clients.saturating_mul(2).min(self.all).min(most);
        let near = (clients / 2).max(2)..=largest;
        let fits = |candidate: &u32| {
            let each = self.all / candidate / 2 * 2;
            *candidate != clients && each >= self.least && self.all == each * candidate
        };
        // Of two that are equally near, the one for more clients.
        near.rev()
            .filter(fits)
            .min_by_key(|candidate| candidate.abs_diff(clients))
    }
}

impl DeviceSize {
    /// Returns the size of a whole GPU with that memory in MiB.
    pub fn for_gpu(multiprocessors: Option<Multiprocessors>, memory: Option<u64>) -> Self {
        Self {
            multiprocessors,
            memory: memory.map(|mib| mib.saturating_sub(RESERVED_MIB + mib / RESERVED_DIVISOR)),
            clients: None,
        }
    }

    /// Returns the size of one of so many compute instances, which share the memory of their GPU instance.
    pub fn for_instance(
        multiprocessors: Option<Multiprocessors>,
        memory: u64,
        compute_instances: u64,
    ) -> Self {
        let each = memory / compute_instances.max(1);
        Self {
            multiprocessors,
            // An instance of a GPU that shares the machine's memory has none of its own.
            memory: (memory > 0).then(|| each.saturating_sub(RESERVED_OF_INSTANCE_MIB)),
            clients: None,
        }
    }

    /// Returns the size of a device whose daemon takes so many clients at most.
    #[must_use]
    pub fn with_client_limit(self, most: Option<u32>) -> Self {
        Self {
            clients: most,
            ..self
        }
    }

    /// Returns the largest active thread percentage whose SMs so many clients can have at once. Where even the fewest that
    /// a client gets are too many, it is an equal part of 100 %.
    pub fn percentage_of_each(self, clients: u32, oversubscribe: Oversubscription) -> Percentage {
        let clients = f64::from(clients.max(1));
        let largest =
            |fits: &dyn Fn(u32) -> bool| (1..=ALL_TENTHS).rev().find(|&tenths| fits(tenths));
        let fits_in =
            |part: u32, all: u32| f64::from(part) * clients <= f64::from(all) * oversubscribe.0;
        let by_sms = self
            .multiprocessors
            .and_then(|sms| largest(&|tenths| fits_in(sms.usable_at(tenths), sms.all)));
        let tenths = by_sms.or_else(|| largest(&|tenths| fits_in(tenths, ALL_TENTHS)));
        Percentage::from_tenths(tenths.unwrap_or(1))
    }

    /// Returns the memory limit with which so many clients can all have what it allows. The context of a client is in it.
    pub(super) fn memory_of_each(self, clients: u32) -> Option<MemoryLimit> {
        MemoryLimit::from_mebibytes(self.mib_of_each(clients)?)
    }

    /// Returns the memory that each of so many clients can have, in MiB.
    pub fn mib_of_each(self, clients: u32) -> Option<u64> {
        let each = self.memory? / u64::from(clients.max(1));
        Some(each.saturating_sub(UNCOUNTED_MIB))
    }
}

/// Describes what each client gets of a device with a share: `4 of 108 SMs and 3.9 GiB each; 28 SMs are in no share (share
/// = 18 uses all)`.
pub(super) fn describe_share(settings: &Settings) -> Option<String> {
    let share = settings.share?;
    let (threads, limit) = (
        settings.active_thread_percentage,
        settings.pinned_memory_limit,
    );
    let sms = share.device.multiprocessors;
    let each = sms.map(|sms| sms.usable_at(threads.to_tenths()));
    let mut words = match (each, sms) {
        (Some(each), Some(sms)) if each == sms.all => format!("all {each} SMs"),
        (Some(each), Some(sms)) => format!("{each} of {} SMs", sms.all),
        _ => format!("{threads} % of the SMs"),
    };
    if share.threads_are_given {
        let _ = write!(words, " ({ACTIVE_THREAD_PERCENTAGE} = {threads})");
    }
    if let Some(limit) = limit {
        let _ = write!(words, " and {}", format_rounded_down(limit));
    }
    words.push_str(" each");
    match limit {
        Some(limit) if share.memory_is_given => {
            let _ = write!(words, " ({PINNED_MEMORY_LIMIT} = {limit})");
        }
        Some(_) => {}
        None if share.memory_is_given => {
            let _ = write!(words, " ({PINNED_MEMORY_LIMIT} = none)");
        }
        None => words.push_str(", and no memory limit, because the size of the memory is unknown"),
    }
    if let (Some(each), Some(sms)) = (each, sms) {
        if !share.threads_are_given {
            words.push_str(&describe_remainder(
                each,
                sms,
                settings.oversubscribe,
                share,
            ));
        }
        if let Some(limit) = limit.filter(|limit| limit.bytes() >> 20 < context_memory_mib(each)) {
            let _ = write!(
                words,
                "; {limit} may be too small for any program, because its context uses about {} MiB",
                context_memory_mib(each)
            );
        }
    }
    Some(words)
}

/// Describes how the parts of a share, with `each` SMs, add up to the device; empty if they are the device.
fn describe_remainder(
    each: u32,
    sms: Multiprocessors,
    oversubscribe: Oversubscription,
    share: Share,
) -> String {
    let (clients, limit) = (share.clients, share.device.clients.unwrap_or(u32::MAX));
    let given_out = each.saturating_mul(clients);
    if given_out > sms.all && oversubscribe > Oversubscription::NONE {
        let times = f64::from(given_out) / f64::from(sms.all);
        return format!("; the shares add up to {times:.1} times the SMs");
    }
    if given_out > sms.all {
        let most = (sms.all / each).min(limit);
        return format!(
            "; no client gets fewer than {each} SMs, so this is more than an equal part (share = {most} fits)"
        );
    }
    let uses_all = sms
        .nearest_even_split(clients, limit)
        .map_or_else(String::new, |other| format!(" (share = {other} uses all)"));
    match sms.all - given_out {
        0 => String::new(),
        1 => format!("; 1 SM remains unused{uses_all}"),
        rest => format!("; {rest} SMs remain unused{uses_all}"),
    }
}

/// The memory of a context that can use so many SMs, in MiB, which counts against the limit of its client: 58, 145 and 516
/// with 8, 32 and 132 SMs (H100 and H200, driver 580.159.04).
fn context_memory_mib(multiprocessors: u32) -> u64 {
    29 + u64::from(multiprocessors) * 37 / 10
}

/// `3.9 GiB`, `512 MiB`
fn format_rounded_down(limit: MemoryLimit) -> String {
    let mib = limit.bytes() >> 20;
    if mib < 1024 {
        return format!("{mib} MiB");
    }
    let tenths = mib * 10 / 1024;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Multiprocessors = Multiprocessors { all: 108, least: 2 };
    const H100: Multiprocessors = Multiprocessors { all: 132, least: 8 };
    const SLICE: Multiprocessors = Multiprocessors { all: 14, least: 2 };

    fn shared(sms: Multiprocessors, memory: u64, keys: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in keys {
            let key = super::super::KEYS.iter().find(|key| key.name == *name);
            (key.unwrap().parse)(&mut settings, value).unwrap();
        }
        let size = DeviceSize::for_gpu(Some(sms), Some(memory));
        settings.for_device_size(|| size).into_owned()
    }

    fn said(sms: Multiprocessors, keys: &[(&str, &str)]) -> String {
        describe_share(&shared(sms, 81920, keys)).unwrap()
    }

    /// An H100 80GB HBM3 with driver 580.159.04: the first tenths of a percent with more SMs than before.
    #[test]
    fn sms_are_those_measured() {
        for (tenths, sms) in [
            (1, 8),
            (75, 8),
            (76, 10),
            (90, 10),
            (91, 12),
            (100, 12),
            (106, 12),
            (107, 14),
            (250, 32),
            (500, 66),
            (988, 130),
            (1000, 132),
        ] {
            assert_eq!(H100.usable_at(tenths), sms, "{tenths}");
        }
    }

    #[test]
    fn what_results_is_said() {
        for (sms, keys, words) in [
            (
                A100,
                &[("share", "20")][..],
                "4 of 108 SMs and 3.9 GiB each; 28 SMs remain unused (share = 18 uses all)",
            ),
            (A100, &[("share", "18")], "6 of 108 SMs and 4.4 GiB each"),
            (A100, &[("share", "1")], "all 108 SMs and 79.2 GiB each"),
            (
                A100,
                &[("share", "20"), ("oversubscribe", "2")],
                "10 of 108 SMs and 3.9 GiB each; the shares add up to 1.9 times the SMs",
            ),
            (
                A100,
                &[("share", "2"), ("oversubscribe", "3.5")],
                "all 108 SMs and 39.6 GiB each; the shares add up to 2.0 times the SMs",
            ),
            (
                A100,
                &[("share", "20"), ("active-thread-percentage", "50")],
                "54 of 108 SMs (active-thread-percentage = 50) and 3.9 GiB each",
            ),
            (
                A100,
                &[("share", "20"), ("active-thread-percentage", "100")],
                "all 108 SMs (active-thread-percentage = 100) and 3.9 GiB each",
            ),
            (
                A100,
                &[("share", "18"), ("pinned-memory-limit", "2G")],
                "6 of 108 SMs and 2.0 GiB each (pinned-memory-limit = 2G)",
            ),
            (
                A100,
                &[("share", "18"), ("pinned-memory-limit", "none")],
                "6 of 108 SMs each (pinned-memory-limit = none)",
            ),
            (
                H100,
                &[("share", "20")],
                "8 of 132 SMs and 3.9 GiB each; no client gets fewer than 8 SMs, so this is more than an equal part \
                 (share = 16 fits)",
            ),
            (
                H100,
                &[("share", "8")],
                "16 of 132 SMs and 9.9 GiB each; 4 SMs remain unused (share = 6 uses all)",
            ),
            (SLICE, &[("share", "7")], "2 of 14 SMs and 11.3 GiB each"),
            (
                SLICE,
                &[("share", "10")],
                "2 of 14 SMs and 7.9 GiB each; no client gets fewer than 2 SMs, so this is more than an equal part \
                 (share = 7 fits)",
            ),
        ] {
            assert_eq!(said(sms, keys), words, "{keys:?}");
        }
    }

    #[test]
    fn too_little_memory_for_a_context_is_said() {
        let settings = shared(SLICE, 4864, &[("share", "200")]);
        assert_eq!(settings.pinned_memory_limit, "19M".parse().ok());
        assert!(describe_share(&settings).unwrap().ends_with(
            "; 19M may be too small for any program, because its context uses about 36 MiB"
        ));
    }

    #[test]
    fn of_a_device_of_unknown_size_each_gets_its_percentage() {
        let mut settings = Settings::default();
        settings.share_among(Some(3));
        let settings = settings.for_device_size(DeviceSize::default);
        assert_eq!(settings.active_thread_percentage.to_string(), "33.3");
        assert_eq!(settings.pinned_memory_limit, None);
        assert_eq!(
            describe_share(&settings).unwrap(),
            "33.3 % of the SMs each, and no memory limit, because the size of the memory is unknown"
        );
    }

    /// For every number of SMs and clients: what each gets fits, and the next percentage would not.
    #[test]
    fn no_larger_percentage_fits() {
        for all in (2..=188).step_by(2) {
            for (least, clients) in (1..=60).flat_map(|clients| [(2, clients), (8, clients)]) {
                let sms = Multiprocessors { all, least };
                let size = DeviceSize::for_gpu(Some(sms), None);
                let tenths = size
                    .percentage_of_each(clients, Oversubscription::NONE)
                    .to_tenths();
                let each = sms.usable_at(tenths);
                if sms.usable_at(1) * clients > all {
                    assert_eq!(tenths, (ALL_TENTHS / clients).max(1), "{clients} of {all}");
                    continue;
                }
                assert!(each * clients <= all, "{clients} of {all}");
                if tenths < ALL_TENTHS {
                    let more = sms.usable_at(tenths + 1);
                    assert!(more > each && more * clients > all, "{clients} of {all}");
                }
            }
        }
    }

    #[test]
    fn a_share_takes_over_and_gives_way() {
        let mut settings = shared(
            A100,
            81920,
            &[("active-thread-percentage", "50"), ("share", "20")],
        );
        assert_eq!(settings.active_thread_percentage.to_string(), "5.5");
        assert_eq!(settings.max_clients, Some(20));
        settings.share_among(None);
        assert_eq!(settings, Settings::default());
        let mut given = shared(
            A100,
            81920,
            &[
                ("share", "20"),
                ("max-clients", "4"),
                ("pinned-memory-limit", "1G"),
            ],
        );
        given.share_among(None);
        assert_eq!(
            (given.max_clients, given.active_thread_percentage),
            (Some(4), Percentage::FULL)
        );
        assert_eq!(given.pinned_memory_limit, "1G".parse().ok());
    }
}
