//! Unmanaged daemons on devices for which a plan starts daemons.

use std::fmt::Write as _;

use super::format::{fitted, grouped, shortened};
use super::output::width;
use crate::host::printable;
use crate::node::Variable;
use crate::plan::Plan;

/// Describes these daemons and the command that stops each; empty if there are none.
pub fn text(plan: &Plan) -> String {
    let starts = plan.starts();
    let all = starts.flat_map(|start| {
        start
            .beside
            .iter()
            .map(|daemon| (daemon, start.name.as_str()))
    });
    let all = grouped(all, |a, b| a.0 == b.0);
    let mut out = String::new();
    for group in &all {
        let daemon = group[0].0;
        let names: Vec<&str> = group.iter().map(|(_, name)| *name).collect();
        let user = daemon.user.as_deref().map(|user| format!(" of {user}"));
        let line = format!(
            "Unmanaged daemon {}{} serves {} too. Its owner ends it with",
            daemon.pid,
            user.unwrap_or_default(),
            shortened(&names),
        );
        // The command stays in one line: it is there to be pasted.
        let (line, command) = (fitted(&line, width()), quit(&daemon.pipe_directory));
        let _ = writeln!(out, "{line}\n  {command}");
    }
    if !all.is_empty() {
        out.push_str("Two daemons on a device share it without knowing of each other.\n");
    }
    out
}

/// Returns the shell command that stops a daemon. The owner chose its directory's name.
fn quit(pipe_directory: &Variable) -> String {
    let variable = match pipe_directory {
        Variable::Unset => String::new(),
        Variable::Hidden => "CUDA_MPS_PIPE_DIRECTORY=ITS_DIRECTORY ".to_owned(),
        Variable::Is(path) => {
            let path = printable(path).replace('\'', r"'\''");
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let quote = if path.chars().all(is_plain) { "" } else { "'" };
            format!("CUDA_MPS_PIPE_DIRECTORY={quote}{path}{quote} ")
        }
    };
    format!("echo quit | {variable}nvidia-cuda-mps-control")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_copied_runs_nothing_else() {
        let of = |path: &str| quit(&Variable::Is(path.to_owned()));
        let ends = "nvidia-cuda-mps-control";
        let plain = format!("echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/a-b_c.1 {ends}");
        assert_eq!(of("/run/a-b_c.1"), plain);
        let strange = format!("echo quit | CUDA_MPS_PIPE_DIRECTORY='/a'\\''; rm ?' {ends}");
        assert_eq!(of("/a'; rm \n"), strange);
        assert_eq!(quit(&Variable::Unset), format!("echo quit | {ends}"));
    }
}
