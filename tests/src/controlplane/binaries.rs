//! Where the programs of the control plane come from: a folder that the user names, or a build of
//! `tests/controlplane` (a Go module) under cargo's target directory.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{network, workdir::say};

/// A folder with the binaries; searched first.
pub const FOLDER: &str = "STOWAGE_CONTROLPLANE";
/// The same, as other projects call it.
pub const FOLDER_OF_OTHERS: &str = "KUBEBUILDER_ASSETS";
/// The binary that is all of them.
const ALL_IN_ONE: &str = "stowage-controlplane";
const VERSION: (&str, &str, &str) = ("v1.37.2", "1", "37");

/// One program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// Makes Deployments, services and node life cycle work.
    ControllerManager,
    /// Binds Pods.
    Scheduler,
    /// The command line client.
    Kubectl,
}

impl Component {
    /// The name of the binary.
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
        }
    }
}

/// Why a program is not there.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// The named folder lacks it.
    #[error("{variable} names {folder}, where there is no {program}")]
    Missing {
        /// The environment variable that names the folder.
        variable: &'static str,
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        program: &'static str,
    },
    /// There is no Go to build with.
    #[error(
        "building the control plane needs Go 1.26 or newer on the PATH (or name a folder with etcd, kube-apiserver, \
         kube-controller-manager, kube-scheduler and kubectl in {FOLDER})"
    )]
    NoGo,
    /// Go could not build it.
    #[error("building the control plane in {folder} failed; what Go said:\n{output}")]
    Build {
        /// The Go module.
        folder: PathBuf,
        /// Its output.
        output: String,
    },
    /// A file of the build could not be read or written.
    #[error("building the control plane: {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The programs, found.
#[derive(Debug)]
pub enum Binaries {
    /// One binary is all of them; the first argument chooses.
    AllInOne(PathBuf),
    /// A folder with one binary each.
    Folder {
        /// The environment variable that names the folder.
        variable: &'static str,
        /// The folder.
        folder: PathBuf,
    },
}

impl Binaries {
    /// The beginning of a command line that runs the component.
    pub fn command(&self, component: Component) -> Result<Command, BinariesError> {
        self.named(component.program())
    }

    /// The helper that makes a range of addresses local to a network namespace.
    pub(crate) fn loopback(&self) -> Result<Command, BinariesError> {
        self.named("loopback")
    }

    fn named(&self, program: &'static str) -> Result<Command, BinariesError> {
        match self {
            Self::AllInOne(path) => {
                let mut command = Command::new(path);
                command.arg(program);
                Ok(command)
            }
            Self::Folder { variable, folder } => {
                let path = folder.join(program);
                if path.is_file() {
                    Ok(Command::new(path))
                } else {
                    Err(BinariesError::Missing { variable, folder: folder.clone(), program })
                }
            }
        }
    }
}

/// Finds the programs; builds them if no folder is named and the last build is older than its sources. Blocks: a
/// first build takes minutes, during which other test binaries wait for the same build.
pub fn locate() -> Result<&'static Binaries, BinariesError> {
    static FOUND: OnceLock<Binaries> = OnceLock::new();
    static SEARCH: Mutex<()> = Mutex::new(());
    let _one_at_a_time = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let named = [FOLDER, FOLDER_OF_OTHERS]
        .into_iter()
        .find_map(|variable| Some((variable, std::env::var_os(variable).filter(|value| !value.is_empty())?)));
    let found = match named {
        Some((variable, folder)) => in_folder(variable, PathBuf::from(folder)),
        None => Binaries::AllInOne(build(&target_directory())?),
    };
    Ok(FOUND.get_or_init(|| found))
}

fn in_folder(variable: &'static str, folder: PathBuf) -> Binaries {
    let all_in_one = folder.join(ALL_IN_ONE);
    if all_in_one.is_file() { Binaries::AllInOne(all_in_one) } else { Binaries::Folder { variable, folder } }
}

/// Cargo's target directory: the folder above the running program that cargo has tagged.
pub(crate) fn target_directory() -> PathBuf {
    let tagged = std::env::current_exe().ok().and_then(|program| {
        program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Path::to_owned)
    });
    tagged.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// Builds into `<target>/controlplane` unless the binary there was built from the same sources.
fn build(target: &Path) -> Result<PathBuf, BinariesError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| BinariesError::File { path, source }
    };
    let folder = target.join("controlplane");
    let (binary, stamp, lock) = (folder.join(ALL_IN_ONE), folder.join("built-from"), folder.join("lock"));
    std::fs::create_dir_all(&folder).map_err(file(&folder))?;
    let lock_file = File::create(&lock).map_err(file(&lock))?;
    if lock_file.try_lock().is_err() {
        say("waiting for another build of the control plane");
        lock_file.lock().map_err(file(&lock))?;
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("controlplane");
    let sources = sources(&module).map_err(file(&module))?;
    if binary.is_file() && std::fs::read(&stamp).is_ok_and(|built_from| built_from == sources) {
        return Ok(binary);
    }
    if !network::is_installed("go") {
        return Err(BinariesError::NoGo);
    }
    say("building the control plane (about 7 minutes the first time, then kept)");
    run_go(&module, &binary)?;
    std::fs::write(&stamp, sources).map_err(file(&stamp))?;
    Ok(binary)
}

/// All source files, one after the other: what a build is compared by.
fn sources(module: &Path) -> io::Result<Vec<u8>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(module)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "go" || end == "mod" || end == "sum") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all = format!("{VERSION:?}\n").into_bytes();
    for path in paths {
        all.extend_from_slice(path.file_name().unwrap_or_default().as_encoded_bytes());
        all.push(b'\n');
        all.extend(std::fs::read(path)?);
    }
    Ok(all)
}

fn run_go(module: &Path, binary: &Path) -> Result<(), BinariesError> {
    let failed = |output: String| BinariesError::Build { folder: module.to_owned(), output };
    let (version, major, minor) = VERSION;
    let mut ldflags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
            ldflags.extend([" -X ", package, ".", name, "=", value]);
        }
    }
    let log = binary.with_extension("log");
    let output = File::create(&log).map_err(|source| BinariesError::File { path: log.clone(), source })?;
    let mut go = Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &ldflags, "-o"])
        .args([binary, Path::new(".")])
        .env("CGO_ENABLED", "0")
        .current_dir(module)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let started = Instant::now();
    let mut next_word = Duration::from_secs(30);
    let status = loop {
        if let Some(status) = go.try_wait().map_err(|error| failed(error.to_string()))? {
            break status;
        }
        if started.elapsed() > next_word {
            say(&format!("still building the control plane ({} s)", next_word.as_secs()));
            next_word += Duration::from_secs(30);
        }
        thread::sleep(Duration::from_millis(100));
    };
    if status.success() { Ok(()) } else { Err(failed(crate::logs::tail(&log, 60))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("etcd"), "").unwrap();
        let binaries = in_folder(FOLDER_OF_OTHERS, folder.path().to_owned());
        assert!(binaries.command(Component::Etcd).is_ok());
        let error = binaries.command(Component::Scheduler).unwrap_err().to_string();
        assert!(error.contains("KUBEBUILDER_ASSETS") && error.contains("no kube-scheduler"), "{error}");
    }

    #[test]
    fn the_sources_of_a_build_are_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("go.mod"), "module m").unwrap();
        let before = sources(folder.path()).unwrap();
        std::fs::write(folder.path().join("README"), "text").unwrap();
        assert_eq!(sources(folder.path()).unwrap(), before);
        std::fs::write(folder.path().join("main.go"), "package main").unwrap();
        assert_ne!(sources(folder.path()).unwrap(), before);
    }
}
