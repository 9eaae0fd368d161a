#!/bin/sh
# What the pod of mig-mps runs: puts programs and profile on its host, in /opt/mig-mps, and has the host's systemd do the
# rest. The image has a static busybox and no other shell; the programs need the glibc of the host.
#
# usage: install-on-host.sh [--kubelet DIR] [--plugin-metrics ADDRESS]
#
# /host is /opt/mig-mps of the host, /profile the ConfigMap. With hostPID, the first process is the host's.
set -eu
umask 022
bb=/bin/busybox

# A directory of this pod's own, and the ones that ended pods have left.
for left in /host/new-*; do
    [ -d "/proc/${left##*-}" ] || $bb rm -rf "$left"
done
new=new-$$
trap '$bb rm -rf "/host/$new"' EXIT
trap 'exit 143' TERM INT
$bb mkdir -p "/host/$new"
$bb cp /mig-mps/mig-mps /mig-mps/mig-mps-device-plugin /profile/profile.toml "/host/$new/"
$bb nsenter -t 1 -m -- "/opt/mig-mps/$new/mig-mps" systemd "/opt/mig-mps/$new/profile.toml" --pod --kubernetes "$@"
