use super::problem::Problem;
use super::served::Served;
use super::snapshot::Node;
use crate::host::user_name;

impl Node {
    /// Returns what is in order and still worth a line of `status`.
    pub fn remarks(&self, devices: &[String]) -> Vec<Problem> {
        let wanted = |served: &&Served| devices.is_empty() || devices.contains(&served.record.name);
        let under_way = self.under_way.iter();
        let mut remarks: Vec<Problem> = under_way
            .map(|journal| Problem::of_node(format!("a change is under way: {journal}")))
            .collect();
        for served in self.served.iter().filter(wanted) {
            if served.has_lost_its_server() {
                let what = "its server has ended; the next client starts another";
                remarks.push(Problem::of(served, what.to_owned()));
            }
            remarks.extend(crowd(served).map(|what| Problem::of(served, what)));
            let before = users_served(served);
            for waiting in &served.waiting {
                let user = waiting
                    .user
                    .map_or_else(|| "somebody".to_owned(), user_name);
                let what = format!("{user} waits behind {before} (pid {})", waiting.shown_pid());
                remarks.push(Problem::of(served, what));
            }
        }
        remarks
    }
}

/// Names the users whose programs are served now.
fn users_served(served: &Served) -> String {
    let users = served.servers.iter().filter_map(|server| server.user);
    let mut names: Vec<String> = users.map(user_name).collect();
    names.dedup();
    if names.is_empty() {
        "a server that starts".to_owned()
    } else {
        names.join(", ")
    }
}

/// Describes a daemon that has all the clients that it can have, or more than `max-clients`.
fn crowd(served: &Served) -> Option<String> {
    let most = served.client_limit.filter(|_| served.clients.are_known())?;
    let clients = u32::try_from(served.clients.listed().len()).ok()?;
    if let Some(meant) = served.record.settings.max_clients {
        let more = format!("it has {clients} clients and is meant for {meant} (max-clients)");
        return (clients > meant).then_some(more);
    }
    let full =
        "it has as many clients as it takes: another program's context fails with CUDA error 46";
    (clients >= most).then(|| full.to_owned())
}
