//! Replies of the simulator, byte for byte, against what a real arklet 1.4.2 was seen to send. Times, addresses and
//! sizes are evened out; order of keys and absence of headers are not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;

use harness::arklet::{Options, Release, Simulator};
use harness::artifact::ArtifactServer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn exchange(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

async fn call(addr: SocketAddr, command: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!("POST /{command} HTTP/1.1\r\nHost: arklet\r\nContent-Length: {}\r\n\r\n", body.len());
    exchange(addr, &(head + &body)).await
}

/// Evens out what differs from run to run.
fn even(reply: &str) -> String {
    let mut text = String::new();
    let mut rest = reply;
    // Times, sizes and stamps are the only numbers of four digits or more.
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, digits) = rest.split_at(start);
        let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (number, after) = digits.split_at(length);
        text.push_str(before);
        text.push_str(if length >= 4 { "N" } else { number });
        rest = after;
    }
    text.push_str(rest);
    let cost = text.find("cost: ").map(|place| place + "cost: ".len());
    let end = text.find("\"}}");
    if let (Some(cost), Some(end)) = (cost, end.filter(|end| cost.is_some_and(|cost| cost < *end))) {
        text.replace_range(cost..end, "C");
    }
    text
}

async fn base() -> (Simulator, ArtifactServer) {
    let options = Options { identity: Some("BASE".to_owned()), ..Options::default() };
    (Simulator::start(options).await.unwrap(), ArtifactServer::start().await.unwrap())
}

#[tokio::test]
async fn replies_without_a_module() {
    let (base, _) = base().await;
    let addr = base.addr();
    assert_eq!(
        call(addr, "help", &json!({})).await,
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"SUCCESS","data":[{"desc":"get all health info","id":"health"},"#,
            r#"{"desc":"install one ark biz","id":"batchInstallBiz"},"#,
            r#"{"desc":"query all ark biz(including master biz)","id":"queryAllBiz"},"#,
            r#"{"desc":"list all supported commands","id":"help"},{"desc":"uninstall one ark biz","id":"uninstallBiz"},"#,
            r#"{"desc":"switch one ark biz","id":"switchBiz"},{"desc":"install one ark biz","id":"installBiz"},"#,
            r#"{"desc":"query ark biz ops","id":"queryBizOps"}]}"#
        )
    );
    assert_eq!(
        exchange(addr, "GET /help HTTP/1.1\r\nHost: arklet\r\n\r\n").await,
        "HTTP/1.1 500 Internal Server Error\r\nContent_Length: 42\r\n\r\nPOST http request only supported by arklet"
    );
    assert_eq!(
        call(addr, "noSuchCommand", &json!({})).await,
        "HTTP/1.1 200 OK\r\n\r\n{\"code\":\"CMD_NOT_FOUND\",\"message\":\"please follow the doc\"}"
    );
    assert_eq!(
        call(addr, "uninstallBiz", &json!({"bizName": "base", "bizVersion": "1.0.0"})).await,
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"FAILED","data":{"code":"FAILED","#,
            r#""message":"Master biz must not be uninstalled."},"message":"uninstall biz not success!"}"#
        )
    );
    assert_eq!(
        call(addr, "queryBizOps", &json!({"requestId": "request-none"})).await,
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"FAILED","message":"Not found the corresponding ops record."}"#
        )
    );
}

#[tokio::test]
async fn replies_of_an_install_and_a_switch() {
    let (base, artifacts) = base().await;
    let addr = base.addr();
    for version in ["1.0.0", "2.0.0"] {
        artifacts.module("shop", version).url().unwrap();
    }
    let input = |version: &str| {
        let url = artifacts.url(&format!("shop-{version}.jar"));
        json!({"bizName": "shop", "bizVersion": version, "bizUrl": url})
    };
    assert_eq!(
        even(&call(addr, "installBiz", &input("1.0.0")).await),
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"SUCCESS","data":{"bizInfos":[{"attributes":{},"bizName":"shop","#,
            r#""bizState":"activated","bizStateRecords":[{"changeTime":N,"message":"","reason":"Created","state":"resolved"},"#,
            r#"{"changeTime":N,"message":"","reason":"Started","state":"activated"}],"#,
            r#""bizTempWorkDir":"/tmp/sofa-ark/shop-1.0.0-N-unpack","bizUrl":"file:/tmp/sofa-ark/shop-1.0.0-N-unpack/","#,
            r#""bizVersion":"1.0.0","classPath":["file:/tmp/sofa-ark/shop-1.0.0-N-unpack/","#,
            r#""file:/tmp/sofa-ark/shop-1.0.0-N-unpack/lib"],"declaredMode":false,"denyImportClasses":[],"#,
            r#""denyImportPackageNodes":[],"denyImportPackageStems":[],"denyImportPackages":[],"denyImportResources":[],"#,
            r#""denyPrefixImportResourceStems":[],"denySuffixImportResourceStems":[],"identity":"shop:1.0.0","#,
            r#""injectExportPackages":[],"injectPluginDependencies":[],"mainClass":"dev.stowage.sample.Main","#,
            r#""priority":100,"webContextPath":"shop"}],"code":"SUCCESS","elapsedSpace":N,"#,
            r#""message":"Install Biz: shop:1.0.0 success, cost: C"}}"#
        )
    );
    assert_eq!(
        even(&call(addr, "installBiz", &input("1.0.0")).await),
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"FAILED","data":{"code":"REPEAT_BIZ","elapsedSpace":0,"#,
            r#""message":"Biz: shop:1.0.0 has been installed or registered."},"message":"install biz not success!"}"#
        )
    );
    call(addr, "installBiz", &input("2.0.0")).await;
    assert_eq!(
        call(addr, "switchBiz", &json!({"bizName": "shop", "bizVersion": "2.0.0"})).await,
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"SUCCESS","data":{"code":"SUCCESS","#,
            r#""message":"Switch biz: shop:2.0.0 is activated."}}"#
        )
    );
    assert_eq!(
        even(&call(addr, "queryAllBiz", &json!({})).await),
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"SUCCESS","data":[{"bizName":"shop","bizState":"activated","bizStateRecords":["#,
            r#"{"changeTime":N,"message":"","reason":"Created","state":"resolved"},"#,
            r#"{"changeTime":N,"message":"start but is deactivated","reason":"Started","state":"deactivated"},"#,
            r#"{"changeTime":N,"message":"switch from old version: shop:1.0.0","reason":"Switched","state":"activated"}],"#,
            r#""bizVersion":"2.0.0","mainClass":"dev.stowage.sample.Main","webContextPath":"shop"},"#,
            r#"{"bizName":"shop","bizState":"deactivated","bizStateRecords":["#,
            r#"{"changeTime":N,"message":"","reason":"Created","state":"resolved"},"#,
            r#"{"changeTime":N,"message":"","reason":"Started","state":"activated"},"#,
            r#"{"changeTime":N,"message":"switch to new version shop:2.0.0","reason":"Switched","state":"deactivated"}],"#,
            r#""bizVersion":"1.0.0","mainClass":"dev.stowage.sample.Main","webContextPath":"shop"}]}"#
        )
    );
}

#[tokio::test]
async fn the_record_of_a_submit() {
    let (base, artifacts) = base().await;
    let url = artifacts.module("slow", "1.0.0").start_millis(60_000).url().unwrap();
    let body = json!({
        "bizName": "slow", "bizVersion": "1.0.0", "bizUrl": url, "async": true, "requestId": "request-1",
    });
    let reply = even(&call(base.addr(), "installBiz", &body).await).replace(&even(&url), "URL");
    assert_eq!(
        reply,
        concat!(
            "HTTP/1.1 200 OK\r\n\r\n",
            r#"{"baseIdentity":"BASE","code":"SUCCESS","data":{"arkBizMeta":{"async":true,"bizName":"slow","bizUrl":"URL","#,
            r#""bizVersion":"1.0.0","installStrategy":"installOnly","requestId":"request-1"},"elapsedTime":0,"#,
            r#""endTimestamp":0,"requestId":"request-1","startTime":N,"startTimestamp":N,"status":"INITIALIZED"}}"#
        )
    );
}

#[tokio::test]
async fn older_releases_say_less() {
    let artifacts = ArtifactServer::start().await.unwrap();
    let url = artifacts.module("shop", "1").url().unwrap();
    let install = json!({"bizName": "shop", "bizVersion": "1", "bizUrl": url});
    let listed = |fields: &str| {
        format!(
            "HTTP/1.1 200 OK\r\n\r\n{{\"code\":\"SUCCESS\",\"data\":[{{\"bizName\":\"shop\",{fields},\"mainClass\":\"dev.stowage.sample.Main\",\"webContextPath\":\"shop\"}}]}}"
        )
    };
    let table = [
        (Release::V1_3_1, listed(r#""bizState":"activated","bizStateRecords":[{},{}],"bizVersion":"1""#)),
        (Release::V1_2_3, listed(r#""bizState":"ACTIVATED","bizStateRecords":[{},{}],"bizVersion":"1""#)),
        (Release::V1_0_1, listed(r#""bizState":"ACTIVATED","bizVersion":"1""#)),
    ];
    for (release, wanted) in table {
        let base = Simulator::start(Options { release, ..Options::default() }).await.unwrap();
        call(base.addr(), "installBiz", &install).await;
        assert_eq!(call(base.addr(), "queryAllBiz", &json!({})).await, wanted);
        assert!(
            call(base.addr(), "batchInstallBiz", &json!({"bizList": []})).await.contains("CMD_NOT_FOUND")
        );
        let has_metaspace = call(base.addr(), "health", &json!({})).await.contains("java used metaspace");
        assert_eq!(has_metaspace, release != Release::V1_0_1);
    }
}
