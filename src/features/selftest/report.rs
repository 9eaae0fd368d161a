//! The last line of a self-test, and the report that its user may send.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use regex::Regex;

use super::finding::{TestFinding, Verdict};
use super::plan::{TestPlan, geometry_of};
use crate::host::{Environment, format_count, host_name};
use crate::node::Node;
use crate::render::format_time_taken;

/// `41 checks held, 1 differs, 3 were not made, in 2 min`
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

/// The report: versions, GPUs, every finding with its time.
pub(super) fn render_report(
    environment: &Environment,
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
    }
    text.push('\n');
    for finding in findings {
        let _ = writeln!(text, "{}", finding.to_line());
    }
    let _ = writeln!(text, "\n{}", summary_line(findings, took));
    without_names(&text, &[host_name(), environment.caller_name()])
}

/// Removes UUIDs and these names. A word that the report needs anyway, such as `root`, stays.
fn without_names(text: &str, names: &[String]) -> String {
    let names: BTreeSet<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !["root", "localhost", ""].contains(name))
        .collect();
    let mut text = text.to_owned();
    for name in names {
        text = replace_pattern(&text, &format!(r"\b{}\b", regex::escape(name)), "(name)");
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
        let names = ["node7".to_owned(), "alice".to_owned(), "root".to_owned()];
        assert_eq!(
            without_names(text, &names),
            "GPU 0: on (name) by (name): MIG-(UUID) GPU-(UUID) malice"
        );
    }
}
