# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_mig_mps_global_optspecs
    string join \n h/help V/version
end

function __fish_mig_mps_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_mig_mps_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_mig_mps_using_subcommand
    set -l cmd (__fish_mig_mps_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c mig-mps -n "__fish_mig_mps_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -s V -l version -d 'Print version'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "list" -d 'Show GPUs and their MIG devices'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "status" -d 'Show MPS servers and their clients'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "logs" -d 'Show the logs of a device\'s daemon and server'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "plan" -d 'Show what `up` would do, and what it would disrupt'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "up" -d 'Apply a profile to this node'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "set" -d 'Change settings of a running daemon'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "restart" -d 'Restart daemons with their current settings'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "kill" -d 'End a client\'s work on a device'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "down" -d 'Stop the daemons that `up` started'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "check" -d 'Check whether a profile fits, without a GPU'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "import" -d 'Convert a configuration of mig-parted to a profile'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "export" -d 'Print this node as a profile'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "completions" -d 'Print a shell\'s completion script'
complete -c mig-mps -n "__fish_mig_mps_needs_command" -f -a "help" -d 'Show the manual, or the help of a command'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand list" -l profiles -d 'Also show what each GPU offers: profiles, placements, how many more fit'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand list" -l json -d 'Print JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand list" -s h -l help -d 'Print help'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -l watch -d 'Refresh every S seconds [default: 2] until q is pressed' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -l columns -d 'Show these columns of devices, in this order' -r -f -a "name\t'Name of the device'
gpu\t'Index of its GPU'
profile\t'Profile name, such as 3g.40gb'
state\t'State of its daemon'
user\t'Users of its servers'
clients\t'Number of clients, and the limit where it is known'
threads\t'Active thread percentage'
memory\t'Device memory, used and total'
util\t'Utilization of the GPU; n/a for MIG devices'
daemon\t'Process id of its daemon'
server\t'Process ids of its servers'
since\t'Time since its daemon was started'
serve\t'Users that its daemon serves'
device\t'UUID of the device'"
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -l json -d 'Print JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -l json-schema -d 'Print the schema of that JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -l exit-code -d 'Exit with 3 if there is a problem'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -s n -l lines -d 'Number of last lines to show, or "all" [default: 40 on a terminal, else all]' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -s f -l follow -d 'Show new lines until Ctrl-C (exit status 130)'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -l server -d 'Show only server.log, which the MPS server and its clients write'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -l control -d 'Show only control.log, which the control daemon writes'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -l sessions -d 'Show control sessions line by line, with every answer'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -l json -d 'Print JSON, one object per line'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand logs" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand plan" -l json -d 'Print JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand plan" -l exit-code -d 'Exit with 3 when there is something to do'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l drain -d 'Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l dry-run -d 'Show the plan and change nothing'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -s y -l yes -d 'Do not ask before something that runs is disrupted'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l force -d 'End clients in the way; with --drain, refuse new ones and end the rest after SECONDS'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l json -d 'Print the plan and the outcome as JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l reset -d 'Reset a GPU whose MIG mode cannot be switched without a reset'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -l stop-holders -d 'Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced) while its MIG mode is switched, and start them again'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand up" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -l drain -d 'Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -l dry-run -d 'Show the plan and change nothing'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -s y -l yes -d 'Do not ask before something that runs is disrupted'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -l force -d 'End clients in the way; with --drain, refuse new ones and end the rest after SECONDS'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -l json -d 'Print the plan and the outcome as JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -l drain -d 'Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -l dry-run -d 'Show the plan and change nothing'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -s y -l yes -d 'Do not ask before something that runs is disrupted'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -l force -d 'End clients in the way; with --drain, refuse new ones and end the rest after SECONDS'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -l json -d 'Print the plan and the outcome as JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand restart" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -l signal -d 'Then send each process a signal [default: TERM], and wait until it exits' -r -f -a "TERM\t'A process may clean up, or take no notice'
KILL\t'It ends at once'"
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -l drain -d 'Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -l dry-run -d 'Show the plan and change nothing'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -s y -l yes -d 'Do not ask before something that runs is disrupted'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -l force -d 'End clients in the way; with --drain, refuse new ones and end the rest after SECONDS'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -l json -d 'Print the plan and the outcome as JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand kill" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l drain -d 'Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l dry-run -d 'Show the plan and change nothing'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -s y -l yes -d 'Do not ask before something that runs is disrupted'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l force -d 'End clients in the way; with --drain, refuse new ones and end the rest after SECONDS'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l json -d 'Print the plan and the outcome as JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l destroy-mig -d 'Also destroy the GPU instances that mig-mps made'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l disable-mig -d 'Also switch MIG mode off where mig-mps switched it on (implies --destroy-mig)'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l reset -d 'Reset a GPU whose MIG mode cannot be switched without a reset'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l stop-holders -d 'Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced) while its MIG mode is switched, and start them again'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -l purge -d 'Also remove the daemons\' logs, and what users have left in pipe directories'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand down" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand check" -l gpu -d 'Check it on a node of these GPUs, in the order of their indices, such as a100-80gb:8 [default: every model that its selectors can match]' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand check" -l models -d 'List the models, and how certain each entry is'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand check" -l json -d 'Print JSON'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand import" -s c -l config -d 'Configuration to import, if the file has several' -r
complete -c mig-mps -n "__fish_mig_mps_using_subcommand import" -s o -l output -d 'Write the profile to this new file [default: standard output]' -r -F
complete -c mig-mps -n "__fish_mig_mps_using_subcommand import" -l serve-whole -d 'Import mig-enabled: false as mig = false, which starts a daemon [default: leave such GPUs alone]'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand export" -l format -d 'Output format' -r -f -a "toml\t'A profile of mig-mps: geometry, names and MPS settings'
mig-parted\t'A configuration of mig-parted: geometry alone'"
complete -c mig-mps -n "__fish_mig_mps_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand completions" -s h -l help -d 'Print help'
complete -c mig-mps -n "__fish_mig_mps_using_subcommand help" -s h -l help -d 'Print help'
