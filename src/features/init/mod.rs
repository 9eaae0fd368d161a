//! `mig-mps init`

mod first_profile;
mod interview;
mod new_profile;
mod partition;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::{Context, up};
use crate::error::{CommandError, Result, failed, usage};
use crate::failure::ExitStatus;
use crate::node::{Detail, observe};
use crate::plan::virtual_node::GpuArgument;
use crate::profile::Profile;
use crate::render::{Question, note};
use crate::settings::Serve;

use first_profile::{Answers, Choice, EmptyNode, GroupSupply, Supply, first_profile};
use interview::{Interview, KeptWhole, LeastMemory, Positive, Users};
use new_profile::NewProfile;
use partition::{Aim, Partition};

/// Write a first profile by asking a few questions
///
/// Asks how the GPUs of this node are to be shared, shows the layouts that fit, and writes the chosen
/// one as a profile with comments. Changes nothing on the node. Each question has an option that
/// answers it; without a terminal all are needed, or --yes.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Profile to write, or - for standard output
    #[arg(default_value = "profile.toml", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Write it for these GPUs, such as a100-80gb:8, instead of this node's
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]")]
    gpus: Vec<GpuArgument>,
    /// GPUs to keep whole, each with a daemon of its own: 0-1,7, none or all
    #[arg(long, value_name = "INDICES")]
    whole: Option<KeptWhole>,
    /// Jobs to run at once, each on a device of its own
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<Positive>,
    /// Memory that each job must have, such as 10G, or any
    #[arg(long, value_name = "SIZE")]
    memory: Option<LeastMemory>,
    /// Several users of a device at once: no, yes, or a value of serve such as group:NAME
    #[arg(long, value_name = "USERS")]
    serve: Option<Users>,
    /// Number of the layout to write; with several products one for each, such as 1,2
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    layout: Vec<Positive>,
    /// Do not ask: take the default of each question without an option
    #[arg(long, short)]
    yes: bool,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Writes a first profile.
pub fn run(args: &InitArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let planning = context.environment.interrupt.plan();
    let mut interview = Interview::new(args.yes);
    let file = NewProfile::at(&args.file, args.force, &interview)?;
    let node = node(args, context)?;
    interview.show(partition::gpus(&node).trim_end());
    let whole = ask_whole(args, &mut interview, &node)?;
    let supply = Supply::of(&node, &whole);
    let divided = if supply.groups.is_empty() {
        nothing_to_partition(args, &whole)?;
        Vec::new()
    } else {
        let (count, memory) = (args.jobs.as_ref(), args.memory.as_ref());
        interview::ask(count, memory, &mut interview, &supply)?
    };
    let serve = ask_users(args, &mut interview, &node)?;
    interview.finish()?;
    let choices = choose(args, &mut interview, divided)?;
    note_left_out(&node, &whole, &choices);
    let answers = Answers { whole, serve };
    let text = first_profile(&node, &answers, &choices).to_string();
    // The planner of `up` has the last word, before anything is written.
    node.accepts(&Profile::parse(Path::new("the new profile"), text.clone())?)?;
    drop(planning);
    file.write(&text)?;
    let parts: u32 = choices.iter().map(Choice::devices).sum();
    let gpus = choices.iter().map(|choice| choice.supply.indices.len());
    let whole = answers.whole.len();
    file.say_next(
        parts as usize + whole,
        gpus.sum::<usize>() + whole,
        &args.gpus,
    );
    Ok(ExitStatus::Done)
}

/// The GPUs to write a profile for.
fn node(args: &InitArgs, context: &Context<'_>) -> Result<EmptyNode> {
    if !args.gpus.is_empty() {
        return Ok(EmptyNode::of_models(&args.gpus));
    }
    let hint = "for GPUs of another machine name them: --gpu a100-80gb:8";
    let node = observe(context.environment, Detail::OFFERS)
        .map_err(|error| CommandError::from(error).hint(hint))?;
    for hidden in node.hidden() {
        note(&format!("not seen: {hidden}"));
    }
    if node.gpus.is_empty() {
        let message = format!("the driver ({}) shows no GPU", node.driver);
        return Err(failed(message).hint(hint));
    }
    Ok(EmptyNode::of(&node))
}

fn ask_whole(
    args: &InitArgs,
    interview: &mut Interview,
    node: &EmptyNode,
) -> Result<BTreeSet<u32>> {
    let all: BTreeSet<u32> = node.indices().collect();
    let nothing_fits = Supply::of(node, &BTreeSet::new()).groups.is_empty();
    let question = Question {
        text: "Which GPUs are to stay whole?",
        meaning: "Such a GPU is one device with all its memory, served by one daemon; the others are \
                  partitioned with MIG.",
        form: "Indices such as 0 or 0-1,7, none or all",
        default: if nothing_fits { "all" } else { "none" },
    };
    interview.answer("--whole", args.whole.as_ref(), question, |whole| {
        whole.among(&all).map_err(usage)
    })
}

/// Refuses answers about partitions where there is none.
fn nothing_to_partition(args: &InitArgs, whole: &BTreeSet<u32>) -> Result<()> {
    if whole.is_empty() {
        let error = usage("no GPU here can be partitioned, and none is to stay whole");
        return Err(error.hint("keep GPUs whole: --whole all"));
    }
    let flags = [
        ("--jobs", args.jobs.is_some()),
        ("--memory", args.memory.is_some()),
        ("--layout", !args.layout.is_empty()),
    ];
    for (flag, is_given) in flags {
        if is_given {
            return Err(usage(format_args!(
                "{flag} is for GPUs that are partitioned, and there is none"
            ))
            .hint(format!("leave {flag} out")));
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
    interview.answer("--serve", args.serve.as_ref(), question, |users| {
        checked_users(node, users)
    })
}

fn checked_users(node: &EmptyNode, Users(serve): &Users) -> Result<Serve> {
    // The users and the driver of another machine are not known here.
    if !node.is_real() {
        return Ok(serve.clone());
    }
    if serve.is_shared() && !node.control_program().has_multiuser_server {
        return Err(usage(format_args!(
            "this driver has no server for several users at once: \"no\" and \"user:NAME\" work"
        )));
    }
    match up::missing(serve) {
        Some((mistake, hint)) => Err(CommandError {
            hints: hint.into_iter().collect(),
            ..usage(mistake)
        }),
        None => Ok(serve.clone()),
    }
}

/// Lets the user choose a partition for each product.
fn choose<'a>(
    args: &InitArgs,
    interview: &mut Interview,
    divided: Vec<(GroupSupply<'a>, u32)>,
) -> Result<Vec<Choice<'a>>> {
    let first = vec!["1"; divided.len()].join(",");
    if !args.layout.is_empty() && args.layout.len() != divided.len() {
        let (given, needed) = (args.layout.len(), divided.len());
        let error = usage(format_args!(
            "--layout needs a number for each product: {needed}, not {given}"
        ));
        return Err(error.hint(format!("the recommended layouts are --layout {first}")));
    }
    let mut chosen = Vec::new();
    for (nth, (supply, needed)) in divided.into_iter().enumerate() {
        let choices = supply.choices(needed);
        interview.show(partition::describe(&supply, &choices).trim_end());
        let partition = choose_one(args.layout.get(nth), interview, &choices)?;
        chosen.push(Choice { supply, partition });
    }
    interview.finish_with("--layout", &first)?;
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
    interview.answer("--layout", given, question, |Positive(number)| {
        let most = choices.len();
        match choices.get(*number as usize - 1) {
            Some((_, partition)) => Ok(partition.clone()),
            None => Err(usage(format_args!(
                "there is no layout {number}: write 1 to {most}"
            ))),
        }
    })
}

/// Notes the GPUs that the profile does not select.
fn note_left_out(node: &EmptyNode, whole: &BTreeSet<u32>, choices: &[Choice<'_>]) {
    for group in &node.groups {
        let is_whole = group.indices.iter().all(|index| whole.contains(index));
        let is_partitioned = choices
            .iter()
            .any(|choice| choice.supply.group.indices == group.indices);
        if !is_whole && !is_partitioned {
            note(&format!(
                "{} is left out: it has no device for such jobs.",
                group.product
            ));
        }
    }
}
