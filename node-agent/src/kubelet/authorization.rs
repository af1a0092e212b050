//! Whether a caller may: the API server is asked, as a kubelet asks it, for sub-resources of the Node.

use std::time::Duration;

use axum::http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::authentication::{CALL_LIMIT, REVIEWS, User};
use super::verdicts::Verdicts;

/// A yes holds for so long.
const YES: Duration = Duration::from_mins(1);
/// A no may be a yes as soon as somebody binds a role.
const NO: Duration = Duration::from_secs(10);

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: User,
    verb: &'static str,
    subresource: &'static str,
    node: String,
}

/// Why a caller is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// No role allows it.
    Forbidden,
    /// The API server could not be asked.
    NotAsked,
}

/// Asks whether callers may.
pub(super) struct Authorization {
    api: Api<SubjectAccessReview>,
    known: Verdicts<Question, bool>,
    at_once: Semaphore,
}

impl Authorization {
    pub(super) fn new(api: Api<SubjectAccessReview>) -> Self {
        Self { api, known: Verdicts::default(), at_once: Semaphore::new(REVIEWS) }
    }

    /// Whether one of the sub-resources of the Node is open to the user. An empty name is every Node.
    pub(super) async fn may(
        &self,
        user: &User,
        method: &Method,
        subresources: &[&'static str],
        node: &str,
    ) -> Result<(), Denied> {
        let verb = verb(method).ok_or(Denied::Forbidden)?;
        for subresource in subresources {
            let question = Question { user: user.clone(), verb, subresource, node: node.to_owned() };
            if self.ask(question).await? {
                return Ok(());
            }
        }
        Err(Denied::Forbidden)
    }

    async fn ask(&self, question: Question) -> Result<bool, Denied> {
        if let Some(known) = self.known.get(&question, Instant::now()) {
            return Ok(known);
        }
        let (review, parameters) = (review(&question), PostParams::default());
        let answered = async {
            let _permit = self.at_once.acquire().await.ok()?;
            self.api
                .create(&parameters, &review)
                .await
                .inspect_err(|error| tracing::warn!(%error, "a caller's rights could not be reviewed"))
                .ok()
        };
        let answer =
            tokio::time::timeout(CALL_LIMIT, answered).await.ok().flatten().ok_or(Denied::NotAsked)?;
        let allowed = answer.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        self.known.keep(question, allowed, if allowed { YES } else { NO }, Instant::now());
        Ok(allowed)
    }
}

/// The verb that a kubelet makes of a method.
fn verb(method: &Method) -> Option<&'static str> {
    Some(match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    })
}

fn review(question: &Question) -> SubjectAccessReview {
    let Question { user, verb, subresource, node } = question;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: text(verb),
        version: text("v1"),
        resource: text("nodes"),
        subresource: text(subresource),
        name: text(node),
        ..ResourceAttributes::default()
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
