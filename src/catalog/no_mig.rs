//! The reason why a driver offers no MIG on a GPU of a model that has it.

use super::find::models_with;
use super::incomplete;

/// The likely reason why a GPU has no MIG, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMig {
    pub cause: String,
    pub remedy: &'static str,
}

/// The names of GPUs whose models have no MIG, besides `GeForce`.
const WITHOUT_MIG: [&str; 30] = [
    "a2", "a10", "a10g", "a10m", "a16", "a40", "a2000", "a4000", "a4500", "a5000", "a5500",
    "a6000", "k80", "l2", "l4", "l20", "l40", "l40g", "l40s", "m10", "m60", "p4", "p40", "p100",
    "t4", "t4g", "t1000", "titan", "v100", "v100s",
];

/// True if these words, in small letters, name a GPU whose model has no MIG.
pub(super) fn names_gpu_without_mig(words: &[String]) -> bool {
    let is_geforce = |word: &str| {
        let is_series = |start: &&str| word.strip_prefix(*start).is_some_and(is_geforce_number);
        ["rtx", "gtx", ""].iter().any(is_series)
    };
    words
        .iter()
        .any(|word| WITHOUT_MIG.contains(&word.as_str()) || is_geforce(word))
}

/// True for the number of a `GeForce` model, such as `4090` or `3080ti`.
fn is_geforce_number(text: &str) -> bool {
    let (series, model) = text.split_at(text.len().min(2));
    let model = model.strip_suffix("ti").unwrap_or(model);
    ["10", "16", "20", "30", "40", "50"].contains(&series)
        && ["50", "60", "70", "80", "90"].contains(&model)
}

/// Returns the reason for a GPU with this product name; `None` if no model of that name has MIG.
pub fn explain_no_mig(product: &str, driver: &str) -> Option<NoMig> {
    let is_named = |names: &[String]| names.iter().any(|name| name == product);
    let complete = models_with(product)
        .filter(|model| is_named(&model.product_names))
        .map(|model| (model.minimum_driver.as_deref(), model.display_mode));
    let others = incomplete()
        .iter()
        .filter(|model| is_named(&model.product_names))
        .map(|model| (model.minimum_driver.as_deref(), model.display_mode));
    let (first, has_display_mode) = complete.chain(others).next()?;
    let older = first.filter(|first| parse_version(driver) < parse_version(first));
    Some(match older {
        Some(first) => NoMig {
            cause: format!("MIG on this model needs driver {first} or newer"),
            remedy: "install a newer driver",
        },
        None if has_display_mode => NoMig {
            cause: "the GPU may be in display mode, or its VBIOS may be too old for MIG".to_owned(),
            remedy: "switch it to compute mode with `displaymodeselector --gpumode compute` and reboot; \
                     this turns its display outputs off",
        },
        None => NoMig {
            cause: "the GPU may be virtual, or passed through without MIG".to_owned(),
            remedy: "run `sudo dmesg | grep NVRM` to find the cause; in a virtual machine, ask its host",
        },
    })
}

/// Returns the numbers of a version.
fn parse_version(version: &str) -> Vec<u32> {
    version
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_comes_before_the_mode_of_a_display() {
        let cause = |product: &str, driver: &str| {
            explain_no_mig(product, driver).map_or_else(String::new, |found| found.cause)
        };
        let workstation = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition";
        assert!(cause(workstation, "575.51.02").contains("575.51.03 or newer"));
        assert!(cause(workstation, "575.51.03").contains("display mode"));
        assert!(cause(workstation, "580.159.04").contains("display mode"));
        assert!(cause("NVIDIA RTX PRO 4500 Blackwell", "580.1").contains("display mode"));
        assert!(cause("NVIDIA A30", "580.1").contains("virtual"));
        assert_eq!(cause("Tesla T4", "580.1"), "");
    }
}
