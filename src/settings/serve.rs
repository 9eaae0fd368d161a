use std::fmt;
use std::str::FromStr;

use super::WrongValue;
use super::text::serde_as_text;

/// The users that a device serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serve {
    /// Any user, one user at a time: the MPS default. A second user's program waits in `cuInit`.
    OneAtATime,
    /// Every user at once through one shared server (`-multiuser-server`): one fault domain.
    All,
    /// The members of a group at once, through one shared server of root's that only they can reach.
    Group(String),
    /// One user alone, whose daemon it is: that user may change every limit.
    User(String),
    /// The user who runs the daemon, alone.
    Own,
}

impl Serve {
    /// Every value, as it is written.
    pub const WORDS: &[&str] = &["one-at-a-time", "all", "group:NAME", "user:NAME", "self"];

    /// True if one server of root serves several users at once (`-multiuser-server`).
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::All | Self::Group(_))
    }
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneAtATime => f.write_str("one-at-a-time"),
            Self::All => f.write_str("all"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Own => f.write_str("self"),
        }
    }
}

impl FromStr for Serve {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || ":/,".contains(c);
        let is_name = |name: &str| !name.is_empty() && !name.contains(is_odd);
        match (text, text.split_once(':')) {
            ("one-at-a-time", _) => Ok(Self::OneAtATime),
            ("all", _) => Ok(Self::All),
            ("self", _) => Ok(Self::Own),
            (_, Some(("user", name))) if is_name(name) => Ok(Self::User(name.to_owned())),
            (_, Some(("group", name))) if is_name(name) => Ok(Self::Group(name.to_owned())),
            (_, Some(("user" | "group", names))) if names.contains([',', ' ']) => {
                Err(WrongValue::Other(
                    "it names one user or one group; \"group:NAME\" is for several users"
                        .to_owned(),
                ))
            }
            _ => Err(WrongValue::Word(Self::WORDS)),
        }
    }
}

serde_as_text!(Serve);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_group_has_a_name_of_one_word() {
        let wrong = ["", "a b", "a/b", "a:b", "a,b", "a\tb"];
        for text in wrong
            .iter()
            .flat_map(|name| [format!("user:{name}"), format!("group:{name}")])
        {
            assert!(text.parse::<Serve>().is_err(), "{text}");
        }
        assert_eq!(
            "user:a-b.c_1".parse().ok(),
            Some(Serve::User("a-b.c_1".into()))
        );
        assert_eq!("group:lab$".parse().ok(), Some(Serve::Group("lab$".into())));
    }
}
