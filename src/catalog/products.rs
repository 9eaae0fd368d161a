use super::models::{incomplete, models};
use super::pci::{Board, PciId};

/// NVML's names for the boards with that device id, and that subsystem id where one is given.
///
/// More names than one where several boards have the id, or where nobody has published which name
/// of its model it goes with. None where the catalog does not know the id.
pub fn products_of(device: PciId, subsystem: Option<PciId>) -> Vec<&'static str> {
    let mut products = Vec::new();
    for model in models()
        .iter()
        .filter(|m| m.pci_device_ids.contains(&device))
    {
        let of_device = |board: &&Board| board.device == device;
        let fits = |board: &&Board| {
            let known = subsystem.filter(|_| !board.subsystems.is_empty());
            known.is_none_or(|id| board.subsystems.contains(&id))
        };
        if model.boards.iter().any(|board| of_device(&board)) {
            let boards = model.boards.iter().filter(of_device).filter(fits);
            products.extend(boards.map(|board| board.product.as_str()));
        } else {
            products.extend(model.product_names.iter().map(String::as_str));
        }
    }
    for model in incomplete()
        .iter()
        .filter(|m| m.pci_device_ids.contains(&device))
    {
        let known = subsystem.filter(|_| !model.pci_subsystems.is_empty());
        if known.is_none_or(|id| model.pci_subsystems.contains(&id)) {
            products.extend(model.product_names.iter().map(String::as_str));
        }
    }
    products.sort_unstable();
    products.dedup();
    products
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(device: &str, subsystem: Option<&str>) -> Vec<&'static str> {
        products_of(
            device.parse().unwrap(),
            subsystem.map(|id| id.parse().unwrap()),
        )
    }

    #[test]
    fn an_id_means_its_boards_and_no_others_of_the_model() {
        assert_eq!(products("0x20B510DE", None), ["NVIDIA A100 80GB PCIe"]);
        assert_eq!(
            products("0x20b210de", None),
            ["NVIDIA A100-SXM4-80GB", "NVIDIA PG509-210"]
        );
        let sxm = products("0x20B210DE", Some("0x147F10DE"));
        assert_eq!(sxm, ["NVIDIA A100-SXM4-80GB"]);
        assert_eq!(products("0x20B210DE", Some("0x999910DE")), [""; 0]);
        assert_eq!(products("0x233510DE", None), ["NVIDIA H200"]);
        assert_eq!(products("0x1EB810DE", None), [""; 0]);
    }

    #[test]
    fn boards_have_names_and_ids_of_their_model() {
        for model in models() {
            for board in &model.boards {
                let product = &board.product;
                assert!(model.product_names.contains(product), "{product}");
                assert!(model.pci_device_ids.contains(&board.device), "{product}");
            }
        }
    }
}
