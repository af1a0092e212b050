use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

struct Authority(Issuer<'static, KeyPair>, String);

fn authority() -> Authority {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::new(Vec::new()).expect("params");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).expect("certificate").pem();
    Authority(Issuer::new(params, key), pem)
}

/// Certificate and key for `localhost` that live until the end of `year`.
fn leaf(authority: &Authority, year: i32) -> (String, String) {
    leaf_from(authority, 2000, year)
}

/// The same, from the beginning of a year on.
fn leaf_from(authority: &Authority, first: i32, last: i32) -> (String, String) {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("params");
    params.not_before = rcgen::date_time_ymd(first, 1, 1);
    params.not_after = rcgen::date_time_ymd(last, 12, 31);
    let certificate = params.signed_by(&key, &authority.0).expect("certificate");
    (certificate.pem(), key.serialize_pem())
}

fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().expect("time")
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_ca: Some(directory.join("ca.crt")),
        client_certificates: ClientCertificates::Required,
    }
}

fn write(directory: &Path, certificate: &str, key: &str, ca: &str) {
    fs::write(directory.join("tls.crt"), certificate).expect("write");
    fs::write(directory.join("tls.key"), key).expect("write");
    fs::write(directory.join("ca.crt"), ca).expect("write");
}

/// The name of each variant, and all names: a variant that is missing here does not compile, and one without a case fails.
macro_rules! variants {
    ($($name:ident),+ $(,)?) => {
        const VARIANTS: &[&str] = &[$(stringify!($name)),+];

        fn variant(error: &TlsError) -> &'static str {
            match error {
                $(TlsError::$name { .. } => stringify!($name),)+
            }
        }
    };
}

variants! {
    Read, Damaged, NoCertificate, NoKey, NoClientCa, Certificate, Key, KeyMismatch, NotYetValid, Expired, ClientCa, Setup
}

/// A certificate of version 1, as `openssl x509 -req` without extensions makes it. rustls takes none.
const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBETCBuAIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwIBcN
MDAwMTAxMDAwMDAwWhgPMjA5OTEyMzEwMDAwMDBaMBQxEjAQBgNVBAMMCWxvY2Fs
aG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABCX7OSAx7uHIACLIa3YXxuGo
J/qgiZ5vPW4UO1R+F56Ap8IayU3IGApBnsjeiRj8Jk3bYN3CvcSWMHhQm1DdcvMw
CgYIKoZIzj0EAwIDSAAwRQIgAQwc9fBvxSo+sucQemoiwdZwjZ+uW3rf+Qe9QDCP
6k8CIQCqgXvKCXV22uKjoVOvlLedMscbY2GC+tZzO71Ju93nOg==
-----END CERTIFICATE-----
";

#[test]
fn each_way_to_be_wrong_has_its_own_words() {
    type Change = Box<dyn Fn(&Path)>;
    let put = |file: &'static str, text: &str| -> Change {
        let text = text.to_owned();
        Box::new(move |path| fs::write(path.join(file), &text).expect("write"))
    };
    let remove = |file: &'static str| -> Change {
        Box::new(move |path| fs::remove_file(path.join(file)).expect("remove"))
    };
    let pair = |(certificate, key): (String, String)| -> Change {
        Box::new(move |path| {
            fs::write(path.join("tls.crt"), &certificate).expect("write");
            fs::write(path.join("tls.key"), &key).expect("write");
        })
    };
    let block = |kind: &str, text: &str| format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n");
    let cut = |pem: &str| pem.replace("-----END", "-----");
    let garbled = |pem: &str| pem.replacen('M', "*", 1);
    let ca = authority();
    let (certificate, key) = leaf(&ca, 2090);
    let other_kind = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("key").serialize_pem();

    let cases: Vec<(&str, Change, &str)> = vec![
        ("Read", remove("tls.crt"), "tls.crt: No such file"),
        ("Read", remove("tls.key"), "tls.key: No such file"),
        ("Read", remove("ca.crt"), "ca.crt: No such file"),
        ("Damaged", put("tls.crt", &cut(&certificate)), "tls.crt is damaged PEM"),
        ("Damaged", put("tls.crt", &garbled(&certificate)), "tls.crt is damaged PEM"),
        ("Damaged", put("tls.key", &cut(&key)), "tls.key is damaged PEM"),
        ("Damaged", put("tls.key", &garbled(&key)), "tls.key is damaged PEM"),
        ("Damaged", put("ca.crt", &cut(&ca.1)), "ca.crt is damaged PEM"),
        ("Damaged", put("ca.crt", &garbled(&ca.1)), "ca.crt is damaged PEM"),
        ("NoCertificate", put("tls.crt", ""), "tls.crt holds no PEM certificate"),
        ("NoCertificate", put("tls.crt", "hello"), "tls.crt holds no PEM certificate"),
        ("NoCertificate", put("tls.crt", &key), "tls.crt holds no PEM certificate"),
        ("NoKey", put("tls.key", ""), "tls.key holds no PEM private key"),
        ("NoKey", put("tls.key", "no key"), "tls.key holds no PEM private key"),
        ("NoKey", put("tls.key", &certificate), "tls.key holds no PEM private key"),
        ("NoClientCa", put("ca.crt", ""), "ca.crt holds no PEM certificate of a client authority"),
        ("NoClientCa", put("ca.crt", &key), "ca.crt holds no PEM certificate of a client authority"),
        (
            "Certificate",
            put("tls.crt", &block("CERTIFICATE", "AAAA")),
            "tls.crt holds a certificate that cannot be read",
        ),
        ("Certificate", put("tls.crt", VERSION_1), "tls.crt holds a certificate that cannot be read"),
        ("Key", put("tls.key", &block("PRIVATE KEY", "AAAA")), "tls.key holds a key that cannot be used"),
        ("KeyMismatch", put("tls.key", &leaf(&ca, 2090).1), "tls.key does not belong to the certificate"),
        ("KeyMismatch", put("tls.key", &other_kind), "tls.key does not belong to the certificate"),
        ("NotYetValid", pair(leaf_from(&ca, 2027, 2090)), "it begins at 2027-01-01T00:00:00Z"),
        ("Expired", pair(leaf(&ca, 2020)), "expired at 2020-12-31T00:00:00Z"),
        (
            "ClientCa",
            put("ca.crt", &block("CERTIFICATE", "AAAA")),
            "ca.crt cannot be used as client authority",
        ),
    ];
    let mut seen = BTreeSet::new();
    for (name, change, says) in cases {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path();
        write(path, &certificate, &key, &ca.1);
        let loaded = load(&files(path), now()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(loaded.not_after.to_string(), "2090-12-31T00:00:00Z");
        change(path);
        let Err(error) = load(&files(path), now()) else { panic!("{says}: accepted") };
        assert_eq!(variant(&error), name, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        // Whatever the file holds instead: what is in it may be the key.
        let lines = key.lines().filter(|line| !line.starts_with('-') && line.len() > 8);
        assert!(lines.into_iter().all(|line| !error.to_string().contains(line)), "{error}");
        seen.insert(name);
    }

    let directory = tempfile::tempdir().expect("directory");
    write(directory.path(), &certificate, &key, &ca.1);
    let files = files(directory.path());
    let contents = Contents::read(&files).expect("contents");
    let none = CryptoProvider { cipher_suites: Vec::new(), ..rustls::crypto::ring::default_provider() };
    let Err(error) = build(&files, &contents, now(), Arc::new(none)) else { panic!("accepted") };
    assert!(error.to_string().starts_with("cannot set up TLS"), "{error}");
    seen.insert(variant(&error));
    assert_eq!(seen, VARIANTS.iter().copied().collect(), "each variant has a case");
}

/// Go's clients refuse it a moment earlier too.
#[test]
fn a_certificate_counts_from_its_first_second_on() {
    let directory = tempfile::tempdir().expect("directory");
    let ca = authority();
    let (certificate, key) = leaf_from(&ca, 2027, 2027);
    write(directory.path(), &certificate, &key, &ca.1);
    let at = |time: &str| load(&files(directory.path()), time.parse().expect("time")).map(drop);
    assert!(matches!(at("2026-12-31T23:59:59.999Z"), Err(TlsError::NotYetValid { .. })));
    assert!(at("2027-01-01T00:00:00Z").is_ok());
    assert!(at("2027-12-30T23:59:59.999Z").is_ok());
    assert!(matches!(at("2027-12-31T00:00:00Z"), Err(TlsError::Expired { .. })));
}

#[test]
fn a_bad_set_never_replaces_a_good_one() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let ca = authority();
    let (certificate, key) = leaf(&ca, 2090);
    write(path, &certificate, &key, &ca.1);
    let mut tls = match ReloadedTls::start(files(path), now, &mut Registry::default()) {
        Ok(tls) => tls,
        Err(error) => panic!("{error}"),
    };
    let first = tls.config().get_inner();

    // Half a rotation: the new certificate with the old key.
    let (newer, newer_key) = leaf(&ca, 2091);
    fs::write(path.join("tls.crt"), &newer).expect("write");
    assert!(matches!(tls.reload(), Err(TlsError::KeyMismatch { .. })));
    assert!(Arc::ptr_eq(&first, &tls.config().get_inner()));

    fs::write(path.join("tls.key"), &newer_key).expect("write");
    tls.reload().expect("the set is whole again");
    assert!(!Arc::ptr_eq(&first, &tls.config().get_inner()));
    let wanted = seconds("2091-12-31T00:00:00Z".parse().expect("time"));
    assert_eq!(tls.metrics.not_after.get().to_bits(), wanted.to_bits());
    assert_eq!(tls.metrics.reloads.get(), 1);
}

/// A certificate from an issuer whose clock is ahead: the old one stays, that is said and counted once, and the new one is
/// taken when its time has come, without another change of the files.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_yet_valid_waits_for_its_time() {
    /// Unix seconds.
    static CLOCK: AtomicI64 = AtomicI64::new(0);
    fn clock() -> Timestamp {
        Timestamp::from_second(CLOCK.load(Ordering::SeqCst)).expect("time")
    }
    let at = |time: &str| CLOCK.store(time.parse::<Timestamp>().expect("time").as_second(), Ordering::SeqCst);
    let not_after = |year: i32| seconds(format!("{year}-12-31T00:00:00Z").parse().expect("time"));
    let ticks = async |count: u32| tokio::time::sleep(crate::file_watch::POLL * count).await;

    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let ca = authority();
    let (certificate, key) = leaf(&ca, 2090);
    write(path, &certificate, &key, &ca.1);
    at("2026-12-31T23:59:00Z");
    let tls = match ReloadedTls::start(files(path), clock, &mut Registry::default()) {
        Ok(tls) => tls,
        Err(error) => panic!("{error}"),
    };
    let (config, metrics) = (tls.config(), tls.metrics.clone());
    let first = config.get_inner();
    let (early, early_key) = leaf_from(&ca, 2027, 2091);
    write(path, &early, &early_key, &ca.1);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(tls.follow(crate::file_watch::POLL, shutdown.clone()));

    ticks(5).await;
    assert!(Arc::ptr_eq(&first, &config.get_inner()), "the good one stays");
    assert_eq!((metrics.failures.get(), metrics.reloads.get()), (1, 0));
    assert_eq!(metrics.not_after.get().to_bits(), not_after(2090).to_bits());
    at("2027-01-01T00:00:00Z");
    ticks(2).await;
    assert!(!Arc::ptr_eq(&first, &config.get_inner()));
    assert_eq!((metrics.failures.get(), metrics.reloads.get()), (1, 1));
    assert_eq!(metrics.not_after.get().to_bits(), not_after(2091).to_bits());
    shutdown.cancel();
    task.await.expect("no panic").expect("ended");
}

#[tokio::test]
async fn a_swapped_secret_volume_is_seen() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let ca = authority();
    let swap = |name: &str, year| {
        let (certificate, key) = leaf(&ca, year);
        let version = path.join(name);
        fs::create_dir(&version).expect("directory");
        write(&version, &certificate, &key, &ca.1);
        std::os::unix::fs::symlink(name, path.join("..data_tmp")).expect("symlink");
        fs::rename(path.join("..data_tmp"), path.join("..data")).expect("rename");
    };
    swap("..1", 2090);
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        std::os::unix::fs::symlink(Path::new("..data").join(file), path.join(file)).expect("symlink");
    }
    let tls = match ReloadedTls::start(files(path), now, &mut Registry::default()) {
        Ok(tls) => tls,
        Err(error) => panic!("{error}"),
    };
    let (config, metrics) = (tls.config(), tls.metrics.clone());
    let first = config.get_inner();
    let shutdown = CancellationToken::new();
    // A short clock as well: inotify may be used up on the machine that runs the test.
    let task = tokio::spawn(tls.follow(Duration::from_millis(200), shutdown.clone()));
    for (name, year) in [("..2", 2091), ("..3", 2092)] {
        swap(name, year);
        let wanted = seconds(format!("{year}-12-31T00:00:00Z").parse().expect("time"));
        tokio::time::timeout(Duration::from_secs(20), async {
            while metrics.not_after.get().to_bits() != wanted.to_bits() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("each swap is seen");
    }
    assert!(!Arc::ptr_eq(&first, &config.get_inner()));
    shutdown.cancel();
    task.await.expect("no panic").expect("ended");
}
