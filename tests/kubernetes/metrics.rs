//! Metrics of the plugin over HTTP.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
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
    HTTP/1.1 200 OK; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 671
    # HELP mig_mps_plugin_registered 1 if the kubelet has registered the resource.
    HTTP/1.1 200 OK; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 671

    HTTP/1.1 405 Method Not Allowed; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 24
    use GET to read metrics
    HTTP/1.1 404 Not Found; content-type: text/plain; version=0.0.4; charset=utf-8; connection: close; content-length: 21
    the path is /metrics
    ");
}

/// Returns what comes until the plugin closes the connection.
fn wait_for_end(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    String::from_utf8(rest).unwrap()
}

/// Scanners, and programs that connect and wait, keep nobody out.
#[test]
fn idle_connections_give_way() {
    let sim = shared();
    let (_plugin, address) = with_metrics(&sim);
    let mut idle: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    for stream in idle.iter_mut().step_by(2) {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHo");
    }
    let found = values(&address);
    assert!(found.contains("shares trainer 1"), "{found}");
    for stream in &mut idle {
        assert!(!wait_for_end(stream).contains("200 OK"));
    }
}

#[test]
fn a_request_is_answered_before_a_burst_of_connections() {
    let sim = shared();
    let (plugin, address) = with_metrics(&sim);
    let pid = Pid::from_child(&plugin.running.0);
    kill_process(pid, Signal::STOP).unwrap();
    let mut asking = TcpStream::connect(&address).unwrap();
    asking
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        .unwrap();
    let _idle: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    kill_process(pid, Signal::CONT).unwrap();
    let answer = wait_for_end(&mut asking);
    assert!(answer.contains("200 OK"), "{answer}");
}

#[test]
fn idle_connections_and_long_requests_end() {
    let sim = shared();
    let (_plugin, address) = with_metrics(&sim);
    for head in ["", "GET /metrics HTTP/1.1\r\nHo"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let start = Instant::now();
        wait_for_end(&mut stream);
        assert!(start.elapsed() < Duration::from_secs(8), "{head:?}");
    }
    // The answer is the end of the connection.
    let kept = "GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: keep-alive\r\n\r\n";
    let start = Instant::now();
    assert!(ask(&address, kept).contains("200 OK"));
    assert!(start.elapsed() < Duration::from_secs(8));
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let answer = ask(&address, &long);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(values(&address).contains("shares trainer 1"));
}

/// The kubelet is served in any case.
#[test]
fn an_address_that_is_taken_is_tried_again() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let plugin = Plugin::start(&sim, command(&sim).args(["--metrics", &address]));
    kubelet.await_shares(&SHARES);
    let port = taken.local_addr().unwrap().port();
    let problem = format!(
        "warning: cannot serve metrics at {address}: Address already in use; trying again every 3 seconds; run `ss -ltnp 'sport = :{port}'` to find the program that listens there"
    );
    plugin.await_line(&problem, 1);
    drop(taken);
    plugin.await_line(&format!("metrics: http://{address}/metrics"), 1);
    assert!(values(&address).contains("shares trainer 1"));
    assert_eq!(plugin.said().matches("cannot serve metrics").count(), 1);
}

#[test]
fn an_address_that_the_node_lacks_is_tried_again() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::start(&sim, command(&sim).args(["--metrics", "192.0.2.1:19835"]));
    kubelet.await_shares(&SHARES);
    let problem = "warning: cannot serve metrics at 192.0.2.1:19835: Cannot assign requested address; trying again every 3 seconds";
    plugin.await_line(problem, 1);
}

#[test]
fn a_text_that_is_no_address_is_refused() {
    let sim = Sim::with("h200", 1);
    for text in ["19835", "localhost:19835", "127.0.0.1:70000", ""] {
        let ran = Ran::of(command(&sim).args(["--metrics", text])).ended(2);
        let expected = format!(
            "error: invalid value '{text}' for '--metrics <ADDR>': expected an address and a port, such as 127.0.0.1:19835 or \
             [::]:19835\n"
        );
        assert!(ran.stderr.starts_with(&expected), "{ran:?}");
    }
}
