//! Who calls: by client certificate, else by a bearer token that the API server reviews.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::verdicts::Verdicts;

/// A token that was good is good for so long.
const GOOD: Duration = Duration::from_mins(1);
/// One that was not may be soon.
const BAD: Duration = Duration::from_secs(10);
/// Tokens are a few KB; what is longer is none.
const LONGEST: usize = 16 << 10;
/// Reviews at once: bad tokens must not flood the API server.
pub(super) const REVIEWS: usize = 8;
/// Longest time one call may take.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A user, as the API server's reviews know one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// Why nobody is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// No certificate and no token, or a bad one.
    Nobody,
    /// The API server could not be asked.
    NotAsked,
}

/// Finds out who calls.
pub(super) struct Authentication {
    reviews: Option<Api<TokenReview>>,
    known: Verdicts<[u8; 32], Option<User>>,
    at_once: Semaphore,
}

impl Authentication {
    /// `reviews`: where tokens are reviewed, if they count.
    pub(super) fn new(reviews: Option<Api<TokenReview>>) -> Self {
        Self { reviews, known: Verdicts::default(), at_once: Semaphore::new(REVIEWS) }
    }

    pub(super) async fn user(&self, request: &Parts) -> Result<User, Unknown> {
        // The handshake has checked it.
        if let Some(subject) = service::tls::client(&request.extensions) {
            // A certificate without a name says nothing; with one, it is the caller, whatever token comes with it.
            return match subject.common_name {
                name if name.is_empty() => Err(Unknown::Nobody),
                name => Ok(User { name, groups: subject.organizations, ..User::default() }),
            };
        }
        let (Some(api), Some(token)) = (&self.reviews, bearer(request)) else { return Err(Unknown::Nobody) };
        // Tokens themselves are kept nowhere.
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.known.get(&key, Instant::now()) {
            return known.ok_or(Unknown::Nobody);
        }
        let user = self.review(api, token).await?;
        let lasts = if user.is_some() { GOOD } else { BAD };
        self.known.keep(key, user.clone(), lasts, Instant::now());
        user.ok_or(Unknown::Nobody)
    }

    async fn review(&self, api: &Api<TokenReview>, token: &str) -> Result<Option<User>, Unknown> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let parameters = PostParams::default();
        let answered = async {
            let _permit = self.at_once.acquire().await.ok()?;
            api.create(&parameters, &review)
                .await
                .inspect_err(|error| tracing::warn!(%error, "a token could not be reviewed"))
                .ok()
        };
        let answer =
            tokio::time::timeout(CALL_LIMIT, answered).await.ok().flatten().ok_or(Unknown::NotAsked)?;
        let status = answer.status.unwrap_or_default();
        Ok(status.user.filter(|_| status.authenticated == Some(true)).and_then(user))
    }
}

fn user(info: UserInfo) -> Option<User> {
    let name = info.username.filter(|name| !name.is_empty())?;
    Some(User {
        name,
        uid: info.uid,
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    })
}

fn bearer(request: &Parts) -> Option<&str> {
    let (scheme, token) = request.headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    let fits = scheme.eq_ignore_ascii_case("bearer") && (1..=LONGEST).contains(&token.len());
    fits.then_some(token)
}
