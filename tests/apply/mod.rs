//! What carrying a plan out does when something goes wrong: faults at every call, crashes, interruptions, GPUs that are held.

/// Makes one test for each share of the faults that a function takes, so that they run at once.
macro_rules! in_shares {
    ($($test:ident)*) => { $(
        mod $test {
            #[test]
            fn first_third() {
                super::$test(0);
            }

            #[test]
            fn second_third() {
                super::$test(1);
            }

            #[test]
            fn last_third() {
                super::$test(2);
            }
        }
    )* };
}

mod child;
mod crash;
mod faults;
mod interrupt;
mod kept;
mod mode;
mod rollback;
mod scene;
