//! The first line of `status`, and its document: which profile was applied, and whether the node differs from it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::node::{Applied, Node};

/// The profile that was applied last.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProfileDocument {
    /// The name that it gives itself; null for none.
    name: Option<String>,
    /// The path of its file, the name of a built-in profile, or `standard input`.
    path: String,
    /// The time at which it was applied, in UTC, as in RFC 3339.
    #[schemars(with = "String", extend("format" = "date-time"))]
    applied_at: Timestamp,
    /// The user who applied it.
    applied_by: String,
    /// The time at which its last device was taken down; null if some are left.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    taken_down_at: Option<Timestamp>,
    /// True if the node differs from it, and false if nothing that `status` reads does; null if that was not judged.
    differs: Option<bool>,
}

impl ProfileDocument {
    /// Describes the profile of a node; `None` if there is none, or it was not read.
    pub(super) fn from_node(node: &Node) -> Option<Self> {
        let Applied::Known {
            profile,
            taken_down,
            differs,
            ..
        } = &node.applied
        else {
            return None;
        };
        Some(Self {
            name: profile.name.clone(),
            path: profile.path.clone(),
            applied_at: profile.at,
            applied_by: profile.by.clone(),
            taken_down_at: taken_down.as_ref().map(|end| end.at),
            differs: *differs,
        })
    }
}

/// Describes the profile of a node in one line, with each time in words; `None` if there is nothing to say.
pub(super) fn describe_profile(node: &Node, ago: fn(Timestamp) -> String) -> Option<String> {
    let (profile, taken_down, differs, is_of_earlier_boot, is_default) = match &node.applied {
        Applied::NotRead => return None,
        Applied::Nothing if node.devices.is_empty() => return None,
        Applied::Nothing => return Some("no profile is recorded".to_owned()),
        Applied::Unreadable(problem) => {
            let hint = problem
                .hint
                .as_ref()
                .map_or_else(String::new, |hint| format!("; {hint}"));
            return Some(format!("the applied profile is unknown: {problem}{hint}"));
        }
        Applied::Known {
            profile,
            taken_down,
            differs,
            is_of_earlier_boot,
            is_default,
        } => (profile, taken_down, differs, is_of_earlier_boot, is_default),
    };
    let applied = format!(
        "profile {}, applied {} by {}",
        profile.title(),
        ago(profile.at),
        profile.by
    );
    let end = taken_down.as_ref().map_or_else(String::new, |end| {
        format!(", taken down {} by {}", ago(end.at), end.by)
    });
    let plan = if *is_default {
        "`mig-mps plan`"
    } else {
        // Another profile is applied at boot.
        "`mig-mps profiles --applied | mig-mps plan -`"
    };
    let difference = match differs {
        Some(true) if *is_of_earlier_boot => {
            "; nothing was applied since the boot: `mig-mps up`".to_owned()
        }
        Some(true) => format!("; the node differs: {plan}"),
        Some(false) => String::new(),
        // What is taken down is not compared.
        None if taken_down.is_some() => String::new(),
        None => format!("; it is unknown whether the node still matches the profile: {plan}"),
    };
    Some(format!("{applied}{end}{difference}"))
}
