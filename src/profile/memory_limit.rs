use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How much device memory each client may allocate, in whole MiB.
///
/// The control program takes whole numbers with M or G alone, and reads anything else as something
/// else without a word: `1.5G` as 1M, `512K` as 512M (measured on drivers 555 to 595). So it is only ever
/// told [`in_mebibytes`](Self::in_mebibytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MemoryLimit {
    mebibytes: u64,
}

/// More than any device has. The control program would take it.
const MOST: u64 = 1 << 20;

impl MemoryLimit {
    /// As the control program is told: `1536M`.
    pub fn in_mebibytes(self) -> String {
        format!("{}M", self.mebibytes)
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.mebibytes << 20
    }

    /// Reads the control program's answer, `512M` or `2G`.
    pub fn answered(line: &str) -> Option<Self> {
        let line = line.trim();
        let (number, shift) = match line.strip_suffix('M') {
            Some(number) => (number, 0),
            None => (line.strip_suffix('G')?, 10),
        };
        let number: u64 = number.parse().ok()?;
        let mebibytes = number.checked_mul(1 << shift)?;
        Some(Self { mebibytes })
    }
}

/// The shortest spelling that [`from_str`](Self::from_str) reads: `20G`, `1536M`.
impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mebibytes.is_multiple_of(1 << 10) {
            write!(f, "{}G", self.mebibytes >> 10)
        } else {
            write!(f, "{}M", self.mebibytes)
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    /// Reads `512M`, `1.5G`, `20GiB`. Both units are binary, as the control program's are.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim_start() {
            "M" | "MiB" => 0,
            "G" | "GiB" => 10,
            "" if !number.is_empty() => {
                return Err(format!("it has no unit: {number}M or {number}G?"));
            }
            "MB" | "GB" | "m" | "g" | "mb" | "gb" | "Mi" | "Gi" => {
                let unit = unit.trim_start()[..1].to_uppercase();
                return Err(format!("its unit is M (MiB) or G (GiB): {number}{unit}?"));
            }
            _ => {
                return Err(
                    "it is a number with M (MiB) or G (GiB), as in 512M, 1.5G, 20GiB".to_owned(),
                );
            }
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.contains('.') && (whole.is_empty() || fraction.is_empty())
            || fraction.contains('.')
        {
            return Err(format!("{number} is not a number"));
        }
        let too_large = || format!("it is more than any device has ({}G)", MOST >> 10);
        // Exactly: a sum of binary fractions would not tell 0.1G from a whole number of MiB.
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 10 {
            return Err(not_whole(text));
        }
        let scale = 10_u64.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let parse = |digits: &str| -> Option<u64> {
            if digits.is_empty() {
                Some(0)
            } else {
                digits.parse().ok()
            }
        };
        let whole = parse(whole)
            .filter(|whole| *whole <= MOST)
            .ok_or_else(too_large)?;
        let scaled = (parse(fraction).unwrap_or(0)) << shift;
        if scaled % scale != 0 {
            return Err(not_whole(text));
        }
        match (whole << shift) + scaled / scale {
            0 => Err("a limit of nothing leaves clients no memory at all".to_owned()),
            mebibytes if mebibytes > MOST => Err(too_large()),
            mebibytes => Ok(Self { mebibytes }),
        }
    }
}

fn not_whole(text: &str) -> String {
    format!("{text} is not a whole number of MiB, which is what MPS takes")
}

impl From<MemoryLimit> for String {
    fn from(limit: MemoryLimit) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for MemoryLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_comes_to_whole_mebibytes() {
        for (text, told) in [
            ("512M", "512M"),
            ("512MiB", "512M"),
            ("1.5G", "1536M"),
            ("1.50G", "1536M"),
            ("20GiB", "20480M"),
            ("20 GiB", "20480M"),
            ("0.5G", "512M"),
            ("0.0009765625G", "1M"),
            ("1024G", "1048576M"),
        ] {
            let limit: MemoryLimit = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(limit.in_mebibytes(), told, "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit), "{text}");
            assert_eq!(MemoryLimit::answered(told), Some(limit), "{text}");
        }
        assert_eq!(MemoryLimit::answered("2G"), "2048M".parse().ok());
        assert_eq!(MemoryLimit::answered(""), None);
    }

    #[test]
    fn what_the_control_program_would_misread_is_refused() {
        for (text, why) in [
            ("100", "it has no unit: 100M or 100G?"),
            (
                "512K",
                "it is a number with M (MiB) or G (GiB), as in 512M, 1.5G, 20GiB",
            ),
            ("2g", "its unit is M (MiB) or G (GiB): 2G?"),
            ("2GB", "its unit is M (MiB) or G (GiB): 2G?"),
            (
                "0.1G",
                "0.1G is not a whole number of MiB, which is what MPS takes",
            ),
            (
                "0.00000000001G",
                "0.00000000001G is not a whole number of MiB, which is what MPS takes",
            ),
            ("0G", "a limit of nothing leaves clients no memory at all"),
            ("9999G", "it is more than any device has (1024G)"),
            (
                "99999999999999999999G",
                "it is more than any device has (1024G)",
            ),
            ("1.G", "1. is not a number"),
            (".5G", ".5 is not a number"),
            ("1.2.3G", "1.2.3 is not a number"),
            (
                "-1G",
                "it is a number with M (MiB) or G (GiB), as in 512M, 1.5G, 20GiB",
            ),
            (
                "",
                "it is a number with M (MiB) or G (GiB), as in 512M, 1.5G, 20GiB",
            ),
        ] {
            assert_eq!(text.parse::<MemoryLimit>(), Err(why.to_owned()), "{text}");
        }
    }
}
