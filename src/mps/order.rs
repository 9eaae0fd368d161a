use std::collections::VecDeque;

use crate::host::Pid;
use crate::settings::{ClientPriority, LimitAnswer, MemoryLimit, Percentage, Settings};

/// What the daemon sees as its only device. A limit by UUID is dropped without a word up to driver 555.
pub(super) const DEVICE: u32 = 0;

/// One command, and what it must be answered. Answers follow each other without a mark between them.
pub(super) struct Order {
    command: String,
    answer: Answer,
}

enum Answer {
    /// It is answered nothing, or with a refusal in words.
    Nothing,
    Percentage(Percentage),
    /// No limit is no line.
    Limit(Option<MemoryLimit>),
    Priority(ClientPriority),
}

impl Order {
    fn new(command: String, answer: Answer) -> Self {
        Self { command, answer }
    }

    /// Sets a daemon's defaults, which are for servers that start later, and reads them back. `was` is
    /// what may have to be taken back; nothing is, in a daemon that has just started.
    pub(super) fn defaults(shall: &Settings, was: Option<&Settings>) -> Vec<Self> {
        let percentage = shall.active_thread_percentage;
        let mut orders = vec![Self::new(
            format!("set_default_active_thread_percentage {percentage}"),
            Answer::Percentage(percentage),
        )];
        let limit = shall.pinned_memory_limit;
        let has_limit = limit.is_some() || was.is_some_and(|was| was.pinned_memory_limit.is_some());
        if has_limit {
            let limit = in_command(limit);
            let command = format!("set_default_device_pinned_mem_limit {DEVICE} {limit}");
            orders.push(Self::new(command, Answer::Nothing));
        }
        let priority = shall.client_priority;
        // What no profile speaks of is not touched: older control programs do not know it.
        let speaks_of = |settings: &Settings| settings.client_priority != ClientPriority::Normal;
        let has_priority = speaks_of(shall) || was.is_some_and(speaks_of);
        if has_priority {
            let command = format!("set_default_client_priority {}", priority.number());
            orders.push(Self::new(command, Answer::Nothing));
            let command = "get_default_client_priority".to_owned();
            orders.push(Self::new(command, Answer::Priority(priority)));
        }
        if has_limit {
            let command = format!("get_default_device_pinned_mem_limit {DEVICE}");
            orders.push(Self::new(command, Answer::Limit(limit)));
        }
        let command = "get_default_active_thread_percentage".to_owned();
        orders.push(Self::new(command, Answer::Percentage(percentage)));
        orders
    }

    /// Sets what a running server gives to the clients it will have, and reads it back.
    pub(super) fn of_server(server: Pid, shall: &Settings, was: Option<&Settings>) -> Vec<Self> {
        let percentage = shall.active_thread_percentage;
        let mut orders = vec![Self::new(
            format!("set_active_thread_percentage {server} {percentage}"),
            Answer::Percentage(percentage),
        )];
        let limit = shall.pinned_memory_limit;
        if limit.is_some() || was.is_some_and(|was| was.pinned_memory_limit.is_some()) {
            let value = in_command(limit);
            orders.extend([
                Self::new(
                    format!("set_device_pinned_mem_limit {server} {DEVICE} {value}"),
                    Answer::Nothing,
                ),
                Self::new(
                    format!("get_device_pinned_mem_limit {server} {DEVICE}"),
                    Answer::Limit(limit),
                ),
            ]);
        }
        orders.push(Self::new(
            format!("get_active_thread_percentage {server}"),
            Answer::Percentage(percentage),
        ));
        orders
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Takes this order's answer from the front of the lines: `Err` with what was set and what reads
    /// back, or `None` where the answer is none at all.
    fn compare(&self, lines: &mut VecDeque<&str>) -> Option<Result<(), String>> {
        let back = |key: &str, shall: String, is: String| {
            if shall == is {
                Ok(())
            } else {
                Err(format!("{key} was set to {shall} and reads back as {is}"))
            }
        };
        let key = self.command.split_whitespace().next().unwrap_or_default();
        let key = if key.contains("_default_") {
            ""
        } else {
            "the server's "
        };
        match self.answer {
            Answer::Nothing => Some(Ok(())),
            Answer::Percentage(shall) => {
                let is: f64 = lines.pop_front()?.trim().parse().ok()?;
                if shall.differs_from(is) {
                    let key = format!("{key}active-thread-percentage");
                    return Some(back(&key, shall.to_string(), is.to_string()));
                }
                Some(Ok(()))
            }
            Answer::Limit(shall) => {
                let is = lines.front().and_then(|line| LimitAnswer::read(line));
                if is.is_some() {
                    lines.pop_front();
                }
                if !LimitAnswer::differs(is, shall) {
                    return Some(Ok(()));
                }
                let none = || "none".to_owned();
                let shall = shall.map_or_else(none, |limit| limit.to_string());
                let is = is.map_or_else(none, |limit| limit.to_string());
                Some(back(&format!("{key}pinned-memory-limit"), shall, is))
            }
            Answer::Priority(shall) => {
                let is: u8 = lines.pop_front()?.trim().parse().ok()?;
                let said = |number: u8| {
                    let word = ClientPriority::WORDS.get(usize::from(number));
                    word.map_or_else(|| number.to_string(), |word| (*word).to_owned())
                };
                let key = format!("{key}client-priority");
                Some(back(&key, said(shall.number()), said(is)))
            }
        }
    }
}

/// A limit as the control program takes it; 0 takes one away, on a running server too (measured on drivers 535 to 615).
fn in_command(limit: Option<MemoryLimit>) -> String {
    limit.map_or_else(|| "0".to_owned(), MemoryLimit::in_mebibytes)
}

/// What of the orders reads back as it should not.
#[derive(Debug)]
pub(super) enum Unlike {
    /// A value.
    Differs(String),
    /// Something that is no answer to what was asked: a refusal.
    Strange,
}

/// Compares the answers with the orders; the lines behind them.
pub(super) fn compare<'l>(orders: &[Order], lines: &'l [String]) -> Result<Vec<&'l str>, Unlike> {
    let mut lines: VecDeque<&str> = lines.iter().map(String::as_str).collect();
    for order in orders {
        match order.compare(&mut lines) {
            Some(Ok(())) => {}
            Some(Err(differs)) => return Err(Unlike::Differs(differs)),
            None => return Err(Unlike::Strange),
        }
    }
    Ok(lines.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn all() -> Settings {
        Settings {
            active_thread_percentage: Percentage::new(33.3).unwrap(),
            pinned_memory_limit: "1.5G".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            ..Settings::default()
        }
    }

    #[test]
    fn what_is_told_is_whole_and_keyed_by_device_0() {
        let orders = Order::defaults(&all(), None);
        let commands: Vec<&str> = orders.iter().map(Order::command).collect();
        assert_eq!(
            commands,
            [
                "set_default_active_thread_percentage 33.3",
                "set_default_device_pinned_mem_limit 0 1536M",
                "set_default_client_priority 1",
                "get_default_client_priority",
                "get_default_device_pinned_mem_limit 0",
                "get_default_active_thread_percentage",
            ]
        );
        let plain = Order::defaults(&Settings::default(), None);
        assert_eq!(plain.len(), 2, "what nobody asked for is not spoken of");
        let back = Order::defaults(&Settings::default(), Some(&all()));
        assert_eq!(
            back.iter().map(Order::command).collect::<Vec<_>>(),
            [
                "set_default_active_thread_percentage 100",
                "set_default_device_pinned_mem_limit 0 0",
                "set_default_client_priority 0",
                "get_default_client_priority",
                "get_default_device_pinned_mem_limit 0",
                "get_default_active_thread_percentage",
            ]
        );
        assert!(compare(&back, &lines("100.0 0 100.0")).is_ok());
        assert!(compare(&back, &lines("100.0 0 1G 100.0")).is_err());
    }

    #[test]
    fn answers_are_compared_and_what_is_behind_them_is_left() {
        let orders = Order::defaults(&all(), None);
        let answer = lines("33.3 1 1536M 33.3 466");
        assert_eq!(compare(&orders, &answer).unwrap(), ["466"]);
        let rounded = lines("33.3 1 1G 33.3");
        assert!(compare(&orders, &rounded).is_ok());
        for (answer, what) in [
            (
                "100.0 1 1536M 100.0",
                "active-thread-percentage was set to 33.3 and reads back as 100",
            ),
            (
                "33.3 0 1536M 33.3",
                "client-priority was set to below-normal and reads back as normal",
            ),
            (
                "33.3 1 1M 33.3",
                "pinned-memory-limit was set to 1536M and reads back as 1M",
            ),
            (
                "33.3 1 2G 33.3",
                "pinned-memory-limit was set to 1536M and reads back as 2G",
            ),
            (
                "33.3 1 33.3",
                "pinned-memory-limit was set to 1536M and reads back as none",
            ),
        ] {
            let Err(Unlike::Differs(why)) = compare(&orders, &lines(answer)) else {
                panic!("{answer}");
            };
            assert_eq!(why, what);
        }
        for refusal in ["33.3 Insufficient", "Unknown", "33.3 1 1536M"] {
            let lines = lines(refusal);
            let compared = compare(&orders, &lines);
            assert!(matches!(compared, Err(Unlike::Strange)), "{refusal}");
        }
    }

    #[test]
    fn a_servers_own_settings_are_read_back_too() {
        let orders = Order::of_server(Pid(466), &all(), None);
        let Err(Unlike::Differs(why)) = compare(&orders, &lines("33.3 33.3")) else {
            panic!("a limit that a server ignores goes unnoticed");
        };
        assert_eq!(
            why,
            "the server's pinned-memory-limit was set to 1536M and reads back as none"
        );
        let cleared = Order::of_server(Pid(466), &Settings::default(), Some(&all()));
        assert_eq!(cleared[1].command(), "set_device_pinned_mem_limit 466 0 0");
        assert!(compare(&cleared, &lines("100.0 100.0")).is_ok());
        assert!(compare(&cleared, &lines("100.0 1G 100.0")).is_err());
    }
}
