//! The way into the demo for other terminals: a `kubectl` that enters the demo's network namespace, and samples whose
//! jars are served there.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::NAMESPACE;
use crate::{
    controlplane::{Component, ControlPlaneError, binaries},
    leash,
    stage::{Stage, StageError},
};

/// What can be tried, as it lies in `manifests/samples`.
const SAMPLES: [&str; 4] = ["module.yaml", "module-group.yaml", "peer-scaling.yaml", "linked-release.yaml"];
/// The next version of the module in `module.yaml`.
const RELEASE: &str = "shop-1.5.0.yaml";

/// Why it could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The control plane has no kubectl.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// A sample could not be read, or its jars not be made.
    #[error(transparent)]
    Stage(#[from] Box<StageError>),
}

/// A folder under the target directory; it goes on drop, and when the demo is killed.
pub(super) struct Terminal {
    folder: PathBuf,
}

impl Terminal {
    /// Writes the folder.
    pub(super) fn open(stage: &Stage) -> Result<Self, TerminalError> {
        let folder = free_folder(&binaries::target_directory());
        let terminal = Self { folder };
        terminal.file("pid", &std::process::id().to_string(), 0o644)?;
        let file_error = |source| TerminalError::File { path: terminal.folder.clone(), source };
        leash::remove_at_end(&terminal.folder).map_err(file_error)?;
        let cluster = stage.cluster().map_err(Box::new)?;
        let kubectl = binaries::locate().and_then(|found| found.command(Component::Kubectl));
        let kubectl = kubectl.map_err(ControlPlaneError::Binaries)?;
        let mut command = vec![kubectl.get_program().to_owned()];
        command.extend(kubectl.get_args().map(ToOwned::to_owned));
        let command: Vec<String> = command.iter().map(|part| quoted(&part.to_string_lossy())).collect();
        let script = script(std::process::id(), &command.join(" "), &cluster.kubeconfig_path());
        terminal.file("kubectl", &script, 0o755)?;
        for sample in SAMPLES {
            let yaml = stage.sample(sample).map_err(Box::new)?;
            terminal.file(sample, &yaml, 0o644)?;
            if sample == "module.yaml" {
                terminal.file(RELEASE, &release(stage, &yaml)?, 0o644)?;
            }
        }
        Ok(terminal)
    }

    fn file(&self, name: &str, content: &str, mode: u32) -> Result<(), TerminalError> {
        let path = self.folder.join(name);
        let write = || -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        };
        write().map_err(|source| TerminalError::File { path: path.clone(), source })
    }

    /// What the user is told.
    pub(super) fn greeting(&self) -> String {
        let folder = self.folder.display();
        let kubectl = format!("{folder}/kubectl");
        let mut text =
            format!("\nThe demo runs. Look at it from another terminal:\n\n  {kubectl} get pods -o wide\n");
        text.push_str("\nand try next:\n\n");
        for (what, arguments) in [
            ("the bases, as Kubernetes sees them", "get nodes -L basement.koupleless.io/version".to_owned()),
            (
                "a fifth replica for four bases: `describe` says why it waits",
                "scale deployment shop --replicas=5".to_owned(),
            ),
            ("release", format!("apply -f {folder}/{RELEASE}")),
            ("rollback", "rollout undo deployment shop".to_owned()),
            (
                "replay: a base is replaced, its module moves",
                "delete pod -l app=base-2-1-0 --wait=false".to_owned(),
            ),
            ("offline", "delete deployment shop".to_owned()),
            ("one instance on every base", format!("apply -f {folder}/peer-scaling.yaml")),
            ("and it follows", "scale deployment base-2-2-0 --replicas=3".to_owned()),
        ] {
            writeln!(text, "  # {what}\n  {kubectl} {arguments}").ok();
        }
        text.push_str("\nCtrl-C ends the demo and removes all of it.");
        text
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The leash tries again.
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// `demo`, unless the demo of another living process has it.
fn free_folder(target: &Path) -> PathBuf {
    let usual = target.join("demo");
    let owner = fs::read_to_string(usual.join("pid")).unwrap_or_default();
    if !owner.is_empty() && Path::new("/proc").join(&owner).exists() {
        return target.join(format!("demo-{}", std::process::id()));
    }
    usual
}

/// The sample with the next version, whose jar is then served.
fn release(stage: &Stage, yaml: &str) -> Result<String, TerminalError> {
    let jar = stage.artifacts.module("shop", "1.5.0").named("modules/shop-1.5.0-ark-biz.jar");
    jar.url().map_err(|error| Box::new(StageError::from(error)))?;
    Ok(yaml.replace("1.4.0", "1.5.0"))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn script(pid: u32, kubectl: &str, kubeconfig: &Path) -> String {
    let kubeconfig = quoted(&kubeconfig.display().to_string());
    format!(
        r#"#!/bin/sh
# kubectl for the demo that runs as process {pid}: enters its network namespace, in which the API server listens.
set -eu
user=
if [ "$(readlink /proc/self/ns/user)" != "$(readlink /proc/{pid}/ns/user)" ]; then
  user='--user --preserve-credentials'
fi
exec nsenter --target {pid} $user --net -- {kubectl} --kubeconfig {kubeconfig} --namespace {NAMESPACE} "$@"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_quotes_and_spaces_survive() {
        let script = script(1, &quoted("/a b/kubectl"), Path::new("/it's/config"));
        assert!(
            script.contains(r"-- '/a b/kubectl' --kubeconfig '/it'\''s/config' --namespace shop"),
            "{script}"
        );
    }

    #[test]
    fn a_second_demo_gets_a_folder_of_its_own() {
        let target = tempfile::tempdir().unwrap();
        assert_eq!(free_folder(target.path()), target.path().join("demo"));
        fs::create_dir(target.path().join("demo")).unwrap();
        fs::write(target.path().join("demo/pid"), std::process::id().to_string()).unwrap();
        assert_ne!(free_folder(target.path()), target.path().join("demo"));
        fs::write(target.path().join("demo/pid"), "4194305").unwrap();
        assert_eq!(free_folder(target.path()), target.path().join("demo"));
    }
}
