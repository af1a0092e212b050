//! Where a module comes from, as far as rules look at it.

use std::{net::IpAddr, sync::Arc};

use url::{Host, Url};

/// Longest module URL that is read, in bytes.
const LONGEST: usize = 4096;

/// Scheme and host of a module URL. Holds no credentials, no path and no query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactSource {
    /// Scheme, lower case; `oci` for an image reference without one.
    pub scheme: Arc<str>,
    /// Host, lower case; empty where the scheme has none.
    pub host: Arc<str>,
    /// Port, where it is written or known by the scheme.
    pub port: Option<u16>,
    /// The host is a link-local address: metadata services live there.
    pub link_local: bool,
}

impl ArtifactSource {
    /// `None` where `image` is no URL.
    pub fn parse(image: &str) -> Option<Self> {
        if image.is_empty() || image.len() > LONGEST {
            return None;
        }
        // The JVM opens the URL inside: `jar:file:/etc/passwd!/` reads a file.
        let mut inner = image.trim();
        while let Some((_, rest)) =
            inner.split_at_checked(4).filter(|(head, _)| head.eq_ignore_ascii_case("jar:"))
        {
            inner = rest;
        }
        let url = if has_scheme(inner) {
            Url::parse(inner).ok()?
        } else {
            Url::parse(&format!("oci://{inner}")).ok()?
        };
        let (host, address) = match url.host() {
            None => (String::new(), None),
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                let address = name.parse().ok();
                (name, address)
            }
            Some(Host::Ipv4(v4)) => (v4.to_string(), Some(IpAddr::V4(v4))),
            Some(Host::Ipv6(v6)) => (format!("[{v6}]"), Some(IpAddr::V6(v6))),
        };
        Some(Self {
            scheme: url.scheme().into(),
            host: host.into(),
            port: url.port_or_known_default(),
            link_local: address.is_some_and(is_link_local),
        })
    }
}

/// `name:/`, as in `https://` and `file:/`; `repo.example.com:5000/shop` has none.
fn has_scheme(text: &str) -> bool {
    text.split_once(":/").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    })
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(image: &str) -> (String, String, Option<u16>, bool) {
        let s = ArtifactSource::parse(image).unwrap();
        (s.scheme.to_string(), s.host.to_string(), s.port, s.link_local)
    }

    fn expected(
        scheme: &str,
        host: &str,
        port: Option<u16>,
        link_local: bool,
    ) -> (String, String, Option<u16>, bool) {
        (scheme.into(), host.into(), port, link_local)
    }

    #[test]
    fn schemes_and_hosts() {
        assert_eq!(
            source("HTTPS://user:secret@Repo.Example.com/a.jar?token=x"),
            expected("https", "repo.example.com", Some(443), false)
        );
        assert_eq!(source("http://repo:8081/a.jar"), expected("http", "repo", Some(8081), false));
        assert_eq!(source("file:///modules/a.jar"), expected("file", "", None, false));
        assert_eq!(source("file:/modules/a.jar"), expected("file", "", None, false));
        assert_eq!(source("jar:file:/etc/passwd!/x"), expected("file", "", None, false));
        assert_eq!(source("JAR:jar:file:/a!/b!/c"), expected("file", "", None, false));
        assert_eq!(source("oss://bucket/a.jar"), expected("oss", "bucket", None, false));
        assert_eq!(
            source("repo.example.com:5000/shop:1.0"),
            expected("oci", "repo.example.com", Some(5000), false)
        );
        assert_eq!(source("shop"), expected("oci", "shop", None, false));
    }

    #[test]
    fn link_local_hosts_in_every_spelling() {
        for image in [
            "http://169.254.169.254/latest",
            "http://2852039166/latest",
            "http://0xa9fea9fe/",
            "s3://169.254.1.1/a.jar",
            "http://[fe80::1]/a.jar",
            "http://[::ffff:169.254.169.254]/",
        ] {
            assert!(source(image).3, "{image}");
        }
        assert!(!source("http://10.0.0.1/a.jar").3);
    }

    #[test]
    fn what_is_no_url() {
        for image in ["", "http://", "https:///", "http://[::1", "a b", &"x".repeat(5000)] {
            assert_eq!(ArtifactSource::parse(image), None, "{image:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(image in "\\PC{0,80}") {
            let _ = ArtifactSource::parse(&image);
        }
    }
}
