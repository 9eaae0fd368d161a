//! Servers of daemons that go on running.

use super::daemons::serve;
use super::gpu::GpuRun;
use super::{Cause, Shared};
use crate::plan::{EndStray, StartServer};
use crate::settings::Settings;
use crate::state::DeviceRecord;

impl GpuRun<'_> {
    /// Starts the server that a daemon has lost. It stays when the run fails later: so the record says.
    pub(super) fn start_server(&self, server: &StartServer) -> Result<(), Cause> {
        let record = &self
            .shared
            .served(&server.uuid)
            .ok_or(Cause::NoDevice)?
            .record;
        self.shared.start_server(record, &server.settings)
    }
}

impl GpuRun<'_> {
    /// Ends a server that outlived its daemon.
    pub(super) fn end_stray(&self, stray: &EndStray) -> Result<(), Cause> {
        let host = &self.shared.site.environment.host;
        let daemon = self.shared.daemon_of(&stray.uuid);
        Ok(daemon.kill_servers(host, &[stray.server])?)
    }
}

impl Shared<'_> {
    fn start_server(&self, record: &DeviceRecord, settings: &Settings) -> Result<(), Cause> {
        let daemon = record.daemon.ok_or(Cause::NoDevice)?;
        // A program that came in between has got one.
        if self.has_server(daemon.pid)? {
            return Ok(());
        }
        let user = self.first_user(serve(record))?;
        let was = Some(&record.settings);
        self.daemon(record).configure(settings, was, Some(user))?;
        Ok(())
    }
}
