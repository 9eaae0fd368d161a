//! The reason why a driver offers no MIG on a GPU of a model that has it.

use super::find::models_with;
use super::incomplete;

/// The likely reason why a GPU has no MIG, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMig {
    pub cause: String,
    pub remedy: &'static str,
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
            cause: "the GPU may be in display mode, or its VBIOS too old for MIG".to_owned(),
            remedy: "switch it to compute mode with `displaymodeselector --gpumode compute` and reboot; \
                     this turns its display outputs off",
        },
        None => NoMig {
            cause: "the GPU may be a virtual one, or passed through without MIG".to_owned(),
            remedy: "in a virtual machine ask its host; elsewhere `sudo dmesg | grep NVRM` may tell more",
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
