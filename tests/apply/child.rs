//! A process of its own that changes the node, so that it can be killed.

use std::env;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};

use mig_mps::internals::apply::Allowed;
use mig_mps::internals::host::Environment;

use crate::apply::scene::{Hand, Layout, Scene};
use testkit::hearing;

const LAYOUT: &str = "APPLY_TEST_LAYOUT";
const ALLOWED: &str = "APPLY_TEST_ALLOWED";
const PLANNED: &str = "planned";

/// Starts a process that brings a scene's node to a layout; it has planned, and waits for [`go`].
pub(crate) fn start(scene: &Scene, layout: &Layout, allowed: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "apply::child::child", "--ignored", "--nocapture"])
        .env_clear()
        .envs(scene.sim.node.env())
        .env(LAYOUT, layout)
        .env(ALLOWED, allowed);
    let mut child = hearing(&command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&mut child, PLANNED);
    child
}

/// Has it carry its plan out.
pub(crate) fn go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

/// How it ended: what it said, and its exit status, -1 for a signal.
pub(crate) fn ended(child: Child) -> (String, i32) {
    let output = child.wait_with_output().unwrap();
    (
        String::from_utf8(output.stderr).unwrap(),
        output.status.code().unwrap_or(-1),
    )
}

/// Reads what it says up to a line with that text.
pub(crate) fn wait_for(child: &mut Child, text: &str) -> String {
    let mut said = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    let mut lines = BufReader::with_capacity(1, stderr);
    while !said.contains(text) {
        assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
    }
    said
}

#[test]
#[ignore = "is run by other tests, to be killed"]
fn child() {
    let Some(layout) = env::var_os(LAYOUT) else {
        return;
    };
    let environment = Environment::read();
    let listening = environment
        .interrupt
        .listen(&environment.host, |phase| eprintln!("heard in {phase:?}"));
    listening.unwrap();
    let hand = Hand::new(environment);
    let words = env::var(ALLOWED).unwrap();
    let allowed = Allowed {
        reset: words.contains("reset"),
        stop_holders: words.contains("stop-holders"),
    };
    let node = hand.observe();
    let plan = hand.reconfigure(&node, layout.to_str().unwrap());
    eprintln!("{PLANNED}");
    stdin().read_line(&mut String::new()).unwrap();
    let result = hand.run(&node, &plan, allowed);
    let status = match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            if error.is_interrupted() { 130 } else { 1 }
        }
    };
    std::process::exit(status);
}
