//! Child processes: each in a group of its own, on a leash, its output in a log file.

use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::watch;

use crate::{leash, logs};

/// Why a process could not be started or signalled.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log file could not be opened.
    #[error("log file {path} could not be opened: {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program could not be executed.
    #[error("{program} could not be started: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The signal could not be sent, or the process has ended already.
    #[error("{program} could not be signalled: {source}")]
    Signal {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It still ran when the time was up.
    #[error("{program} still ran after {limit:?}; the end of its log:\n{log}")]
    StillRunning {
        /// The program.
        program: String,
        /// How long was waited.
        limit: Duration,
        /// The last lines of its log.
        log: String,
    },
}

/// A running child process, killed with its whole process group on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts `command` with an empty standard input and both outputs appended to `log`. `name` is for messages.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self, ProcessError> {
        let log_error = |source| ProcessError::Log { path: log.to_owned(), source };
        let out = File::options().create(true).append(true).open(log).map_err(log_error)?;
        let err = out.try_clone().map_err(log_error)?;
        let spawn_error = |source| ProcessError::Spawn { program: name.to_owned(), source };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(spawn_error)?;
        let pid = child.id();
        let held = leash::hold(pid);
        let (tx, ended) = watch::channel(None);
        // One waiting thread per child: independent of any async runtime, so that a process may outlive the test
        // (and the runtime) that started it.
        thread::spawn(move || {
            let status = child.wait().unwrap_or_default();
            // An error means that the leash is gone, and this process with it.
            leash::release(pid).ok();
            tx.send_replace(Some(status));
        });
        let process = Self { name: name.to_owned(), pid, log: log.to_owned(), ended };
        held.map_err(spawn_error)?;
        Ok(process)
    }

    /// The process id, which is also its group's.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    /// SIGTERM, to the whole group.
    pub fn terminate(&self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM)
    }

    /// SIGKILL, to the whole group; a process that has ended already is no error.
    pub fn kill(&self) {
        self.signal(Signal::KILL).ok();
    }

    /// SIGSTOP: it keeps its connections and answers nobody.
    pub fn pause(&self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT, after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let error = |source| ProcessError::Signal { program: self.name.clone(), source };
        let ended = || error(io::Error::new(io::ErrorKind::NotFound, "it has ended"));
        if self.exit_status().is_some() {
            return Err(ended());
        }
        let group = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(ended)?;
        kill_process_group(group, signal).map_err(|errno| error(errno.into()))
    }

    /// Resolves when the process has ended. Holds nothing of `self`.
    pub fn ended(&self) -> impl Future<Output = ExitStatus> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // The waiting thread always sends before it drops its end.
            match ended.wait_for(Option::is_some).await {
                Ok(status) => status.unwrap_or_default(),
                Err(_) => ExitStatus::default(),
            }
        }
    }

    /// Waits until it has ended, at most `limit`.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        tokio::time::timeout(limit, self.ended()).await.map_err(|_| ProcessError::StillRunning {
            program: self.name.clone(),
            limit,
            log: logs::tail(&self.log, 40),
        })
    }

    /// SIGKILL, and blocks until the process is gone (so that its ports and files are free).
    pub fn kill_and_wait(&self) {
        self.kill();
        while self.exit_status().is_none() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_is_logged_and_the_status_kept() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let process = Process::spawn("sh", command, &log).unwrap();
        assert_eq!(process.wait(Duration::from_secs(30)).await.unwrap().code(), Some(3));
        assert_eq!(logs::tail(&log, 9), "out\nerr");
        assert!(process.terminate().is_err(), "it has ended");
    }

    #[tokio::test]
    async fn drop_kills_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let process = Process::spawn("sh", command, &log).unwrap();
        let grandchild = crate::wait::until("the grandchild's id", Duration::from_secs(30), async || {
            logs::tail(&log, 1).parse::<i32>().map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        process.pause().unwrap();
        drop(process);
        let pid = Pid::from_raw(grandchild).unwrap();
        crate::wait::until("the grandchild to be gone", Duration::from_secs(30), async || {
            // A zombie that nobody has reaped yet still takes signals; its command line is empty.
            match rustix::process::test_kill_process(pid) {
                Ok(())
                    if !std::fs::read(format!("/proc/{grandchild}/cmdline"))
                        .unwrap_or_default()
                        .is_empty() =>
                {
                    Err("alive")
                }
                _ => Ok(()),
            }
        })
        .await
        .unwrap();
    }
}
