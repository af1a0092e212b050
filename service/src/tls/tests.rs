use std::fs;

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
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("params");
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 12, 31);
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

fn refusal(directory: &Path) -> TlsError {
    match load(&files(directory), now()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error,
    }
}

#[test]
fn each_way_to_be_wrong_has_its_own_words() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let ca = authority();
    let (certificate, key) = leaf(&ca, 2090);

    assert!(refusal(path).to_string().contains("tls.crt: No such file"));
    write(path, "hello", &key, &ca.1);
    assert!(matches!(refusal(path), TlsError::NoCertificate(_)));
    write(path, &certificate.replace("-----END", "-----"), &key, &ca.1);
    assert!(matches!(refusal(path), TlsError::Damaged { .. }));
    write(path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &key, &ca.1);
    assert!(matches!(refusal(path), TlsError::Certificate { .. }));
    write(path, &certificate, "no key", &ca.1);
    assert!(matches!(refusal(path), TlsError::NoKey(_)));
    write(path, &certificate, &leaf(&ca, 2090).1, &ca.1);
    assert!(matches!(refusal(path), TlsError::KeyMismatch { .. }));
    write(path, &certificate, &key, "");
    assert!(matches!(refusal(path), TlsError::NoClientCa(_)));
    let (old, old_key) = leaf(&ca, 2020);
    write(path, &old, &old_key, &ca.1);
    assert!(refusal(path).to_string().contains("expired at 2020-12-31T00:00:00Z"));

    write(path, &certificate, &key, &ca.1);
    let loaded = load(&files(path), now()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.not_after.to_string(), "2090-12-31T00:00:00Z");
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
