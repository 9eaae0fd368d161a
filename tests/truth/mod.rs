//! The truth of what `status` reports, judged by the simulator's event log.
//!
//! One thread brings a node up, changes settings, kills, faults and takes it down again, while others run
//! `mig-mps status --json` all the time and note when each run began and ended. Afterwards the judge goes through
//! every run: for each device there must be **one moment between the run's begin and its end** at which everything
//! the run says of that device was true together: its state, the pids of daemon and server, its clients, and its
//! percentages. Each problem it names, and that a device is or is not in the list, must have been true at some
//! moment as well.
//!
//! What is true when
//! - All times are of one clock, `CLOCK_REALTIME` of this machine: the log's, and those of the runs. Nothing is
//!   added to a run's window, and no moment is rounded.
//! - A change that one process makes and others see has a begin and an end, and the log has both: a server is
//!   launched and then started, comes up and is then ready, leaves and is then at an end; a client is admitted and
//!   then started (NVML lists it), leaves (NVML) and is then left (the server). Between the two, either is true.
//!   Where the log has one line, that line is the change: the process that wrote it is the one that answers
//!   questions about it (sessions, faults, percentages).
//! - What the tests do themselves (run `mig-mps`, kill, stop, remove a directory) they write into the log: before,
//!   and after; and a process that has ended is noted when its pidfd says so.
//! - `up`, `down` and `set` change their records at moments that the simulator does not see: between a command's
//!   begin and its end, what was recorded before and what is recorded after are both true.
//! - *dead* is a device whose daemon has ended and that no `down` has taken away since. *no daemon* is one
//!   that mig-mps has no record of. *starting* is one whose server is not ready yet, or whose daemon an `up` that
//!   still runs starts. *ready*, *fault* and *no server yet* say that servers and clients are known. *busy* is
//!   one whose daemon has a session open, or was asked to quit.

mod commotion;
mod history;
mod judge;
mod made_up;
mod span;
