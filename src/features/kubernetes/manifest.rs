//! The manifest of the pods that install mig-mps on their nodes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use clap::Args;

use super::offer::MAX_NAME_CHARS;
use crate::commands::args::ProfileSource;
use crate::error::{Result, usage_error};
use crate::host::{Host, fnv1a};
use crate::profile::{Profile, without_mark};

/// The directory of most kubelets.
pub const USUAL_KUBELET: &str = "/var/lib/kubelet";

/// What a manifest is made of.
#[derive(Args, Debug)]
pub struct ManifestArgs {
    /// Print a manifest for nodes [default: /etc/mig-mps/profile.toml]
    #[arg(
        long,
        help_heading = "Manifest",
        value_name = "PROFILE",
        num_args = 0..=1,
        conflicts_with = "list"
    )]
    #[allow(clippy::option_option, reason = "the option may have no value")]
    pub manifest: Option<Option<ProfileSource>>,
    /// Image of the pods
    #[arg(long, help_heading = "Manifest", value_name = "NAME", requires = "manifest", conflicts_with = "list", value_parser = image, default_value = concat!("localhost/mig-mps:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Select nodes with this label, such as mig-mps=true
    #[arg(long, help_heading = "Manifest", value_name = "LABEL", requires = "manifest", conflicts_with = "list", value_parser = label)]
    node_selector: Vec<(String, String)>,
}

/// Reads the name of an image, with the characters that container runtimes accept.
fn image(text: &str) -> std::result::Result<String, &'static str> {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || "._-/:@+[]".contains(c);
    if text.is_empty() || !text.chars().all(is_accepted) {
        return Err("expected the name of an image, such as registry.example/mig-mps:1");
    }
    Ok(text.to_owned())
}

/// Reads a label and its value by the rules of Kubernetes.
fn label(text: &str) -> std::result::Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected LABEL=VALUE")?;
    let (prefix, word) = match name.split_once('/') {
        Some((prefix, word)) => (Some(prefix), word),
        None => (None, name),
    };
    if !is_label_word(word) || !prefix.is_none_or(is_subdomain) {
        return Err("expected the name of a label, such as pool or example.com/pool, before =");
    }
    if !value.is_empty() && !is_label_word(value) {
        return Err(
            "expected the value of a label after =: at most 63 letters, digits and -_., which begin and end with a letter or digit",
        );
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn is_label_word(text: &str) -> bool {
    text.len() <= MAX_NAME_CHARS
        && text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// True for a lower-case name of DNS.
fn is_subdomain(text: &str) -> bool {
    let is_part = |part: &str| {
        part.bytes()
            .all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

impl ManifestArgs {
    /// Returns the manifest that installs this profile, by default that of the boot, and a plugin for a kubelet with this
    /// directory.
    pub fn manifest_of(
        &self,
        profile: Option<&ProfileSource>,
        host: &Host,
        kubelet: &Path,
        metrics: Option<SocketAddr>,
    ) -> Result<String> {
        let profile = match profile {
            Some(named) => named.load()?,
            None => load_boot_profile(host)?,
        };
        let text = without_mark(profile.source.text());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let version = env!("CARGO_PKG_VERSION");
        let mut command = vec!["/bin/busybox", "sh", "/mig-mps/install-on-host.sh"];
        let kubelet = kubelet.to_string_lossy();
        if kubelet != USUAL_KUBELET {
            command.extend(["--kubelet", &*kubelet]);
        }
        let address = metrics.map(|address| address.to_string());
        if let Some(address) = &address {
            command.extend(["--plugin-metrics", address]);
        }
        // The kubelet replaces $(NAME) in a command, and $$ by $.
        let command: Vec<String> = command
            .into_iter()
            .map(|word| quote(&word.replace('$', "$$")))
            .collect();
        let mut selector = String::new();
        for (index, (name, value)) in self.node_selector.iter().enumerate() {
            if self.node_selector[..index]
                .iter()
                .any(|(other, _)| other == name)
            {
                return Err(usage_error(format_args!(
                    "--node-selector has {name} twice"
                )));
            }
            let head = if selector.is_empty() {
                "      nodeSelector:\n"
            } else {
                ""
            };
            let _ = writeln!(selector, "{head}        {}: {}", quote(name), quote(value));
        }
        Ok(fill_template(&[
            ("VERSION", &quote(version)),
            ("REVISION", &format!("{:016x}", fnv1a(text))),
            ("SELECTOR", &selector),
            ("IMAGE", &quote(&self.image)),
            ("COMMAND", &format!("[{}]", command.join(", "))),
            ("PROFILE", &yaml_text(text)),
        ]))
    }
}

/// Returns the template with these values for `@NAME@`. A value may have such a word itself.
fn fill_template(values: &[(&str, &str)]) -> String {
    let value_of = |part: &'static str| {
        values
            .iter()
            .find(|(name, _)| *name == part)
            .map_or(part, |(_, value)| value)
    };
    include_str!("manifest.yaml")
        .split('@')
        .map(value_of)
        .collect()
}

fn load_boot_profile(host: &Host) -> Result<Profile> {
    let boot = host.boot_profile().path();
    if matches!(boot.try_exists(), Ok(false)) {
        let what = format_args!(
            "no profile is selected, and {} does not exist",
            boot.display()
        );
        return Err(usage_error(what)
            .with_hint("give a profile: `mig-mps-device-plugin --manifest PROFILE`"));
    }
    ProfileSource::from(&*boot.to_string_lossy()).load()
}

/// Returns a text as a value of YAML: as a block with an indentation of four, if it has only characters that a block keeps.
fn yaml_text(text: &str) -> String {
    let is_kept = |c| match c {
        '\n' | ' '..='~' => true,
        // Line ends, and characters that YAML does not print.
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        c => c >= '\u{a0}',
    };
    if !text.chars().all(is_kept) {
        return quote(text);
    }
    let end = match text.strip_suffix('\n') {
        None => "-",
        Some(rest) if rest.is_empty() || rest.ends_with('\n') => "+",
        Some(_) => "",
    };
    let mut block = format!("|2{end}");
    for line in text.lines() {
        block.push('\n');
        if !line.is_empty() {
            let _ = write!(block, "    {line}");
        }
    }
    block
}

/// Returns a text in the quotes of YAML.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            ' '..='~' => write!(quoted, "{c}"),
            c => write!(quoted, "\\U{:08x}", u32::from(c)),
        };
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_kubernetes() {
        let (word, too_long) = ("x".repeat(63), "x".repeat(64));
        let domain = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
        for text in [
            "pool=",
            "pool=gpu",
            "A.b_c-9=1.2_x-Y",
            "nvidia.com/gpu.present=true",
            "a-1.b2/x=y",
            &format!("{word}={word}"),
            &format!("{domain}/{word}={word}"),
        ] {
            assert!(label(text).is_ok(), "{text}");
        }
        for text in [
            "pool",
            "=",
            "=x",
            "-a=x",
            "a-=x",
            "a=-x",
            "a=x.",
            "a=x y",
            "a =x",
            "ä=x",
            "a=ä",
            "a=b=c",
            "/a=x",
            "a/=x",
            "a/b/c=x",
            "A/b=x",
            "a_b/c=x",
            "-a/b=x",
            "a-/b=x",
            "a..b/c=x",
            ".a/b=x",
            "a\n=x",
            "a=x\n",
            &format!("{too_long}=x"),
            &format!("x={too_long}"),
            &format!("{domain}a/x=y"),
        ] {
            assert!(label(text).is_err(), "{text}");
        }
    }

    #[test]
    fn images_have_no_blanks() {
        for text in [
            "a",
            "registry.example:5000/a/b_c:1.0-x",
            "[::1]:5000/a@sha256:0f",
        ] {
            assert!(image(text).is_ok(), "{text}");
        }
        for text in ["", " ", "a b", "a ", "a\tb", "a\n", "a\u{a0}b", "a\"b", "ä"] {
            assert!(image(text).is_err(), "{text}");
        }
    }
}
