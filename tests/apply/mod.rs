//! What carrying a plan out does when something goes wrong: faults at every call, crashes, interruptions, GPUs that are held.

mod child;
mod crash;
mod faults;
mod interrupt;
mod kept;
mod mode;
mod rollback;
mod scene;
