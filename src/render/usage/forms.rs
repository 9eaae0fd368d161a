//! The right form of a command line whose words are in another order or form.

use std::str::FromStr;

use super::UsageMistake;
use crate::config::begins_as_uuid;
use crate::host::{join_words, quote_for_shell, shorten_command};
use crate::profile::SettingAssignment;
use crate::settings::find_setting;

/// Returns the form of a command whose program does not follow two dashes.
pub(super) fn form_of_program(mistake: &UsageMistake<'_>) -> Option<String> {
    let (verb, why) = match mistake.command {
        "run" => ("run", "put two dashes before the program"),
        "compare" => ("compare", "put two dashes before the program"),
        "env" => ("run", "use `mig-mps run` to start a program"),
        _ => return None,
    };
    let own = mistake.own_words();
    let has_dashes = mistake.words.iter().any(|word| word == "--");
    let (before, program) = match mistake.unexpected() {
        Some(typed) if typed.starts_with('-') => return None,
        Some(_) if has_dashes => return Some("put one device before the two dashes".to_owned()),
        Some(typed) => own.split_at(own.iter().position(|word| word == typed)?),
        None if mistake.lacks("<PROGRAM>") && !mistake.lacks("<DEVICE>") && !has_dashes => {
            own.split_at(own.len())
        }
        None => return None,
    };
    let (mut before, mut program) = (before.to_vec(), program.to_vec());
    let known = (mistake.devices)().names;
    let options = ["--any", "--by-rank", "--private", "--copies", "-n"];
    let is_choosing = before
        .iter()
        .any(|word| options.iter().any(|option| word.starts_with(option)));
    if known.is_empty() && !is_choosing {
        return Some(format!("{why}: `mig-mps {verb} DEVICE -- PROGRAM`"));
    }
    let is_device = |word: &String| {
        begins_as_uuid(word) || known.iter().any(|name| name.starts_with(word.as_str()))
    };
    let has_device = before.iter().any(is_device);
    if !has_device && ends_with_argument(&before) {
        program.splice(0..0, before.pop());
    }
    if !has_device && !is_choosing && verb == "run" {
        before.push("DEVICE".to_owned());
    }
    if program.is_empty() {
        program.push("PROGRAM".to_owned());
    }
    before.push("--".to_owned());
    let words = before.iter().chain(&program);
    let quoted: Vec<String> = words.map(|word| quote_for_shell(word)).collect();
    let line = quoted.join(" ");
    Some(format!(
        "{why}: `mig-mps {verb} {}`",
        shorten_command(&line)
    ))
}

/// The options that have no value.
const FLAGS: [&str; 7] = [
    "--any",
    "--by-rank",
    "--private",
    "--require-mps",
    "--no-check",
    "--by-runs",
    "--json",
];

/// True if the last word is neither an option nor the value of one.
fn ends_with_argument(words: &[String]) -> bool {
    match words {
        [.., option, last] => {
            let has_value = option.starts_with('-') && !option.contains('=');
            !last.starts_with('-') && (!has_value || FLAGS.contains(&option.as_str()))
        }
        [only] => !only.starts_with('-'),
        [] => false,
    }
}

/// Returns the form of a setting that is to be none: `share=0`.
fn form_of_zero(setting: &str, device: &str) -> Option<String> {
    let (name, value) = setting.split_once('=')?;
    let none = format!("{name}=none");
    (value == "0" && SettingAssignment::from_str(&none).is_ok()).then(|| {
        let device = quote_for_shell(device);
        format!("run `mig-mps set {device} {none}` to remove the setting, or `mig-mps down {device}` to stop the device")
    })
}

/// Returns the form of `set` for words in another order or form: `set share=4 class`, `set class share 4`.
pub(super) fn form_of_settings(mistake: &UsageMistake<'_>) -> Option<String> {
    if mistake.command != "set" {
        return None;
    }
    let own = mistake.own_words();
    let (mut others, mut settings) = (Vec::new(), Vec::new());
    let mut words = own.iter();
    while let Some(word) = words.next() {
        let bare = word.trim_start_matches('-');
        if bare.matches('=').count() > 1 && bare.contains(',') {
            settings.extend(bare.split(',').map(str::to_owned));
        } else if let Some((name, value)) = bare.split_once(['=', ':'])
            && find_setting(name).is_some()
        {
            settings.push(format!("{name}={value}"));
        } else if find_setting(bare).is_some() {
            settings.push(format!("{bare}={}", words.next()?));
        } else {
            others.push(word.clone());
        }
    }
    if settings.is_empty() {
        let live = join_words(&SettingAssignment::live_keys(), "and");
        let is_missing = mistake.lacks("<KEY=VALUE>") && !others.is_empty();
        return is_missing.then(|| {
            let others = others.join(" ");
            format!("run `mig-mps set {others} KEY=VALUE`; the settings are {live}")
        });
    }
    let wrong = settings
        .iter()
        .find(|setting| SettingAssignment::from_str(setting).is_err());
    if let Some(wrong) = wrong {
        let device = others.first().map_or("DEVICE", String::as_str);
        return form_of_zero(wrong, device);
    }
    let has_device = others.first().is_some_and(|first| {
        !first.starts_with('-') || others.iter().any(|word| word.starts_with("--gpu"))
    });
    if !has_device {
        others.insert(0, "DEVICE".to_owned());
    }
    let meant = [others, settings].concat();
    let quoted: Vec<String> = meant.iter().map(|word| quote_for_shell(word)).collect();
    (meant != own).then(|| format!("write `mig-mps set {}`", quoted.join(" ")))
}
