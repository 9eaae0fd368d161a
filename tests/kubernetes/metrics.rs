//! Metrics of the plugin over HTTP.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use insta::assert_snapshot;
use testkit::{Ran, Sim, eventually, wait_until};

use super::kubelet::Kubelet;
use super::{Plugin, SHARES, SMALL, command, shared};

/// A plugin with metrics, and their address.
fn with_metrics(sim: &Sim) -> (Plugin, String) {
    fs::create_dir_all(sim.machine("var/lib/kubelet/device-plugins")).unwrap();
    let plugin = Plugin::start(sim, command(sim).args(["--metrics", "127.0.0.1:0"]));
    wait_until("the plugin listens", || {
        plugin.said().contains("/metrics\n")
    });
    let said = plugin.said();
    let address = said
        .lines()
        .find_map(|line| line.strip_prefix("metrics: http://"));
    let address = address.unwrap().trim_end_matches("/metrics").to_owned();
    (plugin, address)
}

/// The time after which a test gives up.
const LIMIT: Duration = Duration::from_secs(60);

/// The answer to a request, which may be none.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The lines of values.
fn values(address: &str) -> String {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n");
    let lines = answer.lines().filter(|line| line.starts_with("mig_mps_"));
    let lines = lines.map(|line| line.trim_start_matches("mig_mps_plugin_"));
    lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace("{resource=\"mig-mps.io/", " ")
        .replace("\"}", "")
}

#[track_caller]
fn await_values(address: &str, expected: &str) {
    eventually("the metrics", || {
        let found = values(address);
        if found == expected {
            Ok(())
        } else {
            Err(found)
        }
    });
}

#[test]
fn registrations_and_shares_are_counted() {
    let sim = shared();
    let (_plugin, address) = with_metrics(&sim);
    await_values(
        &address,
        "registered 1g.10gb 0\nregistered trainer 0\nshares 1g.10gb 4\nshares trainer 1\n\
         healthy_shares 1g.10gb 4\nhealthy_shares trainer 1",
    );
    let mut kubelet = Kubelet::on(&sim);
    kubelet.await_shares(&SHARES);
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    kubelet.admit("default/small-1", SMALL, "0.0::0");
    sim.kill_daemon("0.1");
    let expected = "registered 1g.10gb 1\nregistered trainer 1\nshares 1g.10gb 4\nshares trainer 1\n\
                    healthy_shares 1g.10gb 2\nhealthy_shares trainer 1\n\
                    used_shares 1g.10gb 2\nused_shares trainer 0";
    await_values(&address, expected);
    kubelet.end();
    let expected = expected.replace(
        "1g.10gb 1\nregistered trainer 1",
        "1g.10gb 0\nregistered trainer 0",
    );
    let (expected, _) = expected.split_once("\nused").unwrap();
    await_values(&address, expected);
}

#[test]
fn prometheus_gets_text_and_others_are_told() {
    let sim = shared();
    let (_plugin, address) = with_metrics(&sim);
    let first_line = |request: &str| {
        let answer = ask(
            &address,
            &format!("{request} HTTP/1.1\r\nHost: node\r\n\r\n"),
        );
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head: Vec<&str> = head
            .lines()
            .filter(|line| !line.starts_with("date: "))
            .collect();
        format!(
            "{}\n{}\n",
            head.join("; "),
            body.lines().next().unwrap_or_default()
        )
    };
    let answers = ["GET /metrics", "HEAD /metrics", "POST /metrics", "GET /"].map(first_line);
    assert_snapshot!(answers.concat(), @"
    HTTP/1.1 200 OK; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 672
    # HELP mig_mps_plugin_registered 1 if the kubelet has registered the resource.
    HTTP/1.1 200 OK; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 672

    HTTP/1.1 405 Method Not Allowed; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 26
    metrics are read with GET
    HTTP/1.1 404 Not Found; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 21
    the path is /metrics
    ");
}

/// Scanners, and programs that connect and wait, keep nobody out for long.
#[test]
fn idle_connections_and_long_requests_end() {
    let sim = shared();
    let (_plugin, address) = with_metrics(&sim);
    let mut idle: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    eventually("the metrics", || {
        let found = values(&address);
        if found.contains("shares trainer 1") {
            Ok(())
        } else {
            Err(found)
        }
    });
    for stream in &mut idle {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let answer = ask(&address, &long);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(values(&address).contains("shares trainer 1"));
}

#[test]
fn an_address_that_cannot_be_used_is_refused() {
    let sim = shared();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = |address: &str| {
        let ran = Ran::of(command(&sim).args(["--metrics", address]));
        let said = ran.stderr.replace(&port.to_string(), "PORT");
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        format!(
            "{}\nexit status {}\n",
            lines[..2.min(lines.len())].join("\n"),
            ran.status
        )
    };
    let all = [
        said(&format!("127.0.0.1:{port}")),
        said("192.0.2.1:9400"),
        said("9400"),
        said("localhost:9400"),
        said("127.0.0.1:70000"),
    ];
    assert_snapshot!(all.concat(), @"
    error: cannot serve metrics at 127.0.0.1:PORT: Address already in use
    hint: choose another port, or end the program that listens there: ss -ltnp 'sport = :PORT'
    exit status 1
    error: cannot serve metrics at 192.0.2.1:9400: Cannot assign requested address
    hint: choose an address of this node, such as 127.0.0.1:9400 or [::]:9400
    exit status 1
    error: invalid value '9400' for '--metrics <ADDRESS>': expected an address and a port, such as 127.0.0.1:9400 or [::]:9400
    For more information, try '--help'.
    exit status 2
    error: invalid value 'localhost:9400' for '--metrics <ADDRESS>': expected an address and a port, such as 127.0.0.1:9400 or [::]:9400
    For more information, try '--help'.
    exit status 2
    error: invalid value '127.0.0.1:70000' for '--metrics <ADDRESS>': expected an address and a port, such as 127.0.0.1:9400 or [::]:9400
    For more information, try '--help'.
    exit status 2
    ");
}
