# Completion of mig-mps for fish. It goes to /etc/fish/completions/mig-mps.fish, or for one user to
# ~/.config/fish/completions/mig-mps.fish

function __mig_mps_complete
    set --local word (commandline --cut-at-cursor --current-token)
    # A word whose quotes are not closed yet is taken as it is.
    set --local plain (string unescape -- $word); or set plain $word
    mig-mps __complete (commandline --cut-at-cursor --current-process --tokenize) "$plain" 2>/dev/null
end

complete --command mig-mps --no-files --keep-order --arguments '(__mig_mps_complete)'
