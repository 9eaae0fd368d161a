//! `mig-mps compare`

mod device;
mod report;
mod save;
mod trial;
mod verdict;
mod witness;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::{ClientOptions, ClientSlot, Variables, check_ready};
use crate::commands::args::{duration, number};
use crate::commands::env::client_variables;
use crate::commands::{Context, verify};
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, adopt_descendants, empty_directory};
use crate::node::{Detail, Node, Served, observe};
use crate::render::format::{format_count, format_time_taken};
use crate::render::json::{VERSION, print_report};
use crate::render::{examples_and_statuses, note, report};
use crate::settings::Percentage;
use crate::shared::program::end_descendants;

use device::ServedDevice;
use report::{Compared, Way};
use save::Save;
use trial::{Throughput, Trial, mixed_output_error};
use witness::{Sightings, Witness};

pub use report::Comparison;

/// Measure the throughput of a program with and without MPS
///
/// Runs copies of the program at the same time, alternately outside MPS and as clients of an idle device. If the last
/// line of the program's output ends in a number, this number is the throughput of the copy. Otherwise mig-mps counts
/// runs per second. A line `latency_ms N` is the latency of the copy.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps compare 0.0 -- ./train", "Use device 0.0"),
    ("mig-mps compare --private -- ./train", "Run without root"),
    ("mig-mps compare -n 1,4 --save figures.toml -- ./train", "Save for advise"),
], &[
    ("4", "the device is in use"),
    ("126", "the program cannot be executed"),
    ("127", "the program was not found"),
]))]
pub struct CompareArgs {
    /// Device name, UUID, or unique prefix [default: an idle device]
    #[arg(value_name = "DEVICE", conflicts_with = "by_option")]
    device: Option<String>,
    /// The same, as it was written before 0.3
    #[arg(long = "device", hide = true, value_name = "DEVICE")]
    by_option: Option<String>,
    /// Start a private MPS daemon; needs no root
    #[arg(long, conflicts_with_all = ["device", "by_option"])]
    private: bool,
    /// Numbers of copies to compare [default: 1,2,4,8]
    #[arg(short = 'n', long, help_heading = "Measurement", value_name = "N", value_delimiter = ',', value_parser = number::<1, 1000>)]
    copies: Vec<u32>,
    /// Time of a measurement, such as 30s
    #[arg(long, help_heading = "Measurement", value_name = "DURATION", default_value = "10", value_parser = duration)]
    seconds: Duration,
    /// Number of measurements to average
    #[arg(long, help_heading = "Measurement", value_name = "N", default_value_t = 3, value_parser = number::<1, 1000>)]
    rounds: u32,
    /// Count runs even if the program prints a throughput
    #[arg(long, help_heading = "Measurement", hide_short_help = true)]
    by_runs: bool,
    /// Active thread percentage of each client
    #[arg(long, help_heading = "Measurement", value_name = "PERCENT")]
    threads: Option<Percentage>,
    /// Append measurements of the clients to FILE, for advise
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    save: Option<PathBuf>,
    /// Name of the program in the file of --save [default: the name of its file]
    #[arg(long, value_name = "NAME", requires = "save", hide_short_help = true)]
    program: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program both ways, and shows what is gained.
pub fn run(args: &CompareArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    verify::prepare_check(environment)?;
    let node = observe(environment, Detail::STATUS)?;
    let device = ServedDevice::choose(args, &node, environment)?;
    let served = device.served();
    let copies = args.numbers_of_copies(served)?;
    let mps = args.ready_variables(&device, environment)?;
    let save = args.open_save(&node, served)?;
    let nowhere = empty_directory()?;
    // What a copy leaves behind can be ended then.
    adopt_descendants()?;
    let mut measurements = Measurements {
        args,
        environment,
        witness: Witness::new(environment, device.records(), served)?,
        outside: Variables::outside_mps(&served.record, nowhere.path())
            .with_apptainer(nowhere.path(), |name| std::env::var_os(name)),
        mps,
        first: None,
    };
    args.note_time(copies.len());
    let mut comparisons = empty_rows(&copies);
    let made = measurements.measure_all(&mut comparisons);
    // Also what was measured before an interrupt, or a failure.
    let saved = save.map_or(Ok(()), |mut save| {
        save.append(&comparisons, measurements.counts_runs())
    });
    if made.is_err() {
        comparisons.retain_mut(Compared::keep_whole_rounds);
    }
    comparisons.iter_mut().for_each(Compared::add_speed_up);
    let last_line = measurements.first.and_then(|first| first.line);
    let comparison = Comparison {
        version: VERSION,
        device: served.record.name.clone(),
        kind: describe_device(&node, served),
        command_line: args.command_line(),
        quantity: if last_line.is_some() {
            "rate"
        } else {
            "runs per second"
        },
        last_line,
        rounds: comparisons.iter().map(Compared::rounds).max().unwrap_or(0),
        comparisons,
    };
    show(&comparison, made.is_ok(), args.json)?;
    if let Err(error) = made {
        return Err(saved.err().unwrap_or(error));
    }
    // Figures that could not be saved are at least shown.
    saved.map(|()| ExitStatus::Done)
}

/// Shows a comparison, or the rounds of one that failed.
fn show(comparison: &Comparison, is_complete: bool, as_json: bool) -> Result<()> {
    if is_complete {
        note_unseen(comparison, as_json);
    } else if as_json || comparison.comparisons.is_empty() {
        return Ok(());
    } else {
        note("not everything was measured. Finished rounds:");
    }
    Ok(print_report(comparison, as_json)?)
}

/// Says that copies may not have run as they were to. The verdict, which JSON lacks, says so of copies that were not seen.
fn note_unseen(comparison: &Comparison, as_json: bool) {
    let name = &comparison.device;
    let mut seen = comparison
        .comparisons
        .iter()
        .flat_map(|row| [row.without_mps.is_seen(), row.with_mps.is_seen()]);
    if seen.clone().any(|seen| seen == Some(false)) {
        if as_json {
            report(&verdict::verdict(name, &comparison.comparisons));
        }
    } else if seen.any(|seen| seen.is_none()) {
        note(&format!(
            "it was not checked whether the copies were MPS clients, because only root can see who computes on device \
             {name}"
        ));
    }
}

/// Describes a device, such as `3g.40gb of NVIDIA A100-SXM4-80GB`.
fn describe_device(node: &Node, served: &Served) -> String {
    let record = &served.record;
    let product = node
        .gpu_with_uuid(&record.key.gpu)
        .map(|gpu| gpu.product.as_str());
    let parts = record.profile.as_deref().into_iter().chain(product);
    parts.collect::<Vec<_>>().join(" of ")
}

impl CompareArgs {
    /// Returns the environment of clients, which were found to be taken.
    fn ready_variables(&self, device: &ServedDevice, callers: &Environment) -> Result<Variables> {
        let (served, environment) = (device.served(), device.environment(callers));
        let options = ClientOptions {
            threads: self.threads,
            ..ClientOptions::default()
        };
        let gpus = served.record.gpu_positions();
        let variables = client_variables(served, environment, &options, &gpus)?;
        check_ready(
            environment,
            device.records(),
            &served.record.name,
            &variables,
            ClientSlot::Needed,
            |environment, _| environment.caller,
        )?;
        Ok(variables)
    }

    fn command_line(&self) -> Vec<String> {
        self.command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    /// Says beforehand how long it will take.
    fn note_time(&self, rows: usize) {
        let count = 2 * self.rounds * u32::try_from(rows).unwrap_or(u32::MAX);
        let (each, all) = (self.seconds, self.seconds.saturating_mul(count));
        note(&format!(
            "{count} measurements of up to {} each: up to {} in all, or longer if one run of the program takes \
             longer; press Ctrl-C to stop",
            format_time_taken(each),
            format_time_taken(all)
        ));
    }

    fn program_name(&self) -> String {
        let name = self
            .command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        self.program
            .clone()
            .unwrap_or_else(|| name.to_string_lossy().into_owned())
    }

    fn open_save(&self, node: &Node, served: &Served) -> Result<Option<Save>> {
        self.save
            .as_deref()
            .map(|path| Save::open(path, self.program_name(), node, served, self.threads))
            .transpose()
    }

    /// Returns the numbers that were asked for, or else the usual ones up to the number of clients that the device is for.
    fn numbers_of_copies(&self, served: &Served) -> Result<Vec<u32>> {
        if self.copies.is_empty() {
            return Ok(usual_copies(served));
        }
        let most = self.copies.iter().max().copied().unwrap_or_default();
        match served.firm_client_limit() {
            Some(limit) if limit < most => {
                let name = &served.record.name;
                let what = format!("device {name} accepts {limit} clients, not {most}");
                let error = usage_error(what);
                Err(error.with_hint(format!(
                    "use -n {limit}, or raise max-clients (`mig-mps help profile`)"
                )))
            }
            _ => Ok(self.copies.clone()),
        }
    }
}

/// The numbers of copies that are compared if none is asked for.
const USUAL_COPIES: [u32; 4] = [1, 2, 4, 8];

/// Returns the usual numbers of copies. In the place of those above the limit of the device, which follows from its share, comes the
/// limit, and a note says so.
fn usual_copies(served: &Served) -> Vec<u32> {
    let limits = [served.firm_client_limit(), served.hardware_limit];
    let Some(limit) = limits.into_iter().flatten().min() else {
        return USUAL_COPIES.to_vec();
    };
    let mut copies = USUAL_COPIES.to_vec();
    copies.retain(|copies| *copies <= limit);
    if copies.len() < USUAL_COPIES.len() {
        if copies.last() != Some(&limit) {
            copies.push(limit);
        }
        note(&format!(
            "device {} accepts {}, so no more copies are compared; use -n N to compare other numbers",
            served.record.name,
            format_count(limit as usize, "client")
        ));
    }
    copies
}

fn empty_rows(copies: &[u32]) -> Vec<Compared> {
    copies
        .iter()
        .map(|&copies| Compared {
            copies,
            ..Compared::default()
        })
        .collect()
}

/// The measurements of a comparison.
struct Measurements<'a> {
    args: &'a CompareArgs,
    environment: &'a Environment,
    witness: Witness<'a>,
    outside: Variables,
    mps: Variables,
    /// The first measurement.
    first: Option<Throughput>,
}

impl Measurements<'_> {
    /// True if the program prints no rate, or none that counts.
    fn counts_runs(&self) -> bool {
        self.first
            .as_ref()
            .is_some_and(|first| first.line.is_none())
    }

    fn measure_all(&mut self, rows: &mut [Compared]) -> Result<()> {
        let rounds = self.args.rounds;
        let steps = Steps::new(2 * rows.len() * rounds as usize);
        // Until it is dropped, an interrupt ends the copies first.
        let interrupt = self.environment.interrupt.clone();
        let _change = interrupt.begin_change();
        for round in 1..=rounds {
            for row in &mut *rows {
                for is_mps in [round % 2 == 0, round % 2 == 1] {
                    let (way, words) = if is_mps {
                        (&mut row.with_mps, "as clients")
                    } else {
                        (&mut row.without_mps, "outside MPS")
                    };
                    let copies = row.copies;
                    steps.begin(&format!("{copies} {words}, round {round} of {rounds}"));
                    let measured = self.measure_round(copies, is_mps, way)?;
                    way.throughput.push(measured);
                    steps.end();
                }
            }
        }
        Ok(())
    }

    /// Makes one measurement. Returns the throughput.
    fn measure_round(&mut self, copies: u32, is_mps: bool, way: &mut Way) -> Result<f64> {
        let trial = Trial {
            words: &self.args.command,
            variables: if is_mps { &self.mps } else { &self.outside },
            copies: copies as usize,
            time: self.args.seconds,
            by_runs: self.args.by_runs,
        };
        let mut sightings = Sightings::new(&self.witness, is_mps);
        let measured = trial.run(&self.environment.interrupt, || sightings.sample());
        end_descendants(&self.environment.host);
        let measured = measured?;
        way.memory_used_bytes = way.memory_used_bytes.max(sightings.memory_used);
        way.sightings.push(sightings.into_verdict()?);
        way.latency_ms = measured
            .latency_ms
            .into_iter()
            .chain(way.latency_ms)
            .reduce(f64::max);
        let first = self.first.get_or_insert_with(|| measured.clone());
        if first.line.is_some() != measured.line.is_some() {
            let what = "the program ends its output with a number only in some measurements";
            return Err(mixed_output_error(what));
        }
        Ok(measured.value)
    }
}

/// A progress bar over steps that have words of their own. It shows on a terminal only.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
        let form = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
        bar.set_style(form.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Shows the step that begins.
    pub fn begin(&self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
