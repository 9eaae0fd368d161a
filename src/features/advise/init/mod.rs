//! `mig-mps init`

mod figures;
mod first_profile;
mod interview;
mod partition;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::smallest_layout;
use crate::catalog::BuiltIn;
use crate::commands::{Context, accounts, empty_node};
use crate::error::{
    CommandError, ErrorContext as _, Result, command_error, declined_by_user, usage_error,
};
use crate::failure::ExitStatus;
use crate::geometry::Partition;
use crate::host::{
    Uid, caller, directory_of, may_write, quote_for_shell, write_new_text_to, write_text_to,
};
use crate::node::LOST_GPU_REMEDY;
use crate::plan::virtual_node::{EmptyNode, GpuArgument, plan_on};
use crate::profile::Profile;
use crate::render::format::format_count;
use crate::render::{Question, ask_yes_no, examples_and_statuses, note, print, report};
use crate::settings::Serve;
use crate::shared::DraftProfile;

use figures::WantedAmount;
use first_profile::{GroupSupply, PartitionChoice, Supply, first_profile, with_users};
use interview::{Interview, KeptWhole, LeastMemory, Positive, Users, end_of_input};
use partition::Aim;

/// The groups of options that answer questions.
const ANSWERS: &str = "Answers";
const MEASURED: &str = "Measured programs";

/// Create a profile by answering a few questions
///
/// Asks how to share the GPUs of this node, shows the layouts that fit, and writes the chosen layout as a profile with
/// comments. Changes nothing on the node. Each question has an option that answers it. Without a terminal, pass all of
/// these options, or --yes.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps init", "Write profile.toml"),
    ("mig-mps init class.toml --jobs 4 --yes", "Fit four jobs"),
    ("mig-mps init - --gpu h100-80gb-sxm:8 --jobs 16 --yes", "Plan for others"),
], &[("5", "the jobs or programs need more than the GPUs offer")]))]
pub struct InitArgs {
    /// File to write, or - for standard output
    #[arg(default_value = "profile.toml", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Plan for GPUs such as a100-80gb:8
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]")]
    gpus: Vec<GpuArgument>,
    /// GPUs to keep whole, such as 0-1,7, none or all
    #[arg(long, value_name = "GPUS", help_heading = ANSWERS)]
    whole: Option<KeptWhole>,
    /// Number of jobs to run at once, each on a device
    #[arg(long, value_name = "N", help_heading = ANSWERS)]
    jobs: Option<Positive>,
    /// Memory that each job needs, such as 10G, or any
    #[arg(
        long = "min-memory",
        alias = "memory",
        value_name = "SIZE",
        help_heading = ANSWERS
    )]
    memory: Option<LeastMemory>,
    /// Let users share a device: no, yes, or group:NAME
    #[arg(long, value_name = "WHO", help_heading = ANSWERS)]
    serve: Option<Users>,
    /// Layout to write, by its number (1,2 for two products)
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = ANSWERS)]
    layout: Vec<Positive>,
    /// Ask about programs measured with `compare --save`
    #[arg(long, help_heading = MEASURED, value_name = "FILE", value_hint = clap::ValueHint::FilePath,
        conflicts_with_all = ["whole", "jobs", "memory", "layout"])]
    measured: Vec<PathBuf>,
    /// Copies (bert=3x), a rate (bert=500), or none
    #[arg(
        long,
        help_heading = MEASURED,
        value_name = "PROGRAM=AMOUNT",
        value_delimiter = ',',
        requires = "measured"
    )]
    want: Vec<WantedAmount>,
    /// Use the default answers to all other questions
    #[arg(long, short)]
    yes: bool,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// Writes a first profile.
pub fn run(args: &InitArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let planning = context.environment.interrupt.begin_planning();
    let mut interview = Interview::new(args.yes);
    let file = NewProfile::for_path(&args.file, args.force, &interview)?;
    let node = target_node(args, context)?;
    interview.show(partition::render_gpus(&node).trim_end());
    if !args.measured.is_empty() {
        let wanted = figures::ask_amounts(&args.measured, &args.want, &mut interview)?;
        let layout = smallest_layout(&node, &wanted)?;
        let serve = ask_users(args, &mut interview, &node)?;
        interview.check_flags()?;
        let devices = write_profile(&with_users(layout, &serve), &node, &file)?;
        drop(planning);
        file.note_next_steps(&devices, &args.gpus);
        return Ok(ExitStatus::Done);
    }
    let whole = ask_whole(args, &mut interview, &node)?;
    let supply = Supply::new(&node, &whole);
    let divided = if supply.groups.is_empty() {
        check_no_partition_flags(args, &whole)?;
        Vec::new()
    } else {
        let (count, memory) = (args.jobs.as_ref(), args.memory.as_ref());
        interview::ask_jobs(count, memory, &mut interview, &supply)?
    };
    let serve = ask_users(args, &mut interview, &node)?;
    interview.check_flags()?;
    let choices = choose_partitions(args, &mut interview, divided)?;
    note_left_out(&node, &whole, &choices);
    let profile = first_profile(&node, &whole, &serve, &choices);
    let devices = write_profile(&profile, &node, &file)?;
    drop(planning);
    file.note_next_steps(&devices, &args.gpus);
    Ok(ExitStatus::Done)
}

/// Writes a profile that the planner of `up` accepts, and its remarks. Returns the number of its devices on each GPU.
fn write_profile(
    draft: &DraftProfile,
    node: &EmptyNode,
    file: &NewProfile<'_>,
) -> Result<Vec<usize>> {
    let text = draft.to_string();
    let profile = Profile::parse(Path::new("the new profile"), text.clone())?;
    let plan = plan_on(&node.node, &profile)?;
    file.write(&text)?;
    for remark in plan.remarks_on_devices(&node.node) {
        note(&remark);
    }
    Ok(plan.gpus.iter().map(|gpu| gpu.devices.len()).collect())
}

/// The GPUs to write a profile for.
fn target_node(args: &InitArgs, context: &Context<'_>) -> Result<EmptyNode> {
    if !args.gpus.is_empty() {
        return Ok(EmptyNode::of_models(&args.gpus));
    }
    empty_node(context.environment)
}

fn ask_whole(
    args: &InitArgs,
    interview: &mut Interview,
    node: &EmptyNode,
) -> Result<BTreeSet<u32>> {
    let all: BTreeSet<u32> = node.node.gpus.iter().map(|gpu| gpu.index).collect();
    let nothing_fits = Supply::new(node, &BTreeSet::new()).groups.is_empty();
    let question = Question {
        text: "Which GPUs are to stay whole?",
        meaning: "Such a GPU is one device with all its memory, served by one daemon; the others are \
                  partitioned with MIG.",
        form: "Indices such as 0 or 0-1,7, none or all",
        default: if nothing_fits { "all" } else { "none" },
    };
    interview.flag_or_ask("--whole", args.whole.as_ref(), question, |whole| {
        whole.select_from(&all).map_err(|absent| {
            let mut lost = node.node.lost_gpus();
            match lost.find(|(index, _)| whole.names_gpu(*index)) {
                Some((_, why)) => usage_error(why).with_hint(LOST_GPU_REMEDY),
                None => usage_error(absent),
            }
        })
    })
}

/// Refuses answers about partitions where there is none.
fn check_no_partition_flags(args: &InitArgs, whole: &BTreeSet<u32>) -> Result<()> {
    if whole.is_empty() {
        let error = usage_error("no GPU here can be partitioned, and none is to stay whole");
        return Err(error.with_hint("keep the GPUs whole with --whole all"));
    }
    let flags = [
        ("--jobs", args.jobs.is_some()),
        ("--min-memory", args.memory.is_some()),
        ("--layout", !args.layout.is_empty()),
    ];
    for (flag, is_given) in flags {
        if is_given {
            return Err(usage_error(format_args!(
                "{flag} is for GPUs that are partitioned, and there are none"
            ))
            .with_hint(format!("omit {flag}")));
        }
    }
    Ok(())
}

fn ask_users(args: &InitArgs, interview: &mut Interview, node: &EmptyNode) -> Result<Serve> {
    let question = Question {
        text: "May several users use a device at the same time?",
        meaning: "no: the programs of a second user wait for those of the first. yes: all users share \
                  one server, and a fault in one program can end them all.",
        form: "no, yes, group:NAME or user:NAME",
        default: "no",
    };
    interview.flag_or_ask("--serve", args.serve.as_ref(), question, |Users(serve)| {
        // The users and the driver of another machine are not known here.
        if !node.is_real {
            return Ok(serve.clone());
        }
        if serve.is_shared() && !node.node.control_program().has_multiuser_server {
            return Err(usage_error(
                "this driver has no server for several users at once: \"no\" and \"user:NAME\" work",
            ));
        }
        match accounts::find_unknown_account(serve, None)? {
            Some(unknown) => Err(CommandError {
                hints: unknown.hint.into_iter().collect(),
                ..usage_error(unknown.what)
            }),
            None => Ok(serve.clone()),
        }
    })
}

/// Lets the user choose a partition for each product.
fn choose_partitions<'a>(
    args: &InitArgs,
    interview: &mut Interview,
    divided: Vec<(GroupSupply<'a>, u32)>,
) -> Result<Vec<PartitionChoice<'a>>> {
    let first = vec!["1"; divided.len()].join(",");
    if !args.layout.is_empty() && args.layout.len() != divided.len() {
        let (given, needed) = (args.layout.len(), divided.len());
        let error = usage_error(format_args!(
            "--layout needs a number for each product: {needed}, not {given}"
        ));
        return Err(error.with_hint(format!("use the recommended layouts with --layout {first}")));
    }
    let mut chosen = Vec::new();
    for (nth, (supply, needed)) in divided.into_iter().enumerate() {
        let choices = supply.partition_choices(needed);
        interview.show(partition::render_choices(&supply, &choices).trim_end());
        let partition = choose_one(args.layout.get(nth), interview, &choices)?;
        chosen.push(PartitionChoice { supply, partition });
    }
    interview.check_flag("--layout", &first)?;
    Ok(chosen)
}

fn choose_one<'a>(
    given: Option<&Positive>,
    interview: &mut Interview,
    choices: &[(Aim, Partition<'a>)],
) -> Result<Partition<'a>> {
    if let ([(_, only)], None) = (choices, given) {
        return Ok(only.clone());
    }
    let question = Question {
        text: "Which layout?",
        meaning: "Every GPU of this product gets it, except those that stay whole.",
        form: "Number of the layout",
        default: "1",
    };
    interview.flag_or_ask("--layout", given, question, |Positive(number)| {
        let most = choices.len();
        match choices.get(*number as usize - 1) {
            Some((_, partition)) => Ok(partition.clone()),
            None => Err(usage_error(format_args!(
                "there is no layout {number}: choose 1 to {most}"
            ))),
        }
    })
}

/// Notes the GPUs that the profile does not select.
fn note_left_out(node: &EmptyNode, whole: &BTreeSet<u32>, choices: &[PartitionChoice<'_>]) {
    for group in &node.groups {
        let is_whole = group.indices.iter().all(|index| whole.contains(index));
        let is_partitioned = choices
            .iter()
            .any(|choice| choice.supply.group.indices == group.indices);
        if !is_whole && !is_partitioned {
            note(&format!(
                "{} is left out, because it has no device for such jobs",
                group.product
            ));
        }
    }
}

/// The place of a new profile.
enum NewProfile<'a> {
    StandardOutput,
    File {
        path: &'a Path,
        /// True if the user agreed to replace it.
        replaces: bool,
    },
}

impl<'a> NewProfile<'a> {
    /// Checks the place before the user answers questions, and asks whether to replace a file.
    fn for_path(path: &'a Path, force: bool, interview: &Interview) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        let shown = path.display();
        let beside = directory_of(path);
        if path.is_dir() {
            let error = usage_error(format_args!("{shown} is a directory"));
            return Err(error.with_hint("give the path of a file in this directory"));
        }
        if !beside.is_dir() {
            let beside = beside.display();
            let error = usage_error(format_args!("there is no directory {beside}"));
            return Err(error.with_hint(format!("run `mkdir -p {beside}`")));
        }
        if !may_write(beside) {
            let message = format!("cannot write {shown}: no permission to write in its directory");
            return Err(command_error(message).with_hint("choose another file"));
        }
        let exists = fs::symlink_metadata(path).is_ok();
        if exists && !force {
            if !interview.is_interactive() {
                let error = usage_error(format_args!("{shown} exists"));
                return Err(
                    error.with_hint("replace the file with --force, or choose another file")
                );
            }
            let question = format!("{shown} exists. Replace it?");
            match ask_yes_no(&question).context("cannot ask on the terminal")? {
                Some(true) => {}
                Some(false) => {
                    return Err(declined_by_user(
                        ExitStatus::Refused,
                        "Nothing was written.",
                    ));
                }
                None => return Err(end_of_input()),
            }
        }
        Ok(Self::File {
            path,
            replaces: exists || force,
        })
    }

    fn write(&self, text: &str) -> Result<()> {
        let Self::File { path, replaces } = self else {
            print(text)?;
            return Ok(());
        };
        let written = if *replaces {
            write_text_to(path, text)
        } else {
            write_new_text_to(path, text)
        };
        written.context(format_args!("cannot write {}", path.display()))
    }

    /// Says what was written, so many devices on each GPU, and the next commands.
    fn note_next_steps(&self, devices: &[usize], models: &[GpuArgument]) {
        let Self::File { path, .. } = self else {
            return;
        };
        let gpus = format_count(devices.len(), "GPU");
        let wrote = format!("{} on {gpus}", format_count(devices.iter().sum(), "device"));
        let word = file_argument(path);
        let models = models.iter().fold(String::new(), |mut all, gpu| {
            let _ = write!(all, " --gpu {}:{}", gpu.model.key, gpu.count);
            all
        });
        let shown = path.display();
        let sudo = if caller() == Uid::ROOT { "" } else { "sudo " };
        report(&format!(
            "\nWrote {shown}: {wrote}. Next:\n  mig-mps check {word}{models}\n  mig-mps plan {word}\n  {sudo}mig-mps up {word}"
        ));
    }
}

/// The file as a word of a command line: quoted if need be, and not the name of a built-in profile.
fn file_argument(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = match text.as_ref() {
        text if BuiltIn::find_by_name(text).is_some() || text.starts_with('-') => {
            format!("./{text}")
        }
        text => text.to_owned(),
    };
    quote_for_shell(&text)
}
