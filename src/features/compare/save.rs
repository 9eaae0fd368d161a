//! The file to which figures are appended.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{ErrorContext as _, Result, command_error, usage_error};
use crate::host::{append_privately, format_count, join_words};
use crate::node::{Node, Served};
use crate::profile::{MeasuredDevice, Measurement, WantedPrograms, is_program_name};
use crate::render::report;
use crate::settings::Percentage;

use super::report::{Compared, Spread};

/// A file, and what stands in all figures that are appended to it.
pub(super) struct Save {
    path: PathBuf,
    file: File,
    program: String,
    gpu: String,
    device: MeasuredDevice,
    threads: Percentage,
}

impl Save {
    /// Opens the file before anything is measured.
    pub(super) fn open(
        path: &Path,
        program: String,
        node: &Node,
        served: &Served,
        threads: Option<Percentage>,
    ) -> Result<Self> {
        if !is_program_name(&program) {
            let what = format!("cannot save measurements of a program with the name \"{program}\"");
            return Err(usage_error(what).with_hint("give the program a name with --program NAME"));
        }
        let record = &served.record;
        let device = record.profile.as_deref().map_or(Ok(MeasuredDevice::Whole), |profile| {
            profile.parse().map_err(|_| {
                usage_error(format_args!(
                    "device {} is a compute instance ({profile}): measurements can be saved only for whole GPU \
                     instances",
                    record.name
                ))
                .with_hint("omit --save, or use a device that is a whole GPU instance")
            })
        })?;
        let product = node
            .gpu_with_uuid(&record.key.gpu)
            .map_or("", |gpu| gpu.product.as_str());
        let file = append_privately(path).context("cannot save measurements")?;
        Ok(Self {
            path: path.to_owned(),
            file,
            program,
            gpu: product.to_owned(),
            device,
            threads: threads.unwrap_or(record.settings.active_thread_percentage),
        })
    }

    /// Appends the figures of clients, as far as they were measured and a copy was seen as a client. Where several rounds
    /// were made, these are means.
    pub(super) fn append(&mut self, rows: &[Compared], counts_runs: bool) -> Result<()> {
        let measured = rows
            .iter()
            .filter(|row| !row.with_mps.throughput.is_empty());
        let (unseen, seen): (Vec<&Compared>, Vec<_>) =
            measured.partition(|row| row.with_mps.is_seen() == Some(false));
        self.write_figures(&seen, counts_runs)?;
        check_none_unseen(&unseen)
    }

    fn write_figures(&mut self, rows: &[&Compared], counts_runs: bool) -> Result<()> {
        let figures = rows.iter().map(|row| {
            let way = &row.with_mps;
            let measurement = Measurement {
                program: self.program.clone(),
                gpu: self.gpu.clone(),
                device: self.device.clone(),
                threads: self.threads,
                copies: row.copies,
                throughput: Spread::from_values(&way.throughput).mean,
                counts_runs,
                memory_mib: way.memory_used_bytes.map(|bytes| bytes.div_ceil(1 << 20)),
                latency_ms: way.latency_ms,
                is_interpolated: false,
            };
            measurement.to_string()
        });
        let figures: Vec<String> = figures.collect();
        if figures.is_empty() {
            return Ok(());
        }
        // As `advise` will: of its figures, one that it cannot read takes away all.
        let read = WantedPrograms::parse(&self.path, figures.join("\n"));
        read.context("cannot save measurements")?;
        let path = self.path.display();
        // Also after a last line without an end, they begin on a line of their own.
        let before = match self.file.metadata() {
            Ok(metadata) if metadata.len() == 0 => "",
            _ => "\n",
        };
        let text = format!("{before}{}", figures.join("\n"));
        let written = self.file.write_all(text.as_bytes());
        written.context(format_args!("cannot write {path}"))?;
        report(&format!(
            "Saved {} to {path}.",
            format_count(figures.len(), "measurement")
        ));
        Ok(())
    }
}

/// Refuses figures of programs that were perhaps no clients.
fn check_none_unseen(rows: &[&Compared]) -> Result<()> {
    let numbers: Vec<String> = rows.iter().map(|row| row.copies.to_string()).collect();
    let (numbers, copies) = match rows {
        [] => return Ok(()),
        [one] => (
            numbers.concat(),
            if one.copies == 1 { "copy" } else { "copies" },
        ),
        _ => (join_words(&numbers, "and"), "copies"),
    };
    let what = format!(
        "cannot save the measurements of {numbers} {copies}: the driver did not list a copy as an MPS client in each \
         round"
    );
    Err(command_error(what)
        .with_hint("measure a program that runs longer and uses the GPU, with a longer --seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::compare::report::Way;

    #[test]
    fn figures_that_cannot_be_read_again_are_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figures");
        let mut save = Save {
            file: append_privately(&path).unwrap(),
            path: path.clone(),
            program: "trainer".to_owned(),
            gpu: "NVIDIA H100 80GB HBM3".to_owned(),
            device: MeasuredDevice::Whole,
            threads: Percentage::FULL,
        };
        let with = |throughput: f64| Compared {
            copies: 2,
            with_mps: Way {
                throughput: vec![throughput],
                ..Way::default()
            },
            ..Compared::default()
        };
        let [good, bad] = [with(21.5), with(f64::INFINITY)];
        assert!(save.write_figures(&[&good, &bad], true).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        save.write_figures(&[&good], true).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(WantedPrograms::parse(&path, text).is_ok());
    }
}
