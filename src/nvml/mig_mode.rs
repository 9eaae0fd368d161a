use nvml_wrapper::Device;
use nvml_wrapper::enums::device::{DeviceArchitecture, SampleValue};
use nvml_wrapper::structs::device::FieldId;

use super::ffi::{handle, symbol};
use super::{Code, NvmlError, Session};

/// The MIG mode of a GPU. The two modes differ only while a reset or reboot is due (`nvml.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigMode {
    pub current: bool,
    /// The mode after the next reset.
    pub pending: bool,
}

/// `NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED`
const FIELD_RESETLESS: u32 = 184;

impl Session {
    /// Sets the MIG mode. Returns `activationStatus`, the reason if the mode is pending and not active. The mode must be
    /// read back in any case.
    ///
    /// The call may reset the GPU, which may change handles and the minor number.
    pub fn set_mig_mode(&self, gpu: &str, on: bool) -> Result<Code, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceSetMigMode);
        let activation = self.get(symbol, gpu, |function, activation| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), on.into(), activation) }
        })?;
        Ok(Code(activation))
    }

    /// Reads the MIG mode of a GPU: off if the GPU has no MIG.
    pub fn read_mig_mode(&self, gpu: &str) -> Result<MigMode, NvmlError> {
        let device = self.device(gpu)?;
        Ok(self.mig_mode(&device, gpu)?.unwrap_or(MigMode {
            current: false,
            pending: false,
        }))
    }

    /// True if the MIG mode changes without a reset. On drivers without this query the GPU's architecture decides: Hopper
    /// and later need no reset (MIG user guide).
    pub fn changes_without_reset(&self, gpu: &str) -> Result<bool, NvmlError> {
        let device = self.device(gpu)?;
        let field = self.ask("nvmlDeviceGetFieldValues", gpu, || {
            device.field_values_for(&[FieldId(FIELD_RESETLESS)])
        });
        let value = field.ok().and_then(|values| values.into_iter().next());
        if let Some(Ok(sample)) = value
            && let Ok(value) = sample.value
        {
            return Ok(!matches!(
                value,
                SampleValue::U32(0) | SampleValue::U64(0) | SampleValue::I64(0)
            ));
        }
        let call = "nvmlDeviceGetArchitecture";
        let architecture = self.ask(call, gpu, || device.architecture())?;
        Ok(matches!(
            architecture,
            DeviceArchitecture::Hopper
                | DeviceArchitecture::Blackwell
                | DeviceArchitecture::Unknown
        ))
    }

    /// Returns `None` for a GPU without MIG.
    pub(super) fn mig_mode(
        &self,
        device: &Device<'_>,
        subject: &str,
    ) -> Result<Option<MigMode>, NvmlError> {
        match self.ask("nvmlDeviceGetMigMode", subject, || device.mig_mode()) {
            Ok(mode) => Ok(Some(MigMode {
                current: mode.current == 1,
                pending: mode.pending == 1,
            })),
            Err(NvmlError::TooOld { .. }) => Ok(None),
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
