//! Where modules may come from.

use super::Glob;
use crate::contract::ArtifactSource;

/// One allowed kind of source.
#[derive(Clone, Debug, PartialEq)]
pub struct ArtifactEntry {
    /// Scheme of the URL, lower case.
    pub scheme: String,
    /// Hosts; `None`: any but link-local ones.
    pub host: Option<Glob>,
    /// Port; `None`: any.
    pub port: Option<u16>,
}

impl ArtifactEntry {
    /// Whether the entry names `source`. A link-local host must be written out: no `*` reaches it.
    pub fn admits(&self, source: &ArtifactSource) -> bool {
        *self.scheme == *source.scheme
            && self.port.is_none_or(|port| source.port == Some(port))
            && match &self.host {
                None => !source.link_local,
                Some(glob) => glob.matches(&source.host) && !(source.link_local && glob.has_wildcard()),
            }
    }
}

/// The rule without a policy: any scheme but `file`, any host but link-local ones.
pub fn allowed_by_default(source: &ArtifactSource) -> bool {
    &*source.scheme != "file" && !source.link_local
}
