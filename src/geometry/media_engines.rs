//! The distribution of the media engines. A GPU has one optical flow engine and one full set of the others.

use super::ProfileName;

/// True if the media engines suffice for so many of each profile.
///
/// At most one instance is `+me` or `+me.all`; `+me.all` takes every engine, so that all others
/// must be `-me` (nvml.h at `NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME`, measured on GA100, GH100, GB202).
pub(super) fn suffices<'a>(wanted: impl Iterator<Item = (&'a ProfileName, u32)>) -> bool {
    let mut extra = 0;
    let mut plain = 0;
    let mut all = 0;
    for (name, count) in wanted {
        if name.has("+me.all") {
            all += count;
        } else if name.has("+me") {
            extra += count;
        } else if !name.has("-me") {
            plain += count;
        }
    }
    extra + all <= 1 && (all == 0 || plain == 0)
}
