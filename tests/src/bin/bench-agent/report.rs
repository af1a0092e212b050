//! Lines for people on standard error, lines of JSON for programs on standard output.

use serde_json::json;

use crate::{
    Args,
    samples::{Idle, Latencies, Rates, Restart, quantile},
};

pub(crate) fn idle(args: &Args, state: &str, idle: &Idle) {
    eprintln!(
        "{} bases idle ({state}): {:.1} MiB ({:.1} anonymous, {:.1} at most), {:.1} % of a core, {:.1} Lease writes/s, {:.2} other writes/s",
        args.bases,
        idle.memory_mib,
        idle.anonymous_mib,
        idle.peak_mib,
        idle.processor_percent,
        idle.lease_writes_per_s,
        idle.other_writes_per_s
    );
    print(&json!({
        "bench": "agent", "what": "idle", "bases": args.bases, "state": state,
        "rss_mib": rounded(idle.memory_mib), "anonymous_mib": rounded(idle.anonymous_mib),
        "peak_mib": rounded(idle.peak_mib), "cpu_percent": rounded(idle.processor_percent),
        "lease_writes_per_s": rounded(idle.lease_writes_per_s),
        "other_writes_per_s": rounded(idle.other_writes_per_s),
    }));
}

pub(crate) fn latency(args: &Args, how: &str, latencies: &Latencies) {
    for (what, values) in [
        ("bound_to_watch", &latencies.to_watch),
        ("watch_to_install", &latencies.watch_to_install),
        ("bound_to_install", &latencies.to_install),
        ("answered_to_ready", &latencies.to_ready),
    ] {
        let [p50, p99, most] =
            [0.5, 0.99, 1.0].map(|share| rounded(quantile(values, share).as_secs_f64() * 1000.0));
        eprintln!("{what}, {how}, {} Pods: p50 {p50} ms, p99 {p99} ms, most {most} ms", values.len());
        print(&json!({
            "bench": "agent", "what": what, "bases": args.bases, "how": how, "pods": values.len(),
            "p50_ms": p50, "p99_ms": p99, "max_ms": most,
        }));
    }
}

pub(crate) fn rates(args: &Args, rates: &Rates) {
    let [bindings, nodes, installs] =
        [rates.bindings, rates.node_writes, rates.installs].map(|time| rounded(time.as_secs_f64()));
    let ratio = rounded(installs / (bindings + nodes));
    eprintln!(
        "burst: bindings {bindings} s, as many bare Node writes {nodes} s, first binding to last installBiz {installs} s: \
         {ratio} of the API server's own time"
    );
    print(&json!({
        "bench": "agent", "what": "burst", "bases": args.bases, "bindings_s": bindings, "node_writes_s": nodes,
        "installs_s": installs, "of_api_server": ratio,
    }));
}

pub(crate) fn restart(args: &Args, restart: &Restart) {
    let seconds = rounded(restart.all_asked.as_secs_f64());
    eprintln!(
        "restart: all {} bases asked after {seconds} s; {} installs, {} uninstalls, {} Pods not Ready",
        args.bases, restart.installs, restart.uninstalls, restart.not_ready
    );
    print(&json!({
        "bench": "agent", "what": "restart", "bases": args.bases, "all_asked_s": seconds,
        "installs": restart.installs, "uninstalls": restart.uninstalls, "not_ready": restart.not_ready,
    }));
}

fn print(line: &serde_json::Value) {
    println!("{line}");
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
