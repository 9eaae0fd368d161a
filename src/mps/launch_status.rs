use crate::host::Output;

/// Explains the exit status of the launcher, which prints nothing. The status is the low byte of CUDA's error code.
pub(super) fn in_words(output: &Output, device: &str) -> String {
    let printed = format!("{}{}", output.stdout, output.stderr);
    let printed = printed.trim();
    let code = output.status.code();
    let meaning = match code {
        _ if !printed.is_empty() => printed.to_owned(),
        Some(100) => format!("CUDA sees no device {device}"),
        Some(244) => "CUDA's driver library libcuda.so.1 cannot be loaded".to_owned(),
        Some(34) => "CUDA says the system is not ready (is the fabric manager running?)".to_owned(),
        Some(35) => "the CUDA driver library and the kernel module differ in version".to_owned(),
        Some(0) => "it ended without an error and no daemon is there".to_owned(),
        // Measured with a path that is too long.
        Some(1) => "it said nothing, as where it cannot use its pipe directory".to_owned(),
        _ => "it said nothing".to_owned(),
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}
