use std::fmt;
use std::str::FromStr;

use super::ProfileId;

/// A GPU instance profile's name: full (`3g.40gb`, `1g.10gb+me`) or short (`3g`, `1g+me`).
///
/// A short name is the plain profile of that many slices on whatever GPU it meets: right on every
/// model, where the full names differ (`1g.10gb`, `1g.18gb`, `1g.23gb`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileName {
    slices: u32,
    gigabytes: Option<u32>,
    /// Attributes that it has beyond the plain one, or lacks: `+me`, `+gfx`, `+me.all`, `-me`.
    attributes: Vec<String>,
    /// The driver's id, in place of a name that this version cannot read; nothing else is known by the name then.
    id: Option<ProfileId>,
}

impl From<ProfileId> for ProfileName {
    /// The name of a profile that is known only by its id: `profile 83`.
    fn from(id: ProfileId) -> Self {
        Self {
            slices: 0,
            gigabytes: None,
            attributes: Vec::new(),
            id: Some(id),
        }
    }
}

impl ProfileName {
    /// True if the driver's name cannot be read.
    pub fn is_unreadable(&self) -> bool {
        self.id.is_some()
    }

    /// Compute slices: the 3 of `3g.40gb`.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// The memory size it says: the 40 of `3g.40gb`. It is not the memory in GiB, but what the profile
    /// is called by; 0 on GPUs that share the machine's memory.
    pub fn gigabytes(&self) -> Option<u32> {
        self.gigabytes
    }

    /// True if it has no memory size, and so fits any model.
    pub fn is_short(&self) -> bool {
        self.gigabytes.is_none() && !self.is_unreadable()
    }

    /// True if it has that attribute, as it is written: `+me`, `-me`, `+gfx`.
    pub fn has_attribute(&self, attribute: &str) -> bool {
        self.attributes.iter().any(|own| {
            let ((own_sign, words), (sign, word)) = (own.split_at(1), attribute.split_at(1));
            own_sign == sign && words.split(',').any(|own| own == word)
        })
    }

    /// True if it has no attributes: `3g.40gb`, not `1g.10gb+me`.
    pub fn is_plain(&self) -> bool {
        self.attributes.is_empty() && !self.is_unreadable()
    }

    /// True if both have the same attributes.
    pub fn has_attributes_of(&self, other: &Self) -> bool {
        self.attributes == other.attributes
    }

    /// The same profile without its memory size.
    #[must_use]
    pub fn to_short(&self) -> Self {
        Self {
            gigabytes: None,
            ..self.clone()
        }
    }

    /// The one of `offered` that this name means.
    ///
    /// A short name that could mean two sizes (`1g` where there are `1g.10gb` and `1g.20gb`) means
    /// the one with the least memory: the plain profile.
    pub fn find_among<'a, T>(&self, offered: impl IntoIterator<Item = (&'a Self, T)>) -> Option<T> {
        offered
            .into_iter()
            .filter(|(name, _)| self == *name || *self == name.to_short())
            .min_by_key(|(name, _)| name.gigabytes)
            .map(|(_, offer)| offer)
    }

    fn parse_exact(text: &str) -> Option<Self> {
        if let Some(id) = text.strip_prefix("profile ") {
            return parse_number(id).map(|id| ProfileId(id).into());
        }
        let body_end = text.find(['+', '-']).unwrap_or(text.len());
        let (body, mut rest) = text.split_at(body_end);
        let (slices, gigabytes) = match body.split_once('.') {
            Some((slices, memory)) => (slices, Some(parse_with_unit(memory, "gb")?)),
            None => (body, None),
        };
        let slices = parse_with_unit(slices, "g").filter(|slices| *slices > 0)?;
        let mut attributes = Vec::new();
        while !rest.is_empty() {
            let end = rest[1..].find(['+', '-']).map_or(rest.len(), |at| at + 1);
            let (attribute, others) = rest.split_at(end);
            let word = &attribute[1..];
            if word.is_empty()
                || word.contains(|c: char| {
                    !c.is_ascii_lowercase() && !c.is_ascii_digit() && !".,_".contains(c)
                })
            {
                return None;
            }
            attributes.push(attribute.to_owned());
            rest = others;
        }
        Some(Self {
            slices,
            gigabytes,
            attributes,
            id: None,
        })
    }
}

impl FromStr for ProfileName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse_exact(text).ok_or_else(|| {
            // nvidia-smi writes `MIG 1g.10gb`, and people `1g.10GB`.
            let near = text.trim().to_lowercase();
            let near = near.trim_start_matches("mig ");
            if Self::parse_exact(near).is_some() {
                return format!("\"{text}\" is not a profile name: did you mean \"{near}\"?");
            }
            format!("\"{text}\" is not a profile name: expected one like \"3g\", \"3g.40gb\" or \"1g+me\" (`mig-mps \
             list --offers`)")
        })
    }
}

fn parse_with_unit(text: &str, unit: &str) -> Option<u32> {
    parse_number(text.strip_suffix(unit)?)
}

/// Reads a number of at most four digits. No GPU has more, and sums of such numbers cannot overflow.
fn parse_number(digits: &str) -> Option<u32> {
    let is_plain = digits.chars().all(|c| c.is_ascii_digit()) && digits.len() <= 4;
    let is_plain = is_plain && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().ok() } else { None }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = self.id {
            return write!(f, "profile {id}");
        }
        write!(f, "{}g", self.slices)?;
        if let Some(gigabytes) = self.gigabytes {
            write!(f, ".{gigabytes}gb")?;
        }
        f.write_str(&self.attributes.concat())
    }
}

impl serde::Serialize for ProfileName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ProfileName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A compute instance's name within its GPU instance: `1c`, `2c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ComputeName {
    /// Compute slices.
    pub slices: u32,
}

impl ComputeName {
    /// True if a GPU instance of so many slices offers it: every slice, or few enough to leave room
    /// for as many again but one (MIG user guide: 1c and 2c in a 3g, no 3c in a 4g, 4c in a 7g).
    pub fn fits(self, slices: u32) -> bool {
        self.slices == slices || self.slices * 2 <= slices + 1
    }
}

impl FromStr for ComputeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_with_unit(text, "c")
            .filter(|slices| *slices > 0)
            .map(|slices| Self { slices })
            .ok_or_else(|| {
                format!("\"{text}\" is not a compute instance: expected one like \"1c\" or \"2c\"")
            })
    }
}

impl fmt::Display for ComputeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}c", self.slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ProfileName {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_reads_back_as_written() {
        for text in [
            "1g",
            "3g.40gb",
            "1g.10gb+me",
            "1g+me",
            "2g.48gb-me",
            "1g.24gb+me.all",
            "4g.96gb+gfx",
            "1g.0gb+me",
            "1g.10gb+me2,gfx_1",
            "profile 83",
        ] {
            assert_eq!(name(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "g",
            "0g",
            "3",
            "3g.",
            "10000g",
            "3g.10000gb",
            "3g.gb",
            "3g.40",
            "3G.40GB",
            "03g",
            "0g.10gb",
            "1g.00gb",
            "profile",
            "profile x",
            "profile 083",
            "1g+",
            "1g+ME",
            "1c",
            "+me",
            "1g.10gb me",
            "-1g",
            "３g",
        ] {
            assert!(text.parse::<ProfileName>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn a_short_name_means_the_plain_profile() {
        let offered = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb"].map(name);
        let choose = |text: &str| {
            name(text)
                .find_among(offered.iter().map(|name| (name, name.to_string())))
                .unwrap_or_default()
        };
        assert_eq!(choose("1g"), "1g.10gb");
        assert_eq!(choose("1g+me"), "1g.10gb+me");
        assert_eq!(choose("1g.20gb"), "1g.20gb");
        assert_eq!(choose("2g"), "2g.20gb");
        assert_eq!(choose("3g"), "");
        assert_eq!(choose("2g.10gb"), "");
    }
}
