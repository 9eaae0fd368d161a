use super::format::behind;
use crate::catalog::BuiltIn;

/// Formats the list of built-in profiles.
pub fn text(profiles: &[BuiltIn], width: usize) -> String {
    let widest = profiles.iter().map(|profile| profile.name.len()).max();
    let widest = widest.unwrap_or(0);
    let heading = format!("{:widest$}  DESCRIPTION\n", "NAME");
    let rows = profiles.iter().map(|profile| {
        let head = format!("{:widest$}  ", profile.name);
        behind(&head, profile.summary(), width)
    });
    [heading].into_iter().chain(rows).collect()
}
