//! Threads for work that is done side by side, where the system has room for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, scope};

/// The remedy if the system starts no more threads or processes.
pub const MORE_PROCESSES: &str =
    "allow this user more processes (`ulimit -u`, pids.max of the cgroup), or end some";

/// The threads that may run beside the calling one. Work for which there is none is done by the thread that has it.
#[derive(Debug)]
pub struct Threads {
    free: AtomicUsize,
}

impl Threads {
    /// Allows this number of threads.
    pub fn with_limit(threads: usize) -> Self {
        Self {
            free: AtomicUsize::new(threads),
        }
    }

    /// Allows no more threads.
    pub fn close(&self) {
        self.free.store(0, Ordering::Relaxed);
    }

    /// Runs a job in a thread of the scope. Without a thread it runs at once.
    pub fn spawn_or_run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        job: impl FnOnce() + Send + 'scope,
    ) {
        // A thread that cannot be started does not give its job back.
        let job = Arc::new(Mutex::new(Some(job)));
        let theirs = Arc::clone(&job);
        let taken = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(1)
            });
        let is_started = taken.is_ok()
            && Builder::new()
                .spawn_scoped(scope, move || {
                    run_once(&theirs);
                    self.free.fetch_add(1, Ordering::Relaxed);
                })
                .is_ok();
        if !is_started {
            if taken.is_ok() {
                self.free.fetch_add(1, Ordering::Relaxed);
            }
            run_once(&job);
        }
    }

    /// Works on all items side by side. Returns the results in the order of the items.
    pub fn map_in_parallel<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> R + Sync,
    ) -> Vec<R> {
        let others = items.len().saturating_sub(1);
        let items = Mutex::new(items.into_iter().enumerate());
        let results = Mutex::new(Vec::new());
        let work_on_the_rest = || {
            while let Some((number, item)) = take_next(&items) {
                let result = work(item);
                lock(&results).push((number, result));
            }
        };
        scope(|scope| {
            for _ in 0..others {
                self.spawn_or_run(scope, work_on_the_rest);
            }
            work_on_the_rest();
        });
        let mut results = std::mem::take(&mut *lock(&results));
        results.sort_by_key(|(number, _)| *number);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// Runs a job that has not run yet.
fn run_once(job: &Mutex<Option<impl FnOnce()>>) {
    let job = lock(job).take();
    if let Some(job) = job {
        job();
    }
}

fn take_next<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    lock(items).next()
}

/// Locks a mutex. One that a panic has poisoned is used all the same: what it guards is valid between operations.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this process at once, whatever its threads wait for. `exit` first lets every library clean up, which may wait for a
/// lock that an abandoned thread holds. What standard output still buffers is lost.
pub fn exit_immediately(status: i32) -> ! {
    signal_hook::low_level::exit(status)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_caller_alone_does_everything_in_order() {
        let order = Mutex::new(Vec::new());
        let threads = Threads::with_limit(0);
        let results = threads.map_in_parallel(vec![1, 2], |number| {
            scope(|scope| {
                threads.spawn_or_run(scope, || lock(&order).push("at once"));
                lock(&order).push("then");
            });
            number * 10
        });
        assert_eq!(results, [10, 20]);
        assert_eq!(
            order.into_inner().unwrap(),
            ["at once", "then", "at once", "then"]
        );
    }

    #[test]
    fn work_is_done_at_once_while_there_are_threads() {
        // Each waits for the other.
        let (to_first, first) = mpsc::channel();
        let (to_second, second) = mpsc::channel();
        let items = vec![(to_second, first), (to_first, second)];
        Threads::with_limit(1).map_in_parallel(items, |(to, from)| {
            to.send(()).unwrap();
            from.recv().unwrap();
        });
    }

    #[test]
    fn a_panic_of_a_thread_is_the_callers() {
        let panics = || {
            Threads::with_limit(1).map_in_parallel(vec![1, 2], |number| assert_ne!(number, 1));
        };
        assert!(catch_unwind(panics).is_err());
    }
}
