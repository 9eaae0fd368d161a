//! The order in which Slurm numbers the GPUs of a node.

use super::conf::{Gres, GresError};

/// Returns each type with its count, in the order of their first appearance.
pub(super) fn type_counts<'a>(
    types: impl Iterator<Item = Option<&'a str>>,
) -> Vec<(Option<String>, usize)> {
    let mut counts: Vec<(Option<String>, usize)> = Vec::new();
    for kind in types {
        match counts
            .iter_mut()
            .find(|(known, _)| known.as_deref() == kind)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((kind.map(str::to_owned), 1)),
        }
    }
    counts
}

/// Puts GPUs into Slurm's order: by the types of the node's `Gres=`, and within a type as in gres.conf.
///
/// # Errors
/// There are several types, and `node_gres` is not known or lacks one.
pub fn in_order(gpus: Vec<Gres>, node_gres: Option<&str>) -> Result<Vec<Gres>, GresError> {
    let types = type_counts(gpus.iter().map(|gpu| gpu.kind.as_deref()));
    if types.len() < 2 {
        return Ok(gpus);
    }
    let node_gres = node_gres.ok_or(GresError::NoNodeLine)?;
    let kinds: Vec<&str> = types_of(node_gres).collect();
    let mut ordered = Vec::with_capacity(gpus.len());
    let mut gpus = gpus;
    for kind in kinds {
        let (of_kind, others): (Vec<Gres>, Vec<Gres>) = gpus
            .into_iter()
            .partition(|gpu| gpu.kind.as_deref() == Some(kind));
        ordered.extend(of_kind);
        gpus = others;
    }
    match gpus.first() {
        None => Ok(ordered),
        Some(left) => Err(GresError::NotInNodeLine(
            left.kind
                .clone()
                .unwrap_or_else(|| "without Type".to_owned()),
        )),
    }
}

/// Returns the types of GPUs in `gpu:1g.10gb:4,gpu:3g.40gb:1(S:0),shard:8`.
fn types_of(node_gres: &str) -> impl Iterator<Item = &str> {
    node_gres.split(',').filter_map(|part| {
        let mut words = part.split('(').next()?.split(':');
        let is_gpu = words.next()?.eq_ignore_ascii_case("gpu");
        // A number alone is a count.
        let kind = words.next().filter(|word| word.parse::<u64>().is_err())?;
        is_gpu.then_some(kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Vec<Gres> {
        let all = [
            ("3g", "cap5"),
            ("1g", "cap9"),
            ("1g", "cap2"),
            ("1g", "cap10"),
        ];
        all.map(|(kind, file)| Gres {
            kind: Some(kind.to_owned()),
            files: vec![file.to_owned()],
            count: 1,
        })
        .into()
    }

    fn order(node_gres: Option<&str>) -> String {
        match in_order(gpus(), node_gres) {
            Ok(gpus) => gpus
                .iter()
                .map(|gpu| gpu.files[0].as_str())
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.to_string(),
        }
    }

    /// As Slurm 22.05.8 numbered them, with these very lines.
    #[test]
    fn types_come_as_in_the_line_of_the_node_and_devices_as_in_gres_conf() {
        assert_eq!(
            order(Some("gpu:1g:3,gpu:3g:1,shard:8")),
            "cap9 cap2 cap10 cap5"
        );
        assert_eq!(
            order(Some("gpu:3g:1(S:0),gpu:1g:3(S:0-1)")),
            "cap5 cap9 cap2 cap10"
        );
    }

    #[test]
    fn an_order_that_is_not_known_is_not_guessed() {
        assert!(order(None).contains("slurm.conf"));
        assert!(order(Some("gpu:4")).contains("3g"));
        let one_type = gpus().split_off(1);
        assert_eq!(in_order(one_type.clone(), None).unwrap(), one_type);
    }
}
