//! Users and groups of this system by name and by id.
//!
//! A name service (LDAP, sssd) may answer late or never, and a lookup cannot be interrupted. So each lookup runs in its own
//! thread, which is abandoned when the time for it is over. A process may then end only by [`exit_immediately`]: a module of the
//! name service may keep the usual way waiting.
//!
//! [`exit_immediately`]: super::exit_immediately

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::unistd::{Gid, Group, User, getgrouplist};

use super::{FileError, FileResult, Uid, lock};

/// The time after which an account is looked up again, and after which lookups have all their time again. Only a process
/// that runs for long does either.
const ANSWER_VALID_FOR: Duration = Duration::from_secs(60);

/// The time that all lookups for one purpose may take together.
struct LookupTime {
    limit: Duration,
    /// False if only lookups without an answer use it up: a name service may be slow, and there may be many names.
    counts_answers: bool,
    /// The first wait, and the time of all waits since then.
    spent: Mutex<Option<(Instant, Duration)>>,
}

/// For names that are only shown: without an answer the number is.
static FOR_DISPLAY: LookupTime = LookupTime::for_all_lookups(Duration::from_secs(1));

/// For users and groups by which something is decided.
static FOR_DECISIONS: LookupTime = LookupTime::for_unanswered(Duration::from_secs(15));

impl LookupTime {
    const fn for_all_lookups(limit: Duration) -> Self {
        Self {
            limit,
            counts_answers: true,
            spent: Mutex::new(None),
        }
    }

    const fn for_unanswered(limit: Duration) -> Self {
        Self {
            counts_answers: false,
            ..Self::for_all_lookups(limit)
        }
    }

    fn remaining_time(&self) -> Duration {
        let spent = lock(&self.spent).filter(|(since, _)| since.elapsed() < ANSWER_VALID_FOR);
        self.limit
            .saturating_sub(spent.map_or(Duration::ZERO, |(_, time)| time))
    }

    fn spend(&self, time: Duration) {
        let mut spent = lock(&self.spent);
        let (since, before) = spent
            .filter(|(since, _)| since.elapsed() < ANSWER_VALID_FOR)
            .unwrap_or((Instant::now(), Duration::ZERO));
        *spent = Some((since, before + time));
    }
}

/// Lookups of one kind: each key is looked up once.
struct Lookups<K: 'static, V: 'static> {
    find: fn(&K) -> nix::Result<V>,
    of_keys: Mutex<BTreeMap<K, Lookup<V>>>,
    answered: Condvar,
}

enum Lookup<V> {
    Running,
    Answered { at: Instant, answer: nix::Result<V> },
}

impl<V: Clone> Lookup<V> {
    /// Returns the answer, if there is one that is still valid.
    fn valid_answer(&self) -> Option<FileResult<V>> {
        match self {
            Self::Answered { at, answer } if at.elapsed() < ANSWER_VALID_FOR => {
                Some(answer.clone().map_err(FileError::from))
            }
            _ => None,
        }
    }
}

static USERS_BY_ID: Lookups<Uid, Option<Account>> = Lookups::new(|uid| {
    let user = User::from_uid(nix::unistd::Uid::from_raw(uid.0))?;
    Ok(user.map(Account::from))
});

static USERS_BY_NAME: Lookups<String, Option<Account>> =
    Lookups::new(|name| Ok(User::from_name(name)?.map(Account::from)));

static GROUPS_BY_ID: Lookups<u32, Option<String>> = Lookups::new(|gid| {
    let group = Group::from_gid(Gid::from_raw(*gid))?;
    Ok(group.map(|group| group.name))
});

static GROUPS_BY_NAME: Lookups<String, Option<u32>> = Lookups::new(|name| {
    let group = Group::from_name(name)?;
    Ok(group.map(|group| group.gid.as_raw()))
});

/// The groups of users, by name and primary group.
static GROUPS_OF_USERS: Lookups<(CString, u32), Vec<u32>> = Lookups::new(|(name, gid)| {
    let groups = getgrouplist(name, Gid::from_raw(*gid))?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
});

impl<K: Clone + Ord + Send, V: Clone + Send> Lookups<K, V> {
    const fn new(find: fn(&K) -> nix::Result<V>) -> Self {
        Self {
            find,
            of_keys: Mutex::new(BTreeMap::new()),
            answered: Condvar::new(),
        }
    }

    /// Returns the answer to a lookup, for which it waits as long as there is time.
    fn wait_for_answer(&'static self, key: &K, time: &LookupTime) -> FileResult<V> {
        let left = time.remaining_time();
        let mut lookups = lock(&self.of_keys);
        if let Some(answer) = lookups.get(key).and_then(Lookup::valid_answer) {
            return answer;
        }
        if !matches!(lookups.get(key), Some(Lookup::Running)) {
            if left.is_zero() {
                return Err(no_answer());
            }
            self.spawn_lookup(&mut lookups, key.clone())?;
        }
        let start = Instant::now();
        let is_running = |lookups: &mut BTreeMap<K, Lookup<V>>| {
            matches!(lookups.get(key), Some(Lookup::Running))
        };
        let waited = self.answered.wait_timeout_while(lookups, left, is_running);
        let (lookups, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let answer = lookups.get(key).and_then(Lookup::valid_answer);
        if answer.is_none() || time.counts_answers {
            time.spend(start.elapsed());
        }
        answer.unwrap_or_else(|| Err(no_answer()))
    }

    /// Begins a lookup whose answer will be needed, unless there is one. It does not wait.
    fn begin_lookup(&'static self, key: K) {
        let mut lookups = lock(&self.of_keys);
        let is_needed = match lookups.get(&key) {
            Some(Lookup::Running) => false,
            other => other.and_then(Lookup::valid_answer).is_none(),
        };
        if is_needed {
            // Without a thread, it begins when the answer is needed.
            let _ = self.spawn_lookup(&mut lookups, key);
        }
    }

    /// Starts a lookup in a thread.
    fn spawn_lookup(&'static self, lookups: &mut BTreeMap<K, Lookup<V>>, key: K) -> FileResult<()> {
        let own = key.clone();
        let lookup = move || {
            let answer = (self.find)(&own);
            let at = Instant::now();
            lock(&self.of_keys).insert(own, Lookup::Answered { at, answer });
            self.answered.notify_all();
        };
        // The caller has locked the lookups.
        Builder::new().spawn(lookup)?;
        lookups.insert(key, Lookup::Running);
        Ok(())
    }
}

fn no_answer() -> FileError {
    let what = "the name service (LDAP, sssd) does not answer";
    FileError::new(io::ErrorKind::TimedOut, what)
}

/// A user account of this system.
///
/// `Ok(None)` says that the name service knows no such account. An error says that it does not answer, or cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: Uid,
    pub gid: u32,
    pub name: String,
}

impl Account {
    /// Returns the user with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> FileResult<Option<Self>> {
        USERS_BY_NAME.wait_for_answer(&name.to_owned(), &FOR_DECISIONS)
    }

    /// Begins the lookup of a user. A name service may take seconds for each.
    pub fn begin_lookup(name: &str) {
        USERS_BY_NAME.begin_lookup(name.to_owned());
    }

    /// Returns the user with this uid, or `None` if there is none.
    pub fn from_uid(uid: Uid) -> FileResult<Option<Self>> {
        USERS_BY_ID.wait_for_answer(&uid, &FOR_DECISIONS)
    }

    /// Returns the groups of the user's processes.
    pub fn look_up_groups(&self) -> FileResult<Vec<u32>> {
        let name = CString::new(self.name.as_str()).map_err(io::Error::from)?;
        GROUPS_OF_USERS.wait_for_answer(&(name, self.gid), &FOR_DECISIONS)
    }

    /// Begins the lookup of the groups of the user's processes.
    pub fn begin_groups_lookup(&self) {
        if let Ok(name) = CString::new(self.name.as_str()) {
            GROUPS_OF_USERS.begin_lookup((name, self.gid));
        }
    }
}

impl From<User> for Account {
    fn from(user: User) -> Self {
        Self {
            uid: Uid(user.uid.as_raw()),
            gid: user.gid.as_raw(),
            name: user.name,
        }
    }
}

/// Returns the id of the group with this name, or `None` if there is none.
pub fn group_id(name: &str) -> FileResult<Option<u32>> {
    GROUPS_BY_NAME.wait_for_answer(&name.to_owned(), &FOR_DECISIONS)
}

/// Begins the lookup of a group.
pub fn begin_group_lookup(name: &str) {
    GROUPS_BY_NAME.begin_lookup(name.to_owned());
}

/// Returns the present id of the user with this name, or `None` if there is none; an error if the name service does not
/// answer soon.
pub fn current_user_id(name: &str) -> FileResult<Option<u32>> {
    let account = USERS_BY_NAME.wait_for_answer(&name.to_owned(), &FOR_DISPLAY)?;
    Ok(account.map(|account| account.uid.0))
}

/// The same for a group.
pub fn current_group_id(name: &str) -> FileResult<Option<u32>> {
    GROUPS_BY_NAME.wait_for_answer(&name.to_owned(), &FOR_DISPLAY)
}

/// Returns the name of a user, or the uid if there is none.
pub fn user_name(uid: Uid) -> String {
    static LOCAL: LazyLock<BTreeMap<u32, String>> = LazyLock::new(|| names_by_id("/etc/passwd"));
    let name = LOCAL.get(&uid.0).cloned().or_else(|| {
        let account = USERS_BY_ID.wait_for_answer(&uid, &FOR_DISPLAY).ok()??;
        Some(account.name)
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// Returns the name of a group, or the gid if there is none.
pub fn group_name(gid: u32) -> String {
    static LOCAL: LazyLock<BTreeMap<u32, String>> = LazyLock::new(|| names_by_id("/etc/group"));
    let name = LOCAL.get(&gid).cloned();
    name.or_else(|| GROUPS_BY_ID.wait_for_answer(&gid, &FOR_DISPLAY).ok()?)
        .unwrap_or_else(|| gid.to_string())
}

/// Returns the names in a file like `/etc/passwd` by their ids, which cost no lookup.
fn names_by_id(file: &str) -> BTreeMap<u32, String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let names = text.lines().filter_map(|line| {
        let (name, fields) = line.split_once(':')?;
        let id = fields.split(':').nth(1)?.parse().ok()?;
        (!name.is_empty()).then(|| (id, name.to_owned()))
    });
    // The first of two names is the one that libc finds.
    names.rev().collect()
}

/// Returns the names in a file like `/etc/passwd`, for suggestions. Names of a directory service are not included.
pub fn names_in(file: &Path) -> Vec<String> {
    fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn lookups_without_an_answer_take_their_time_once() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static LOOKUPS: Lookups<&str, usize> = Lookups::new(|key| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            if *key == "hangs" {
                loop {
                    std::thread::park();
                }
            }
            Ok(key.len())
        });
        let time = LookupTime::for_all_lookups(Duration::from_millis(500));
        assert_eq!(LOOKUPS.wait_for_answer(&"known", &time).unwrap(), 5);
        for key in ["hangs", "hangs", "later"] {
            let error = LOOKUPS.wait_for_answer(&key, &time).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{key}");
        }
        // Known answers cost no time.
        assert_eq!(LOOKUPS.wait_for_answer(&"known", &time).unwrap(), 5);
        // On a busy machine, a lookup begins late.
        let until = Instant::now() + Duration::from_secs(10);
        while ASKED.load(Ordering::Relaxed) < 2 && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 2);
        let another = LookupTime::for_all_lookups(Duration::from_secs(60));
        assert_eq!(LOOKUPS.wait_for_answer(&"later", &another).unwrap(), 5);
    }

    /// None of these is answered before the others have begun.
    #[test]
    fn lookups_that_begin_early_run_side_by_side() {
        static ALL: Barrier = Barrier::new(3);
        static LOOKUPS: Lookups<u64, u64> = Lookups::new(|key| {
            ALL.wait();
            Ok(*key)
        });
        let time = LookupTime::for_unanswered(Duration::from_secs(10));
        (0..3).for_each(|key| LOOKUPS.begin_lookup(key));
        for key in 0..3 {
            assert_eq!(LOOKUPS.wait_for_answer(&key, &time).unwrap(), key);
        }
    }

    /// One after the other, and side by side.
    #[test]
    fn slow_answers_leave_the_time_to_the_next_lookup() {
        static LOOKUPS: Lookups<u64, u64> = Lookups::new(|key| {
            std::thread::sleep(Duration::from_millis(60));
            Ok(*key)
        });
        let slow = LookupTime::for_unanswered(Duration::from_secs(60));
        for key in 0..3 {
            assert_eq!(LOOKUPS.wait_for_answer(&key, &slow).unwrap(), key);
        }
        std::thread::scope(|scope| {
            for key in 3..6 {
                let slow = &slow;
                scope.spawn(move || assert_eq!(LOOKUPS.wait_for_answer(&key, slow).unwrap(), key));
            }
        });
        assert_eq!(slow.remaining_time(), slow.limit);
        let in_all = LookupTime::for_all_lookups(Duration::from_secs(60));
        assert_eq!(LOOKUPS.wait_for_answer(&6, &in_all).unwrap(), 6);
        assert!(in_all.remaining_time() < in_all.limit);
    }
}
