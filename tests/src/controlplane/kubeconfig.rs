//! Kubeconfig files, as text (JSON is YAML).

use serde_json::{Value, json};

use super::certificates::Identity;

/// Who a kubeconfig stands for.
#[derive(Debug)]
pub(crate) enum Credentials<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
}

/// A kubeconfig with one context, which is the current one.
pub(crate) fn render(
    server: &str,
    authority: &str,
    credentials: &Credentials<'_>,
    namespace: &str,
) -> String {
    let user: Value = match credentials {
        Credentials::Certificate(identity) => json!({
            "client-certificate-data": base64(identity.certificate.as_bytes()),
            "client-key-data": base64(identity.key.as_bytes()),
        }),
        Credentials::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": server, "certificate-authority-data": base64(authority.as_bytes()),
        }}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {
            "cluster": "test", "user": "user", "namespace": namespace,
        }}],
        "current-context": "test",
    })
    .to_string()
}

/// Kubernetes' JSON form of bytes is base64.
fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_reads_it() {
        let text = render("https://127.0.0.1:6443", "pem", &Credentials::Token("abc"), "shop");
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("test"));
        let context = config.contexts[0].context.as_ref().unwrap();
        assert_eq!(context.namespace.as_deref(), Some("shop"));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("cGVt"));
    }
}
