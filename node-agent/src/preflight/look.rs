//! Reads what the verdict needs from both API servers.

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource};

use super::Facts;
use super::rights::{NEEDED, Right, Side};
use crate::discovery::Selector;

/// Questions about rights at once.
const AT_ONCE: usize = 8;

/// Why a cluster was not looked at.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub struct LookError {
    action: &'static str,
    source: Box<kube::Error>,
}

fn failed(action: &'static str) -> impl FnOnce(kube::Error) -> LookError {
    move |source| LookError { action, source: Box::new(source) }
}

pub(super) async fn look(
    modules: &Client,
    bases: &Client,
    selector: Option<&Selector>,
    own: &str,
) -> Result<Facts, LookError> {
    let mut facts = Facts {
        version: modules
            .apiserver_version()
            .await
            .map_err(failed("read the API server's version"))?
            .git_version,
        forbidden: forbidden(modules, bases, own).await?,
        ..Facts::default()
    };
    let everything = ListParams::default();
    let unseen = &mut facts.unseen;
    facts.nodes = list(&Api::all(modules.clone()), &everything, "Nodes", unseen).await?;
    facts.deployments =
        list(&Api::<Deployment>::all(modules.clone()), &everything, "Deployments", unseen).await?;
    facts.daemon_sets =
        list(&Api::<DaemonSet>::all(modules.clone()), &everything, "DaemonSets", unseen).await?;
    if let Some(selector) = selector {
        let selected = ListParams::default().labels(selector.as_str());
        facts.bases = Some(list(&Api::<Pod>::all(bases.clone()), &selected, "base Pods", unseen).await?);
    }
    match modules.list_api_group_resources("admissionregistration.k8s.io/v1").await {
        Ok(found) => facts.admission = found.resources.into_iter().map(|resource| resource.name).collect(),
        Err(error) if is_missing(&error) => {}
        Err(error) if is_forbidden(&error) => facts.unseen.push("the API's resources"),
        Err(error) => return Err(failed("read the API's resources")(error)),
    }
    // What cannot be read cannot be judged: that is as much a right that is missing as any other.
    facts.forbidden.extend(facts.unseen.iter().map(|what| format!("list {what}, which this check looks at")));
    Ok(facts)
}

/// All objects, or none and a note where that is forbidden.
async fn list<K>(
    api: &Api<K>,
    parameters: &ListParams,
    what: &'static str,
    unseen: &mut Vec<&'static str>,
) -> Result<Vec<K>, LookError>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.list(parameters).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_forbidden(&error) => {
            unseen.push(what);
            Ok(Vec::new())
        }
        Err(error) => Err(LookError { action: "list what is there", source: Box::new(error) }),
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

async fn forbidden(modules: &Client, bases: &Client, own: &str) -> Result<Vec<String>, LookError> {
    let asked = NEEDED.iter().flat_map(|right| right.verbs.iter().map(move |verb| (right, *verb)));
    let answers = stream::iter(asked).map(|(right, verb)| async move {
        let client = match right.side {
            Side::Modules => modules,
            Side::Bases => bases,
        };
        let allowed = may(client, right, verb, own).await?;
        Ok::<_, LookError>((!allowed).then(|| right.text(verb, own)))
    });
    let answers: Vec<Option<String>> = answers.buffered(AT_ONCE).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}

async fn may(client: &Client, right: &Right, verb: &str, own: &str) -> Result<bool, LookError> {
    let attributes = ResourceAttributes {
        group: Some(right.group.to_owned()),
        resource: Some(right.resource.to_owned()),
        subresource: (!right.subresource.is_empty()).then(|| right.subresource.to_owned()),
        namespace: right.place.namespace(own).map(str::to_owned),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await.map_err(failed("ask for rights"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
