//! The last line of a self-test, and the report that its user may send.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use regex::Regex;

use super::finding::{TestFinding, Verdict};
use super::plan::{TestPlan, geometry_of};
use crate::geometry::GpuInstanceProfile;
use crate::host::{
    Environment, Process, Uid, environment_variable, format_count, host_name, user_name,
};
use crate::node::Node;
use crate::render::format_time_taken;

/// `41 checks held, 1 differs, 3 not tested, in 2 min`
pub(super) fn summary_line(findings: &[TestFinding], took: Duration) -> String {
    let number = |is_one: fn(&Verdict) -> bool| {
        findings
            .iter()
            .map(|finding| &finding.verdict)
            .filter(|verdict| is_one(verdict))
            .count()
    };
    let held = number(|verdict| *verdict == Verdict::Held);
    let differing = number(|verdict| matches!(verdict, Verdict::Differs(_)));
    let left_out = number(|verdict| matches!(verdict, Verdict::NotTested(_)));
    let mut text = format!("{} held", format_count(held, "check"));
    if differing > 0 {
        let verb = if differing == 1 { "differs" } else { "differ" };
        let _ = write!(text, ", {differing} {verb}");
    }
    if left_out > 0 {
        let _ = write!(text, ", {left_out} not tested");
    }
    let _ = write!(text, ", in {}", format_time_taken(took));
    text
}

/// The first user id of people, not of services, and the one of `nobody`.
const FIRST_PERSON: u32 = 1000;
const NOBODY: u32 = 65534;

/// Returns the names of the machine, of the caller, and of the people whose processes run now.
pub(super) fn private_names(environment: &Environment) -> BTreeSet<String> {
    let host = host_name();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    let processes = environment.host.read_processes().unwrap_or_default();
    let users: BTreeSet<Uid> = processes
        .iter()
        .filter_map(Process::owner)
        .filter(|user| user.0 >= FIRST_PERSON && user.0 != NOBODY)
        .collect();
    let mut names: BTreeSet<String> = users.into_iter().map(user_name).collect();
    names.extend(environment_variable("SUDO_USER"));
    names.extend([host, short, environment.caller_name()]);
    names
}

/// The report: versions, GPUs, every finding with its time, without these names.
pub(super) fn render_report(
    names: &BTreeSet<String>,
    node: &Node,
    plan: &TestPlan,
    findings: &[TestFinding],
    took: Duration,
) -> String {
    let mut text = format!("mig-mps {} selftest\n", env!("CARGO_PKG_VERSION"));
    let cuda = node.cuda_version.map_or_else(
        || "unknown".to_owned(),
        |version| format!("{}.{}", version / 1000, version % 1000 / 10),
    );
    let _ = writeln!(text, "driver {}, CUDA {cuda}", node.driver);
    for gpu in &plan.gpus {
        let (index, product) = (gpu.under_test.index, &gpu.gpu.product);
        let key = gpu.model().map_or("not in the catalog", |model| &model.key);
        let _ = writeln!(
            text,
            "GPU {index}: {product} ({key}), before: {}",
            geometry_of(&gpu.gpu)
        );
        let offers = findings
            .iter()
            .filter(|finding| finding.gpu == index)
            .map(|finding| &finding.offers)
            .find(|offers| !offers.is_empty());
        for offer in offers.unwrap_or(&gpu.gpu.profiles) {
            let _ = writeln!(text, "  {}", describe_offer(offer));
        }
    }
    text.push('\n');
    for finding in findings {
        let _ = writeln!(text, "{}", finding.to_line());
    }
    let _ = writeln!(text, "\n{}", summary_line(findings, took));
    without_names(&text, names)
}

/// `2g.12gb: profile 5, 2 slices, 28 SMs, 11968 MiB, placements 0-1 2-3, copy 2, NVDEC 2, NVENC 0, NVJPG 0, OFA 0`
fn describe_offer(offer: &GpuInstanceProfile) -> String {
    let places: Vec<String> = offer
        .placements
        .iter()
        .map(|place| place.format_range())
        .collect();
    let unknown = || "unknown".to_owned();
    let sms = offer.multiprocessors;
    format!(
        "{}: profile {}, {}, {} SMs, {} MiB, placements {}, {}",
        offer.name,
        offer.id.0,
        format_count(offer.slices as usize, "slice"),
        sms.map_or_else(unknown, |sms| sms.to_string()),
        offer.memory_mib,
        places.join(" "),
        offer.engines.map_or_else(
            || "engines unknown".to_owned(),
            |engines| engines.to_string()
        ),
    )
}

/// The user, the command and the job of a process in messages. A command may have parentheses, so the last one in the line
/// is the end.
const PROCESSES: [(&str, &str); 4] = [
    (r"\bpid (\d+) \(.*\)", "pid $1"),
    (r"\bpid (\d+) \(.*", "pid $1"),
    (r"\(pid (\d+), .*\)", "(pid $1)"),
    (r"\bpid (\d+) of [^\s,;]+", "pid $1"),
];

/// Removes UUIDs, what processes are, and these names. A name may have a domain. A word that the report needs anyway, such as
/// `root`, stays.
fn without_names(text: &str, names: &BTreeSet<String>) -> String {
    let mut text = text.to_owned();
    for (pattern, with) in PROCESSES {
        text = replace_pattern(&text, pattern, with);
    }
    let is_needed = |name: &str| {
        ["root", "localhost", ""].contains(&name) || name.bytes().all(|byte| byte.is_ascii_digit())
    };
    for name in names.iter().filter(|name| !is_needed(name)) {
        let pattern = format!(r"\b{}(\.[A-Za-z0-9-]+)*\b", regex::escape(name));
        text = replace_pattern(&text, &pattern, "(name)");
    }
    replace_pattern(&text, "(GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F-]*", "$1-(UUID)")
}

fn replace_pattern(text: &str, pattern: &str, with: &str) -> String {
    match Regex::new(pattern) {
        Ok(pattern) => pattern.replace_all(text, with).into_owned(),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_no_names() {
        let text = "GPU 0: on node7 by alice: MIG-0a2cbc7a-7f1f-56f4-a911-b68a08f9d5d4 GPU-c97bf4c9-b448 malice";
        let names = ["node7", "alice", "root", "12"].map(str::to_owned).into();
        assert_eq!(
            without_names(text, &names),
            "GPU 0: on (name) by (name): MIG-(UUID) GPU-(UUID) malice"
        );
        for (text, wanted) in [
            (
                "node7.cluster.example took 12 ms on node7.",
                "(name) took 12 ms on (name).",
            ),
            (
                "pid 4753 (carol, /tmp/app run 12) computes outside MPS: unknown",
                "pid 4753 computes outside MPS: unknown",
            ),
            (
                "pid 1 (carol, f(x) and pid 2 (bob, g) are on it\npid 3 (bob, a",
                "pid 1 are on it\npid 3",
            ),
            (
                "slices 4-7 of t (pid 4711, bob, python)",
                "slices 4-7 of t (pid 4711)",
            ),
            ("daemons: pid 7 of bob, pid 8", "daemons: pid 7, pid 8"),
        ] {
            assert_eq!(without_names(text, &names), wanted);
        }
    }
}
