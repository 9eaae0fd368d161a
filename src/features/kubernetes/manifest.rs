//! The manifest of the pods that install mig-mps on their nodes.

use std::fmt::Write as _;
use std::net::{Ipv6Addr, SocketAddr};
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
    /// Name of the daemon set; another one for nodes with another profile
    #[arg(long, help_heading = "Manifest", value_name = "NAME", requires = "manifest", conflicts_with = "list", value_parser = daemon_set_name, default_value = "mig-mps")]
    name: String,
    /// Select nodes with this label, such as mig-mps=true
    #[arg(long, help_heading = "Manifest", value_name = "LABEL", requires = "manifest", conflicts_with = "list", value_parser = label)]
    node_selector: Vec<(String, String)>,
}

/// Reads the name of an image by the rules of container runtimes: `[REGISTRY[:PORT]/]PATH[:TAG][@DIGEST]`.
fn image(text: &str) -> std::result::Result<String, &'static str> {
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    let is_registry = |part: &str| {
        part == "localhost" || part.contains(['.', ':']) || part.to_ascii_lowercase() != part
    };
    let (registry, rest) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (Some(first), rest),
        _ => (None, name),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    if registry.is_none_or(is_address)
        && path.split('/').all(is_image_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
    {
        return Ok(text.to_owned());
    }
    Err("expected the name of an image, such as registry.example/mig-mps:1")
}

/// True for the host of a registry, with or without a port.
fn is_address(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_subdomain(&host.to_ascii_lowercase()),
    };
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok() && !port.starts_with('+'))
}

/// True for a part of an image's path: lower-case words with a separator between two.
fn is_image_part(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |between: &str| matches!(between, "." | "_" | "__") || between.bytes().all(|c| c == b'-');
    text.starts_with(is_word) && text.ends_with(is_word) && text.split(is_word).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= 128
        && text.starts_with(is_word)
        && text.chars().all(|c| is_word(c) || ".-".contains(c))
}

fn is_digest(text: &str) -> bool {
    let (algorithm, digits) = text.split_once(':').unwrap_or_default();
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    digits.len() == length
        && digits
            .bytes()
            .all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads the name of a `DaemonSet`, with room for what follows it in the names of profiles.
fn daemon_set_name(text: &str) -> std::result::Result<String, &'static str> {
    if text.len() > 40 || text.contains('.') || !is_subdomain(text) {
        return Err(
            "expected at most 40 lower-case letters, digits and hyphens, without a hyphen at either end",
        );
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
        if metrics.is_some_and(|address| address.port() == 0) {
            return Err(
                usage_error("--metrics has port 0, which is another port at each start")
                    .with_hint("give --metrics a port, such as 0.0.0.0:19835"),
            );
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
            ("NAME", &self.name),
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
    fn names_of_daemon_sets_are_labels_of_dns() {
        let (longest, too_long) = ("x".repeat(40), "x".repeat(41));
        for text in ["a", "1", "mig-mps-b", &longest] {
            assert!(daemon_set_name(text).is_ok(), "{text}");
        }
        for text in [
            "", "A", "a.b", "a_b", "-a", "a-", "a b", "ä", "a\n", &too_long,
        ] {
            assert!(daemon_set_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn images_have_the_names_that_container_runtimes_accept() {
        let digits = "0f".repeat(32);
        for text in [
            "a",
            "registry.example:5000/a/b_c:1.0-x",
            "mig-mps:1",
            "Registry.Example/a",
            "localhost/a/b__c.d--e:V_1.0",
            "127.0.0.1:5000/a",
            "[::1]/a",
            &format!("[::1]:5000/a@sha256:{digits}"),
            &format!("registry.example/a:1@sha512:{digits}{digits}"),
        ] {
            assert!(image(text).is_ok(), "{text}");
        }
        for text in [
            "",
            " ",
            "a b",
            "a ",
            "a\tb",
            "a\n",
            "a\u{a0}b",
            "a\"b",
            "ä",
            "/",
            "a/",
            "/a",
            "a//b",
            "a:",
            "a:b:c",
            "a:-1",
            "a@b",
            "a@sha256:0f",
            "a@",
            "https://x/y",
            "Registry/Mig-MPS:1",
            "registry.example/Mig-MPS",
            "Mig-MPS",
            "a..b/c",
            "a-",
            "a._b",
            "x.y:z/a",
            "x.y:/a",
            "[::x]/a",
            &format!("a@md5:{digits}"),
            &format!("a@sha256:{}", digits.to_uppercase()),
        ] {
            assert!(image(text).is_err(), "{text}");
        }
    }
}
