//! The map of the code in CONTRIBUTING.md: its tables are the one list of layers, modules and features.

use std::collections::BTreeSet;

/// The module with a folder for each feature. Features do not import each other.
pub(crate) const FEATURES: &str = "features";

/// The layers and features of the map.
#[derive(Debug, PartialEq)]
pub(crate) struct Map {
    /// The modules of each layer, from the lowest up.
    layers: Vec<Vec<String>>,
    features: Vec<String>,
}

impl Map {
    /// Reads the tables `| layer | module | … |` and `| feature | … |` of a document.
    ///
    /// # Panics
    ///
    /// If a table is missing, a row has another form, or a module has two rows.
    pub(crate) fn parse(text: &str) -> Self {
        let mut layers: Vec<Vec<String>> = Vec::new();
        for row in table(text, "layer") {
            let number: usize = row[0].parse().expect("the number of a layer");
            if number == layers.len() + 1 {
                layers.push(Vec::new());
            }
            assert_eq!(number, layers.len(), "layers are numbered in order");
            layers[number - 1].extend(names(row[1]));
        }
        let features = table(text, "feature")
            .into_iter()
            .flat_map(|row| names(row[0]));
        let map = Self {
            features: features.collect(),
            layers,
        };
        let rows = map.layers.iter().flatten().count() + map.features.len();
        assert_eq!(map.modules().len(), rows, "a module has two rows");
        map
    }

    /// The modules that the map has; a feature is `features/NAME`.
    pub(crate) fn modules(&self) -> BTreeSet<String> {
        let features = self.features.iter();
        let features = features.map(|name| format!("{FEATURES}/{name}"));
        self.layers
            .iter()
            .flatten()
            .cloned()
            .chain(features)
            .collect()
    }

    /// The number of a module's layer, from 0. A feature has that of `features`.
    pub(crate) fn layer(&self, module: &str) -> Option<usize> {
        let module = module.split('/').next()?;
        let has_it = |layer: &Vec<String>| layer.iter().any(|name| name == module);
        self.layers.iter().position(has_it)
    }

    /// True if a module may import another: itself, and those of lower layers.
    pub(crate) fn may_import(&self, from: &str, to: &str) -> bool {
        match (self.layer(from), self.layer(to)) {
            _ if from == to => true,
            (Some(from), Some(to)) => to < from,
            // `lib.rs` passes on any module; no file imports what is in no module.
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }
}

/// The cells of each row of the table whose first heading is given.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let head = format!("| {heading} |");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&head));
    let heads = lines.next();
    assert!(heads.is_some(), "no table has the heading {heading}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// The names in backquotes of a cell.
fn names(cell: &str) -> Vec<String> {
    let names: Vec<String> = cell
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    assert!(!names.is_empty(), "no name in the cell {cell:?}");
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "\
text about `other`\n
| layer | module | what is in it |
|---|---|---|
| 1 | `host` | processes |
| 1 | `settings` | not `host` |
| 2 | `node` | a snapshot |
| 3 | `features` | below |
| 4 | `cli`, `main` | the program |\n
| feature | what is in it |
|---|---|
| `doctor` | checks |
| `run` | programs |
";

    #[test]
    fn the_tables_are_read() {
        let map = Map::parse(SMALL);
        let layers: [&[&str]; 4] = [
            &["host", "settings"],
            &["node"],
            &["features"],
            &["cli", "main"],
        ];
        assert_eq!(map.layers, layers);
        assert_eq!(map.features, ["doctor", "run"]);
        let modules = map.modules();
        assert_eq!(modules.len(), 8);
        assert!(modules.contains("features/run") && modules.contains("main"));
        assert_eq!(map.layer("features/run"), Some(2));
        assert_eq!(map.layer("other"), None);
    }

    #[test]
    fn imports_go_down() {
        let map = Map::parse(SMALL);
        assert!(map.may_import("node", "host"));
        assert!(map.may_import("node", "node"));
        assert!(map.may_import("features/run", "node"));
        assert!(map.may_import("cli", "features"));
        assert!(map.may_import("lib", "cli"));
        assert!(!map.may_import("host", "node"));
        assert!(!map.may_import("host", "settings"));
        assert!(!map.may_import("node", "features"));
        assert!(!map.may_import("features/run", "features"));
        assert!(!map.may_import("lib", "other"));
    }

    #[test]
    #[should_panic(expected = "layers are numbered in order")]
    fn a_skipped_number_is_refused() {
        Map::parse(&SMALL.replace("| 2 |", "| 3 |"));
    }

    #[test]
    #[should_panic(expected = "a module has two rows")]
    fn a_second_row_is_refused() {
        Map::parse(&SMALL.replace("`node`", "`host`"));
    }

    #[test]
    #[should_panic(expected = "no table has the heading feature")]
    fn a_missing_table_is_refused() {
        Map::parse(&SMALL.replace("| feature |", "| features |"));
    }

    #[test]
    #[should_panic(expected = "no name in the cell")]
    fn a_row_without_a_name_is_refused() {
        Map::parse(&SMALL.replace("`node`", "node"));
    }
}
