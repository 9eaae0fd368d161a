//! A device with a daemon: clients, limits, users, and what happens to programs when something ends.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::finding::Verdict;
use super::geometry::is_like_memory;
use super::program::TestProgram;
use super::tester::{CheckResult, Tester, ensure};
use crate::cuda::{Computed, CudaError};
use crate::host::{BecomeUser, Pid};
use crate::mps::ControlProgram;
use crate::node::{Detail, Served};
use crate::settings::{MemoryLimit, Multiprocessors, Percentage};
use rustix::process::{Pid as RawPid, Signal, kill_process};

/// The name of the device that is tested.
const DEVICE_NAME: &str = "selftest";

/// The user `nobody`, who is not the caller.
const OTHER_USER: u32 = 65534;

/// The time for which a second user's program must wait while the first user's is served.
const SECOND_USER_WAIT: Duration = Duration::from_secs(2);

/// The time within which a second user's program must compute, at once or after the first user's has ended.
const SERVED_WITHIN: Duration = Duration::from_secs(15);

/// The time within which a daemon lists the clients that it has.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// More clients than any server takes.
const MAX_CLIENTS: usize = 64;

/// The device under test.
struct TestedDevice<'a> {
    /// Its name in findings.
    title: &'a str,
    /// The text of its block in a profile, before and after the settings of the device.
    block: [&'a str; 2],
    size: TestedSize,
}

/// The size of a device, where it is known.
#[derive(Clone, Copy)]
pub(super) struct TestedSize {
    pub(super) sms: Option<Multiprocessors>,
    /// All its memory, in MiB.
    pub(super) memory: Option<u64>,
}

impl TestedDevice<'_> {
    /// Fails unless a client may use the SMs that mig-mps expects at this percentage.
    fn check_sms(&self, sms: u32, percentage: f64) -> CheckResult {
        let Some((own, percentage)) = self.size.sms.zip(Percentage::new(percentage)) else {
            return Ok(());
        };
        let expected = own.usable_at(percentage.to_tenths());
        ensure(sms == expected, || {
            let percentage = percentage.as_f64();
            format!(
                "a client has {sms} SMs at {percentage} %, and mig-mps expects {expected} of {}",
                own.all
            )
        })
    }

    /// Fails unless a client sees the memory of the device, in bytes.
    fn check_memory(&self, total: u64) -> CheckResult {
        let Some(all) = self.size.memory else {
            return Ok(());
        };
        let mib = total >> 20;
        ensure(is_like_memory(mib, all), || {
            format!("a client sees {mib} MiB, and the device has {all} MiB")
        })
    }
}

impl Tester<'_> {
    /// Tests programs on the whole GPU.
    pub(super) fn test_whole(&mut self) {
        if !self.gpu.tests_whole {
            return;
        }
        let size = TestedSize {
            sms: self.gpu.gpu.device_size().multiprocessors,
            memory: self.gpu.gpu.memory.map(|memory| memory.total >> 20),
        };
        let is_off = self.check("MIG mode off", |tester| {
            tester.apply_profile("false", "mig = false").map(|()| None)
        });
        if !self.gpu.tests_mig && !self.gpu.gpu.profiles.is_empty() {
            self.compare_with_catalog(&self.gpu.gpu.profiles);
        }
        if is_off {
            let block = "mig = false\nname = \"selftest\"";
            self.test_device("whole GPU", block, "", size);
        } else {
            self.leave_out("programs on the whole GPU", "MIG mode is not off");
        }
    }

    /// Tests programs on a device of this title. The block of the device is `before`, its settings, and `after`.
    pub(super) fn test_device(&mut self, title: &str, before: &str, after: &str, size: TestedSize) {
        let subject = TestedDevice {
            title,
            block: [before, after],
            size,
        };
        let begun = Instant::now();
        let is_ready = self.check_device(&subject, "daemon and server start", |tester, subject| {
            tester.serve_device(subject, "{ }")?;
            if let Some(why) = tester.observe_served()?.state.reason() {
                return Err(Verdict::Differs(why.to_owned()));
            }
            tester.run(&["verify"], "")?;
            Ok(None)
        });
        if is_ready {
            self.test_client(&subject);
            self.test_ends(&subject);
            self.test_limits(&subject);
            if self.environment.is_root() {
                self.test_users(&subject);
            } else {
                let why = "only root can start programs of another user";
                self.leave_out(&format!("{title}: users"), why);
            }
            if !self.abilities.quick {
                self.count_clients(&subject);
            }
        } else {
            self.leave_out(&format!("{title}: programs"), "the device is not ready");
        }
        if is_ready || self.observe_served().is_ok() {
            self.check_device(&subject, "down leaves nothing", |tester, _| {
                tester.take_down()
            });
        } else {
            self.leave_out(&format!("{title}: down"), "no daemon is running");
        }
        tracing::debug!(target: "selftest", "{title}: {:?}", begun.elapsed());
    }

    fn check_device(
        &mut self,
        subject: &TestedDevice<'_>,
        what: &str,
        act: impl FnOnce(&Self, &TestedDevice<'_>) -> CheckResult<Option<String>>,
    ) -> bool {
        let what = format!("{}: {what}", subject.title);
        self.check(what, |tester| act(tester, subject))
    }

    /// Starts the daemon of the device with these settings.
    fn serve_device(&self, subject: &TestedDevice<'_>, settings: &str) -> CheckResult {
        let [before, after] = subject.block;
        let block = if after.is_empty() {
            before.to_owned()
        } else {
            format!("{before} {after}")
        };
        self.apply_profile(settings, &block)
    }

    /// Returns what is known of the daemon.
    fn observe_served(&self) -> CheckResult<Served> {
        let node = self.observe(Detail::STATUS)?;
        let device = node
            .devices
            .into_iter()
            .find(|device| device.name == DEVICE_NAME);
        let served = device.and_then(|device| device.served);
        served.ok_or_else(|| Verdict::Differs("no device has a daemon".to_owned()))
    }

    fn list_servers(&self) -> CheckResult<Vec<Pid>> {
        let servers = self.observe_served()?.servers;
        Ok(servers.iter().map(|server| server.pid).collect())
    }

    fn start_program(&self, user: &BecomeUser, allocations: &[u64]) -> CheckResult<TestProgram> {
        TestProgram::start(self, DEVICE_NAME, user, allocations)
    }

    /// Runs a program to its end and returns what it saw. It must be a client whose kernel computes what it should.
    fn run_program(&self, allocations: &[u64]) -> CheckResult<Computed> {
        let mut program = self.start_program(&BecomeUser::default(), allocations)?;
        let computed = program.wait_for_result()?;
        check_computed(&computed)?;
        program.end()?;
        Ok(computed)
    }

    /// Tests what a client sees of a device without limits.
    fn test_client(&mut self, subject: &TestedDevice<'_>) {
        self.check_device(subject, "a client computes", |tester, subject| {
            let computed = tester.run_program(&[])?;
            let sms = computed.sm_count;
            subject.check_sms(sms, 100.0)?;
            subject.check_memory(computed.memory_total)?;
            Ok(Some(format!(
                "context after {} ms",
                computed.start.as_millis()
            )))
        });
        self.check_device(subject, "two clients at once", |tester, _| {
            let mut first = tester.start_program(&BecomeUser::default(), &[])?;
            let computed = first.wait_for_result()?;
            check_computed(&computed)?;
            let open = count_open_files(first.pid());
            let servers = tester.list_servers()?;
            tester.run_program(&[])?;
            tester.wait_for_clients(1)?;
            first.end()?;
            tester.wait_for_clients(0)?;
            tester.run_program(&[])?;
            ensure(tester.list_servers()? == servers, || {
                "the server has ended with a client".to_owned()
            })?;
            let used = computed.memory_total.saturating_sub(computed.memory_free) >> 20;
            Ok(Some(format!(
                "a client uses {used} MiB and has {} files open",
                open.map_or_else(
                    || "an unknown number of".to_owned(),
                    |open| open.to_string()
                )
            )))
        });
    }

    /// Tests that the device takes programs after clients, servers and daemons have ended.
    fn test_ends(&mut self, subject: &TestedDevice<'_>) {
        self.check_device(subject, "a client is killed", |tester, _| {
            let mut survivor = tester.start_program(&BecomeUser::default(), &[])?;
            survivor.wait_for_result()?;
            let mut victim = tester.start_program(&BecomeUser::default(), &[])?;
            victim.wait_for_result()?;
            victim.kill();
            tester.wait_for_clients(1)?;
            // It computes once more before it ends.
            survivor.end()?;
            tester.wait_for_clients(0)?;
            tester.run_program(&[])?;
            Ok(None)
        });
        self.check_device(subject, "the server is killed, and healed", |tester, _| {
            for server in tester.observe_served()?.servers {
                kill_by_pid(server.pid.0);
            }
            tester.run(&["heal", DEVICE_NAME], "")?;
            tester.run_program(&[])?;
            Ok(None)
        });
        self.check_device(subject, "restart", |tester, _| {
            tester.run(&["restart", DEVICE_NAME, "--yes"], "")?;
            tester.run_program(&[])?;
            Ok(None)
        });
    }

    /// Tests limits that a profile sets, and one that is set on the running daemon.
    fn test_limits(&mut self, subject: &TestedDevice<'_>) {
        for share in [2, 4] {
            self.check_device(subject, &format!("share = {share}"), |tester, subject| {
                tester.serve_device(subject, &format!("{{ share = {share} }}"))?;
                tester.check_limits(subject)
            });
        }
        self.check_device(subject, "set, on the running daemon", |tester, subject| {
            tester.serve_device(subject, "{ }")?;
            let all = tester.run_program(&[])?.sm_count;
            tester.run(&["set", DEVICE_NAME, "active-thread-percentage=50"], "")?;
            subject.check_sms(tester.run_program(&[])?.sm_count, 50.0)?;
            tester.run(&["set", DEVICE_NAME, "active-thread-percentage=1"], "")?;
            let least = tester.run_program(&[])?.sm_count;
            subject.check_sms(least, 1.0)?;
            Ok(Some(format!("at 1 % a client has {least} of {all} SMs")))
        });
    }

    /// Checks that a client has the SMs and the memory that the settings of the device allow, and no more.
    fn check_limits(&self, subject: &TestedDevice<'_>) -> CheckResult<Option<String>> {
        let settings = self.observe_served()?.record.settings;
        let percentage = settings.active_thread_percentage.as_f64();
        let Some(limit) = settings.pinned_memory_limit.map(MemoryLimit::bytes) else {
            return Err(Verdict::Differs(
                "the device has no memory limit".to_owned(),
            ));
        };
        let computed = self.run_program(&[limit / 4, limit])?;
        let sms = computed.sm_count;
        subject.check_sms(sms, percentage)?;
        ensure(computed.memory_free <= limit, || {
            format!(
                "{} MiB are free with a limit of {} MiB",
                computed.memory_free >> 20,
                limit >> 20
            )
        })?;
        if let Some(Some(error)) = computed.allocated.first() {
            let why = format!("a quarter of the memory limit cannot be allocated: {error}");
            return Err(Verdict::Differs(why));
        }
        ensure(computed.allocated.last() != Some(&None), || {
            "the memory limit does not hold".to_owned()
        })?;
        Ok(Some(format!(
            "{sms} SMs and {} MiB for a client",
            limit >> 20
        )))
    }

    /// Tests that a second user waits where one user is served at a time, and that two are served where all are.
    fn test_users(&mut self, subject: &TestedDevice<'_>) {
        let other = BecomeUser {
            uid: Some(OTHER_USER),
            gid: Some(OTHER_USER),
            groups: vec![OTHER_USER],
            as_caller: false,
        };
        self.check_device(subject, "serve = one-at-a-time", |tester, subject| {
            tester.serve_device(subject, "{ serve = \"one-at-a-time\" }")?;
            let mut first = tester.start_program(&BecomeUser::default(), &[])?;
            first.wait_for_result()?;
            let mut second = tester.start_program(&other, &[])?;
            ensure(second.keeps_waiting(SECOND_USER_WAIT), || {
                "a second user's program did not wait for the first user's".to_owned()
            })?;
            first.end()?;
            check_computed(&second.wait_for_result_within(SERVED_WITHIN)?)?;
            second.end()?;
            Ok(None)
        });
        self.check_device(subject, "serve = all", |tester, subject| {
            let program = ControlProgram::for_driver(&tester.gpu.driver);
            if !program.has_multiuser_server {
                let since = ControlProgram::FIRST_MULTIUSER_BRANCH;
                return Err(Verdict::NotTested(format!("this needs driver {since}")));
            }
            tester.serve_device(subject, "{ serve = \"all\" }")?;
            let mut first = tester.start_program(&BecomeUser::default(), &[])?;
            first.wait_for_result()?;
            let mut second = tester.start_program(&other, &[])?;
            check_computed(&second.wait_for_result_within(SERVED_WITHIN)?)?;
            second.end()?;
            first.end()?;
            Ok(None)
        });
    }

    /// Starts clients until the server takes no more, and compares their number with what mig-mps expects.
    fn count_clients(&mut self, subject: &TestedDevice<'_>) {
        self.check_device(subject, "the most clients", |tester, subject| {
            tester.serve_device(subject, "{ }")?;
            let served = tester.observe_served()?;
            let measured = served.measured_limit.map(|limit| limit as usize);
            // MIG devices may take more than NVIDIA documents.
            let enough = measured.map_or(MAX_CLIENTS, |limit| limit + 1);
            let mut clients = Vec::new();
            let mut refusal = None;
            while refusal.is_none() && clients.len() < enough {
                let mut client = TestProgram::start_with_variables(tester, &served)?;
                match client.wait_for_admission()? {
                    Ok(computed) => {
                        check_computed(&computed)?;
                        clients.push(client);
                    }
                    Err(error) => refusal = Some(error),
                }
            }
            let count = clients.len();
            clients.into_iter().try_for_each(TestProgram::end)?;
            tester.run_program(&[])?;
            if refusal == Some(CudaError::OUT_OF_MEMORY) {
                return Ok(Some(format!("the memory is enough for {count}")));
            }
            let expected = served.hardware_limit.map(|limit| limit as usize);
            let is_as_expected =
                |expected| count == expected || measured.is_none() && count > expected;
            let end = refusal.map_or_else(
                || "the test starts no more".to_owned(),
                |error| error.to_string(),
            );
            ensure(expected.is_none_or(is_as_expected), || {
                let expected = expected.unwrap_or_default();
                format!(
                    "the device takes {count}, and mig-mps expects {expected}; the next one: {end}"
                )
            })?;
            Ok(Some(format!("{count}; the next one: {end}")))
        });
    }

    /// Takes the device down. `down` itself fails if a process or a directory remains.
    fn take_down(&self) -> CheckResult<Option<String>> {
        self.run(&["down", "--force", "--yes"], "")?;
        Ok(None)
    }

    /// Waits until the daemon lists so many clients.
    fn wait_for_clients(&self, count: usize) -> CheckResult {
        let until = Instant::now() + SEEN_WITHIN;
        loop {
            let served = self.observe_served()?;
            let seen = served.clients.as_slice().len();
            if served.clients.are_known() && seen == count {
                return Ok(());
            }
            ensure(Instant::now() < until, || {
                format!("the daemon lists {seen} clients instead of {count}")
            })?;
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Fails unless the program was a client and its kernel computed what it should.
fn check_computed(computed: &Computed) -> CheckResult {
    ensure(computed.is_client, || {
        "the program is no MPS client".to_owned()
    })?;
    ensure(computed.is_right, || {
        "the kernel computed wrong numbers".to_owned()
    })
}

fn count_open_files(pid: Pid) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

fn kill_by_pid(pid: u32) {
    let raw = i32::try_from(pid).ok().and_then(RawPid::from_raw);
    if let Some(raw) = raw {
        // It may have ended.
        let _ = kill_process(raw, Signal::KILL);
    }
}
