//! The shells, without any file of the user or of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::{Dialogue, Sim, built, can_run, terminal, without_gpu};

/// A shell that has completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The prompt that a shell shows before it reads a command.
const PROMPT: &str = "ready>";

/// The time after which Tab is pressed again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends what a line prints.
const END: &str = "<end>";

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// True if the shell is installed; in CI it must be.
    pub(crate) fn is_here(self, test: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_here = std::env::split_paths(&path).any(|dir| dir.join(self.name()).is_file());
        can_run(test, is_here, &format!("{} is not installed", self.name()))
    }

    /// Starts the shell in `directory`, with the script that `mig-mps completions` prints in the place it names.
    pub(crate) fn start(self, sim: &Sim, directory: &Path) -> Session {
        let users = sim.node.dir().join(self.name());
        fs::create_dir_all(&users).unwrap();
        let script = without_gpu(&["completions", self.name()], "")
            .ended(0)
            .stdout;
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let command = match self {
            Self::Bash => {
                let file = users.join("mig-mps");
                let settings = "set enable-bracketed-paste off\nset completion-query-items 0\nset page-completions off\n\
                                set bell-style none\n";
                write(users.join(".inputrc"), settings);
                let text = format!("PS1='{PROMPT}'\nsource {}\n", file.display());
                write(users.join("rc"), &text);
                write(file, &script);
                format!("bash --noprofile --rcfile {}/rc -i", users.display())
            }
            Self::Zsh => {
                write(users.join("functions/_mig-mps"), &script);
                let text = format!(
                    "PS1='{PROMPT}'\nunsetopt zle_bracketed_paste prompt_sp beep\nLISTMAX=1000\nbindkey -e\n\
                     fpath=({}/functions $fpath)\nautoload -U compinit && compinit -u -D\n",
                    users.display()
                );
                write(users.join(".zshrc"), &text);
                "zsh --no-globalrcs -i".to_owned()
            }
            Self::Fish => {
                write(users.join("config/fish/completions/mig-mps.fish"), &script);
                let text = format!(
                    "function fish_prompt; echo -n '{PROMPT}'; end\nset -g fish_greeting\n\
                     set -g fish_autosuggestion_enabled 0\n"
                );
                write(users.join("config/fish/config.fish"), &text);
                // Without it fish reads all manual pages of the machine in a process that outlives it.
                fs::create_dir_all(users.join("data/fish/generated_completions")).unwrap();
                "fish --interactive".to_owned()
            }
        };
        let mut path = built().programs.as_os_str().to_owned();
        let of_node = sim.node.env().into_iter().find(|(name, _)| name == "PATH");
        path.push(":");
        path.push(of_node.unwrap().1);
        // Wide and high, so that no list is cut.
        let mut command = terminal(format!("stty rows 120 cols 200; exec {command}"));
        command
            .env_clear()
            .envs(sim.node.env())
            .current_dir(directory)
            .env("PATH", path)
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            // Every call of NVML is an event.
            .env("SIMNODE_EVENTS", "all")
            .env("HOME", &users)
            .env("ZDOTDIR", &users)
            .env("INPUTRC", users.join(".inputrc"));
        for name in ["CONFIG", "DATA", "STATE", "CACHE"] {
            command.env(format!("XDG_{name}_HOME"), users.join(name.to_lowercase()));
        }
        let mut dialogue = Dialogue::start(command);
        dialogue.await_text(PROMPT);
        Session {
            shell: self,
            dialogue,
        }
    }
}

/// A running shell with an empty command line.
pub(crate) struct Session {
    pub(crate) shell: Shell,
    dialogue: Dialogue,
}

impl Session {
    /// Types a line, lists what it can go on with, and waits for these texts. Returns the list.
    #[track_caller]
    pub(crate) fn lists(&mut self, typed: &str, texts: &[&str]) -> String {
        let tabs = if self.shell == Shell::Bash {
            "\t\t"
        } else {
            "\t"
        };
        self.dialogue.press(&format!("{typed}{tabs}"));
        let first = self.dialogue.texts_within(PATIENCE, texts);
        // What does not come in its second does not come: a person presses Tab again.
        let list = first.unwrap_or_else(|| {
            self.dialogue.press(tabs);
            self.dialogue.await_texts(texts)
        });
        list + &self.next()
    }

    /// Types the beginning of a line, and returns the words of the line that Tab makes of it.
    #[track_caller]
    pub(crate) fn completes(&mut self, typed: &str) -> String {
        // Ctrl-A: the words are printed, not run.
        self.dialogue
            .press(&format!("{typed}\t\x01printf '<%s>' \x05 '<end''>'\n"));
        let shown = self.dialogue.await_text(&format!("<{END}>"));
        let printed = shown.rsplit_once("<mig-mps>").unwrap().1;
        let words = printed
            .rsplit_once(&format!("<{END}>"))
            .unwrap()
            .0
            .to_owned();
        self.next();
        words
    }

    /// Waits until the shell has done everything before, and returns what it shows of that.
    fn next(&mut self) -> String {
        // Not Ctrl-C, a signal at which the terminal forgets the keys that follow.
        self.dialogue.press("\x15echo \"do\"ne\n");
        self.dialogue.await_text("done")
    }
}
