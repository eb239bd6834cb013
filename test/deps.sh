#!/bin/sh
# Installs what the tests and the quick start need on a fresh Debian or Ubuntu.
# Does nothing, and needs no network, where it is all there.
set -eu
missing=""
need() { [ -e "$1" ] || missing="$missing $2"; }
need /usr/bin/containerd containerd
need /usr/sbin/runc runc
need /usr/lib/cni/bridge containernetworking-plugins
need /usr/sbin/iptables iptables
need /usr/bin/ip iproute2
need /bin/busybox busybox-static
need /usr/bin/gcc gcc # for the race detector
need /usr/bin/systemd-analyze systemd # checks the unit file; nothing of it is started
if [ "$(uname -m)" = x86_64 ]; then # test/vm boots a machine; what it is made of is only unpacked
	need /usr/bin/qemu-system-x86_64 qemu-system-x86
	need /sbin/mkfs.ext4 e2fsprogs
	need /usr/bin/xz xz-utils
fi
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "missing:$missing; run as root, or install them" >&2; exit 1; }
apt-get update -qq
# The system's own containerd service is not wanted: tests start private ones.
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
