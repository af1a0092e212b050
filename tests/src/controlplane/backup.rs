//! Copies of what etcd holds, and the way back to one of them.

use std::{fs, io, path::Path};

use super::{Component, ControlPlane, ControlPlaneError};
use crate::workdir::Workdir;

/// What etcd held at a moment. Goes on drop.
#[derive(Debug)]
pub struct Backup {
    workdir: Workdir,
}

impl ControlPlane {
    /// Copies etcd's files while it stands still: what a machine that lost its power would find.
    pub fn backup(&self) -> Result<Backup, ControlPlaneError> {
        let backup = Backup { workdir: Workdir::new("etcd-backup")? };
        self.pause(Component::Etcd)?;
        let copied = copy(&self.layout.etcd_data, &backup.workdir.data());
        self.resume(Component::Etcd)?;
        copied?;
        Ok(backup)
    }

    /// Goes back to a copy, as operators do it: API server and etcd stop, etcd's files are replaced, both start, and the
    /// controllers and the default scheduler are started anew. Versions of objects go back too. Other schedulers, and
    /// whoever else holds a watch, must see to themselves.
    pub async fn restore(&self, backup: &Backup) -> Result<(), ControlPlaneError> {
        self.stop(Component::ApiServer)?;
        self.stop(Component::Etcd)?;
        fs::remove_dir_all(&self.layout.etcd_data)?;
        copy(&backup.workdir.data(), &self.layout.etcd_data)?;
        self.restart(Component::Etcd).await?;
        self.restart(Component::ApiServer).await?;
        for component in [Component::ControllerManager, Component::Scheduler] {
            if self.parts().contains_key(&component) {
                self.restart(component).await?;
            }
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
