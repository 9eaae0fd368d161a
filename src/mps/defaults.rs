use super::session::{ANSWER_LIMIT, PATIENCE};
use super::setting_command::queries;
use super::{Daemon, MpsError};
use crate::settings::Reported;

impl Daemon {
    /// Asks the daemon for the settings that it gives to new servers.
    pub fn defaults(&self) -> Result<Reported, MpsError> {
        let queries = queries();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let answer = self.session(&queries, PATIENCE, ANSWER_LIMIT)?;
        let mut lines = answer.lines.iter().map(String::as_str).collect();
        let read = Reported::read(&mut lines, answer.percentage);
        read.filter(|_| lines.is_empty())
            .ok_or_else(|| MpsError::Unexpected {
                asked: queries.join("\n"),
                answer: answer.lines.join("\n"),
            })
    }
}
