//! The rest of the node: processes, users, files, child programs, locks, and the two programs that make others let go of
//! a GPU, `systemctl` and `nvidia-smi`, and Slurm's controller.
//!
//! All paths of the system are below one root, so that a test can provide another one.

mod accounts;
mod acl;
mod batch_job;
mod child;
mod directory;
mod end_processes;
mod environment;
mod external_program;
mod file_error;
mod files;
mod held_program;
mod holders;
mod interrupt;
mod kernel_log;
mod limits;
mod lock;
mod machine;
mod mounts;
mod place;
mod process;
mod process_table;
mod program_directory;
mod program_paths;
mod shared_group;
mod spawn;
mod supervisor;
mod surroundings;
mod text;
mod thread_budget;
mod topology;
mod trusted_path;
mod units;
mod user;
mod workload;

pub use accounts::{
    Account, begin_group_lookup, current_group_id, current_user_id, group_id, group_name, names_in,
    user_name,
};
pub use acl::{ListFault, Permission, Writers, check_lists, directory_access, find_list_fault};
pub use batch_job::{BatchJob, is_job_name, is_named_for_job, is_slot_group};
pub use child::{Output, RunError, clean_command, run, run_with_name, spawn_detached};
pub use directory::Directory;
pub use end_processes::{end_processes, kill_processes_after};
pub use environment::{
    Directories, Environment, EnvironmentError, Host, driver_container_hint, environment_variable,
};
pub use external_program::{NvidiaSmi, Slurm, ToolError, slurm_node_name};
pub use file_error::{FileError, FileResult};
pub use files::{
    Fingerprint, OwnFile, directory_of, empty_directory, modification_time, read_configuration,
    read_number, read_proc_field, read_text_from, write_files_into, write_new_text_to,
    write_text_to,
};
pub use held_program::HeldProgram;
pub use holders::{Holder, Holders};
pub use interrupt::{ChangeInProgress, Forwarding, Interrupt, Phase, ignore_termination};
pub use kernel_log::Xid;
pub use limits::{
    ADMIT, ATTACH, BecomeUser, COMPUTE, HELPERS, KEEP, LAUNCH, Limits, LimitsError, MIN_OPEN_FILES,
    check_open_files, open_file_limits, raise_client_files, raise_memory, raise_open_files,
    raise_stack, use_service_limits,
};
pub use lock::{Lock, LockError};
pub use machine::{Machine, host_name};
pub use mounts::MountedDirectory;
pub use place::EntryKind;
pub use process::{
    Environ, Pid, Process, ProcessHandle, StartTime, StatLine, adopt_descendants, reap_all,
    reap_child,
};
pub use process_table::ProcessTable;
pub use program_directory::ProgramDirectory;
pub use program_paths::MpsPrograms;
pub use shared_group::reason_of_shared_group;
pub use spawn::{kill_with_parent, reset_sigchld, restore_ignored_signals};
pub use supervisor::{Supervisor, is_service};
pub use surroundings::{check_kernel, list_directory, may_write};
pub use text::{
    closest_match, fnv1a, format_count, format_gpus, format_ranges, group_by, is_shell_safe,
    is_terminal_control, join_words, name_devices, quote_for_shell, shorten_command, to_printable,
};
pub use thread_budget::{MORE_PROCESSES, Threads, exit_immediately, lock};
pub use topology::{CpuBinding, NumaNode};
pub use trusted_path::{
    append_privately, check_trusted_program, part_closed_to_others, stat_untrusted,
};
pub use units::{Scopes, Unit, Units, report_ready};
pub use user::{
    Access, Reader, Uid, caller, root_hint, strip_needless_sudo, sudo_command_line, sudo_mig_mps,
};
pub use workload::Workload;
