use std::collections::BTreeMap;

/// Gives out device names on one node: fills `{gpu}` and `{n}` in, and finds double ones.
///
/// `{gpu}` is the GPU's index. `{n}` counts from 0 the devices that would otherwise share the
/// name: on the GPU where the name holds `{gpu}`, on the node where it does not.
#[derive(Debug, Default)]
pub struct Names {
    counts: BTreeMap<String, u32>,
    given: BTreeMap<String, String>,
}

impl Names {
    /// The next name of `template` on the GPU with that index.
    ///
    /// # Errors
    /// Whom the name was given to already.
    pub fn give(&mut self, template: &str, gpu: u32, to: &str) -> Result<String, String> {
        let partly = template.replace("{gpu}", &gpu.to_string());
        let count = self.counts.entry(partly.clone()).or_default();
        let name = partly.replace("{n}", &count.to_string());
        *count += 1;
        match self.given.insert(name.clone(), to.to_owned()) {
            Some(holder) => Err(holder),
            None => Ok(name),
        }
    }
}

/// Whether a text can name a device: it becomes a file name and a word on command lines.
pub fn is_device_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty()
        && text.len() <= 64
        && text.chars().all(plain)
        && !text.starts_with(['.', '-'])
        && !text.starts_with("GPU-")
        && !text.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_counts_per_name_and_gpu() {
        let mut names = Names::default();
        let mut give = |template, gpu| names.give(template, gpu, "x");
        assert_eq!(give("small-{gpu}-{n}", 0), Ok("small-0-0".to_owned()));
        assert_eq!(give("small-{gpu}-{n}", 0), Ok("small-0-1".to_owned()));
        assert_eq!(give("small-{gpu}-{n}", 1), Ok("small-1-0".to_owned()));
        assert_eq!(give("w{n}", 0), Ok("w0".to_owned()));
        assert_eq!(give("w{n}", 1), Ok("w1".to_owned()));
        assert_eq!(give("w1", 1), Err("x".to_owned()));
    }

    #[test]
    fn a_device_name_is_a_plain_file_name_and_no_uuid() {
        for good in ["0", "0.4", "0.4.c1", "trainer-0", "a_b"] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-x",
            "a/b",
            "a b",
            "GPU-1",
            "MIG-1",
            "ü",
            &"x".repeat(65),
        ] {
            assert!(!is_device_name(bad), "{bad}");
        }
    }
}
