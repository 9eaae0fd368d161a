use std::str::FromStr;

/// A number of lines of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    All,
    Last(usize),
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(Self::Last(number)),
            Err(_) if text == "all" => Ok(Self::All),
            Err(_) => Err("expected a number, or all".to_owned()),
        }
    }
}
