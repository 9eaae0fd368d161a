use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Uid;

/// The time that all waits for one user's processes may take together, beyond the first second of each.
const TOTAL: Duration = Duration::from_secs(10);
/// The time that every wait may take. A start or an answer takes less than half of it.
const ALWAYS: Duration = Duration::from_secs(1);

/// The time that the processes of other users have left in this command. A user can stop each of her processes, and
/// delays nobody else for longer than this.
#[derive(Clone, Debug, Default)]
pub struct TimeForUsers(Arc<Mutex<BTreeMap<u32, Duration>>>);

impl TimeForUsers {
    /// Waits for a process of `user`, for at most the part of `limit` that this user has left.
    pub fn wait<T>(&self, user: Uid, limit: Duration, wait: impl FnOnce(Duration) -> T) -> T {
        let spent = |spent: Duration| {
            let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let total = users.entry(user.0).or_default();
            *total += spent;
            *total
        };
        let left = TOTAL.saturating_sub(spent(Duration::ZERO));
        let start = Instant::now();
        let result = wait(limit.min(left.max(ALWAYS)));
        spent(start.elapsed().saturating_sub(ALWAYS));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_for_a_user_shorten_the_next_ones_and_nobody_elses() {
        let time = TimeForUsers::default();
        let (alice, bob) = (Uid(1000), Uid(1001));
        let minute = Duration::from_secs(60);
        assert_eq!(time.wait(alice, ALWAYS / 2, |limit| limit), ALWAYS / 2);
        let first = time.wait(alice, minute, |limit| {
            std::thread::sleep(ALWAYS * 2);
            limit
        });
        assert_eq!(first, TOTAL);
        let second = time.wait(alice, minute, |limit| limit);
        assert!(
            (ALWAYS..=TOTAL).contains(&second) && second + ALWAYS <= TOTAL,
            "{second:?}"
        );
        time.0.lock().unwrap().insert(alice.0, TOTAL * 2);
        assert_eq!(time.wait(alice, minute, |limit| limit), ALWAYS);
        assert_eq!(time.wait(bob, minute, |limit| limit), TOTAL);
    }
}
