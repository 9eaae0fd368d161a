//! The manifest of the pods that install mig-mps on their nodes.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::path::Path;

use clap::Args;

use crate::commands::args::ProfileSource;
use crate::error::Result;

/// The directory of most kubelets.
pub const USUAL_KUBELET: &str = "/var/lib/kubelet";

/// What a manifest is made of.
#[derive(Args, Debug)]
pub struct ManifestArgs {
    /// Print the manifest of pods that install mig-mps and PROFILE on their nodes, for `kubectl apply -f -`, and exit
    #[arg(long, value_name = "PROFILE", conflicts_with = "list")]
    pub manifest: Option<ProfileSource>,
    /// Image of these pods
    #[arg(long, value_name = "NAME", requires = "manifest", default_value = concat!("localhost/mig-mps:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Label of the nodes that get a pod; can be repeated
    #[arg(long, value_name = "LABEL=VALUE", requires = "manifest", value_parser = label)]
    node_selector: Vec<(String, String)>,
}

fn label(text: &str) -> std::result::Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected LABEL=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl ManifestArgs {
    /// Returns the manifest that installs this profile, and a plugin for a kubelet with this directory.
    pub fn manifest_of(
        &self,
        profile: &ProfileSource,
        kubelet: &Path,
        metrics: Option<SocketAddr>,
    ) -> Result<String> {
        let profile = profile.load()?;
        let text = profile.source.text();
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
        let command: Vec<String> = command.into_iter().map(quote).collect();
        let mut selector = String::new();
        for (name, value) in &self.node_selector {
            let head = if selector.is_empty() {
                "      nodeSelector:\n"
            } else {
                ""
            };
            let _ = writeln!(selector, "{head}        {}: {}", quote(name), quote(value));
        }
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        let revision = format!("{:016x}", hasher.hash_one((version, text)));
        // The profile last: it may hold anything.
        Ok(include_str!("manifest.yaml")
            .replace("@VERSION@", &quote(version))
            .replace("@REVISION@", &quote(&revision))
            .replace("@SELECTOR@", &selector)
            .replace("@IMAGE@", &quote(&self.image))
            .replace("@COMMAND@", &format!("[{}]", command.join(", ")))
            .replace("@PROFILE@", &yaml_text(text)))
    }
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
