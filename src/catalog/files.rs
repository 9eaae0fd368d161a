//! The files of the catalog, and the names a model can be asked for by.
//!
//! The simulated node includes this very file: there is one list.

/// Each with its key and aliases.
pub(super) const FILES: [(&[&str], &str); 24] = [
    (&["a100-40gb"], include_str!("a100-40gb.toml")),
    (&["a100-80gb"], include_str!("a100-80gb.toml")),
    (&["a30-24gb", "a30"], include_str!("a30-24gb.toml")),
    (&["a800-40gb"], include_str!("a800-40gb.toml")),
    (&["a800-80gb"], include_str!("a800-80gb.toml")),
    (&["b200-180gb", "b200"], include_str!("b200-180gb.toml")),
    (&["b300-269gb", "b300"], include_str!("b300-269gb.toml")),
    (&["gb200-186gb", "gb200"], include_str!("gb200-186gb.toml")),
    (&["gb300-278gb", "gb300"], include_str!("gb300-278gb.toml")),
    (&["gh200-144gb"], include_str!("gh200-144gb.toml")),
    (&["gh200-96gb"], include_str!("gh200-96gb.toml")),
    (&["h100-64gb-sxm"], include_str!("h100-64gb-sxm.toml")),
    (&["h100-80gb-pcie"], include_str!("h100-80gb-pcie.toml")),
    (
        &["h100-80gb-sxm", "h100"],
        include_str!("h100-80gb-sxm.toml"),
    ),
    (&["h100-94gb-nvl"], include_str!("h100-94gb-nvl.toml")),
    (&["h100-94gb-sxm"], include_str!("h100-94gb-sxm.toml")),
    (&["h20-141gb-3e"], include_str!("h20-141gb-3e.toml")),
    (&["h20-96gb"], include_str!("h20-96gb.toml")),
    (&["h200-141gb-nvl"], include_str!("h200-141gb-nvl.toml")),
    (
        &["h200-141gb-sxm", "h200"],
        include_str!("h200-141gb-sxm.toml"),
    ),
    (&["h800-80gb"], include_str!("h800-80gb.toml")),
    (&["h800-94gb-nvl"], include_str!("h800-94gb-nvl.toml")),
    (&["pg506-96gb"], include_str!("pg506-96gb.toml")),
    (
        &["rtx-pro-6000-96gb", "rtx-pro-6000"],
        include_str!("rtx-pro-6000-96gb.toml"),
    ),
];

/// The facts about the models without a file.
pub(super) const INCOMPLETE: &str = include_str!("incomplete.toml");
