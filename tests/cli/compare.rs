//! `compare`: what MPS is worth to a program.

use std::time::Instant;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;
use testkit::{App, Ran, Sim, TestNode, assert_contains, is_alive, kill, wait_until, whole};

/// A program that is three times as fast as a client.
const FASTER: &str = r#"case $CUDA_MPS_PIPE_DIRECTORY in
    */by-name/*) echo "client $CUDA_VISIBLE_DEVICES per_s 30.5" ;;
    *) echo "in $(ls -A "$CUDA_MPS_PIPE_DIRECTORY" | wc -l) per_s 10" ;;
esac"#;

/// `compare` of a shell script, with these options before it.
fn compare(sim: &Sim, options: &[&str], script: &str) -> Ran {
    sim.run(&[&["compare"], options, &["--", "sh", "-c", script]].concat())
}

/// The text after the line about the time that it will take.
fn without_time(said: &str) -> &str {
    let (first, rest) = said.split_once('\n').unwrap_or_default();
    if first.contains("measurements of up to") {
        rest
    } else {
        said
    }
}

#[test]
fn the_rate_that_a_program_prints() {
    let sim = Sim::whole("");
    let ran = compare(&sim, &[], FASTER).ended(0);
    assert_snapshot!(ran.stdout, @r#"
    0 (NVIDIA H200): sh, 3 rounds of each
    Measured: the number at the end of "in 0 per_s 10", summed over the copies; the mean of all rounds

    COPIES  OUTSIDE MPS  AS CLIENTS  SPEED-UP  RANGE         MEMORY GIB
         1         10.0        30.5      3.05  3.05 to 3.05   0.1 → 0.1
         2         20.0        61.0      3.05  3.05 to 3.05   0.1 → 0.1
         4         40.0         122      3.05  3.05 to 3.05   0.1 → 0.1
         8         80.0         244      3.05  3.05 to 3.05   0.1 → 0.1
    MEMORY GIB: outside MPS → as clients

       1 outside ## 10.0
         clients ######## 30.5
       2 outside ##### 20.0
         clients ############### 61.0
       4 outside ########## 40.0
         clients ############################## 122
       8 outside #################### 80.0
         clients ############################################################ 244

    No verdict: in some measurements the driver listed no copy on 0. The program exited too soon, or did not use the GPU.
    "#);
    // It says beforehand how long it will take.
    assert_snapshot!(ran.stderr, @"note: 24 measurements of up to 10.0 s each: up to 4m0s in all, or longer if one run of the program takes longer; press Ctrl-C to stop");
    let json = compare(&sim, &["-n", "2", "--rounds", "2", "--json"], FASTER).json();
    let compared = &json["comparisons"][0];
    assert_eq!(json["quantity"], "rate");
    assert_eq!(json["last_line"], "in 0 per_s 10");
    assert_eq!(compared["without_mps"]["throughput"]["mean"], 20.0);
    assert_eq!(compared["with_mps"]["throughput"]["least"], 61.0);
    assert_eq!(compared["speed_up"]["greatest"], 3.05);
}

#[test]
fn copies_run_both_ways_and_again_until_the_time_is_over() {
    let sim = Sim::whole("");
    let words = [
        "compare",
        "-n",
        "1,3",
        "--rounds",
        "2",
        "--seconds",
        "0.5",
        "--json",
    ];
    let program = ["--", "cuda-app", "run", "0.2"];
    let begun = Instant::now();
    let json = sim.run(&[&words[..], &program].concat()).json();
    assert_eq!(json["quantity"], "runs per second");
    for (compared, copies) in json["comparisons"]
        .as_array()
        .unwrap()
        .iter()
        .zip([1_u32, 3])
    {
        assert_eq!(compared["copies"], copies);
        for way in ["without_mps", "with_mps"] {
            let way = &compared[way];
            let throughput = way["throughput"]["mean"].as_f64().unwrap();
            // A run takes 0.2 s at least, and less than all of this.
            let most = 5.0 * f64::from(copies);
            let least = f64::from(copies) / begun.elapsed().as_secs_f64();
            assert!(throughput > least && throughput < most, "{json:#}");
            // Each has a context of more than 500 MB on this GPU.
            let memory = way["memory_used_bytes"].as_u64().unwrap();
            assert!(memory > 500_000_000 * u64::from(copies), "{json:#}");
        }
    }
    let events = sim.node.events().into_iter();
    let starts = events.filter(|event| event.what == "client start");
    let mut ways: Vec<bool> = starts.map(|event| event.detail["mps"] == true).collect();
    // Two rounds of one and three copies, at least twice each.
    let clients = ways.iter().filter(|is_client| **is_client).count();
    assert!(clients >= 16 && ways.len() - clients >= 16);
    // The second round begins with clients.
    ways.dedup();
    assert_eq!(ways, [false, true, false, true, false, true, false]);
    assert_eq!(sim.status()["clients"].as_array().unwrap().len(), 0);
}

#[test]
fn an_endless_program_is_ended_when_it_has_printed_its_rate() {
    let sim = Sim::whole("");
    let options = ["-n", "2", "--rounds", "1", "--seconds", "0.5", "--json"];
    let endless = "while :; do echo iterations 5; sleep 0.1; done";
    let json = compare(&sim, &options, endless).json();
    assert_eq!(json["comparisons"][0]["speed_up"]["mean"], 1.0);
}

#[test]
fn a_number_need_not_be_a_rate() {
    let sim = Sim::whole("");
    let options = [
        "-n",
        "1",
        "--rounds",
        "1",
        "--seconds",
        "0",
        "--by-runs",
        "--json",
    ];
    let json = compare(&sim, &options, "echo loss 0.1").json();
    assert_eq!(json["quantity"], "runs per second");
    let options = ["-n", "1,2", "--rounds", "1", "--seconds", "0"];
    let mixed = "case $CUDA_MPS_PIPE_DIRECTORY in */by-name/*) echo 1 ;; esac";
    let refused = compare(&sim, &options, mixed).ended(1);
    assert_snapshot!(without_time(&refused.stderr), @r#"
    error: the program ends its output with a number only in some measurements
    hint: use --by-runs to measure how often the program runs
    "#);
}

#[test]
fn what_fails_is_said() {
    let sim = Sim::whole("");
    // One copy of two fails, and the other one is ended.
    let place = sim.node.dir().join("first");
    let script = format!("mkdir {} && exec sleep 600; exit 7", place.display());
    let ran = compare(&sim, &["-n", "2"], &script).ended(1);
    assert_contains(&ran.stderr, "exit status: 7");
}

#[test]
fn others_are_not_disturbed() {
    let sim = Sim::whole("");
    let refused = || compare(&sim, &[], "true");
    let client = sim.client("0");
    refused().ended(4);
    drop(client);
    let mut alone = App::start({
        let mut command = sim.node.program("cuda-app");
        command
            .arg("hold")
            .env("CUDA_MPS_PIPE_DIRECTORY", sim.node.dir());
        command
    });
    assert!(alone.wait_up().ends_with("mps no"));
    refused().ended(4);
}

#[test]
fn a_device_with_a_program_outside_mps_is_not_chosen() {
    // Device 0 has more free memory all the same.
    let node = TestNode::builder().gpu("h200", 1).gpu("a30", 1).build();
    let sim = Sim { node };
    sim.up(&whole(""), &[]).ended(0);
    let outside = sim.outside("0");
    let options = ["compare", "-n", "1", "--seconds", "1", "--rounds", "1"];
    let compared = sim
        .run(&[&options[..], &["--json", "--", "true"]].concat())
        .ended(0);
    assert_eq!(compared.json()["device"], "1");
    outside.finish();
}

#[test]
fn an_interrupt_ends_the_copies() {
    let sim = Sim::whole("");
    let marks = sim.node.dir().join("marks");
    std::fs::create_dir(&marks).unwrap();
    let script = format!("touch {}/$$; exec sleep 600", marks.display());
    let compare = sim.talk(&["compare", "-n", "3", "--", "sh", "-c", &script]);
    let pids = || -> Vec<String> {
        let names = std::fs::read_dir(&marks).unwrap().flatten();
        names
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    wait_until("three copies start", || pids().len() == 3);
    compare.signal(Signal::TERM);
    let ran = compare.end().ended(130);
    assert_snapshot!(without_time(&ran.stdout), @r#"
    interrupted: stopping at the next safe point
    error: interrupted
    "#);
    for pid in pids() {
        assert!(!is_alive(&pid), "{pid}");
    }
}

/// One round of `compare` with one copy. Returns the pids that the script has written to the file `$0`.
fn pids_of(sim: &Sim, seconds: &str, script: &str) -> (Value, Vec<String>) {
    let pids = sim.node.dir().join("pids");
    let options = ["-n", "1", "--rounds", "1", "--seconds", seconds, "--json"];
    let program = ["--", "sh", "-c", script, pids.to_str().unwrap()];
    let json = sim
        .run(&[&["compare"], &options[..], &program].concat())
        .json();
    let pids = std::fs::read_to_string(pids).unwrap();
    (json, pids.lines().map(str::to_owned).collect())
}

/// A program that it starts has a session of its own, and keeps its output open.
#[test]
fn what_a_program_leaves_behind_holds_nothing_up() {
    let sim = Sim::whole("");
    let script = "setsid sh -c 'echo $$ >>$0; exec sleep 600' $0 & until [ -s $0 ]; do sleep 0.01; done; echo 5";
    let (json, pids) = pids_of(&sim, "0", script);
    assert_eq!(json["comparisons"][0]["speed_up"]["mean"], 1.0, "{json:#}");
    // The node's /proc does not show it, so it was not ended.
    for pid in pids {
        assert!(is_alive(&pid), "{pid} would have held it up");
        kill(pid);
    }
}

/// A session of its own does not keep a program: it would use the device in the next measurement.
#[test]
fn what_uses_the_device_in_another_session_is_ended() {
    let sim = Sim::whole("");
    let script = "setsid cuda-app run 600 >&- 2>&- & cuda-app run 0.5; echo 5";
    let options = ["-n", "1", "--rounds", "2", "--seconds", "0", "--json"];
    compare(&sim, &options, script).ended(0);
    assert_eq!(sim.node.processes("cuda-app run 600"), [0; 0]);
    assert_eq!(sim.happened("client start"), 8);
}

/// The workers of a launcher outlive it, and heed no SIGTERM.
#[test]
fn what_is_left_of_a_run_ends_before_the_next_one() {
    let sim = Sim::whole("");
    let script = "for pid in $(cat $0 2>/dev/null); do kill -0 $pid 2>/dev/null && exit 3; done; \
                  sh -c 'trap \"\" TERM; echo $$ >>$0; exec sleep 600' $0 >/dev/null 2>&1 & \
                  until [ -s $0 ]; do sleep 0.01; done; exit 0";
    // Several runs for each measurement.
    let (json, pids) = pids_of(&sim, "0.3", script);
    assert!(pids.len() >= 2, "{pids:?}\n{json:#}");
    assert!(!pids.iter().any(is_alive), "{pids:?}");
}

#[test]
fn a_program_that_ignores_sigterm_is_killed() {
    let sim = Sim::whole("");
    let script = "echo $$ >>$0; trap '' TERM; for _ in $(seq 300); do echo 5; sleep 0.1; done; echo end >>$0";
    let (json, pids) = pids_of(&sim, "0.2", script);
    assert_eq!(json["comparisons"][0]["speed_up"]["mean"], 1.0, "{json:#}");
    assert!(!pids.contains(&"end".to_owned()), "{pids:?}");
    assert!(pids.len() >= 2, "{pids:?}");
    assert!(!pids.iter().any(is_alive), "{pids:?}");
}

/// `compare` of a program that uses the device, in a shell that has done something before. Its figures are to be saved.
fn compare_after(sim: &Sim, before: &str, program: &str) -> (Ran, String) {
    let figures = sim.node.dir().join("figures.toml");
    let file = figures.to_str().unwrap();
    let options = [
        "-n",
        "1",
        "--rounds",
        "1",
        "--seconds",
        "0.6",
        "--save",
        file,
    ];
    let ran = compare(sim, &options, &format!("{before}; {program}"));
    let saved = std::fs::read_to_string(&figures).unwrap();
    (ran, saved)
}

const LEAVES: &str = "unset CUDA_MPS_PIPE_DIRECTORY";

/// Also one that is too short to be seen twice, and one that a launcher starts in a session of its own.
#[test]
fn a_program_that_leaves_mps_is_not_compared() {
    let sim = Sim::whole("");
    for program in [
        "cuda-app run 0.8",
        "cuda-app run 0.1",
        "setsid cuda-app run 0.8; true",
        "(cuda-app run 0.8 & exec true); sleep 1",
    ] {
        let (ran, saved) = compare_after(&sim, LEAVES, program);
        let said = ran.ended(1).stderr;
        assert_contains(
            &said,
            ") used device 0 outside MPS, and the comparison was stopped\nhint: check that the program does not change CUDA_MPS_PIPE_DIRECTORY",
        );
        assert_eq!(saved, "", "{program}");
    }
    let clients = sim.status()["clients"].as_array().unwrap().len();
    assert_eq!(clients, 0);
}

/// The other side: what was to be outside MPS is a client.
#[test]
fn a_program_that_enters_mps_is_not_compared() {
    let sim = Sim::whole("");
    let enters = format!("export CUDA_MPS_PIPE_DIRECTORY={}", sim.pipe("0"));
    for program in ["cuda-app run 0.8", "cuda-app run 0.1"] {
        let (ran, saved) = compare_after(&sim, &enters, program);
        assert_contains(
            &ran.ended(1).stderr,
            ") used device 0 as an MPS client, but should run outside MPS\nhint: check that the program does not change",
        );
        assert_eq!(saved, "", "{program}");
    }
}

#[test]
fn a_program_that_does_not_use_the_device_is_not_saved() {
    let sim = Sim::whole("");
    let (ran, saved) = compare_after(&sim, "true", "echo 5");
    let ran = ran.ended(1);
    assert_contains(&ran.stdout, "AS CLIENTS");
    assert_contains(&ran.stdout, "the driver listed no copy on 0");
    assert_contains(&ran.stderr, "cannot save the measurements of 1 copy");
    assert_eq!(saved, "");
    let json = compare(&sim, &["-n", "1", "--rounds", "1", "--json"], "echo 5");
    assert_eq!(
        json.json()["comparisons"][0]["with_mps"]["seen_on_device"],
        false
    );
    // One that does is saved.
    let (ran, saved) = compare_after(&sim, "true", "cuda-app run 0.8; echo 5");
    let ran = ran.ended(0);
    assert!(!ran.stdout.contains("listed no copy"), "{}", ran.stdout);
    assert_contains(&saved, "throughput = 5\n");
}

/// Ctrl-C ends it, too, while something of the program's that no signal reaches has its output.
#[test]
fn an_interrupt_ends_it_whatever_keeps_the_output_open() {
    let sim = Sim::whole("");
    let marks = sim.node.dir().join("left");
    let script = format!(
        "setsid sh -c 'echo $$ >>{}; exec sleep 600' & exec sleep 600",
        marks.display()
    );
    let compare = sim.talk(&["compare", "-n", "1", "--", "sh", "-c", &script]);
    let left = || std::fs::read_to_string(&marks).unwrap_or_default();
    wait_until("it has left something", || left().ends_with('\n'));
    compare.signal(Signal::INT);
    wait_until("it ends", || !is_alive(compare.pid()));
    for pid in left().split_whitespace() {
        kill(pid);
    }
    let _ = compare.end().ended(130);
}

/// Saved figures are those that `advise` reads, whatever a program prints.
#[test]
fn figures_of_any_size_are_saved_as_advise_reads_them() {
    let sim = Sim::whole("");
    let figures = sim.node.dir().join("figures.toml");
    let path = figures.to_str().unwrap();
    let compare = |printed: &str| {
        let script = format!("cuda-app run 0.8 > /dev/null; printf '{printed}'");
        let options = [
            "-n",
            "1,2",
            "--rounds",
            "1",
            "--seconds",
            "1",
            "--save",
            path,
            "--program",
            "p",
        ];
        sim.run(
            &[
                &["compare", "--json"],
                &options[..],
                &["--", "sh", "-c", &script],
            ]
            .concat(),
        )
    };
    // The last two are no rates: the runs are counted.
    let printed = [
        "latency_ms 1e-7\\n0.0000001",
        "latency_ms 1e90\\n1e90",
        "123456.789",
        "1e308",
        "NaN",
    ];
    for (nth, printed) in printed.into_iter().enumerate() {
        let ran = compare(printed).ended(0);
        let document = ran.json();
        for compared in document["comparisons"].as_array().unwrap() {
            for number in ["least", "mean", "greatest"] {
                assert!(
                    compared["speed_up"][number].is_f64(),
                    "{printed}: {compared:#}"
                );
            }
        }
        let saved = std::fs::read_to_string(&figures).unwrap();
        assert_eq!(saved.matches("[[measured]]").count(), 2 * (nth + 1));
        // Of figures that it cannot read, advise takes none.
        let wanted = sim.node.dir().join("wanted.toml");
        std::fs::write(&wanted, "[[program]]\nname = \"p\"\ncopies = 2\n").unwrap();
        let wanted = wanted.to_str().unwrap();
        let advice = sim.run(&["advise", wanted, "--measured", path, "--json"]);
        assert!(
            advice.ended(0).json()["programs"][0]["rate"].is_f64(),
            "{saved}"
        );
    }
    let saved = std::fs::read_to_string(&figures).unwrap();
    for line in [
        "throughput = 1e-7\n",
        "throughput = 2e-7\n",
        "throughput = 123457\n",
        "latency_ms = 1e90\n",
    ] {
        assert_contains(&saved, line);
    }
}

/// A shell script in which one run of each way is another one than the others.
fn first_and_others(sim: &Sim, first: &str, others: &str) -> String {
    let mark = sim.node.dir().join("first");
    let mark = mark.display();
    format!(
        "if mkdir {mark}.${{CUDA_MPS_PIPE_DIRECTORY##*/}} 2>/dev/null; then {first}; else {others}; fi"
    )
}

/// The figures of the slowest copy, and of the round with the most memory.
#[test]
fn the_worst_of_all_copies_and_rounds_counts() {
    let sim = Sim::whole("");
    let copies = first_and_others(
        &sim,
        "echo latency_ms 7; echo 5",
        "echo latency_ms 2; echo 5",
    );
    let options = ["-n", "2", "--rounds", "1", "--seconds", "0", "--json"];
    let json = compare(&sim, &options, &copies).json();
    for way in ["without_mps", "with_mps"] {
        let latency = &json["comparisons"][0][way]["latency_seconds"];
        assert_eq!(*latency, 0.007, "{way}: {json:#}");
    }
    let sim = Sim::whole("");
    let rounds = first_and_others(&sim, "cuda-app run 0.8 --alloc 4000", "cuda-app run 0.8");
    let options = ["-n", "1", "--rounds", "2", "--seconds", "0", "--json"];
    let json = compare(&sim, &options, &rounds).json();
    for way in ["without_mps", "with_mps"] {
        let memory = json["comparisons"][0][way]["memory_used_bytes"].as_u64();
        assert!(memory > Some(4_000_000_000), "{way}: {json:#}");
    }
}

#[test]
fn rates_and_runs_are_not_added_up() {
    let sim = Sim::whole("");
    let copies = first_and_others(&sim, "echo 5", "echo none");
    let options = ["-n", "2", "--rounds", "1", "--seconds", "0"];
    let refused = compare(&sim, &options, &copies).ended(1);
    assert_snapshot!(without_time(&refused.stderr), @"
    error: some copies end their output with a number, but others do not
    hint: use --by-runs to measure how often the program runs
    ");
}

/// A program that is ended while it prints has printed less than its rate.
#[test]
fn half_a_line_is_no_rate() {
    let sim = Sim::whole("");
    let options = ["-n", "1", "--rounds", "1", "--seconds", "0.2", "--json"];
    let json = compare(&sim, &options, "echo 5; printf 99; exec sleep 600").json();
    assert_eq!(
        json["comparisons"][0]["with_mps"]["throughput"]["mean"],
        5.0
    );
}

/// The daemon starts another one for the next client.
#[test]
fn a_server_that_was_started_again_is_no_program_outside_mps() {
    let sim = Sim::whole("");
    let server = &sim.device("0")["servers"][0]["pid"];
    let script = format!("kill -9 {server} 2>/dev/null; exec cuda-app run 0.8");
    let options = ["-n", "1", "--rounds", "1", "--seconds", "0", "--json"];
    let json = compare(&sim, &options, &script).json();
    assert_eq!(json["comparisons"][0]["with_mps"]["seen_on_device"], true);
    assert_ne!(sim.device("0")["servers"][0]["pid"], *server);
}
