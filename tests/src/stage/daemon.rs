//! One of our two programs on a stage.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use super::StageError;
use crate::{
    fetch,
    program::{Launch, Program},
    samples,
};

/// `stowage-agent` or `stowage-extender` as a process, with its admin server. All that a [`Program`] can do, it can.
pub struct Daemon {
    program: Program,
    admin: String,
}

impl Daemon {
    /// Starts it and waits until its admin server answers.
    pub(super) async fn start(launch: Launch, admin_port: u16) -> Result<Self, StageError> {
        let daemon = Self { program: launch.start()?, admin: format!("http://127.0.0.1:{admin_port}") };
        daemon.wait_live().await?;
        Ok(daemon)
    }

    /// URL of the admin server, without a path.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Waits until `/livez` answers 200.
    pub async fn wait_live(&self) -> Result<(), StageError> {
        self.program.wait_http(&format!("{}/livez", self.admin)).await?;
        Ok(())
    }

    /// Waits until `/readyz` answers 200.
    pub async fn wait_ready(&self) -> Result<(), StageError> {
        self.program.wait_http(&format!("{}/readyz", self.admin)).await?;
        Ok(())
    }

    /// The body of an admin path, whatever its status.
    pub async fn get(&self, path: &str) -> Result<String, StageError> {
        let url = format!("{}{path}", self.admin);
        let answer = fetch::get(&url, Duration::from_secs(5)).await;
        Ok(answer.map_err(|error| StageError::Broken(error.to_string()))?.1)
    }

    /// The sum of a metric's samples whose line contains all of `labels` (`code="x"`); 0 if there is none.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64, StageError> {
        Ok(samples::sum(&self.get("/metrics").await?, name, labels))
    }
}

impl Deref for Daemon {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Daemon {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}
