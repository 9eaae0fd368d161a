#compdef mig-mps

autoload -U is-at-least

_mig-mps() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_mig-mps_commands" \
"*::: :->mig-mps" \
&& ret=0
    case $state in
    (mig-mps)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:mig-mps-command-$line[1]:"
        case $line[1] in
            (list)
_arguments "${_arguments_options[@]}" : \
'--profiles[Also show what each GPU offers\: profiles, placements, how many more fit]' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'(--json --exit-code)--watch=[Refresh every S seconds \[default\: 2\] until q is pressed]::S:_default' \
'(--json)*--columns=[Show these columns of devices, in this order]:COLUMNS:((name\:"Name of the device"
gpu\:"Index of its GPU"
profile\:"Profile name, such as 3g.40gb"
state\:"State of its daemon"
user\:"Users of its servers"
clients\:"Number of clients, and the limit where it is known"
threads\:"Active thread percentage"
memory\:"Device memory, used and total"
util\:"Utilization of the GPU; n/a for MIG devices"
daemon\:"Process id of its daemon"
server\:"Process ids of its servers"
since\:"Time since its daemon was started"
serve\:"Users that its daemon serves"
device\:"UUID of the device"))' \
'--json[Print JSON]' \
'(--json --watch --columns --exit-code)--json-schema[Print the schema of that JSON]' \
'--exit-code[Exit with 3 if there is a problem]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::devices -- Only these devices\: a name, a UUID, or a unique prefix of one:_default' \
&& ret=0
;;
(logs)
_arguments "${_arguments_options[@]}" : \
'-n+[Number of last lines to show, or "all" \[default\: 40 on a terminal, else all\]]:N:_default' \
'--lines=[Number of last lines to show, or "all" \[default\: 40 on a terminal, else all\]]:N:_default' \
'-f[Show new lines until Ctrl-C (exit status 130)]' \
'--follow[Show new lines until Ctrl-C (exit status 130)]' \
'(--control)--server[Show only server.log, which the MPS server and its clients write]' \
'--control[Show only control.log, which the control daemon writes]' \
'--sessions[Show control sessions line by line, with every answer]' \
'--json[Print JSON, one object per line]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':device -- Device\: its name, its UUID, or a unique prefix of one; its daemon may have ended:_default' \
&& ret=0
;;
(plan)
_arguments "${_arguments_options[@]}" : \
'--json[Print JSON]' \
'--exit-code[Exit with 3 when there is something to do]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':profile -- Profile to plan for (TOML):_files' \
&& ret=0
;;
(up)
_arguments "${_arguments_options[@]}" : \
'--drain=[Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted]:SECONDS:_default' \
'--dry-run[Show the plan and change nothing]' \
'-y[Do not ask before something that runs is disrupted]' \
'--yes[Do not ask before something that runs is disrupted]' \
'--force[End clients in the way; with --drain, refuse new ones and end the rest after SECONDS]' \
'--json[Print the plan and the outcome as JSON]' \
'--reset[Reset a GPU whose MIG mode cannot be switched without a reset]' \
'--stop-holders[Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced) while its MIG mode is switched, and start them again]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':profile -- Profile to apply (TOML):_files' \
&& ret=0
;;
(set)
_arguments "${_arguments_options[@]}" : \
'--drain=[Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted]:SECONDS:_default' \
'--dry-run[Show the plan and change nothing]' \
'-y[Do not ask before something that runs is disrupted]' \
'--yes[Do not ask before something that runs is disrupted]' \
'--force[End clients in the way; with --drain, refuse new ones and end the rest after SECONDS]' \
'--json[Print the plan and the outcome as JSON]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':device -- Device\: its name, its UUID, or a unique prefix of one:_default' \
'*::settings -- Settings\: active-thread-percentage, pinned-memory-limit, client-priority or max-clients:_default' \
&& ret=0
;;
(restart)
_arguments "${_arguments_options[@]}" : \
'--drain=[Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted]:SECONDS:_default' \
'--dry-run[Show the plan and change nothing]' \
'-y[Do not ask before something that runs is disrupted]' \
'--yes[Do not ask before something that runs is disrupted]' \
'--force[End clients in the way; with --drain, refuse new ones and end the rest after SECONDS]' \
'--json[Print the plan and the outcome as JSON]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::devices -- Devices\: a name, a UUID, or a unique prefix of one:_default' \
&& ret=0
;;
(kill)
_arguments "${_arguments_options[@]}" : \
'--signal=[Then send each process a signal \[default\: TERM\], and wait until it exits]::SIGNAL:((TERM\:"A process may clean up, or take no notice"
KILL\:"It ends at once"))' \
'--drain=[Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted]:SECONDS:_default' \
'--dry-run[Show the plan and change nothing]' \
'-y[Do not ask before something that runs is disrupted]' \
'--yes[Do not ask before something that runs is disrupted]' \
'--force[End clients in the way; with --drain, refuse new ones and end the rest after SECONDS]' \
'--json[Print the plan and the outcome as JSON]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':device -- Device\: its name, its UUID, or a unique prefix of one:_default' \
'*::pids -- Process ids of clients, as `status` shows them:_default' \
&& ret=0
;;
(down)
_arguments "${_arguments_options[@]}" : \
'--drain=[Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted]:SECONDS:_default' \
'--dry-run[Show the plan and change nothing]' \
'-y[Do not ask before something that runs is disrupted]' \
'--yes[Do not ask before something that runs is disrupted]' \
'--force[End clients in the way; with --drain, refuse new ones and end the rest after SECONDS]' \
'--json[Print the plan and the outcome as JSON]' \
'--destroy-mig[Also destroy the GPU instances that mig-mps made]' \
'--disable-mig[Also switch MIG mode off where mig-mps switched it on (implies --destroy-mig)]' \
'--reset[Reset a GPU whose MIG mode cannot be switched without a reset]' \
'--stop-holders[Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced) while its MIG mode is switched, and start them again]' \
'--purge[Also remove the daemons'\'' logs, and what users have left in pipe directories]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::devices -- Only these devices\: a name, a UUID, or a unique prefix of one:_default' \
&& ret=0
;;
(check)
_arguments "${_arguments_options[@]}" : \
'(--models)*--gpu=[Check it on a node of these GPUs, in the order of their indices, such as a100-80gb\:8 \[default\: every model that its selectors can match\]]:MODEL[:COUNT]:_default' \
'()--models[List the models, and how certain each entry is]' \
'--json[Print JSON]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'::profile -- Profile to check (TOML):_files' \
&& ret=0
;;
(import)
_arguments "${_arguments_options[@]}" : \
'-c+[Configuration to import, if the file has several]:NAME:_default' \
'--config=[Configuration to import, if the file has several]:NAME:_default' \
'-o+[Write the profile to this new file \[default\: standard output\]]:FILE:_files' \
'--output=[Write the profile to this new file \[default\: standard output\]]:FILE:_files' \
'--serve-whole[Import mig-enabled\: false as mig = false, which starts a daemon \[default\: leave such GPUs alone\]]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':file -- Configuration file of mig-parted (YAML), or - for standard input:_files' \
&& ret=0
;;
(export)
_arguments "${_arguments_options[@]}" : \
'--format=[Output format]:FORMAT:((toml\:"A profile of mig-mps\: geometry, names and MPS settings"
mig-parted\:"A configuration of mig-parted\: geometry alone"))' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
&& ret=0
;;
(completions)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':shell -- Which shell'\''s:(bash elvish fish powershell zsh)' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
'::subject -- Command, or topic of the manual:(list status logs plan up set restart kill down check import export help completions security profile changing states clients daemon-logs checking mig-parted hardware environment exit-status troubleshooting)' \
&& ret=0
;;
        esac
    ;;
esac
}

(( $+functions[_mig-mps_commands] )) ||
_mig-mps_commands() {
    local commands; commands=(
'list:Show GPUs and their MIG devices' \
'status:Show MPS servers and their clients' \
'logs:Show the logs of a device'\''s daemon and server' \
'plan:Show what \`up\` would do, and what it would disrupt' \
'up:Apply a profile to this node' \
'set:Change settings of a running daemon' \
'restart:Restart daemons with their current settings' \
'kill:End a client'\''s work on a device' \
'down:Stop the daemons that \`up\` started' \
'check:Check whether a profile fits, without a GPU' \
'import:Convert a configuration of mig-parted to a profile' \
'export:Print this node as a profile' \
'completions:Print a shell'\''s completion script' \
'help:Show the manual, or the help of a command' \
    )
    _describe -t commands 'mig-mps commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__check_commands] )) ||
_mig-mps__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps check commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__completions_commands] )) ||
_mig-mps__subcmd__completions_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps completions commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__down_commands] )) ||
_mig-mps__subcmd__down_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps down commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__export_commands] )) ||
_mig-mps__subcmd__export_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps export commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__help_commands] )) ||
_mig-mps__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps help commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__import_commands] )) ||
_mig-mps__subcmd__import_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps import commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__kill_commands] )) ||
_mig-mps__subcmd__kill_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps kill commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__list_commands] )) ||
_mig-mps__subcmd__list_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps list commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__logs_commands] )) ||
_mig-mps__subcmd__logs_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps logs commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__plan_commands] )) ||
_mig-mps__subcmd__plan_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps plan commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__restart_commands] )) ||
_mig-mps__subcmd__restart_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps restart commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__set_commands] )) ||
_mig-mps__subcmd__set_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps set commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__status_commands] )) ||
_mig-mps__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps status commands' commands "$@"
}
(( $+functions[_mig-mps__subcmd__up_commands] )) ||
_mig-mps__subcmd__up_commands() {
    local commands; commands=()
    _describe -t commands 'mig-mps up commands' commands "$@"
}

if [ "$funcstack[1]" = "_mig-mps" ]; then
    _mig-mps "$@"
else
    compdef _mig-mps mig-mps
fi
