//! The signs of a GPU's health that the driver reports.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;

use super::GpuHandle;
use super::session::symbol;

/// What the driver reports of a GPU's health. Each is `None` if it does not tell: an older driver lacks the call, or the GPU
/// has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuHealth {
    /// Not told of a GPU with MIG instances (`nvml.h`).
    pub remapped_rows: Option<RemappedRows>,
    /// True if pages of memory are to be retired at the next reboot. Asked only of a GPU that tells no rows: GPUs before
    /// Ampere retire pages, and do not remap rows.
    pub are_retired_pages_pending: Option<bool>,
    /// Told by driver 570 and newer.
    pub recovery: Option<RecoveryAction>,
    /// True if the ECC mode is another one after the next reboot.
    pub is_ecc_pending: Option<bool>,
}

/// Rows of memory with errors, in whose place the GPU uses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappedRows {
    /// True if some wait for the next reset.
    pub are_pending: bool,
    /// True if one could not be remapped, now or at any time before.
    pub has_failed: bool,
}

/// What must be done to recover from a fault of the GPU, by NVML's number: `nvmlDeviceGpuRecoveryAction_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryAction(pub u32);

impl RecoveryAction {
    pub const NONE: Self = Self(0);
    pub const RESET: Self = Self(1);
    pub const DRAIN_P2P: Self = Self(3);
    pub const DRAIN_AND_RESET: Self = Self(4);
    pub const RECOVER_IMEX: Self = Self(5);

    /// Names the action as nvidia-smi does; `None` for one that `nvml.h` does not have.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 8] = [
            "none",
            "reset",
            "reboot",
            "drain P2P",
            "drain and reset",
            "recover the IMEX domain",
            "bus reset",
            "system reboot",
        ];
        NAMES.get(self.0 as usize).copied()
    }
}

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`
const FIELD_RECOVERY_ACTION: u32 = 230;
/// `NVML_FI_DEV_ECC_CURRENT` and `NVML_FI_DEV_ECC_PENDING`
const FIELD_ECC_CURRENT: u32 = 1;
const FIELD_ECC_PENDING: u32 = 2;

impl GpuHandle {
    /// Reads the signs of the GPU's health. What the driver does not tell is left out.
    pub fn query_health(&self) -> GpuHealth {
        let rows = self.remapped_rows();
        let pending = rows.is_none().then(|| {
            let call = "nvmlDeviceGetRetiredPagesPendingStatus";
            self.call_wrapper(call, Device::are_pages_pending_retired)
                .ok()
        });
        // The same from `nvmlDeviceGetEccMode` takes 2 ms on an H200.
        let [recovery, ecc, ecc_pending] = self
            .field_values([FIELD_RECOVERY_ACTION, FIELD_ECC_CURRENT, FIELD_ECC_PENDING])
            .unwrap_or_default();
        GpuHealth {
            remapped_rows: rows,
            are_retired_pages_pending: pending.flatten(),
            recovery: recovery.map(RecoveryAction),
            is_ecc_pending: ecc.zip(ecc_pending).map(|(now, pending)| now != pending),
        }
    }

    fn remapped_rows(&self) -> Option<RemappedRows> {
        let symbol = symbol!(self.session, nvmlDeviceGetRemappedRows);
        let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
        let read = self.session.call(symbol, &self.subject, |function| {
            // SAFETY: the handle came from this library; the pointers are valid during the call.
            unsafe {
                function(
                    self.raw,
                    &raw mut correctable,
                    &raw mut uncorrectable,
                    &raw mut pending,
                    &raw mut failed,
                )
            }
        });
        read.ok()?;
        Some(RemappedRows {
            are_pending: parse_bool(pending)?,
            has_failed: parse_bool(failed)?,
        })
    }

    /// True if the GPU is shared by virtual machines, and this machine is their host.
    pub fn is_of_vgpu_host(&self) -> bool {
        let call = "nvmlDeviceGetVirtualizationMode";
        let mode = self.call_wrapper(call, Device::virtualization_mode);
        matches!(mode, Ok(GpuVirtualizationMode::HostVgpu))
    }
}

/// The truth of an answer of the driver; `None` for one that is neither.
fn parse_bool(answer: u32) -> Option<bool> {
    match answer {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
