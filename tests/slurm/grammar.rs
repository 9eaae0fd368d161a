//! The files of `fixtures/slurm` as a real `slurmd -G` reads them, and as mig-mps does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use mig_mps::internals::slurm::{Gres, SlurmFiles, numbered};
use regex::Regex;
use testkit::{Ran, can_run};

/// Files of one site, by their names.
struct Site {
    title: String,
    files: BTreeMap<String, String>,
}

fn sites() -> Vec<Site> {
    let text = include_str!("../../fixtures/slurm/sites.txt");
    let blocks = text.split("=== ").skip(1);
    let sites = blocks.map(|block| {
        let (title, files) = block.split_once('\n').unwrap();
        let files = files.split("--- ").skip(1).map(|file| {
            let (name, text) = file.split_once('\n').unwrap();
            (name.to_owned(), text.to_owned())
        });
        Site {
            title: title.to_owned(),
            files: files.collect(),
        }
    });
    sites.collect()
}

/// The lines that slurmd itself needs.
fn head(directory: &Path) -> String {
    let at = directory.display();
    format!(
        "ClusterName=lab\nSlurmctldHost=localhost\nSlurmUser=root\nAuthType=auth/munge\nSlurmdSpoolDir={at}/spool\n\
         SlurmdPidFile={at}/pid\nStateSaveLocation={at}/state\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n"
    )
}

/// Writes the files of a site, whose device files are in the directory, too.
fn write(site: &Site, directory: &Path) -> PathBuf {
    let dev = directory.join("dev");
    fs::create_dir_all(dev.join("nvidia-caps")).unwrap();
    let numbered = |name: &str, count: u32| {
        (0..count)
            .map(|number| format!("{name}{number}"))
            .collect::<Vec<_>>()
    };
    let ports = ["port01".to_owned(), "port02".to_owned()];
    let files = [
        numbered("nvidia", 8),
        numbered("nvidia-caps/nvidia-cap", 40),
        ports.into(),
    ]
    .concat();
    for file in files {
        fs::write(dev.join(file), "").unwrap();
    }
    for (name, text) in &site.files {
        let mut text = text
            .replace("/dev/", &format!("{}/", dev.display()))
            .replace("@CR@", "\r");
        if name == "slurm.conf" {
            text.insert_str(0, &head(directory));
        }
        let pieces: Vec<&[u8]> = text.split("@LATIN@").map(str::as_bytes).collect();
        let bytes = pieces.join(&0xe4);
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory.join("slurm.conf")
}

/// The devices that a reading of a site's files found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// The type and the files of each GPU, in Slurm's order. Slurm forgets the types where the node's line has none.
    gpus: Vec<(Option<String>, Vec<String>)>,
    shards: u64,
    detects: bool,
}

fn slurmd(conf: &Path) -> Found {
    let mut command = Command::new("slurmd");
    command.args(["-G", "-N", "n1", "-f"]).arg(conf);
    let ran = Ran::of(command.current_dir("/"));
    let said = ran.stdout + &ran.stderr;
    assert!(ran.status == 0 && !said.contains("fatal:"), "{said}");
    let gres = Regex::new(
        r"Gres Name=(\S+) Type=(.*) Count=(\d+) (?:Index=\d+ )?ID=\d+ (?:File=(.*?))?(?: Links=.*| Cores=.*|\(null\).*| \(null\).*|[A-Z_,]*)$",
    );
    let gres = gres.unwrap();
    let mut found = Found {
        detects: said.contains("We were configured with"),
        ..Found::default()
    };
    for line in said.lines() {
        let Some(parts) = gres.captures(line) else {
            continue;
        };
        let count: u64 = parts[3].parse().unwrap();
        if parts[1].eq_ignore_ascii_case("shard") {
            found.shards += count;
        }
        if !parts[1].eq_ignore_ascii_case("gpu") {
            continue;
        }
        let files = names(&parts[4], conf);
        let kind = Some(parts[2].to_owned()).filter(|kind| kind != "(null)");
        let chunk = files.len() / usize::try_from(count).unwrap();
        let gpus = files
            .chunks(chunk)
            .map(|files| (kind.clone(), files.to_vec()));
        found.gpus.extend(gpus);
    }
    found
}

/// The names that a list stands for, as Slurm says.
fn names(list: &str, conf: &Path) -> Vec<String> {
    let mut command = Command::new("scontrol");
    command
        .args(["show", "hostnames", list])
        .env("SLURM_CONF", conf);
    let ran = Ran::of(command.current_dir("/")).ended(0);
    ran.stdout.lines().map(str::to_owned).collect()
}

fn ours(conf: &Path) -> Result<Found, String> {
    let files = SlurmFiles::at(conf);
    let gres = files.gres_of("n1").map_err(|error| error.to_string())?;
    let node_gres = files.node_gres("n1").map_err(|error| error.to_string())?;
    // Slurm gives jobs nothing of a node without Gres=.
    let gpus = numbered(gres.gpus, Some(node_gres.as_deref().unwrap_or_default()));
    let gpus = gpus.map_err(|error| error.to_string())?.into_iter();
    Ok(Found {
        gpus: gpus.map(|Gres { kind, files, .. }| (kind, files)).collect(),
        shards: gres.shards.iter().map(|shards| shards.count).sum(),
        detects: gres.detects,
    })
}

#[test]
fn what_slurm_reads_we_read() {
    let is_here = Command::new("slurmd").arg("-V").output().is_ok();
    if !can_run(
        "what_slurm_reads_we_read",
        is_here,
        "slurmd is not installed",
    ) {
        return;
    }
    let sites = sites();
    let lines = sites
        .iter()
        .flat_map(|site| site.files.values())
        .flat_map(|text| text.lines());
    let lines = lines.filter(|line| line.contains('=')).count();
    assert!(
        sites.len() >= 40 && lines >= 120,
        "{} sites, {lines} lines",
        sites.len()
    );
    let differing: Vec<String> = thread::scope(|scope| {
        let judges = sites
            .chunks(sites.len().div_ceil(4))
            .map(|sites| scope.spawn(|| sites.iter().filter_map(difference).collect()));
        let judges: Vec<_> = judges.collect();
        judges
            .into_iter()
            .flat_map(|judge: thread::ScopedJoinHandle<'_, Vec<String>>| judge.join().unwrap())
            .collect()
    });
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
}

/// Describes a difference between Slurm's reading of a site's files and ours.
fn difference(site: &Site) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let conf = write(site, directory.path());
    let slurm = slurmd(&conf);
    let is_without = ["no GPUs", "no job gets one", "empty"]
        .iter()
        .any(|words| site.title.contains(words));
    assert_eq!(slurm.gpus.is_empty(), is_without, "{}", site.title);
    let ours = ours(&conf).map(|mut ours| {
        for ((ours, _), (slurms, _)) in ours.gpus.iter_mut().zip(&slurm.gpus) {
            *ours = ours.take().filter(|_| slurms.is_some());
        }
        ours
    });
    (ours.as_ref() != Ok(&slurm)).then(|| {
        format!(
            "{}:\nSlurm has {slurm:#?}\nand we have {ours:#?}",
            site.title
        )
    })
}
