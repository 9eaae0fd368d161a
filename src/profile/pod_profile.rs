//! The profile that a pod of mig-mps installs on its node: the author's, with a mark.

/// The last line of a profile that a pod has installed: errors name the lines of the profile as its author has it. The scripts of
/// packages search for it.
pub const PROFILE_MARK: &str =
    "# Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.\n";

/// True for a profile that a pod has installed.
pub fn is_of_pod(profile: &str) -> bool {
    profile.ends_with(PROFILE_MARK)
}

/// Returns a profile as its author has it.
#[cfg(feature = "kubernetes")]
pub fn without_mark(profile: &str) -> &str {
    profile.strip_suffix(PROFILE_MARK).unwrap_or(profile)
}
