use std::fmt;
use std::str::FromStr;

use super::text::serde_as_text;

/// The device memory that each client may allocate, in whole MiB.
///
/// The control program takes only whole numbers with M or G, and silently misreads anything else: `1.5G` as 1M,
/// `512K` as 512M (measured on drivers 555 to 595). It only ever gets [`in_mebibytes`](Self::in_mebibytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryLimit {
    mebibytes: u64,
}

/// More than any device has. The control program would take it.
const MAX_MEBIBYTES: u64 = 1 << 20;

impl MemoryLimit {
    /// Returns the limit of so many MiB, if there can be such a limit.
    pub fn from_mebibytes(mebibytes: u64) -> Option<Self> {
        (1..=MAX_MEBIBYTES)
            .contains(&mebibytes)
            .then_some(Self { mebibytes })
    }

    /// Returns the form for the control program: `1536M`.
    pub fn in_mebibytes(self) -> String {
        format!("{}M", self.mebibytes)
    }

    pub fn bytes(self) -> u64 {
        self.mebibytes << 20
    }
}

/// A limit as the control program answers it: `512M`, `1G`.
///
/// From 1 GiB on it rounds down to whole GiB, although the limit itself is exact (measured on drivers 535 to 615): 1536M
/// reads back as 1G. Only the server says exactly, in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    mebibytes: u64,
    is_rounded: bool,
}

impl LimitAnswer {
    /// Reads the control program's answer.
    pub fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (number, unit, is_rounded) = match line.strip_suffix('M') {
            Some(number) => (number, 1, false),
            None => (line.strip_suffix('G')?, 1 << 10, true),
        };
        Some(Self {
            mebibytes: number.parse::<u64>().ok()?.checked_mul(unit)?,
            is_rounded,
        })
    }

    /// The same answer, made exact by what a server logged, where that rounds to it.
    #[must_use]
    pub fn with_exact_bytes(self, logged_bytes: u64) -> Self {
        let mebibytes = logged_bytes >> 20;
        if self.is_rounded && mebibytes >> 10 == self.mebibytes >> 10 {
            return Self {
                mebibytes,
                is_rounded: false,
            };
        }
        self
    }

    /// True if an answer cannot be that to this limit. Limits within the same GiB have the same answer.
    pub fn differs(answer: Option<Self>, limit: Option<MemoryLimit>) -> bool {
        match (answer, limit) {
            (Some(answer), Some(limit)) if answer.is_rounded => {
                answer.mebibytes >> 10 != limit.mebibytes >> 10
            }
            (answer, limit) => answer.map(Self::lower_bound) != limit,
        }
    }

    /// Returns the text that reads as this answer.
    pub fn format_answer(self) -> String {
        if self.is_rounded {
            format!("{}G", self.mebibytes >> 10)
        } else {
            format!("{}M", self.mebibytes)
        }
    }

    /// The limit, or the least that it can be.
    pub fn lower_bound(self) -> MemoryLimit {
        MemoryLimit {
            mebibytes: self.mebibytes,
        }
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

    /// Reads `512M`, `1.5G`, `20GiB`, `20Gi`, and `0=20G`, which is NVIDIA's form. The units are binary, as the control
    /// program's are.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        // A client sees one device, which is number 0.
        let text = text.strip_prefix("0=").unwrap_or(text);
        if text.contains('=') || text.contains(',') {
            return Err("it is the size for one device, as in 20G".to_owned());
        }
        if text.ends_with('%') {
            return Err(
                "the limit must be a size, such as 20G; in a profile, share = 2 gives each client a half".to_owned(),
            );
        }
        let digits = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start().to_ascii_lowercase();
        let shift = match unit.as_str() {
            "m" | "mi" | "mib" => 0,
            "g" | "gi" | "gib" => 10,
            "t" | "ti" | "tib" => 20,
            "" if !number.is_empty() => return Err(missing_unit(number)),
            "mb" | "gb" | "tb" => {
                let unit = unit[..1].to_uppercase();
                return Err(format!(
                    "its unit is M (MiB) or G (GiB), as in {number}{unit}"
                ));
            }
            _ => {
                return Err(
                    "expected a size with the unit M (MiB) or G (GiB), such as 512M, 1.5G or 20GiB"
                        .to_owned(),
                );
            }
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.contains('.') && (whole.is_empty() || fraction.is_empty())
            || fraction.contains('.')
        {
            return Err(format!("{number} is not a number"));
        }
        // Exactly: a sum of binary fractions would not tell 0.1G from a whole number of MiB.
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 10 {
            return Err(not_whole(text));
        }
        let scale = 10_u64.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let whole = parse_digits(whole)
            .filter(|whole| *whole <= MAX_MEBIBYTES)
            .ok_or_else(too_large)?;
        let scaled = parse_digits(fraction).unwrap_or(0) << shift;
        if !scaled.is_multiple_of(scale) {
            return Err(not_whole(text));
        }
        match (whole << shift) + scaled / scale {
            0 => Err("a limit of 0 leaves clients no memory".to_owned()),
            mebibytes if mebibytes > MAX_MEBIBYTES => Err(too_large()),
            mebibytes => Ok(Self { mebibytes }),
        }
    }
}

/// The error of a number alone: NVML's are bytes, Slurm's and those of nvidia-smi are MiB.
fn missing_unit(number: &str) -> String {
    match number.parse::<u64>() {
        Ok(0) => "use \"none\" to remove the limit".to_owned(),
        Ok(bytes) if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("it has no unit: {}M, if these are bytes?", bytes >> 20)
        }
        _ => format!("it has no unit: {number}M or {number}G?"),
    }
}

/// Reads digits; none are 0.
fn parse_digits(digits: &str) -> Option<u64> {
    format!("0{digits}").parse().ok()
}

fn too_large() -> String {
    format!(
        "it is more than the memory of any device ({}G)",
        MAX_MEBIBYTES >> 10
    )
}

fn not_whole(text: &str) -> String {
    format!("{text} is not a whole number of MiB, which MPS requires")
}

serde_as_text!(MemoryLimit);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_comes_to_whole_mebibytes() {
        for (text, written) in [
            ("512M", "512M"),
            ("512MiB", "512M"),
            ("1.5G", "1536M"),
            ("1.50G", "1536M"),
            ("20GiB", "20480M"),
            ("20 GiB", "20480M"),
            ("20Gi", "20480M"),
            (" 20g ", "20480M"),
            ("40960mib", "40960M"),
            ("0.5T", "524288M"),
            ("0=20G", "20480M"),
            ("0.5G", "512M"),
            ("0.0009765625G", "1M"),
            ("1024G", "1048576M"),
        ] {
            let limit: MemoryLimit = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(limit.in_mebibytes(), written, "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit), "{text}");
        }
    }

    /// From a recording on an H200 with driver 580: what was set, what read back, what the server logged.
    #[test]
    fn only_the_log_distinguishes_whole_gibibytes() {
        for (set, answer, logged) in [
            ("1536M", "1G", 0x6000_0000),
            ("1023M", "1023M", 0x3ff0_0000),
            ("2G", "2G", 0x8000_0000),
            ("5000M", "4G", 0x1_3880_0000),
        ] {
            let limit: MemoryLimit = set.parse().unwrap();
            let answer = LimitAnswer::parse(answer);
            assert!(!LimitAnswer::differs(answer, Some(limit)), "{set}");
            let exact = answer.map(|answer| answer.with_exact_bytes(logged));
            assert_eq!(exact.map(LimitAnswer::lower_bound), Some(limit));
        }
        let differs = |answer: &str, limit: &str| {
            LimitAnswer::differs(LimitAnswer::parse(answer), limit.parse().ok())
        };
        assert!(!differs("1G", "1G") && !differs("1G", "2047M"));
        assert!(differs("1G", "2G") && differs("1G", "1023M") && differs("1023M", "1022M"));
        assert!(differs("", "1G") && differs("1G", "none") && !differs("", "none"));
        let one = LimitAnswer::parse("1G").unwrap();
        let another = Some(one.with_exact_bytes(0x5000_0000));
        assert!(LimitAnswer::differs(another, "1536M".parse().ok()));
        assert_eq!(
            one.with_exact_bytes(0x8000_0000),
            one,
            "that of an earlier setting"
        );
        assert_eq!(LimitAnswer::parse(""), None);
    }

    #[test]
    fn what_the_control_program_would_misread_is_refused() {
        for (text, why) in [
            ("100", "it has no unit: 100M or 100G?"),
            (
                "512K",
                "expected a size with the unit M (MiB) or G (GiB), such as 512M, 1.5G or 20GiB",
            ),
            ("0", "use \"none\" to remove the limit"),
            ("1572864", "it has no unit: 1572864M or 1572864G?"),
            ("21474836480", "it has no unit: 20480M, if these are bytes?"),
            (
                "50%",
                "the limit must be a size, such as 20G; in a profile, share = 2 gives each client a half",
            ),
            ("0=1G,1=2G", "it is the size for one device, as in 20G"),
            ("MIG-1=1G", "it is the size for one device, as in 20G"),
            ("2 GB", "its unit is M (MiB) or G (GiB), as in 2G"),
            ("2GB", "its unit is M (MiB) or G (GiB), as in 2G"),
            (
                "0.1G",
                "0.1G is not a whole number of MiB, which MPS requires",
            ),
            (
                "0.00000000001G",
                "0.00000000001G is not a whole number of MiB, which MPS requires",
            ),
            ("0G", "a limit of 0 leaves clients no memory"),
            ("9999G", "it is more than the memory of any device (1024G)"),
            (
                "99999999999999999999G",
                "it is more than the memory of any device (1024G)",
            ),
            ("1.G", "1. is not a number"),
            (".5G", ".5 is not a number"),
            ("1.2.3G", "1.2.3 is not a number"),
            (
                "-1G",
                "expected a size with the unit M (MiB) or G (GiB), such as 512M, 1.5G or 20GiB",
            ),
            (
                "",
                "expected a size with the unit M (MiB) or G (GiB), such as 512M, 1.5G or 20GiB",
            ),
        ] {
            assert_eq!(text.parse::<MemoryLimit>(), Err(why.to_owned()), "{text}");
        }
    }
}
