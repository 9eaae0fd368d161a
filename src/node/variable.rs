use crate::host::Environ;

/// A variable in another process's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The caller may not read it.
    Hidden,
    /// It is not set.
    Unset,
    /// Its value.
    Is(String),
}

impl Variable {
    pub(super) fn of(environ: Option<&Environ>, name: &str) -> Self {
        match environ.map(|environ| environ.get(name)) {
            None => Self::Hidden,
            Some(None) => Self::Unset,
            Some(Some(value)) => Self::Is(value.to_owned()),
        }
    }

    /// Returns its value, if it is set and can be read.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Is(value) => Some(value),
            Self::Hidden | Self::Unset => None,
        }
    }
}
