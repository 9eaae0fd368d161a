//! A first profile by figures that were measured: how much of each program is to run, and the smallest layout for it.

use std::path::PathBuf;
use std::str::FromStr;

use super::super::load_wanted;
use super::interview::Interview;
use crate::error::{Result, usage_error};
use crate::host::join_words;
use crate::profile::{Amount, FIGURE_RANGE, Sharing, WantedProgram, WantedPrograms};
use crate::render::Question;

/// The amount of a program that is to run: `3x` for copies, `500` for a rate, or `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HowMuch(Option<Amount>);

impl FromStr for HowMuch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = match text.strip_suffix('x') {
            _ if text == "none" => return Ok(Self(None)),
            Some(copies) => copies
                .parse()
                .ok()
                .filter(|copies| *copies > 0)
                .map(Amount::Copies),
            None => {
                let rate = text.parse().ok();
                rate.filter(|rate: &f64| FIGURE_RANGE.contains(rate))
                    .map(Amount::Rate)
            }
        };
        let wrong = "expected copies such as 3x, a rate such as 500, or none";
        amount
            .map(|amount| Self(Some(amount)))
            .ok_or_else(|| wrong.to_owned())
    }
}

/// `--want PROGRAM=AMOUNT`
#[derive(Clone, Debug)]
pub(super) struct WantedAmount {
    program: String,
    amount: HowMuch,
}

impl FromStr for WantedAmount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((program, amount)) = text.rsplit_once('=') else {
            return Err(format!("\"{text}\" is not PROGRAM=AMOUNT, as in bert=3x"));
        };
        Ok(Self {
            program: program.to_owned(),
            amount: amount.parse()?,
        })
    }
}

/// Asks how much of each program with figures is to run.
pub(super) fn ask_amounts(
    files: &[PathBuf],
    given: &[WantedAmount],
    interview: &mut Interview,
) -> Result<WantedPrograms> {
    let mut wanted = WantedPrograms::default();
    for file in files {
        wanted.measured.extend(load_wanted(file)?.measured);
    }
    let mut names: Vec<String> = wanted
        .measured
        .iter()
        .map(|row| row.program.clone())
        .collect();
    names.sort();
    names.dedup();
    if let Some(want) = given.iter().find(|want| !names.contains(&want.program)) {
        let what = format!("--want contains \"{}\", which has no figures", want.program);
        let hint = match names.as_slice() {
            [] => "run `mig-mps compare --save FILE` to measure programs".to_owned(),
            names => format!(
                "use a program that has figures: {}",
                join_words(names, "and")
            ),
        };
        return Err(usage_error(what).with_hint(hint));
    }
    for name in &names {
        if given.iter().filter(|want| want.program == *name).count() > 1 {
            return Err(usage_error(format_args!(
                "--want contains \"{name}\" twice"
            )));
        }
        let question = Question {
            text: &format!("How much of {name} is to run?"),
            meaning: "Copies, or a throughput of all its copies together, in the unit of its figures.",
            form: "Copies such as 3x, a rate such as 500, or none",
            default: "1x",
        };
        let own = given.iter().find(|want| want.program == *name);
        let amount =
            interview.flag_or_ask("--want", own.map(|want| &want.amount), question, |amount| {
                Ok(amount.0)
            })?;
        wanted.programs.extend(amount.map(|amount| WantedProgram {
            name: name.clone(),
            amount,
            memory_mib: 0,
            latency_ms: None,
            sharing: Sharing::Own,
        }));
    }
    let defaults: Vec<String> = names
        .iter()
        .filter(|name| given.iter().all(|want| want.program != **name))
        .map(|name| format!("{name}=1x"))
        .collect();
    interview.check_flag("--want", &defaults.join(","))?;
    if wanted.programs.is_empty() {
        let error = usage_error("no program is requested");
        return Err(error.with_hint(
            "run `mig-mps compare --save FILE` to measure programs, and use --want to request them",
        ));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_copies_rates_or_none() {
        let read = |text: &str| text.parse::<HowMuch>();
        assert_eq!(read("3x"), Ok(HowMuch(Some(Amount::Copies(3)))));
        assert_eq!(read("2.5"), Ok(HowMuch(Some(Amount::Rate(2.5)))));
        assert_eq!(read("none"), Ok(HowMuch(None)));
        for wrong in ["", "x", "0x", "0", "-1", "inf", "1.5x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
