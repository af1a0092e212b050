//! Our own programs, run as users run them: as processes, with flags.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use crate::{
    fetch, logs,
    process::{Process, ProcessError},
    wait::{self, TimedOut},
    workdir::Workdir,
};

/// A folder with `stowage-agent`, `stowage-extender`, ...; without it they are looked for beside the test binary.
pub const FOLDER: &str = "STOWAGE_BIN_DIR";

/// Why a program did not run as it should.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It has not been built.
    #[error(
        "there is no {program} in {folder}: build it with `cargo build --bins`, or name its folder in {FOLDER}"
    )]
    Missing {
        /// The program.
        program: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// Its log folder could not be made.
    #[error("no folder for its log: {0}")]
    File(#[from] io::Error),
    /// It could not be started or signalled.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It ended before it answered.
    #[error("{program} ended ({status}) before it answered; the end of its log {log_file}:\n{log}")]
    Ended {
        /// The program.
        program: String,
        /// How.
        status: ExitStatus,
        /// Its log file.
        log_file: PathBuf,
        /// The last lines.
        log: String,
    },
    /// It did not answer.
    #[error("{timed_out}; the end of the log {log_file} of {program}:\n{log}")]
    NoAnswer {
        /// The program.
        program: String,
        /// What was waited for and last seen.
        timed_out: Box<TimedOut>,
        /// Its log file.
        log_file: PathBuf,
        /// The last lines.
        log: String,
    },
}

/// One of our programs with its arguments; killed on drop. Its output is one log file for all its starts, kept when a
/// test fails.
///
/// ```no_run
/// # async fn example(cluster: &harness::controlplane::ControlPlane) -> Result<(), Box<dyn std::error::Error>> {
/// use harness::{network, program::Program};
/// let port = network::free_port()?;
/// let extender = Program::new("stowage-extender")
///     .arg(format!("--kubeconfig={}", cluster.kubeconfig_path().display()))
///     .arg(format!("--listen=127.0.0.1:{port}"))
///     .start()?;
/// extender.wait_http(&format!("http://127.0.0.1:{port}/readyz")).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Program {
    launch: Launch,
    process: Process,
    workdir: Workdir,
}

/// A command line to be.
#[derive(Debug, Clone)]
pub struct Launch {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Program {
    /// Begins a command line. `RUST_LOG` is passed on, everything else of the environment that concerns Kubernetes is
    /// not.
    #[expect(clippy::new_ret_no_self, reason = "a builder that ends in `start`")]
    pub fn new(program: &str) -> Launch {
        Launch { program: program.to_owned(), args: Vec::new(), env: Vec::new() }
    }

    /// Where a program of ours is.
    pub fn find(program: &str) -> Result<PathBuf, ProgramError> {
        let folder = match std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => profile_folder(&std::env::current_exe()?),
        };
        let path = folder.join(program);
        if path.is_file() {
            Ok(path)
        } else {
            Err(ProgramError::Missing { program: program.to_owned(), folder })
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its log file.
    pub fn log_file(&self) -> &Path {
        self.process.log()
    }

    /// The end of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        logs::tail(self.log_file(), lines)
    }

    /// A folder of its own, for files it is to read.
    pub fn workdir(&self) -> &Workdir {
        &self.workdir
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill9(&self) {
        self.process.kill_and_wait();
    }

    /// SIGTERM, and waits at most `limit` for its end.
    pub async fn term(&self, limit: Duration) -> Result<ExitStatus, ProgramError> {
        self.process.terminate()?;
        Ok(self.process.wait(limit).await?)
    }

    /// Waits at most `limit` until it ends by itself.
    pub async fn wait_end(&self, limit: Duration) -> Result<ExitStatus, ProgramError> {
        Ok(self.process.wait(limit).await?)
    }

    /// SIGSTOP: it keeps its connections and does nothing.
    pub fn pause(&self) -> Result<(), ProgramError> {
        Ok(self.process.pause()?)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<(), ProgramError> {
        Ok(self.process.resume()?)
    }

    /// Sets or takes back an environment variable of its later starts.
    pub fn set_env(&mut self, name: &str, value: Option<&str>) {
        self.launch.env.retain(|(known, _)| known != name);
        self.launch.env.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Kills it, if it still runs, and starts it again with the same arguments and log file.
    pub fn restart(&mut self) -> Result<(), ProgramError> {
        self.kill9();
        self.process = self.launch.spawn(&self.workdir)?;
        Ok(())
    }

    /// Waits until a URL of it answers 200 (at most 60 s), and returns the body. Fails at once if it ends.
    pub async fn wait_http(&self, url: &str) -> Result<String, ProgramError> {
        let probe = async || {
            if let Some(status) = self.exit_status() {
                return Ok(Err(status));
            }
            match fetch::get(url, Duration::from_secs(5)).await {
                Ok((http::StatusCode::OK, body)) => Ok(Ok(body)),
                Ok((status, body)) => Err(format!("{status}: {body}")),
                Err(error) => Err(error.to_string()),
            }
        };
        let (program, log_file) = (self.launch.program.clone(), self.log_file().to_owned());
        match wait::until(&format!("answer of {url}"), Duration::from_mins(1), probe).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(status)) => Err(ProgramError::Ended { program, status, log: self.log_tail(40), log_file }),
            Err(timed_out) => Err(ProgramError::NoAnswer {
                program,
                timed_out: Box::new(timed_out),
                log: self.log_tail(40),
                log_file,
            }),
        }
    }
}

impl Launch {
    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Starts it.
    pub fn start(self) -> Result<Program, ProgramError> {
        let workdir = Workdir::new(&self.program)?;
        let process = self.spawn(&workdir)?;
        Ok(Program { launch: self, process, workdir })
    }

    fn spawn(&self, workdir: &Workdir) -> Result<Process, ProgramError> {
        let mut command = Command::new(Program::find(&self.program)?);
        command
            .args(&self.args)
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("KUBERNETES_SERVICE_PORT")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(workdir.path());
        let log = workdir.path().join(format!("{}.log", self.program));
        Ok(Process::spawn(&self.program, command, &log)?)
    }
}

/// Test binaries lie in `<profile>/deps` or `<profile>/examples`, programs in `<profile>`.
fn profile_folder(test_binary: &Path) -> PathBuf {
    let folder = test_binary.parent().unwrap_or(Path::new("/"));
    match folder.file_name().and_then(|name| name.to_str()) {
        Some("deps" | "examples") => folder.parent().unwrap_or(folder).to_owned(),
        _ => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_lie_beside_the_folder_of_the_tests() {
        for (binary, folder) in [
            ("/t/debug/deps/e2e_x-1234", "/t/debug"),
            ("/t/release/examples/demo", "/t/release"),
            ("/t/debug/controlplane", "/t/debug"),
        ] {
            assert_eq!(profile_folder(Path::new(binary)), Path::new(folder));
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_folder() {
        let error = Program::new("stowage-nothing").start().unwrap_err().to_string();
        assert!(error.contains("no stowage-nothing in /"), "{error}");
    }
}
