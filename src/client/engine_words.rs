//! The words with which a container engine or a launcher is started: options with their values, mounts and variables.

use std::borrow::Cow;

/// The short options of a program that take no value, and the long ones, separated by blanks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    pub short: &'static str,
    pub long: &'static str,
    /// Options with two values. A program that has them also has long options with one dash.
    pub pairs: &'static str,
}

const fn flags(short: &'static str, long: &'static str) -> Flags {
    let pairs = "";
    Flags { short, long, pairs }
}

/// Programs that start another program.
const LAUNCHERS: [(&str, Flags); 24] = [
    (
        "chrt",
        flags(
            "abdefiorRv",
            "all-tasks batch deadline ext fifo idle other reset-on-fork rr verbose",
        ),
    ),
    ("doas", flags("Lns", "")),
    (
        "env",
        flags(
            "iv0",
            "block-signal debug default-signal ignore-environment ignore-signal list-signal-handling null",
        ),
    ),
    ("ionice", flags("t", "ignore")),
    ("mpiexec", MPI),
    ("mpirun", MPI),
    ("nice", flags("", "")),
    ("nohup", flags("", "")),
    ("numactl", flags("abl", "all balancing localalloc")),
    ("orterun", MPI),
    ("pkexec", flags("", "disable-internal-agent keep-cwd")),
    ("prun", MPI),
    (
        "setpriv",
        flags(
            "",
            "clear-groups init-groups keep-groups nnp no-new-privs reset-env",
        ),
    ),
    ("setsid", flags("cfw", "ctty fork wait")),
    ("srun", SRUN),
    ("stdbuf", flags("", "")),
    (
        "strace",
        flags(
            "cCdfFhikqrtTvVxyZ",
            "debug failed-only follow-forks instruction-pointer output-separately successful-only summary summary-only",
        ),
    ),
    (
        "sudo",
        flags(
            "AbBEHiknNPsS",
            "askpass background bell login no-update non-interactive preserve-env preserve-groups reset-timestamp set-home shell stdin",
        ),
    ),
    (
        "systemd-run",
        flags(
            "dGPqrSt",
            "collect no-block pipe pty quiet remain-after-exit same-dir scope send-sighup shell slice-inherit system user wait",
        ),
    ),
    ("taskset", flags("acp", "all-tasks cpu-list pid")),
    ("time", flags("apqv", "append portability quiet verbose")),
    (
        "timeout",
        flags("fpv", "foreground preserve-status verbose"),
    ),
    ("tini", flags("gsvw", "")),
    (
        "unshare",
        flags(
            "cCfimnpruTU",
            "cgroup fork ipc keep-caps kill-child map-auto map-current-user map-root-user mount mount-proc net pid time user uts",
        ),
    ),
];

const MPI: Flags = Flags {
    short: "qv",
    long: "allow-run-as-root bycore bynode byslot display-allocation display-map do-not-launch envall envnone genvall \
           genvnone nolocal nooversubscribe oversubscribe quiet report-bindings tag-output timestamp-output \
           use-hwthread-cpus verbose",
    pairs: "env genv gmca gpmixmca gprtemca mca omca pmixmca prtemca",
};

pub(super) const SRUN: Flags = flags(
    "EHIKOQXZklsuv",
    "bcast compress container-entrypoint container-mount-home container-readonly container-remap-root container-writable contiguous \
     debugger-test disable-status exact exclusive external-launcher get-user-env hold immediate interactive join kill-on-bad-exit label \
     multi-prog nice no-allocate no-container-entrypoint no-container-mount-home no-container-remap-root no-kill nvmps overcommit \
     overlap oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs spread-job unbuffered \
     use-min-nodes verbose whole x11",
);

/// Options before the verb, and those of the verbs.
pub(super) const APPTAINER: Flags =
    flags("dhqsv", "build-config debug nocolor quiet silent verbose");
pub(super) const APPTAINER_RUN: Flags = flags(
    "cCdefipqsuvwx",
    "allow-setuid boot cleanenv compat contain containall debug disable-cache fakeroot ipc keep-privs net no-compat no-eval \
     no-home no-https no-init no-nv no-oci no-pid no-privs no-rocm no-setgroups no-tmp-sandbox no-umask nocolor nohttps nv \
     nvccli oci pid quiet rocm sharens silent underlay unsquash userns uts verbose vm writable writable-tmpfs",
);

pub(super) const CHARLIECLOUD: Flags = flags(
    "jqtvwW",
    "cdi env-no-expand home join mount no-passwd private-tmp quiet seccomp set-env verbose warnings write write-fake",
);

pub(super) const COMPOSE: Flags = flags("", "all-resources compatibility dry-run no-ansi verbose");

/// Options before the verb, and those of `run`.
pub(super) const DOCKER: Flags = flags(
    "Dr",
    "debug debug-full experimental insecure-registry noout remote syslog tls tlsverify trace transient-store",
);
pub(super) const DOCKER_RUN: Flags = flags(
    "dhiPqt",
    "detach disable-content-trust env-host help init interactive no-healthcheck no-hostname no-hosts oom-kill-disable \
     privileged publish-all quiet read-only replace rm rmi rootfs sig-proxy tty unsetenv-all use-api-socket",
);

pub(super) const ENROOT: Flags = flags("hrw", "help root rw");

/// Returns the flags of a program that starts another one.
pub(super) fn flags_of_launcher(program: &str) -> Option<Flags> {
    LAUNCHERS
        .iter()
        .find_map(|(name, flags)| (*name == program).then_some(*flags))
}

/// The variables that Apptainer and Singularity read as `--env-file`; Apptainer has both, and takes the first.
pub(super) const ENV_FILES: [&str; 2] = ["APPTAINER_ENV_FILE", "SINGULARITY_ENV_FILE"];

/// The variable that stands for `srun --export`.
pub(super) const SLURM_LIST: &str = "SLURM_EXPORT_ENV";

/// Returns the variable of the caller that stands for an option of the program on a command line, with its value.
pub(super) fn option_variable(
    words: &[Cow<'_, str>],
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    let names: &[&str] = match words.first()?.rsplit('/').next()? {
        "apptainer" => &ENV_FILES,
        "singularity" => &ENV_FILES[1..],
        "srun" => &[SLURM_LIST],
        _ => &[],
    };
    names.iter().find_map(|name| Some((*name, variable(name)?)))
}

/// True for an option by which srun starts a container: of Slurm itself, or of pyxis.
pub(super) fn is_container_option(name: &str) -> bool {
    name == "container" || name.starts_with("container-")
}

/// Returns the values of the options with one of these names, in their order.
pub(super) fn values_of<'a>(
    options: &'a [(&'a str, &'a str)],
    names: &'a [&'a str],
) -> impl DoubleEndedIterator<Item = &'a str> {
    options
        .iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(_, value)| *value)
}

/// Splits words into options with their values, and the words after them. An unknown option has a value, unless the next word
/// is an option.
pub(super) fn split_options<'a>(
    words: &'a [Cow<'a, str>],
    flags: Flags,
) -> (Vec<(&'a str, &'a str)>, &'a [Cow<'a, str>]) {
    let mut options = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) else {
            break;
        };
        rest = after;
        if option == "-" {
            break;
        }
        let flag_at = |(at, c): (usize, char)| (&option[at..at + c.len_utf8()], "");
        let has_one_dash = !flags.pairs.is_empty() && option.len() > 1;
        let long = option.strip_prefix('-').or(has_one_dash.then_some(option));
        let (name, value, is_flag) = if let Some(long) = long {
            match long.split_once('=') {
                Some((name, value)) => (name, Some(value), false),
                None => (long, None, has_word(flags.long, long)),
            }
        } else {
            // Those without a value may be together, and a value behind the last one.
            let at = option.find(|c| !flags.short.contains(c));
            let together = &option[..at.unwrap_or(option.len())];
            options.extend(together.char_indices().map(flag_at));
            let Some(at) = at else {
                continue;
            };
            let end = at + option[at..].chars().next().map_or(1, char::len_utf8);
            let value = option[end..].strip_prefix('=').unwrap_or(&option[end..]);
            let is_given = end < option.len();
            // A number has no value: nice -5, srun -K1.
            let is_number = option[at..].starts_with(|c: char| c.is_ascii_digit());
            (&option[at..end], is_given.then_some(value), is_number)
        };
        let value = match (value, rest.split_first()) {
            (Some(value), _) => value,
            (None, Some((next, after))) if !is_flag && is_value(next) => {
                rest = after;
                next
            }
            _ => "",
        };
        if has_word(flags.pairs, name) {
            rest = rest.get(1..).unwrap_or_default();
        }
        options.push((name, value));
    }
    (options, rest)
}

fn has_word(list: &str, wanted: &str) -> bool {
    list.split(' ').any(|word| word == wanted)
}

/// True for a word that can be the value of the option before it: no option, but a number such as -1, or - for the input.
fn is_value(word: &str) -> bool {
    let option = word.strip_prefix('-').unwrap_or_default();
    option.is_empty() || option.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns sources and targets: of `type=bind,src=A,dst=B`, and of `A:B:ro,C:D`. `A` is `A:A` if the engine takes it for one.
pub(super) fn mounts_of(value: &str, has_place: bool) -> Vec<(&str, &str)> {
    if value.split(',').any(|part| part.starts_with("type=")) {
        let of = |keys: &[&str]| {
            value.split(',').find_map(|part| {
                let (key, path) = part.split_once('=')?;
                keys.contains(&key).then_some(path)
            })
        };
        let found = of(&["src", "source"]).zip(of(&["dst", "target", "destination"]));
        return found.into_iter().collect();
    }
    value
        .split(',')
        .filter_map(|mount| {
            let (source, rest) = match mount.split_once(':') {
                Some(parts) => parts,
                None if has_place => (mount, mount),
                None => return None,
            };
            let target = rest.split_once(':').map_or(rest, |(target, _)| target);
            Some((source, target))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str, flags: Flags) -> String {
        let words: Vec<Cow<'_, str>> = line.split(' ').map(Cow::from).collect();
        let (options, rest) = split_options(&words, flags);
        let options: Vec<String> = options
            .into_iter()
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
        format!("{} | {}", options.join(" "), rest.join(" "))
    }

    #[test]
    fn options_have_the_values_of_their_program() {
        for (line, flags, expected) in [
            ("--net --pid image x", APPTAINER_RUN, "net: pid: | image x"),
            ("-c file exec", APPTAINER, "c:file | exec"),
            ("-np 2 --oversubscribe x", MPI, "np:2 oversubscribe: | x"),
            ("-hostfile hf -n 2 x", MPI, "hostfile:hf n:2 | x"),
            ("--mca btl self -genv A B x", MPI, "mca:btl genv:A | x"),
            ("-5 x", flags("", ""), "5: | x"),
            ("-K1 --get-user-env x", SRUN, "K: 1: get-user-env: | x"),
            ("--noout run", DOCKER, "noout: | run"),
            (
                "--net host --pid host image",
                DOCKER_RUN,
                "net:host pid:host | image",
            ),
            (
                "--userns keep-id image",
                DOCKER_RUN,
                "userns:keep-id | image",
            ),
            ("--userns image", APPTAINER_RUN, "userns: | image"),
            ("--label x image", DOCKER_RUN, "label:x | image"),
            ("--label prog", SRUN, "label: | prog"),
            (
                "--new-flag --env A image",
                DOCKER_RUN,
                "new-flag: env:A | image",
            ),
            (
                "--memory-swap -1 image",
                DOCKER_RUN,
                "memory-swap:-1 | image",
            ),
            ("-f - up", COMPOSE, "f:- | up"),
            (
                "-e=A -v=/a:/a -p=1=2 image",
                DOCKER_RUN,
                "e:A v:/a:/a p:1=2 | image",
            ),
            ("-e= -it image", DOCKER_RUN, "e: i: t: | image"),
            ("-ite A image", DOCKER_RUN, "i: t: e:A | image"),
            ("-- -x", DOCKER_RUN, " | -x"),
        ] {
            assert_eq!(split(line, flags), expected, "{line}");
        }
    }
}
