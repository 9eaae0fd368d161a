use super::table::{Column, Table};
use crate::catalog::BuiltIn;

/// Formats the list of built-in profiles.
pub fn text(profiles: &[BuiltIn], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("DESCRIPTION", 0),
    ]);
    for profile in profiles {
        table.row(vec![profile.name.to_owned(), profile.summary().to_owned()]);
    }
    table.within(width, "mig-mps profiles NAME")
}
