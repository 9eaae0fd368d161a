use super::{Gpu, Node};
use crate::catalog::Model;
use crate::nvml::{Memory, MigMode};

impl Node {
    /// A node that is not there: GPUs of these models at these indices, MIG off, nothing served.
    pub fn of_models<'a>(gpus: impl IntoIterator<Item = (u32, &'a Model)>) -> Self {
        let gpus = gpus
            .into_iter()
            .map(|(index, model)| Gpu::of_model(index, model));
        Self {
            gpus: gpus.collect(),
            ..Self::default()
        }
    }
}

impl Gpu {
    /// A GPU that is not there, as the catalog knows its model: MIG off, nothing on it.
    pub fn of_model(index: u32, model: &Model) -> Self {
        let memory = model.memory_total_mib.map(|mib| Memory {
            total: mib << 20,
            used: 0,
        });
        Self {
            index,
            // It has neither; a message that shows all GPUs must still tell them apart.
            uuid: format!("{}#{index}", model.key),
            product: model.product().to_owned(),
            pci: "(catalog)".to_owned(),
            memory,
            utilization: None,
            compute_mode: None,
            mig: Some(MigMode {
                current: false,
                pending: false,
            }),
            resetless: None,
            profiles: model.offers(),
            instances: Vec::new(),
            hidden: None,
        }
    }
}
