use std::fmt;

/// The reason why a text is no value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongValue {
    /// It is none of these words.
    Word(&'static [&'static str]),
    /// It is no number of this range: `from 1 to 1024`.
    Range(String),
    /// Another reason, in words.
    Other(String),
}

impl WrongValue {
    /// Describes the text as a value of the setting with that name.
    pub fn of(&self, name: &str, text: &str) -> String {
        match self {
            Self::Word(_) => format!("{name} = \"{text}\" is {self}"),
            Self::Range(_) => format!("{name} {self}"),
            Self::Other(_) => format!("{name} = \"{text}\": {self}"),
        }
    }
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(words) => write!(f, "not one of \"{}\"", words.join("\", \"")),
            Self::Range(range) => write!(f, "must be {range}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for WrongValue {}

impl From<String> for WrongValue {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}
