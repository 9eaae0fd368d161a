//! What depends on the driver's version.

use super::Node;

/// The first branch whose control program knows `-multiuser-server` (CUDA 12.5); that of 550 does not.
const MULTIUSER_SINCE: u32 = 555;

/// The first branch whose servers are said to take more clients than were measured.
const MORE_CLIENTS_SINCE: u32 = 590;

impl Node {
    /// The driver's branch, such as 580; `None` where its version does not begin with one.
    fn driver_branch(&self) -> Option<u32> {
        self.driver.split('.').next()?.parse().ok()
    }

    /// From which branch on one server can serve several users at once, where the driver is an older one.
    pub fn lacks_multiuser_server(&self) -> Option<u32> {
        let is_older = self.driver_branch()? < MULTIUSER_SINCE;
        is_older.then_some(MULTIUSER_SINCE)
    }

    /// How many clients a whole GPU takes: 48 up to driver 580, measured there. Later ones are said to take 60, and
    /// how many a MIG device takes nobody has measured.
    pub(super) fn client_limit(&self) -> Option<u32> {
        (self.driver_branch()? < MORE_CLIENTS_SINCE).then_some(48)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(driver: &str) -> Node {
        Node {
            driver: driver.to_owned(),
            ..Node::default()
        }
    }

    #[test]
    fn what_cannot_be_read_is_taken_for_no_older_driver() {
        for (driver, lacks, limit) in [
            ("550.163.01", Some(555), Some(48)),
            ("555.58.02", None, Some(48)),
            ("580.159.04", None, Some(48)),
            ("595.99.02", None, None),
            ("", None, None),
            ("R550", None, None),
        ] {
            let node = with(driver);
            assert_eq!(node.lacks_multiuser_server(), lacks, "{driver}");
            assert_eq!(node.client_limit(), limit, "{driver}");
        }
    }
}
