//! Files that root is asked to write, in directories of users.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use insta::assert_snapshot;
use rustix::fs::OFlags;

use testkit::{NOBODY, Ran, Sim, needs_root, shell, without_gpu};

/// The number of times that a file is written while its place changes. The old code wrote through the link at the
/// twelfth time.
const ROUNDS: usize = 60;

/// A directory of nobody's, and a file of root's beside it.
struct Hers {
    _parent: tempfile::TempDir,
    directory: PathBuf,
    victim: PathBuf,
}

impl Hers {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let (directory, victim) = (at("hers"), at("victim"));
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::write(&victim, "root's").unwrap();
        Self {
            _parent: parent,
            directory,
            victim,
        }
    }

    fn victim_is_untouched(&self) {
        assert_eq!(fs::read_to_string(&self.victim).unwrap(), "root's");
    }

    /// The error of a command, without the name of the directory.
    fn said(&self, ran: &Ran) -> String {
        let parent = self.directory.parent().unwrap().to_str().unwrap();
        let error = ran.stderr.find("error: ").unwrap();
        ran.stderr[error..].replace(parent, "")
    }
}

fn init(path: &Path) -> Ran {
    let words = [
        "init",
        path.to_str().unwrap(),
        "--gpu",
        "a30",
        "--yes",
        "--force",
    ];
    without_gpu(&words, "")
}

/// A FIFO with a reader who takes nothing unless asked.
fn fifo(path: &Path) -> File {
    shell(format!("mkfifo {}", path.display())).ended(0);
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options.open(path).unwrap()
}

/// The text that has been written to a FIFO.
fn read(mut fifo: &File) -> String {
    let mut text = vec![0; 1 << 16];
    match fifo.read(&mut text) {
        Ok(count) => String::from_utf8_lossy(&text[..count]).into_owned(),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            String::new()
        }
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    needs_root!();
    let place = Hers::new();
    let sim = Sim::whole("");
    let file = place.directory.join("file");
    // As a disk would be, this is no regular file.
    let device = place.victim.with_file_name("device");
    let device_reads = fifo(&device);
    symlink(&device, &file).unwrap();
    let output = file.to_str().unwrap();
    let runs = [
        sim.run(&["metrics", "--output", output]),
        sim.run(&["cdi", "--output", output]),
        init(&file),
    ];
    assert_eq!(read(&device_reads), "");
    let said = runs.map(|ran| place.said(&ran.ended(1)));
    assert_snapshot!(said.concat(), @"
    error: cannot write /hers/file: it is a symbolic link
    hint: choose another path
    error: cannot write /hers/file: it is a symbolic link
    hint: choose another path
    error: cannot write /hers/file: it is a symbolic link
    hint: choose another path
    ");
    // A page and a unit, at their names.
    let hers = place.directory.to_str().unwrap();
    fs::create_dir(place.directory.join("man1")).unwrap();
    for name in ["man1/mig-mps-up.1", "mig-mps.service"] {
        symlink(&place.victim, place.directory.join(name)).unwrap();
    }
    let man = without_gpu(&["man", "--dir", hers], "");
    let package = without_gpu(&["systemd", "--package", hers], "");
    place.victim_is_untouched();
    let said = [man, package].map(|ran| place.said(&ran.ended(1)));
    assert_snapshot!(said.concat(), @"
    error: cannot write manual pages to /hers: /hers/man1/mig-mps-up.1: it is a symbolic link
    hint: choose another path
    error: cannot write units to /hers: /hers/mig-mps.service: it is a symbolic link
    hint: choose another path
    ");
}

#[test]
fn a_link_of_a_user_on_the_way_is_not_followed() {
    needs_root!();
    let place = Hers::new();
    let roots = place.victim.with_file_name("roots");
    fs::create_dir(&roots).unwrap();
    let link = place.directory.join("link");
    symlink(&roots, &link).unwrap();
    let link_shown = link.to_str().unwrap();
    let sim = Sim::with("h200", 1);
    let lists = |log: &Path| {
        let mut list = sim.command(&["list"]);
        Ran::of(list.env("MIG_MPS_LOG", log))
    };
    let own = init(&link.join("file"));
    assert_eq!(own.status, 0, "a link of root's own is followed: {own:?}");
    fs::remove_file(roots.join("file")).unwrap();
    std::os::unix::fs::lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let runs = [
        init(&link.join("file")).ended(1),
        without_gpu(&["man", "--dir", link_shown], "").ended(1),
        without_gpu(&["systemd", "--package", link_shown], "").ended(1),
        lists(&link.join("trace")).ended(2),
    ];
    assert_eq!(fs::read_dir(&roots).unwrap().count(), 0);
    assert_snapshot!(runs.map(|ran| place.said(&ran)).concat(), @"
    error: cannot write /hers/link/file: it is a link that belongs to user nobody
    hint: choose another path
    error: cannot write manual pages to /hers/link: it is a link that belongs to user nobody
    hint: choose another path
    error: cannot write units to /hers/link: it is a link that belongs to user nobody
    hint: choose another path
    error: cannot write the trace file of MIG_MPS_LOG: /hers/link/trace: it is a link that belongs to user nobody
    hint: choose another path
    ");
    // A second name of a file of root's: the kernel lets users make one unless fs.protected_hardlinks is set.
    let second = place.directory.join("second");
    fs::hard_link(&place.victim, &second).unwrap();
    assert_snapshot!(place.said(&lists(&second).ended(2)), @"
    error: cannot write the trace file of MIG_MPS_LOG: /hers/second: it has a second name
    hint: move /hers/second away, then run this command again
    ");
    place.victim_is_untouched();
}

#[test]
fn a_fifo_or_a_socket_in_the_place_of_a_file_is_not_written_to() {
    needs_root!();
    let place = Hers::new();
    let file = place.directory.join("file");
    let reads = fifo(&file);
    let own = init(&file).ended(1);
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let hers = init(&file).ended(1);
    assert_eq!(read(&reads), "");
    let socket = place.directory.join("socket");
    let _listens = UnixListener::bind(&socket).unwrap();
    let to_socket = init(&socket).ended(1);
    assert_snapshot!([own, hers, to_socket].map(|ran| place.said(&ran)).concat(), @"
    error: cannot write /hers/file: it is not a regular file
    hint: choose another path
    error: cannot write /hers/file: it is not a regular file
    hint: choose another path
    error: cannot write /hers/socket: it is not a regular file
    hint: choose another path
    ");
}

#[test]
fn a_place_that_changes_all_the_time_leads_nowhere_else() {
    needs_root!();
    let place = Hers::new();
    let file = place.directory.join("file");
    let [a_fifo, a_file, next] = ["fifo", "plain", "next"].map(|name| place.directory.join(name));
    let _reads = fifo(&a_fifo);
    chown(&a_fifo, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::write(&a_file, "hers").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for shape in [&a_fifo, &a_file] {
                    fs::hard_link(shape, &next).unwrap();
                    fs::rename(&next, &file).unwrap();
                    symlink(&place.victim, &next).unwrap();
                    fs::rename(&next, &file).unwrap();
                }
            }
        });
        for _ in 0..ROUNDS {
            let ran = init(&file);
            assert!([0, 1].contains(&ran.status), "{ran:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    place.victim_is_untouched();
    let left: Vec<_> = fs::read_dir(&place.directory).unwrap().flatten().collect();
    assert!(
        !left
            .iter()
            .any(|entry| entry.file_name().to_str().unwrap().starts_with(".mig-mps")),
        "{left:?}"
    );
}
