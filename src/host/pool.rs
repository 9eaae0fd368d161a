//! Threads that are started before the work, so that a limit of processes is reached then and not half-way.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};

/// The remedy if the system starts no more threads or processes.
pub const MORE_PROCESSES: &str =
    "allow this user more processes (ulimit -u, pids.max of the cgroup), or end some";

/// A piece of work, which may add more work to the pool that runs it.
pub type Job<'a> = Box<dyn FnOnce(&Pool<'a>) + Send + 'a>;

/// The calling thread and other threads. If the system refuses a thread, the caller works alone: the remaining processes
/// are needed for child programs.
///
/// Jobs start in the order in which they were added, urgent ones first. A job may wait for one that started before it,
/// so a pool of any size finishes.
pub struct Pool<'a> {
    state: Mutex<PoolState<'a>>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState<'a> {
    urgent: VecDeque<Job<'a>>,
    jobs: VecDeque<Job<'a>>,
    running: usize,
    threads: usize,
    is_closed: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl<'a> Pool<'a> {
    /// Calls `work` with a pool of this number of additional threads, or of none if the system would then not allow
    /// `others` more child processes and threads.
    pub fn with<R>(threads: usize, others: usize, work: impl FnOnce(&Self) -> R) -> R {
        let has_room = threads > 0 && has_room(threads + others);
        let threads = if has_room { threads } else { 0 };
        let pool = Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        std::thread::scope(|scope| {
            let mut made = Vec::new();
            while made.len() < threads {
                let worker = || {
                    while let Some(job) = pool.next() {
                        pool.carry_out(job);
                    }
                };
                let Ok(thread) = Builder::new().spawn_scoped(scope, worker) else {
                    pool.close();
                    made.drain(..)
                        .for_each(|thread: ScopedJoinHandle<'_, ()>| drop(thread.join()));
                    break;
                };
                made.push(thread);
            }
            pool.lock().threads = made.len();
            // Needed even if `work` panics: the scope waits for its threads.
            let _closed = Closed(&pool);
            work(&pool)
        })
    }

    /// Returns the number of additional threads.
    pub fn threads(&self) -> usize {
        self.lock().threads
    }

    /// Ends the threads: from now on the caller works alone.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.threads = 0;
        self.changed.notify_all();
    }

    /// Adds a job to the end of the queue.
    pub fn later(&self, job: Job<'a>) {
        self.lock().jobs.push_back(job);
        self.changed.notify_all();
    }

    /// Runs `work` on all items in parallel, and the jobs that this adds. Must not be called within a job.
    pub fn side_by_side<T: Send + 'a, R: Send + 'a>(
        &self,
        items: Vec<T>,
        work: impl Fn(T, &Pool<'a>) -> R + Send + Sync + 'a,
    ) -> Vec<R> {
        let work = Arc::new(work);
        let results: Arc<Mutex<Vec<(usize, R)>>> = Arc::default();
        for (number, item) in items.into_iter().enumerate() {
            let (work, results) = (Arc::clone(&work), Arc::clone(&results));
            self.later(Box::new(move |pool| {
                let result = work(item, pool);
                lock(&results).push((number, result));
            }));
        }
        let mut state = self.lock();
        loop {
            if let Some(job) = state.take() {
                drop(state);
                self.carry_out(job);
                state = self.lock();
            } else if state.running == 0 {
                break;
            } else {
                state = self.wait(state);
            }
        }
        if let Some(panic) = state.panic.take() {
            drop(state);
            resume_unwind(panic);
        }
        drop(state);
        let mut results = std::mem::take(&mut *lock(&results));
        results.sort_by_key(|(number, _)| *number);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Adds jobs before all others, calls `meanwhile`, and waits for the jobs to finish.
    pub fn urgently(&self, jobs: Vec<Job<'a>>, meanwhile: impl FnOnce()) {
        let left = Arc::new(());
        for job in jobs {
            let one = Arc::clone(&left);
            let counted: Job<'a> = Box::new(move |pool| {
                // Counted even if the job panics.
                let result = catch_unwind(AssertUnwindSafe(|| job(pool)));
                drop(one);
                result.unwrap_or_else(|panic| resume_unwind(panic));
            });
            self.lock().urgent.push_back(counted);
        }
        self.changed.notify_all();
        meanwhile();
        let mut state = self.lock();
        while Arc::strong_count(&left) > 1 {
            // Only urgent jobs: another one may wait for the job that waits here.
            if let Some(job) = state.urgent.pop_front() {
                state.running += 1;
                drop(state);
                self.carry_out(job);
                state = self.lock();
            } else {
                state = self.wait(state);
            }
        }
    }

    fn next(&self) -> Option<Job<'a>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.take() {
                return Some(job);
            }
            state = self.wait(state);
        }
    }

    fn carry_out(&self, job: Job<'a>) {
        let result = catch_unwind(AssertUnwindSafe(|| job(self)));
        let mut state = self.lock();
        state.running -= 1;
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<'a>> {
        lock(&self.state)
    }

    fn wait<'m>(&self, state: MutexGuard<'m, PoolState<'a>>) -> MutexGuard<'m, PoolState<'a>> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> PoolState<'a> {
    /// Takes the next job and counts it as running.
    fn take(&mut self) -> Option<Job<'a>> {
        let job = self.urgent.pop_front().or_else(|| self.jobs.pop_front())?;
        self.running += 1;
        Some(job)
    }
}

struct Closed<'p, 'a>(&'p Pool<'a>);

impl Drop for Closed<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// True if the system would start this number of threads or processes now.
fn has_room(count: usize) -> bool {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = lock(&gate);
        let mut left = 0..count;
        left.all(|_| {
            let thread = Builder::new().stack_size(16 << 10);
            thread.spawn_scoped(scope, || drop(lock(&gate))).is_ok()
        })
    })
}

/// Locks a mutex. No job runs while one of these locks is held, so a panic leaves nothing half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_caller_alone_does_everything_in_order() {
        let order = Mutex::new(Vec::new());
        let results = Pool::with(0, 0, |pool| {
            pool.side_by_side(vec![1, 2], |number, pool| {
                pool.later(Box::new(|_| lock(&order).push("later")));
                pool.urgently(vec![Box::new(|_| lock(&order).push("urgent"))], || {
                    lock(&order).push("meanwhile");
                });
                number * 10
            })
        });
        assert_eq!(results, [10, 20]);
        let each = ["meanwhile", "urgent"];
        let wanted = [each, each, ["later", "later"]].concat();
        assert_eq!(order.into_inner().unwrap(), wanted);
    }

    #[test]
    fn jobs_run_at_once_while_there_are_threads() {
        // Each waits for the other.
        let (to_first, first) = mpsc::channel();
        let (to_second, second) = mpsc::channel();
        let items = vec![(to_second, first), (to_first, second)];
        Pool::with(1, 0, |pool| {
            pool.side_by_side(items, |(to, from), _| {
                to.send(()).unwrap();
                from.recv().unwrap();
            })
        });
    }

    #[test]
    fn a_panic_of_a_job_is_the_callers() {
        let panics = || {
            Pool::with(1, 0, |pool| {
                pool.side_by_side(vec![1, 2], |number, _| assert_ne!(number, 1));
            });
        };
        assert!(catch_unwind(panics).is_err());
    }
}
