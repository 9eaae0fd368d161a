//! `mig-mps selftest`: does this node do what mig-mps relies on, and is it afterwards as it was?
//!
//! Every step is a command of mig-mps, with directories of the self-test, and is judged by what the driver and CUDA then
//! show. The expectations are those of the catalog and of the commands: there is no second table.

mod finding;
mod geometry;
mod plan;
mod program;
mod refusal;
mod report;
mod serving;
mod tester;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::commands::give_back::{
    give_back, give_back_interrupted, give_back_left, not_given_back,
};
use crate::commands::{Context, LOCK_LIMIT, locked};
use crate::config::STATE_DIR;
use crate::error::{CommandError, Context as _, Result, chosen, failed};
use crate::failure::ExitStatus;
use crate::host::{Directories, Environment, as_root, printable};
use crate::node::{Node, Observer};
use crate::render::{agrees, can_ask, note, print, print_lines};
use crate::state::{SelftestRecord, Writer};

use finding::{Finding, Verdict};
use plan::TestPlan;
use report::{report, summary};
use tester::{Abilities, Tester};

/// Test MIG and MPS on this node's own GPUs
///
/// Makes instances and daemons with the commands of mig-mps, runs programs on them, and compares what the driver
/// and CUDA show with the catalog. Refuses GPUs that are in use. Afterwards each GPU has the MIG mode and the
/// instances that it had before. After a crash or a reboot, the next command that changes the node restores the
/// GPU. Exits with 1 if something differs.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct SelftestArgs {
    /// Test this GPU: an index, a UUID, a PCI address or a device file [default: all]
    #[arg(long = "gpu", value_name = "N")]
    gpus: Vec<String>,
    /// Make each instance profile once, and test programs on the smallest device only
    #[arg(long)]
    quick: bool,
    /// Test whole GPUs only, and leave MIG modes as they are
    #[arg(long)]
    no_mig: bool,
    /// Reset a GPU whose MIG mode cannot be switched without a reset
    #[arg(long, conflicts_with = "no_mig")]
    reset: bool,
    /// Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced)
    /// while its MIG mode is switched or instances are destroyed, and start them again
    #[arg(long)]
    stop_holders: bool,
    /// Confirm that Slurm and Kubernetes start nothing on this node: it is drained or cordoned
    #[arg(long)]
    drained: bool,
    /// Show what would be tested and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Also write a report to this file, without the names of users and machines, serial numbers and UUIDs
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
}

impl SelftestArgs {
    /// Returns what may be done to a GPU.
    fn abilities(&self) -> Abilities {
        Abilities {
            quick: self.quick,
            may_reset: self.reset,
            may_stop_holders: self.stop_holders,
        }
    }
}

/// Tests GPUs and gives them back.
pub fn run(args: &SelftestArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    if !environment.is_root() && !args.no_mig {
        let error = failed("only root can change MIG modes and instances");
        return Err(error.hint(format!("{}; --no-mig tests whole GPUs", as_root())));
    }
    let directories = environment.directories()?;
    give_back_interrupted(environment, &directories, args.dry_run)?;
    refuse_shared(environment, &environment.state_dir()?)?;
    let mut observer = Observer::new(environment);
    let node = observer.observe(refusal::DETAIL)?;
    let plan = TestPlan::of(&node, args)?;
    refusal::refuse(environment, &node, &plan, args)?;
    print_lines(plan.text().trim_end())?;
    if args.dry_run {
        return Ok(ExitStatus::Done);
    }
    if !args.yes {
        agree(&plan)?;
    }
    let begun = Instant::now();
    let (findings, given_back) = test(args, environment, &directories, &mut observer)?;
    print(&format!("{}\n", summary(&findings, begun.elapsed())))?;
    if let Some(path) = &args.report {
        let text = report(environment, &node, &plan, &findings, begun.elapsed());
        crate::host::write_text_to(path, &text)
            .context(format_args!("cannot write {}", path.display()))?;
        note(&format!(
            "The report is in {}. It has no names of users and machines: please read it, and send it to the project.",
            path.display()
        ));
    }
    given_back.map(|()| status(environment, &findings))
}

fn agree(plan: &TestPlan) -> Result<()> {
    let gpus = plan.gpus_in_words();
    if !can_ask() {
        let what = format!("this would change {gpus}, and there is no terminal to ask on");
        let error = CommandError::new(ExitStatus::Refused, what);
        return Err(error.hint("agree beforehand with --yes"));
    }
    let question = format!("Test {gpus} now?");
    match agrees(&question).context("cannot ask on the terminal")? {
        Some(true) => Ok(()),
        _ => Err(chosen(ExitStatus::Refused, "Nothing was changed.")),
    }
}

fn status(environment: &Environment, findings: &[Finding]) -> ExitStatus {
    if environment.interrupt.is_asked() {
        return ExitStatus::Interrupted;
    }
    let mut verdicts = findings.iter().map(|finding| &finding.verdict);
    if verdicts.any(|verdict| matches!(verdict, Verdict::Differs(_))) {
        ExitStatus::Failed
    } else {
        ExitStatus::Done
    }
}

/// Refuses a directory that is not of this self-test: it is removed at the end.
fn refuse_taken(directory: &Path) -> Result<()> {
    if fs::symlink_metadata(directory).is_err() {
        return Ok(());
    }
    let error = failed(format_args!("{} exists", directory.display()));
    Err(error.hint(
        "remove the directory if its files are not needed: the self-test creates and removes it",
    ))
}

/// Refuses a state directory in which another machine has recorded its self-test: the record would be overwritten.
fn refuse_shared(environment: &Environment, state_dir: &Path) -> Result<()> {
    let record = SelftestRecord::read(state_dir)?;
    let Some(other) = record
        .as_ref()
        .and_then(|record| record.other_machine(&environment.host))
    else {
        return Ok(());
    };
    let path = SelftestRecord::path(state_dir);
    let error = failed(format_args!(
        "{} belongs to the machine {}",
        path.display(),
        printable(other)
    ));
    Err(error.hint(format!("set {STATE_DIR} to a directory that is not shared")))
}

/// Returns the directory of the self-test's daemons. The path of a socket is limited, so it is beside the run directory.
fn directory_beside(run: &Path) -> PathBuf {
    let mut name = run.file_name().unwrap_or_default().to_owned();
    name.push("-selftest");
    run.with_file_name(name)
}

/// Tests the GPUs under the lock of the node, so that nobody changes it meanwhile, and gives them back. Returns what was found
/// even if that fails.
fn test(
    args: &SelftestArgs,
    environment: &Environment,
    directories: &Directories,
    observer: &mut Observer<'_>,
) -> Result<(Vec<Finding>, Result<()>)> {
    let _lock = locked(environment, directories, LOCK_LIMIT)?;
    // Another one may have been killed since the question.
    give_back_left(environment, directories, observer)?;
    let node = observer.observe(refusal::DETAIL)?;
    let plan = TestPlan::of(&node, args)?;
    // Something may have come while nobody had the lock.
    refusal::refuse(environment, &node, &plan, args)?;
    let _changing = environment.interrupt.begin();
    let record = record(args, environment, directories, &plan)?;
    refuse_taken(&record.directory)?;
    let state_dir = environment.state_dir()?;
    // Another machine may have begun a self-test since the question.
    refuse_shared(environment, &state_dir)?;
    record
        .write(&state_dir)
        .context("cannot record how the GPUs are now")?;
    let own = environment.within(&record.directory.join("run"));
    let tests = RefCell::new(Observer::new(&own));
    let testers = plan
        .gpus
        .iter()
        .map(|gpu| Tester::new(&own, &tests, &record.directory, gpu, args.abilities()));
    let mut findings: Vec<Finding> = testers.flat_map(Tester::test).collect();
    // A GPU cannot be reset while this process has it open.
    let given_back = observer.aside(|| give_back(environment, directories, &record));
    let given_back = given_back.map_err(CommandError::from).flatten();
    let given_back = given_back.map_err(|error| not_given_back(environment, &record, error));
    if let Err(error) = &given_back {
        let verdict = Verdict::Differs(error.to_string());
        findings.push(Finding::of(
            plan.gpus[0].under_test.index,
            "given back",
            verdict,
        ));
        return Ok((findings, given_back));
    }
    SelftestRecord::remove(&state_dir)?;
    findings.extend(differences(&plan, &observer.observe(refusal::DETAIL)?));
    Ok((findings, given_back))
}

fn record(
    args: &SelftestArgs,
    environment: &Environment,
    directories: &Directories,
    plan: &TestPlan,
) -> Result<SelftestRecord> {
    let host = &environment.host;
    Ok(SelftestRecord {
        directory: directory_beside(&directories.run),
        writer: Writer::of_this_process(host, &host.boot_id()?),
        gpus: plan.gpus.iter().map(|gpu| gpu.under_test.clone()).collect(),
        may_reset: args.reset,
        may_stop_holders: args.stop_holders,
    })
}

/// Compares each GPU with what it was before.
fn differences(plan: &TestPlan, after: &Node) -> Vec<Finding> {
    let compare = |gpu: &plan::TestedGpu| {
        let index = gpu.under_test.index;
        let before = plan::geometry_of(&gpu.gpu);
        let now = match after.gpu(&gpu.under_test.uuid) {
            Some(now) => plan::geometry_of(now),
            None => "the driver does not show the GPU".to_owned(),
        };
        let verdict = if now == before {
            Verdict::Held
        } else {
            Verdict::Differs(format!("before: {before}; now: {now}"))
        };
        let finding = Finding::of(index, "given back as it was", verdict);
        finding.show();
        finding
    };
    plan.gpus.iter().map(compare).collect()
}
