//! The whole run: read the GPU, refuse or use it, give it back, compare.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use testkit::copy_program;

use crate::give_back::give_back;
use crate::interrupt;
use crate::lent::Lent;
use crate::node::Node;
use crate::partition;
use crate::refusal::{Subject, subject};
use crate::rounds;
use crate::run::{self, Place as _, words_of};
use crate::scene::short_dir;
use crate::snapshot::{self, Gpu, difference, lines};
use crate::transcript::Transcript;
use crate::walk::Walk;

/// The owner's request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The GPU's UUID, or the beginning of it.
    pub(crate) gpu: String,
    /// Instances that are there may be destroyed and made again.
    pub(crate) may_destroy: bool,
    /// The beginning of the ids of the wanted rows.
    pub(crate) rows: String,
}

impl Request {
    /// The request of the environment, if it names a GPU.
    pub(crate) fn from_env() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Some(Self {
            gpu: variable("ON_MIG_GPU")?,
            may_destroy: variable("ON_MIG_DESTROY_INSTANCES").is_some_and(|text| text == "yes"),
            rows: variable("ON_MIG_ROWS").unwrap_or_default(),
        })
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The reason why nothing was done.
    pub(crate) refused: Option<String>,
    /// Differences from what is expected.
    pub(crate) failures: Vec<String>,
    /// Changes elsewhere meanwhile: others may have made them.
    pub(crate) remarks: Vec<String>,
}

/// Use the GPU that is asked for and give it back, whatever happens in between.
pub(crate) fn judge(node: &Node, request: &Request, transcript: &Transcript) -> Verdict {
    let begin = Instant::now();
    let mut verdict = Verdict::default();
    let before = snapshot::of(node);
    let subject = match subject(node, request, &before) {
        Ok(subject) => subject,
        Err(why) => {
            transcript.add(&format!("refused: {why}"));
            verdict.refused = Some(why);
            return verdict;
        }
    };
    introduce(node, &subject, &before, transcript);
    let dir = short_dir();
    let copied = node.cuda_app.as_ref().map(|built| {
        let own = dir.join("cuda-app");
        copy_program(built, &own);
        own
    });
    let walk = Walk {
        node,
        subject: &subject,
        transcript,
        dir: &dir,
        cuda_app: copied,
    };
    let used = catch_unwind(AssertUnwindSafe(|| used(&walk, request, &mut verdict)));
    if let Err(panic) = used {
        verdict.failures.push(words_of(&*panic).to_owned());
    }
    transcript.begin("giving the GPU back");
    // Each of these may panic, and none may keep the others from being done.
    for give in [&|| walk.clear().err().into_iter().collect(), &|| {
        give_back(node, &subject, transcript)
    }] as [&dyn Fn() -> Vec<String>; 2]
    {
        match catch_unwind(AssertUnwindSafe(give)) {
            Ok(problems) => verdict.failures.extend(problems),
            Err(panic) => verdict.failures.push(words_of(&*panic).to_owned()),
        }
    }
    compare(&before, &snapshot::of(node), &mut verdict, transcript);
    if let Err(error) = fs::remove_dir_all(&dir) {
        verdict.failures.push(format!("{}: {error}", dir.display()));
    }
    transcript.begin("result");
    let took = begin.elapsed().as_secs();
    transcript.add(&format!(
        "{} things are not as expected, after {took} s",
        verdict.failures.len()
    ));
    for failure in &verdict.failures {
        transcript.add(&format!("not as expected: {failure}"));
    }
    verdict
}

/// Notes what the run is about. A user who kills it finds here how the GPU was.
fn introduce(node: &Node, subject: &Subject, before: &[Gpu], transcript: &Transcript) {
    let session = node.open();
    let nvml = &session.0;
    let vbios = nvml.by_uuid(&subject.uuid).ok();
    let vbios = vbios.and_then(|gpu| nvml.vbios(gpu));
    let shown = |text: Result<String, u32>| text.unwrap_or_else(|code| format!("code {code}"));
    transcript.add(&format!(
        "mig-mps on_mig: driver {}, NVML {}, VBIOS {}",
        shown(nvml.driver()),
        shown(nvml.version()),
        vbios.as_deref().unwrap_or("unknown")
    ));
    transcript.add(&format!("GPU {} {} is used", subject.index, subject.uuid));
    transcript.begin("before");
    transcript.add(&lines(before, Gpu::lines).join("\n"));
    transcript.add(&lines(before, Gpu::identities).join("\n"));
}

fn used(walk: &Walk, request: &Request, verdict: &mut Verdict) {
    let Walk {
        node,
        subject,
        transcript,
        ..
    } = walk;
    transcript.begin("what mig-mps finds");
    verdict.failures.extend(walk.read().err());
    if !subject.instances.is_empty() {
        transcript.begin("making room");
        verdict.failures.extend(walk.clear().err());
    }
    let rounds = rounds::of(&offered(walk));
    for (number, round) in rounds.iter().enumerate() {
        transcript.begin(&format!("geometry {} of {}", number + 1, rounds.len()));
        if let Err(failure) = walk.live(round, number == 0) {
            transcript.add(&format!("not as expected: {failure}"));
            verdict.failures.push(failure);
            verdict.failures.extend(walk.clear().err());
            if !walk.is_in_mig_mode() {
                break;
            }
        }
    }
    if !walk.is_in_mig_mode() {
        let why = "MIG mode could not be switched on: nothing else was tried";
        verdict.failures.push(why.to_owned());
        return;
    }
    let lent = Lent {
        node,
        gpu: &subject.uuid,
    };
    transcript.begin(&format!("the conformance suite on {}", lent.name()));
    let reports = run::all(&lent, &request.rows, None, &mut |report| {
        transcript.add(&report.line());
    });
    transcript.begin("all that was said in the suite");
    transcript.add(&run::transcript(&reports));
    verdict.failures.extend(run::failed(&reports));
    transcript.begin("from one geometry to the next in place, and back");
    verdict.failures.extend(walk.change(&rounds).err());
    if interrupt::is_wanted() {
        verdict.failures.push("interrupted".into());
    }
}

/// The GPU's profiles. A driver may list them only with MIG on.
fn offered(walk: &Walk) -> Vec<partition::Profile> {
    let session = walk.node.open();
    let nvml = &session.0;
    let gpu = nvml.by_uuid(&walk.subject.uuid).expect("the GPU");
    let profiles = partition::profiles(nvml, gpu).unwrap_or_default();
    if !profiles.is_empty() {
        return profiles;
    }
    let activation = nvml.set_mig_mode(gpu, 1);
    walk.transcript.add(&format!(
        "NVML lists no profiles: set MIG mode 1: {activation:?}"
    ));
    partition::profiles(nvml, gpu).expect("profiles with MIG on")
}

fn compare(before: &[Gpu], after: &[Gpu], verdict: &mut Verdict, transcript: &Transcript) {
    transcript.begin("difference between before and after");
    let changed = difference(&lines(before, Gpu::lines), &lines(after, Gpu::lines));
    let renamed = difference(
        &lines(before, Gpu::identities),
        &lines(after, Gpu::identities),
    );
    let processes = |gpu: &Gpu| vec![format!("GPU {} processes {:?}", gpu.index, gpu.processes)];
    let moved = difference(&lines(before, processes), &lines(after, processes));
    for (what, lines) in [
        ("settings and instances", &changed),
        ("ids and UUIDs, which the driver chooses", &renamed),
        ("processes, which others may have begun or ended", &moved),
    ] {
        let text = if lines.is_empty() {
            "none".to_owned()
        } else {
            lines.join("\n")
        };
        transcript.add(&format!("{what}: {text}"));
    }
    verdict.failures.extend(changed);
    verdict.remarks.extend(renamed.into_iter().chain(moved));
}
