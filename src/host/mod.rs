//! The rest of the node: processes, users, files, child programs, locks, and the two programs that make others let go of
//! a GPU, `systemctl` and `nvidia-smi`, and Slurm's controller.
//!
//! All paths of the system are below one root, so that a test can provide another one.

mod capabilities;
mod cgroup;
mod child;
mod child_io;
mod descendants;
mod directory;
mod environment;
mod files;
mod forwarding;
mod holders;
mod interrupt;
mod kernel;
mod limits;
mod locality;
mod lock;
mod machine;
mod named_file;
mod nvidia_smi;
mod open_beneath;
mod own_limits;
mod path_error;
mod pool;
mod private_file;
mod process;
mod process_handle;
#[cfg(test)]
mod programs;
mod reader;
mod removal;
mod scontrol;
mod slurm_job;
mod spawn;
mod sudo;
mod surroundings;
mod system_command;
mod text;
mod time_for_users;
mod trusted_program;
mod units;
mod user;
mod walk;

pub use child::{Output, RunError, run, run_as};
pub use descendants::{adopt_descendants, reap};
pub use directory::Directory;
pub use environment::{Directories, Environment, EnvironmentError, MpsPrograms};
pub use files::{directory_of, empty_directory, read_text_from};
pub use forwarding::Forwarding;
pub use holders::{Holder, Holders};
pub use interrupt::{Change, Interrupt, Phase};
pub use kernel::{OldKernel, refuse_old_kernel};
pub use limits::{ATTACH, LAUNCH, Limits, LimitsError};
pub use lock::{Lock, LockError};
pub use machine::Host;
pub use named_file::{write_files_into, write_new_text_to, write_text_to};
pub use nvidia_smi::{NvidiaSmi, ResetError};
pub use own_limits::{
    TooFewFiles, TooLittleMemory, UnfitForDaemons, check_open_files, give_open_files, open_files,
    raise_memory, raise_open_files, raise_stack, take_limits_of_services,
};
pub use path_error::{file_hint, in_path, in_the_way};
pub use pool::{Job, MORE_PROCESSES, Pool};
pub use private_file::append_privately;
pub use process::{Environ, Pid, Process, ProcessTable, StartTime};
pub use process_handle::ProcessHandle;
pub use reader::Reader;
pub use scontrol::{Slurm, SlurmError, SlurmNode};
pub use spawn::{heed_child_signal, ignore_again};
pub use sudo::{as_root, with_sudo, without_needless_sudo};
pub use surroundings::{Surroundings, file_system, may_open, may_write};
pub use text::{
    bounded, is_plain, nearest, printable, quoted, ranges, steers, without_error_numbers,
};
pub use time_for_users::TimeForUsers;
pub use trusted_program::only_root_can_change;
pub use units::{Scopes, Unit, Units, UnitsError};
pub use user::{Account, Uid, caller, group_name, group_named, names_in, user_name};
pub use walk::claimed;
