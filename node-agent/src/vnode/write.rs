//! The calls of a keeper: what makes a Node as it must be, and what removes it.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use tokio::time::Instant;

use super::keeper::Keeper;
use super::{FIELD_MANAGER, HEARTBEAT_EVERY, SeenNode, Show, Wanted, changes, creation, departure};
use crate::metrics::ApiResult;

/// Longest time one call may take.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Metaspace figures alone are written at most this often: every Node write wakes all Pods an extender rejected.
const METASPACE_EVERY: Duration = Duration::from_mins(1);

/// Why a Node is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    #[error("cannot {action} Node {node}: {source}")]
    Call { action: &'static str, node: String, source: Box<kube::Error> },
    #[error("cannot {action} Node {node}: no answer in {CALL_LIMIT:?}")]
    Late { action: &'static str, node: String },
    #[error("the name {0} belongs to a Node that is not ours")]
    Taken(String),
    #[error("Node {0} stands for another base and must go first")]
    OtherBase(String),
    #[error("there is no Node {0} yet: its base has not answered")]
    NoVerdict(String),
    #[error("there is no Node {0} any more: its base is leaving")]
    Leaving(String),
    #[error("cannot {action} Node {node}: this agent does not lead any more")]
    Over { action: &'static str, node: String },
}

impl KeepError {
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Keeper {
    pub(super) async fn bring_about(&mut self, show: &Show, wanted: &Wanted) -> Result<(), KeepError> {
        let Some(seen) = self.seen.clone() else { return self.create(show, wanted).await };
        if !seen.is_ours(&self.context.cluster) && !seen.has_provider_id(&wanted.provider_id) {
            // Looked at again before the next try: it may have gone.
            self.stranger = Some(seen.uid().to_owned());
            self.seen = None;
            return Err(KeepError::Taken(self.name.clone()));
        }
        if seen.base_uid() != show.spec.uid {
            self.seen = self.read().await?;
            return Err(KeepError::OtherBase(self.name.clone()));
        }
        let now = Instant::now();
        let heartbeat = now >= self.heartbeat_at;
        let changes = changes(&seen, wanted, heartbeat, Timestamp::now());
        if changes.only_metaspace
            && let Some(next) = self.inventory_at.map(|at| at + METASPACE_EVERY).filter(|next| *next > now)
        {
            self.not_before = next;
            return Ok(());
        }
        self.dirty = false;
        if changes.is_empty() {
            return Ok(());
        }
        if self.context.observe {
            self.observe("change", &[changes.spec.as_ref(), changes.status.as_ref()]);
            self.heartbeat_at = now + HEARTBEAT_EVERY;
            return Ok(());
        }
        self.dirty = true;
        if let Some(patch) = &changes.spec {
            self.patch("change the spec of", patch, false).await?;
        }
        if let Some(patch) = &changes.status {
            self.patch("change the status of", patch, true).await?;
            if patch.pointer("/metadata/annotations").is_some() {
                self.inventory_at = Some(now);
            }
        }
        self.dirty = false;
        if heartbeat {
            self.heartbeat_at = now + HEARTBEAT_EVERY;
        }
        Ok(())
    }

    /// Keeps new Pods off a Node of which nothing else is known.
    pub(super) async fn leave(&mut self) -> Result<(), KeepError> {
        self.dirty = false;
        let ours = self.seen.as_ref().filter(|seen| seen.is_ours(&self.context.cluster));
        let Some(patch) = ours.and_then(departure) else { return Ok(()) };
        if self.context.observe {
            self.observe("change", &[Some(&patch)]);
            return Ok(());
        }
        self.dirty = true;
        self.patch("change the spec of", &patch, false).await?;
        self.dirty = false;
        Ok(())
    }

    async fn create(&mut self, show: &Show, wanted: &Wanted) -> Result<(), KeepError> {
        let verdict = wanted.conditions.iter().find(|condition| condition.type_ == "Ready");
        if show.spec.leaving.is_some() {
            return Err(KeepError::Leaving(self.name.clone()));
        }
        if verdict.is_none_or(|ready| !ready.status && self.stood.is_none()) {
            return Err(KeepError::NoVerdict(self.name.clone()));
        }
        let node = creation(&self.name, wanted, Timestamp::now());
        if self.context.observe {
            self.dirty = false;
            self.observe("create", &[serde_json::to_value(&node).ok().as_ref()]);
            return Ok(());
        }
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let result = self.call("create", self.context.nodes.create(&parameters, &node)).await;
        self.note("create", &result);
        match result {
            Ok(node) => {
                tracing::info!(node = self.name, base = %format_args!("{}/{}", show.spec.namespace, show.spec.pod), "VNode registered");
                self.dirty = false;
                self.inventory_at = Some(Instant::now());
                self.see(SeenNode::new(node));
                // The node controller wants it within its grace period; at once is simplest.
                self.lease.forget(Instant::now());
                Ok(())
            }
            Err(error) if error.code() == Some(409) => {
                self.seen = self.read().await?;
                match &self.seen {
                    Some(seen)
                        if !seen.is_ours(&self.context.cluster)
                            && !seen.has_provider_id(&wanted.provider_id) =>
                    {
                        self.stranger = Some(seen.uid().to_owned());
                        self.seen = None;
                        Err(KeepError::Taken(self.name.clone()))
                    }
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn patch(
        &mut self,
        action: &'static str,
        patch: &serde_json::Value,
        status: bool,
    ) -> Result<(), KeepError> {
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Strategic(patch);
        let result = if status {
            self.call(action, self.context.nodes.patch_status(&self.name, &parameters, &patch)).await
        } else {
            self.call(action, self.context.nodes.patch(&self.name, &parameters, &patch)).await
        };
        self.note(if status { "patch_status" } else { "patch" }, &result);
        match result {
            Ok(node) => {
                self.see(SeenNode::new(node));
                Ok(())
            }
            Err(error) => {
                // Gone, or somebody wrote in between: the next try begins with what is there.
                if matches!(error.code(), Some(404 | 409)) {
                    self.seen = self.read().await?.filter(|now| !self.is_next(now));
                }
                Err(error)
            }
        }
    }

    async fn read(&self) -> Result<Option<SeenNode>, KeepError> {
        let result = self.call("read", self.context.nodes.get_opt(&self.name)).await;
        self.note("get", &result);
        Ok(result?.map(SeenNode::new))
    }

    /// Deletes Node and Lease; says whether both are gone. What another agent made under their name meanwhile stays.
    pub(super) async fn remove(&mut self) -> bool {
        if self.context.observe {
            self.observe("remove", &[]);
            return true;
        }
        let node = match &self.seen {
            None => Ok(()),
            Some(seen) => {
                self.stood = Some(seen.uid().to_owned());
                let preconditions =
                    Preconditions { uid: Some(seen.uid().to_owned()), resource_version: None };
                let parameters =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let result = self.call("delete", self.context.nodes.delete(&self.name, &parameters)).await;
                self.note("delete", &result);
                match result {
                    // Gone, or another Node has the name by now.
                    Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
                    other => other.map(|_| ()),
                }
            }
        };
        let lease = match node {
            Ok(()) if !self.context.term.holds() => {
                Err(KeepError::Over { action: "delete the Lease of", node: self.name.clone() })
            }
            Ok(()) => {
                self.seen = None;
                let delete = self.lease.delete(self.stood.as_deref(), &self.context.metrics);
                match tokio::time::timeout(CALL_LIMIT, delete).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(source)) => Err(KeepError::Call {
                        action: "delete the Lease of",
                        node: self.name.clone(),
                        source: Box::new(source),
                    }),
                    Err(_) => Err(KeepError::Late { action: "delete the Lease of", node: self.name.clone() }),
                }
            }
            Err(error) => Err(error),
        };
        match lease {
            Ok(()) => {
                tracing::info!(node = self.name, "VNode removed");
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    async fn call<T>(
        &self,
        action: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, KeepError> {
        // Right before the call: a permit may have been waited for, and the process may have been stopped.
        if !self.context.term.holds() {
            return Err(KeepError::Over { action, node: self.name.clone() });
        }
        match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(result) => result.map_err(|source| KeepError::Call {
                action,
                node: self.name.clone(),
                source: Box::new(source),
            }),
            Err(_) => Err(KeepError::Late { action, node: self.name.clone() }),
        }
    }

    fn note<T>(&self, verb: &'static str, result: &Result<T, KeepError>) {
        let outcome = match result {
            Ok(_) => ApiResult::Ok,
            Err(KeepError::Call { source, .. }) => ApiResult::of(source),
            Err(_) => ApiResult::Timeout,
        };
        self.context.metrics.api_call("nodes", verb, outcome);
    }
}
