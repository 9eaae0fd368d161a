//! `advise`: the smallest hardware for programs, and the figures that it rests on.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use testkit::{Ran, Sim, assert_contains, repository, wait_until, without_gpu};

fn fixture() -> Value {
    let path = repository().join("fixtures/advise/parvagpu.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The demands of a scenario's services, with the figures that are fast enough: of each size and number of processes the
/// batch with the highest throughput.
fn scenario(data: &Value, number: usize) -> String {
    let instance = |slices: f64| match slices {
        1.0 => "1g.10gb",
        2.0 => "2g.20gb",
        3.0 => "3g.40gb",
        4.0 => "4g.40gb",
        _ => "7g.80gb",
    };
    let mut text = String::new();
    for (name, service) in data["scenarios"][number].as_object().unwrap() {
        let rate = service["rate"].as_f64().unwrap();
        // The rule of the published deployments.
        let latency = 0.45 * service["latency_ms"].as_f64().unwrap();
        let _ = writeln!(
            text,
            "[[program]]\nname = \"{name}\"\nrate = {rate}\nlatency_ms = {latency}"
        );
        let mut best: Vec<(f64, f64, f64, f64)> = Vec::new();
        for row in data["models"][name].as_array().unwrap() {
            let row: Vec<f64> = row
                .as_array()
                .unwrap()
                .iter()
                .map(|cell| cell.as_f64().unwrap())
                .collect();
            let [slices, _, processes, throughput, seconds] = row[..] else {
                panic!("{row:?}")
            };
            let milliseconds = seconds * 1000.0;
            if throughput <= 0.0 || milliseconds >= latency {
                continue;
            }
            let all = throughput * processes;
            match best
                .iter_mut()
                .find(|one| (one.0, one.1) == (slices, processes))
            {
                Some(one) if one.2 < all => *one = (slices, processes, all, milliseconds),
                Some(_) => {}
                None => best.push((slices, processes, all, milliseconds)),
            }
        }
        for (slices, processes, all, milliseconds) in best {
            let device = instance(slices);
            let _ = writeln!(
                text,
                "[[measured]]\nprogram = \"{name}\"\ngpu = \"a100-80gb\"\ndevice = \"{device}\"\ncopies = {processes}\n\
                 throughput = {all}\nlatency_ms = {milliseconds}"
            );
        }
    }
    text
}

/// The number of GPUs of an answer.
fn used(answer: &Value) -> usize {
    let gpus = answer["gpus"].as_array().unwrap().iter();
    gpus.map(|gpus| gpus["indices"].as_array().unwrap().len())
        .sum()
}

/// The published deployments of the six scenarios take 2, 3, 5, 7, 13 and 16 GPUs.
#[test]
fn no_scenario_needs_more_gpus_than_a_published_deployment() {
    let data = fixture();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.toml");
    for (number, gpus) in [2, 3, 5, 7, 12, 15].into_iter().enumerate() {
        let question = scenario(&data, number);
        let begun = Instant::now();
        let answer = without_gpu(&["advise", "-", "--gpu", "a100-80gb", "--json"], &question);
        let taken = begun.elapsed();
        let answer = answer.ended(0).json();
        let used = used(&answer);
        println!(
            "scenario {}: {used} GPUs, {} slices, {taken:?}",
            number + 1,
            answer["slices"]
        );
        assert_eq!((used, &answer["least_gpus"]), (gpus, &gpus.into()));
        assert_eq!(answer["is_proven"], true);
        keeps_its_promises(&data, number, &answer);
        fs::write(&path, answer["profile"].as_str().unwrap()).unwrap();
        let gpus = format!("a100-80gb:{gpus}");
        without_gpu(&["check", path.to_str().unwrap(), "--gpu", &gpus], "").ended(0);
    }
}

/// Every program has its rate, by figures of the scenario.
fn keeps_its_promises(data: &Value, number: usize, answer: &Value) {
    let mut rates = std::collections::BTreeMap::new();
    for gpus in answer["gpus"].as_array().unwrap() {
        let times = f64::from(u32::try_from(gpus["indices"].as_array().unwrap().len()).unwrap());
        for device in gpus["devices"].as_array().unwrap() {
            for program in device["programs"].as_array().unwrap() {
                let slices: f64 = device["profile"].as_str().unwrap()[..1].parse().unwrap();
                let throughput = program["rate"].as_f64().unwrap();
                let name = program["program"].as_str().unwrap();
                let rows = data["models"][name].as_array().unwrap();
                let is_measured = rows.iter().any(|row| {
                    let all = row[3].as_f64().unwrap() * row[2].as_f64().unwrap();
                    row[0].as_f64() == Some(slices) && (all - throughput).abs() < 1e-6
                });
                assert!(is_measured, "{program}");
                *rates.entry(name.to_owned()).or_insert(0.0) += times * throughput;
            }
        }
    }
    for (name, service) in data["scenarios"][number].as_object().unwrap() {
        assert!(
            rates[name] >= service["rate"].as_f64().unwrap() - 1e-6,
            "{name}"
        );
    }
}

/// Twelve programs, each with figures for all sizes by a power law, that want almost all of 64 GPUs together.
fn large(power: f64, spread: f64) -> String {
    let sizes = [
        ("1g", 1.0),
        ("2g", 2.0),
        ("3g", 3.0),
        ("4g", 4.0),
        ("7g", 7.0),
    ];
    let mut text = String::new();
    for program in 0..12_u32 {
        let nth = f64::from(program);
        let (base, power) = (40.0 + 37.0 * nth, power + spread * (nth - 6.0));
        let rate = |slices: f64| base * slices.powf(power);
        let best = sizes.map(|(_, slices)| rate(slices) / slices);
        let wanted = best.into_iter().fold(0.0, f64::max) * (20.0 + 2.9 * nth);
        let _ = writeln!(text, "[[program]]\nname = \"p{program}\"\nrate = {wanted}");
        for (size, slices) in sizes {
            let _ = writeln!(
                text,
                "[[measured]]\nprogram = \"p{program}\"\ngpu = \"a100-80gb\"\ndevice = \"{size}\"\ncopies = 1\n\
                 throughput = {}",
                rate(slices)
            );
        }
    }
    text
}

/// The number of GPUs is proven, whatever the law is.
#[test]
fn twelve_programs_on_64_gpus() {
    for (power, spread) in [(1.0, 0.0), (0.8, 0.01), (1.1, 0.01), (0.95, 0.02)] {
        let question = large(power, spread);
        let begun = Instant::now();
        let answer = without_gpu(
            &["advise", "-", "--gpu", "a100-80gb:64", "--json"],
            &question,
        );
        let taken = begun.elapsed();
        let answer = answer.ended(0).json();
        let used = used(&answer);
        println!(
            "power {power}: {used} GPUs, {} slices, {taken:?}",
            answer["slices"]
        );
        assert_eq!(answer["least_gpus"], used);
        assert!(used > 60, "{used}");
    }
}

/// Twelve programs that share whole GPUs, with figures for percentages and copies by which each is less and less efficient.
fn shared(efficiency: f64, percentages: &[u32]) -> String {
    let mut text = String::new();
    for program in 0..12_u32 {
        let nth = f64::from(program);
        let power = efficiency + 0.03 * nth;
        let wanted = 60.0 + 15.0 * nth;
        let _ = writeln!(
            text,
            "[[program]]\nname = \"p{program}\"\nrate = {wanted}\nshare = true"
        );
        for threads in percentages {
            for copies in [1, 2, 4] {
                let part = f64::from(threads * copies) / 100.0;
                if part > 1.0 {
                    continue;
                }
                let rate = 22.0 * part.powf(power) * (1.04 - 0.04 * f64::from(copies));
                let memory = (2 + program) * (1 + copies);
                let _ = writeln!(
                    text,
                    "[[measured]]\nprogram = \"p{program}\"\ngpu = \"h100-80gb-sxm\"\ndevice = \"whole\"\n\
                     threads = {threads}\ncopies = {copies}\nthroughput = {rate}\nmemory = \"{memory}G\""
                );
            }
        }
    }
    text
}

/// The number of GPUs is proven, or at most one more than what is proven.
#[test]
fn twelve_programs_share_64_whole_gpus() {
    for (efficiency, percentages) in [
        (0.52, [10, 25, 50, 100].as_slice()),
        (0.6, &[20, 30, 40, 60, 100]),
        (0.62, &[15, 35, 55, 100]),
    ] {
        let question = shared(efficiency, percentages);
        let begun = Instant::now();
        let options = ["advise", "-", "--gpu", "h100-80gb-sxm:64", "--json"];
        let answer = without_gpu(&options, &question).ended(0).json();
        let used = used(&answer);
        let least = answer["least_gpus"].as_u64().unwrap();
        println!(
            "efficiency {efficiency}: {used} GPUs, {least} at least, {:?}",
            begun.elapsed()
        );
        assert!(used > 50 && used as u64 <= least + 1, "{used} {least}");
        let gpus = answer["gpus"].as_array().unwrap().iter();
        let mut devices = gpus.flat_map(|gpus| gpus["devices"].as_array().unwrap());
        assert!(devices.any(|device| device["programs"].as_array().unwrap().len() > 2));
    }
}

/// A program that is slower with more copies, and prints its latency.
const PROGRAM: &str = "cuda-app run 0.8; echo latency_ms 4.5; echo latency_ms 2; echo per_s 30";

fn compare(sim: &Sim, options: &[&str], script: &str) -> Ran {
    let fixed = ["compare", "--rounds", "1", "--seconds", "0"];
    sim.run(&[&fixed, options, &["--", "sh", "-c", script]].concat())
}

#[test]
fn what_was_measured_is_asked_for_and_applied() {
    let sim = Sim::served(
        "a100-80gb",
        2,
        "[[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = \"2g\" }, { profile = \"1g\" } ]\n",
    );
    let figures = sim.node.dir().join("figures.toml");
    let figures = figures.to_str().unwrap();
    for device in ["0.0", "0.2"] {
        let name = ["-n", "1,3", "--save", figures, "--program", "web", device];
        let ran = compare(&sim, &name, PROGRAM).ended(0);
        assert_contains(&ran.stderr, &format!("Saved 2 measurements to {figures}."));
        assert_contains(&ran.stdout, "LATENCY MS");
    }
    let saved = fs::read_to_string(figures).unwrap();
    for part in [
        "program = \"web\"\ngpu = \"NVIDIA A100-SXM4-80GB\"\n",
        "copies = 3\nthroughput = 90\n",
        "latency_ms = 4.5\n",
        "memory = \"",
    ] {
        assert_contains(&saved, part);
    }
    let wanted = sim.node.dir().join("wanted.toml");
    fs::write(
        &wanted,
        "[[program]]\nname = \"web\"\nrate = 180\nlatency_ms = 5\n",
    )
    .unwrap();
    let answer = sim.node.dir().join("answer.toml");
    let (wanted, answer) = (wanted.to_str().unwrap(), answer.to_str().unwrap());
    let ran = sim
        .run(&["advise", wanted, "--measured", figures, "-o", answer])
        .ended(0);
    assert_contains(
        &ran.stdout,
        "1 GPU, 2 slices, by these figures: no layout has fewer",
    );
    sim.run(&["up", answer, "--yes"]).ended(0);
    let device = sim.device("web-0-0");
    assert_eq!(
        (&device["share"], &device["active_thread_percentage"]),
        (&3.into(), &100.0.into())
    );
    sim.device("web-0-1");
}

#[test]
fn threads_of_clients_are_saved() {
    let sim = Sim::whole("");
    let figures = sim.node.dir().join("figures.toml");
    // An editor has left no newline at its end.
    fs::write(&figures, "# by hand").unwrap();
    fs::set_permissions(&figures, Permissions::from_mode(0o600)).unwrap();
    let figures = figures.to_str().unwrap();
    let options = ["-n", "1", "--threads", "25", "--save", figures];
    compare(
        &sim,
        &options,
        "cuda-app run 0.8; echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100}",
    )
    .ended(0);
    compare(
        &sim,
        &[&options[..], &["--by-runs"]].concat(),
        "cuda-app run 0.8",
    )
    .ended(0);
    let saved = fs::read_to_string(figures).unwrap();
    for part in [
        "# by hand\n[[measured]]\nprogram = \"sh\"\n",
        "\n\n[[measured]]\n",
        "device = \"whole\"",
        "threads = 25\n",
        "throughput = 25\n",
        "counts = \"runs\"\n",
    ] {
        assert_contains(&saved, part);
    }
}

/// The first number of copies is measured, and the second one goes on for ever.
#[test]
fn an_interrupt_saves_what_was_measured() {
    let sim = Sim::whole("");
    let dir = sim.node.dir();
    let (figures, marks) = (dir.join("figures.toml"), dir.join("marks"));
    fs::create_dir(&marks).unwrap();
    let script = format!(
        "touch {0}/$$; [ $(ls {0} | wc -l) -gt 2 ] && exec sleep 600; cuda-app run 0.8; echo 7",
        marks.display()
    );
    let save = [
        "--save",
        figures.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let ran = sim.talk(
        &[
            &["compare", "-n", "1,2", "--rounds", "1", "--seconds", "0"],
            &save[..],
        ]
        .concat(),
    );
    wait_until("the second measurement begins", || {
        fs::read_dir(&marks).unwrap().count() > 2
    });
    ran.signal(Signal::TERM);
    let ran = ran.end().ended(130);
    assert_contains(&ran.stdout, "Saved 1 measurement to ");
    assert_eq!(
        fs::read_to_string(figures)
            .unwrap()
            .matches("[[measured]]")
            .count(),
        1
    );
}
