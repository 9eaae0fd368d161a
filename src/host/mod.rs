//! The rest of the node: processes, users, files, child programs, locks, and the two programs that make others let go of
//! a GPU, `systemctl` and `nvidia-smi`, and Slurm's controller.
//!
//! All paths of the system are below one root, so that a test can provide another one.

mod accounts;
mod acl;
mod batch_job;
mod child;
mod directory;
mod environment;
mod files;
mod holders;
mod interrupt;
mod kernel_log;
mod limits;
mod lock;
mod machine;
mod mounts;
mod place;
mod process;
mod spawn;
mod supervisor;
mod surroundings;
mod text;
mod threads;
mod tool;
mod units;
mod user;
mod walk;
mod workload;

pub use accounts::{
    Account, begin_group_lookup, group_name, group_named, names_in, present_group, present_user,
    user_name,
};
pub use acl::{ListFault, Permission, Writers, check_lists, list_fault, readers};
pub use child::{Output, RunError, clean_command, run, run_as, start_apart};
pub use directory::{Directory, written};
pub use environment::{Directories, Environment, EnvironmentError, Host, MpsPrograms, variable};
pub use files::{
    OwnFile, directory_of, empty_directory, field, has_fault, in_path, number_in, path_of,
    read_configuration, read_text_from, write_files_into, write_new_text_to, write_text_to,
};
pub use holders::{Holder, Holders};
pub use interrupt::{ChangeInProgress, Forwarding, Interrupt, Phase, outlast_signals};
pub use kernel_log::Xid;
pub use limits::{
    ADMIT, ATTACH, BecomeUser, COMPUTE, HELPERS, KEEP, LAUNCH, Limits, LimitsError,
    check_open_files, give_open_files, open_files, raise_memory, raise_open_files, raise_stack,
    take_limits_of_services,
};
pub use lock::Lock;
pub use machine::{Machine, host_name};
pub use mounts::MountedDirectory;
pub use place::Made;
pub use process::{
    Environ, Pid, Process, ProcessHandle, ProcessTable, StartTime, adopt_descendants, fields_of,
    reap, reap_all,
};
pub use spawn::{end_with_caller, heed_child_signal, ignore_again};
pub use supervisor::{Supervisor, is_service};
pub use surroundings::{list_directory, may_write, refuse_old_kernel};
pub use text::{
    bounded, count, grouped, is_plain, listed, nearest, printable, quoted, ranges, steers,
    without_error_numbers,
};
pub use threads::{MORE_PROCESSES, Threads, end_process, lock};
pub use tool::{NvidiaSmi, Slurm, ToolError};
pub use units::{Scopes, Unit, Units, report_ready};
pub use user::{Access, Reader, Uid, as_root, caller, with_sudo, without_needless_sudo};
pub use walk::{append_privately, claimed, closed_to_others, only_root_can_change};
pub use workload::Workload;
