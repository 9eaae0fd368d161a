//! `mig-mps slurm install`: the scripts that Slurm runs, and the lines of slurm.conf and gres.conf.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::conf::SlurmFiles;
use super::lines::ConfFile;
use super::numbering::{LineArgs, PrintedLines};
use super::site_scripts::{ScriptCall, call_by_value, is_about, is_pattern, pattern_matches};
use crate::commands::{Context, untrusted_program_error};
use crate::error::{ErrorContext as _, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{
    Environment, OwnFile, check_trusted_program, directory_of, is_shell_safe,
    part_closed_to_others, quote_for_shell, root_hint, to_printable,
};
use crate::render::{examples, note, print, report};

/// Write the scripts that Slurm runs, and print its configuration
///
/// Writes mig-mps-prolog, mig-mps-epilog, mig-mps-task-prolog and mig-mps-health. Prints the lines that slurm.conf lacks,
/// and the lines of `slurm gres`. Does not change slurm.conf, gres.conf or scripts of others. If slurm.conf already runs
/// another script, the output shows how to call the new one from it.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps slurm install --dry-run", "Print the scripts and the configuration"),
    ("sudo mig-mps slurm install", "Write the scripts to /etc/slurm"),
]))]
pub(super) struct InstallArgs {
    /// Directory of the scripts [default: /etc/slurm]
    #[arg(long, value_name = "DIR", value_parser = directory, value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// Print the scripts instead of writing them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    lines: LineArgs,
}

/// Reads a directory that slurm.conf can name without quotes.
fn directory(text: &str) -> std::result::Result<PathBuf, &'static str> {
    match std::path::absolute(text) {
        Ok(path) if path.to_str().is_some_and(is_shell_safe) => Ok(path),
        _ => Err(
            "expected the path of a directory, of letters, digits, \"/\", \".\", \"_\" and \"-\"",
        ),
    }
}

/// The first lines of a script. They are how mig-mps knows its own.
const SCRIPT_HEAD: &str =
    "#!/bin/sh\n# Written by mig-mps slurm install, which replaces this file.\n";

/// A script, by its key in slurm.conf and its name among mig-mps's subcommands of `slurm`.
struct Script {
    key: &'static str,
    command: &'static str,
    name: &'static str,
}

const SCRIPTS: [Script; 4] = [
    Script {
        key: "Prolog",
        command: "prolog",
        name: "mig-mps-prolog",
    },
    Script {
        key: "Epilog",
        command: "epilog",
        name: "mig-mps-epilog",
    },
    Script {
        key: "TaskProlog",
        command: "task-prolog",
        name: "mig-mps-task-prolog",
    },
    Script {
        key: "HealthCheckProgram",
        command: "health",
        name: "mig-mps-health",
    },
];

/// Other lines, which stay as they are if slurm.conf has them.
const OTHER_LINES: [(&str, &str); 3] = [
    ("HealthCheckInterval", "300"),
    ("HealthCheckNodeState", "ANY"),
    ("BatchStartTimeout", "60"),
];

const INSTALL_FAILED: &str = "cannot install the scripts for Slurm";

/// Writes the scripts, unless this is a trial, and prints the lines.
pub(super) fn run(args: &InstallArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    if !environment.is_root() && !args.dry_run {
        return Err(
            command_error("only root can install the scripts for Slurm").with_hint(root_hint())
        );
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    check_program(&program)?;
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => environment.host.under_root("/etc/slurm"),
    };
    let files = SlurmFiles::find(&environment.host);
    let conf = files.slurm_conf_lines()?;
    if let Some(error) = conf.unread {
        return Err(error);
    }
    check_directory(&conf, &directory)?;
    let gres = match args.lines.render_lines(context) {
        Ok(lines) => lines,
        Err(error) if error.status == ExitStatus::Usage => return Err(error),
        // The scripts of a node that has no devices yet, or of an image.
        Err(error) => {
            note(&format!("there are no lines of gres.conf yet: {error}"));
            note(
                "run `mig-mps slurm gres` to print the lines when `mig-mps up` has created the devices",
            );
            PrintedLines::default()
        }
    };
    // All or none.
    for script in &SCRIPTS {
        script
            .file_in(&directory)
            .check_place()
            .context(INSTALL_FAILED)?;
    }
    let missing = missing_lines(&conf, &directory, gres.has_shards);
    if !missing.is_empty() {
        print(&format!("# slurm.conf\n{missing}\n"))?;
    }
    print(&gres.text)?;
    let variables = variable_lines(environment, &files);
    for script in &SCRIPTS {
        let (file, command) = (script.file_in(&directory), script.command);
        let program = quote_for_shell(&program.display().to_string());
        let text = format!("{SCRIPT_HEAD}{variables}exec {program} slurm {command}\n");
        let path = file.path();
        let path = path.display();
        if args.dry_run {
            print(&format!("# {path}\n{text}\n"))?;
        } else if file.write(&text).context(INSTALL_FAILED)? {
            report(&format!("wrote {path}"));
        } else {
            report(&format!("{path} is up to date"));
        }
    }
    if !args.dry_run {
        note("restart slurmctld and slurmd when their files have these lines");
    }
    Ok(ExitStatus::Done)
}

/// Refuses a program that another user could replace, since Slurm runs it as root, and one that a job's user cannot run.
fn check_program(program: &Path) -> Result<()> {
    let hint =
        "install the program in a directory of root: `install -m 755 mig-mps /usr/local/bin/`";
    let shown = program.display();
    check_trusted_program(program)
        .map_err(|error| untrusted_program_error("Slurm", program, &error).with_hint(hint))?;
    if let Some(part) = part_closed_to_others(program) {
        return Err(command_error(format_args!(
            "Slurm would run {shown} as the users of jobs, but they cannot enter {}",
            part.display()
        ))
        .with_hint(hint));
    }
    Ok(())
}

/// Refuses a directory whose scripts slurm.conf names by a pattern: Slurm would run all of ours as prologs, or as epilogs.
fn check_directory(conf: &ConfFile, directory: &Path) -> Result<()> {
    for script in &SCRIPTS {
        let others = || SCRIPTS.iter().filter(|other| other.key != script.key);
        for value in script.configured_values(conf) {
            let is_there = is_pattern(value) && is_about(&conf.resolve_path(value), directory);
            if is_there && others().any(|other| pattern_matches(value, other.name.as_ref())) {
                let (key, value) = (script.key, to_printable(value));
                let what = format_args!("{key}={value} would run all four scripts of mig-mps");
                return Err(command_error(what).with_hint("choose another directory with --dir"));
            }
        }
    }
    Ok(())
}

/// Returns the lines of a script that set variables: Slurm runs it almost without.
fn variable_lines(environment: &Environment, files: &SlurmFiles) -> String {
    let mut text = String::new();
    let directories = environment.unusual_program_directories();
    if !directories.is_empty() {
        let list = directories.iter().map(|one| one.display().to_string());
        let list = quote_for_shell(&list.collect::<Vec<_>>().join(":"));
        let _ = writeln!(text, "export PATH=\"${{PATH:-/usr/bin:/bin}}\":{list}");
    }
    if !files.is_usual {
        let conf = std::path::absolute(&files.slurm_conf);
        let conf = conf.unwrap_or_else(|_| files.slurm_conf.clone());
        let conf = quote_for_shell(&conf.display().to_string());
        let _ = writeln!(text, "[ -n \"$SLURM_CONF\" ] || export SLURM_CONF={conf}");
    }
    text
}

/// Returns the lines that slurm.conf lacks, with remarks on scripts of the site.
fn missing_lines(conf: &ConfFile, directory: &Path, has_shards: bool) -> String {
    let mut lines = gres_types(conf, has_shards);
    for script in &SCRIPTS {
        let path = script.file_in(directory).path();
        let (key, ours) = (script.key, path.display());
        let named = script.configured_values(conf);
        let Some(last) = named.last() else {
            let _ = writeln!(lines, "{key}={ours}");
            continue;
        };
        let calls: Vec<ScriptCall> = named
            .iter()
            .map(|value| script.find_call(conf, value, &path))
            .collect();
        if calls.contains(&ScriptCall::Runs) {
            continue;
        }
        let call = calls.last().copied().unwrap_or(ScriptCall::Missing);
        let _ = writeln!(
            lines,
            "# {key}={} stays. {}",
            to_printable(last),
            script.describe_remedy(last, call, &path)
        );
    }
    for (key, value) in OTHER_LINES {
        if conf.values_of(&key.to_ascii_lowercase()).is_empty() {
            let _ = writeln!(lines, "{key}={value}");
        }
    }
    lines
}

/// Returns the line of the types of resources, if one is missing.
fn gres_types(conf: &ConfFile, has_shards: bool) -> String {
    let before = conf.values_of("grestypes").last().copied();
    let mut types: Vec<&str> = conf.gres_types().collect();
    let count = types.len();
    for wanted in ["gpu", "shard"] {
        if (wanted == "gpu" || has_shards) && !types.contains(&wanted) {
            types.push(wanted);
        }
    }
    match (types.len() > count, before) {
        (false, _) => String::new(),
        (true, None) => format!("GresTypes={}\n", types.join(",")),
        (true, Some(before)) => format!(
            "GresTypes={} # in place of {}\n",
            to_printable(&types.join(",")),
            to_printable(before)
        ),
    }
}

impl Script {
    /// Returns the values of its key. Slurm runs the last task prolog and health check of several; the prologs and epilogs of
    /// all lines, from 24.11 on.
    fn configured_values<'c>(&self, conf: &'c ConfFile) -> Vec<&'c str> {
        let mut values = conf.values_of(&self.key.to_ascii_lowercase());
        if !["Prolog", "Epilog"].contains(&self.key) {
            values.drain(..values.len().saturating_sub(1));
        }
        values
    }

    /// Tells whether Slurm runs this script by a value of its key.
    fn find_call(&self, conf: &ConfFile, value: &str, path: &Path) -> ScriptCall {
        // Slurm gets a file of this name from the controller.
        if value == self.name {
            return ScriptCall::Runs;
        }
        call_by_value(&conf.resolve_path(value), path, self.command)
    }

    /// Tells how a script of the site runs this one.
    fn describe_remedy(&self, theirs: &str, call: ScriptCall, path: &Path) -> String {
        let ours = path.display();
        let directory = directory_of(Path::new(theirs)).display();
        if is_pattern(theirs) && pattern_matches(theirs, self.name.as_ref()) {
            return format!("Link ours into that directory:\n#   ln -s {ours} {directory}/");
        }
        if is_pattern(theirs) {
            return format!(
                "Link ours into that directory, under a NAME that fits:\n#   ln -s {ours} {directory}/NAME"
            );
        }
        match call {
            ScriptCall::BehindEnd => {
                format!("It ends before its line with ours: move that line up:\n#   exec {ours}")
            }
            ScriptCall::MissingInProgram => format!("Let that program end by running:\n#   {ours}"),
            ScriptCall::Missing | ScriptCall::Runs => {
                format!("Let that script end with:\n#   exec {ours}")
            }
        }
    }

    fn file_in(&self, directory: &Path) -> OwnFile {
        OwnFile {
            directory: directory.to_owned(),
            name: self.name,
            is_mounted: false,
            mode: 0o755,
            is_ours: |text| text.starts_with(SCRIPT_HEAD),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn conf(text: &str) -> ConfFile {
        ConfFile {
            lines: ConfFile::parse_lines(text),
            ..ConfFile::default()
        }
    }

    fn lines(text: &str, has_shards: bool) -> String {
        missing_lines(&conf(text), Path::new("/etc/slurm"), has_shards)
    }

    #[test]
    fn an_empty_file_lacks_every_line() {
        assert_snapshot!(lines("", true), @r"
        GresTypes=gpu,shard
        Prolog=/etc/slurm/mig-mps-prolog
        Epilog=/etc/slurm/mig-mps-epilog
        TaskProlog=/etc/slurm/mig-mps-task-prolog
        HealthCheckProgram=/etc/slurm/mig-mps-health
        HealthCheckInterval=300
        HealthCheckNodeState=ANY
        BatchStartTimeout=60
        ");
    }

    #[test]
    fn lines_of_the_site_stay() {
        let conf = "GresTypes=nic\nprolog=/no/prolog\nEpilog=/no/epilog.d/*\nTaskProlog=/etc/slurm/mig-mps-task-prolog\n\
                    HealthCheckInterval=60\nBatchStartTimeout=10";
        assert_snapshot!(lines(conf, false), @r"
        GresTypes=nic,gpu # in place of nic
        # Prolog=/no/prolog stays. Let that script end with:
        #   exec /etc/slurm/mig-mps-prolog
        # Epilog=/no/epilog.d/* stays. Link ours into that directory:
        #   ln -s /etc/slurm/mig-mps-epilog /no/epilog.d/
        HealthCheckProgram=/etc/slurm/mig-mps-health
        HealthCheckNodeState=ANY
        ");
    }

    #[test]
    fn a_link_has_a_name_that_fits_the_pattern() {
        let lines = lines("Epilog=/no/epilog.d/*.sh\n", false);
        assert!(
            lines.contains("\n#   ln -s /etc/slurm/mig-mps-epilog /no/epilog.d/NAME\n"),
            "{lines}"
        );
    }

    #[test]
    fn a_directory_of_which_slurm_runs_all_is_refused() {
        let is_refused = |text: &str, directory: &str| {
            check_directory(&conf(text), Path::new(directory)).is_err()
        };
        let pattern = "Prolog=/etc/slurm/prolog.d/*\n";
        assert!(is_refused(pattern, "/etc/slurm/prolog.d"));
        assert!(!is_refused(pattern, "/etc/slurm"));
        assert!(!is_refused("Prolog=/etc/slurm/prolog*\n", "/etc/slurm"));
        assert!(!is_refused("Prolog=/etc/slurm/mig-mps-p*\n", "/etc/slurm"));
    }

    #[test]
    fn nothing_is_missing_twice() {
        let all = lines("", true);
        assert_eq!(lines(&all, true), "");
        let two = "Prolog=/site/prolog\nProlog=mig-mps-prolog\n";
        assert!(!lines(two, false).contains("# Prolog="));
        // Slurm runs the last one.
        let two = "TaskProlog=mig-mps-task-prolog\nTaskProlog=/site/prolog\n";
        assert!(lines(two, false).contains("# TaskProlog=/site/prolog stays."));
    }
}
