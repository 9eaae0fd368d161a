//! Values that records and profiles hold as text.

use std::fmt::Display;

use thiserror::Error;

/// Makes serde read and write a type as its text, by `FromStr` and `Display`.
macro_rules! serde_as_text {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// Gives an enum the words of its values.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every value, as a profile writes it.
            pub const WORDS: &[&str] = &[$($word),+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $word),+
                })
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::settings::WrongValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::settings::WrongValue::Word(Self::WORDS)),
                }
            }
        }

        $crate::settings::text::serde_as_text!($name);
    };
}

pub(super) use {serde_as_text, words};

/// The reason why a text is no value of a setting.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WrongValue {
    /// It is none of these words.
    #[error("not one of \"{}\"", .0.join("\", \""))]
    Word(&'static [&'static str]),
    /// It is no number of this range: `from 1 to 1024`.
    #[error("must be {0}")]
    Range(String),
    /// Another reason, in words.
    #[error("{0}")]
    Other(String),
}

impl WrongValue {
    /// Describes the text as a value of the setting with that name.
    pub fn describe_for(&self, name: &str, text: &str) -> String {
        match self {
            Self::Word(_) => format!("{name} = \"{text}\" is {self}"),
            Self::Range(_) => format!("{name} {self}"),
            Self::Other(_) => format!("{name} = \"{text}\": {self}"),
        }
    }
}

impl From<String> for WrongValue {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// Shows a value, or the word for none.
pub fn display_or(value: Option<impl Display>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}
