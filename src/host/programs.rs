//! Small programs that replace those of the system in tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A shell script in a temporary file.
pub(super) struct Fake {
    pub(super) path: PathBuf,
}

impl Fake {
    pub(super) fn new(name: &str, script: &str) -> Self {
        let name = format!("mig-mps-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Written by another process: while another test starts a program, a file that this process has open for writing
        // cannot be executed (`ETXTBSY`).
        let mut shell = super::nvidia_smi::system_command("/bin/sh".as_ref());
        shell
            .args(["-c", "cat >\"$0\"; chmod 755 \"$0\""])
            .arg(&path);
        let text = format!("#!/bin/sh\n{script}\n");
        let output = super::run(&shell, &text, std::time::Duration::from_secs(20)).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(fs::metadata(&path).unwrap().permissions().mode() & 0o111 != 0);
        Self { path }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
