//! Carrying a plan out when something goes wrong: faults at every call, crashes, interruptions, GPUs that are held.

/// Makes a test for each third of the faults that a function takes, so that they run at once. The share is its last argument.
macro_rules! in_thirds {
    ($($test:ident: $function:ident($($argument:expr)?),)*) => { $(
        mod $test {
            use super::*;

            #[test]
            fn first() {
                $function($($argument,)? 0);
            }

            #[test]
            fn second() {
                $function($($argument,)? 1);
            }

            #[test]
            fn last() {
                $function($($argument,)? 2);
            }
        }
    )* };
}

mod child;
mod closing;
mod crash;
mod faults;
mod interrupt;
mod joint;
mod kept;
mod mode;
mod rollback;
mod testbed;
