#!/bin/sh
# Installs or upgrades mig-mps, or removes it. Asks nothing, and enables nothing.
#
# usage: install.sh [--uninstall] [PREFIX]          PREFIX is /usr/local unless it is given
set -eu
umask 022

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
is_removal=false
if [ "${1-}" = --uninstall ]; then
    is_removal=true
    shift
fi
prefix=${1-/usr/local}

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

case "$#:$prefix" in
    [01]:/*) ;;
    *) fail "expected the absolute path of a directory instead of $*" "./install.sh [--uninstall] [PREFIX]" ;;
esac
# The first directory of the path that is there.
existing=$prefix
while [ ! -d "$existing" ]; do
    existing=$(dirname -- "$existing")
done
[ -w "$existing" ] || fail "cannot write to $existing" "run the command as root, or name a directory of yours"

# Every file of the archive in bin and share, by its path below the prefix.
list=$(cd "$here" && find bin share -type f)

if $is_removal; then
    if grep -Eqs "^ExecStart=\"?$prefix/bin/mig-mps" /etc/systemd/system/mig-mps*.service; then
        fail "units in /etc/systemd/system run $prefix/bin/mig-mps" "run $prefix/bin/mig-mps systemd --uninstall first"
    fi
    echo "$list" | while IFS= read -r file; do
        rm -f -- "$prefix/$file"
    done
    rmdir -- "$prefix/share/mig-mps/profiles" "$prefix/share/mig-mps" "$prefix/share/doc/mig-mps" 2>/dev/null || true
    for record in /run/mig-mps/*/device.json; do
        if [ -e "$record" ]; then
            echo "mig-mps: MPS daemons run on; to stop them, install mig-mps again, and run mig-mps down" >&2
            break
        fi
    done
    exit 0
fi

if grep -qs '^# Written by the pod of mig-mps on this node' /etc/mig-mps/profile.toml; then
    fail "a pod of Kubernetes has installed mig-mps on this host, in /opt/mig-mps" \
        'delete its DaemonSet (`kubectl delete namespace mig-mps`), then run `/opt/mig-mps/bin/mig-mps systemd --uninstall`'
fi

is_upgrade=false
[ ! -e "$prefix/bin/mig-mps" ] || is_upgrade=true
echo "$list" | while IFS= read -r file; do
    target=$prefix/$file
    mkdir -p -- "$(dirname -- "$target")"
    case $file in
        bin/*) mode=755 ;;
        *) mode=644 ;;
    esac
    # A rename: no command is missing meanwhile, and a program that runs is not written to.
    install -m "$mode" -- "$here/$file" "$target.new"
    mv -f -- "$target.new" "$target"
done
if ! $is_upgrade; then
    sh "$here/next.sh"
elif [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl try-restart mig-mps-device-plugin.service || true
fi
