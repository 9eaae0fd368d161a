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
    finish_restoring, restore_error, restore_gpus, restore_interrupted,
    restore_interrupted_under_lock,
};
use crate::commands::{Context, LOCK_LIMIT, lock_node};
use crate::config::STATE_DIR;
use crate::error::{CommandError, ErrorContext as _, Result, command_error, declined_by_user};
use crate::failure::ExitStatus;
use crate::host::{Directories, Environment, root_hint, to_printable, write_text_to};
use crate::node::{Detail, Node, Observer};
use crate::render::{ask_yes_no, can_ask, examples_and_statuses, note, print, print_lines};
use crate::state::{SelftestRecord, Writer};

use finding::{TestFinding, Verdict};
use plan::TestPlan;
use report::{private_names, render_report, summary_line};
use tester::{Abilities, Tester};

/// Test MIG and MPS on the GPUs of this node
///
/// Creates instances and daemons, runs programs on them, and compares what the driver and CUDA report with the catalog.
/// Refuses GPUs that are in use. Restores the MIG mode and the instances of each GPU at the end. After a crash or a
/// reboot, the next command that changes the node restores them.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps selftest --dry-run", "Show the planned tests"),
    ("sudo mig-mps selftest --gpu 0 --report report.txt", "Test GPU 0"),
], &[("1", "a value differs"), ("4", "a GPU was refused")]))]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct SelftestArgs {
    /// Test this GPU (index, UUID or PCI address) [default: all]
    #[arg(long = "gpu", value_name = "N", help_heading = "Tests")]
    gpus: Vec<String>,
    /// Test each instance profile at one placement, and fewer programs
    #[arg(long, help_heading = "Tests")]
    quick: bool,
    /// Test only whole GPUs, and leave MIG modes unchanged
    #[arg(long, help_heading = "Tests")]
    no_mig: bool,
    /// Reset a GPU if its MIG mode cannot change otherwise
    #[arg(long, conflicts_with = "no_mig", help_heading = "MIG mode")]
    reset: bool,
    /// Stop monitoring services during the change
    #[arg(long, help_heading = "MIG mode")]
    stop_holders: bool,
    /// Confirm that the node is drained in Slurm and Kubernetes
    #[arg(long, help_heading = "Plan")]
    drained: bool,
    /// Show the planned tests and change nothing
    #[arg(long, help_heading = "Plan")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short, help_heading = "Plan")]
    yes: bool,
    /// Also write a report without names and UUIDs to FILE, or - for stdout
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
        let error = command_error("only root can change MIG modes and instances");
        return Err(error.with_hint(format!("{}; --no-mig tests whole GPUs", root_hint())));
    }
    let directories = environment.directories()?;
    restore_interrupted(environment, &directories, args.dry_run)?;
    check_state_not_shared(environment, &environment.state_dir()?)?;
    let mut observer = Observer::new(environment);
    let node = observer.observe(refusal::DETAIL)?;
    let plan = TestPlan::new(&node, args)?;
    refusal::check_testable(environment, &node, &plan, args)?;
    print_lines(plan.render().trim_end())?;
    if args.dry_run {
        return Ok(ExitStatus::Done);
    }
    if !args.yes {
        ask_consent(&plan)?;
    }
    if let Some(path) = args
        .report
        .as_deref()
        .filter(|path| *path != Path::new("-"))
    {
        // A path that cannot be written is found before the test, which takes minutes.
        write_report(path, "")?;
    }
    let mut names = private_names(environment);
    let begun = Instant::now();
    let (findings, given_back) = test_gpus(args, environment, &directories, &mut observer)?;
    print(&format!("{}\n", summary_line(&findings, begun.elapsed())))?;
    if let Some(path) = &args.report {
        // Others may have come during the test.
        names.extend(private_names(environment));
        let text = render_report(&names, &node, &plan, &findings, begun.elapsed());
        write_report(path, &text)?;
    }
    given_back.map(|()| exit_status(environment, &findings))
}

/// Writes the report to a file, or to standard output for `-`.
fn write_report(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return Ok(print(&format!("\n{text}"))?);
    }
    let written = write_text_to(path, text);
    written.context(format_args!("cannot write {}", path.display()))?;
    if !text.is_empty() {
        note(&format!(
            "the report is in {}. It contains no names of users and machines. Please read it, and send it to the \
             project.",
            path.display()
        ));
    }
    Ok(())
}

fn ask_consent(plan: &TestPlan) -> Result<()> {
    let gpus = plan.gpus_in_words();
    if !can_ask() {
        let what = format!("confirmation required: this would change {gpus}");
        let error = CommandError::new(ExitStatus::Refused, what);
        return Err(error.with_hint("pass --yes to confirm"));
    }
    let question = format!("Test {gpus} now?");
    match ask_yes_no(&question).context("cannot ask on the terminal")? {
        Some(true) => Ok(()),
        _ => Err(declined_by_user(
            ExitStatus::Refused,
            "Nothing was changed.",
        )),
    }
}

fn exit_status(environment: &Environment, findings: &[TestFinding]) -> ExitStatus {
    if environment.interrupt.is_interrupted() {
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
fn check_directory_free(directory: &Path) -> Result<()> {
    if fs::symlink_metadata(directory).is_err() {
        return Ok(());
    }
    let error = command_error(format_args!("{} exists", directory.display()));
    Err(error.with_hint(
        "remove the directory if you do not need its files; the self-test creates and removes it",
    ))
}

/// Refuses a state directory in which another machine has recorded its self-test: the record would be overwritten.
fn check_state_not_shared(environment: &Environment, state_dir: &Path) -> Result<()> {
    let record = SelftestRecord::load(state_dir)?;
    let Some(other) = record
        .as_ref()
        .and_then(|record| record.other_machine(&environment.host))
    else {
        return Ok(());
    };
    let path = SelftestRecord::path(state_dir);
    let error = command_error(format_args!(
        "{} belongs to the machine {}",
        path.display(),
        to_printable(other)
    ));
    Err(error.with_hint(format!("set {STATE_DIR} to a directory that is not shared")))
}

/// Returns the directory of the self-test's daemons. The path of a socket is limited, so it is beside the run directory.
fn directory_beside(run: &Path) -> PathBuf {
    let mut name = run.file_name().unwrap_or_default().to_owned();
    name.push("-selftest");
    run.with_file_name(name)
}

/// Tests the GPUs under the lock of the node, so that nobody changes it meanwhile, and gives them back. Returns what was found
/// even if that fails.
fn test_gpus(
    args: &SelftestArgs,
    environment: &Environment,
    directories: &Directories,
    observer: &mut Observer<'_>,
) -> Result<(Vec<TestFinding>, Result<()>)> {
    let _lock = lock_node(environment, directories, LOCK_LIMIT)?;
    // Another one may have been killed since the question.
    restore_interrupted_under_lock(environment, directories)?;
    let node = observer.observe(refusal::DETAIL)?;
    let plan = TestPlan::new(&node, args)?;
    // Something may have come while nobody had the lock.
    refusal::check_testable(environment, &node, &plan, args)?;
    let _changing = environment.interrupt.begin_change();
    let record = build_record(args, environment, directories, &plan)?;
    check_directory_free(&record.directory)?;
    let state_dir = environment.state_dir()?;
    // Another machine may have begun a self-test since the question.
    check_state_not_shared(environment, &state_dir)?;
    record
        .write(&state_dir)
        .context("cannot record the present state of the GPUs")?;
    let own = environment.with_directory(&record.directory.join("run"));
    let tests = RefCell::new(Observer::new(&own));
    let mut findings: Vec<TestFinding> = plan
        .gpus
        .iter()
        .map(|gpu| Tester::new(&own, &tests, &record.directory, gpu, args.abilities()))
        .flat_map(Tester::test)
        .collect();
    // A GPU cannot be reset while this process has it open. What is on the GPU now has been made by the self-test.
    let given_back = observer.observe(Detail::GEOMETRY);
    let given_back = given_back.map_err(CommandError::from).and_then(|node| {
        let allowed = ["--destroy-unmanaged"];
        observer
            .with_nvml_closed(|| restore_gpus(environment, directories, &record, &node, &allowed))
            .map_err(CommandError::from)
            .flatten()
    });
    let given_back = given_back.and_then(|lost| finish_restoring(environment, &record, lost));
    let given_back = given_back.map_err(|error| restore_error(environment, &record, error));
    if let Err(error) = &given_back {
        let verdict = Verdict::Differs(error.to_string());
        findings.push(TestFinding::new(
            plan.gpus[0].under_test.index,
            "given back",
            verdict,
        ));
        return Ok((findings, given_back));
    }
    findings.extend(compare_with_before(
        &plan,
        &observer.observe(refusal::DETAIL)?,
    ));
    Ok((findings, given_back))
}

fn build_record(
    args: &SelftestArgs,
    environment: &Environment,
    directories: &Directories,
    plan: &TestPlan,
) -> Result<SelftestRecord> {
    let host = &environment.host;
    Ok(SelftestRecord {
        directory: directory_beside(&directories.run),
        writer: Writer::for_this_process(host, &host.boot_id()?),
        gpus: plan.gpus.iter().map(|gpu| gpu.under_test.clone()).collect(),
        may_reset: args.reset,
        may_stop_holders: args.stop_holders,
    })
}

/// Compares each GPU with what it was before.
fn compare_with_before(plan: &TestPlan, after: &Node) -> Vec<TestFinding> {
    let compare = |gpu: &plan::TestedGpu| {
        let index = gpu.under_test.index;
        let before = plan::geometry_of(&gpu.gpu);
        let now = match after.gpu_with_uuid(&gpu.under_test.uuid) {
            Some(now) => plan::geometry_of(now),
            None => "the driver does not show the GPU".to_owned(),
        };
        let verdict = if now == before {
            Verdict::Held
        } else {
            Verdict::Differs(format!("before: {before}; now: {now}"))
        };
        let finding = TestFinding::new(index, "given back as it was", verdict);
        finding.print_line();
        finding
    };
    plan.gpus.iter().map(compare).collect()
}
