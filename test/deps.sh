#!/bin/sh
# Installs the packages that the tests and make up need on Debian 12. Does nothing,
# without network, if all are installed.
#
# The tests need the distribution's containerd in version 1.6 and stop with an error
# for any other. The argument "any", for make up, skips this check.
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
need /usr/bin/dbus-daemon dbus-daemon # a bus of the tests' own, with a stand-in for logind
need /usr/bin/systemd-analyze systemd # checks the unit files; nothing of it is started
need /usr/bin/systemd-nspawn systemd-container # test/nspawn boots hosts with systemd in containers
need /usr/sbin/debootstrap debootstrap         # and makes what they boot from
if [ "${1-}" != any ]; then # make up needs no browser
	need /usr/bin/chromium chromium # drives the web page
	need /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf fonts-dejavu-core
fi
if [ "$(uname -m)" = x86_64 ]; then # test/vm boots a machine; what it is made of is only unpacked
	need /usr/bin/qemu-system-x86_64 qemu-system-x86
	need /sbin/mkfs.ext4 e2fsprogs
	need /usr/bin/xz xz-utils
	need /usr/include/seccomp.h libseccomp-dev # for the runc that test/vm builds
	need /usr/bin/pkg-config pkg-config
fi
if [ -n "$missing" ]; then
	[ "$(id -u)" = 0 ] || { echo "missing:$missing; run as root, or install them" >&2; exit 1; }
	apt-get update -qq
	# The system's own containerd service is not wanted: tests start private ones.
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi
[ "${1-}" != any ] || exit 0
version=$(/usr/bin/containerd --version | cut -d' ' -f3)
case "${version#v}" in
1.6.*) ;;
*)
	echo "the tests need containerd 1.6 from Debian 12; /usr/bin/containerd is $version" >&2
	exit 1
	;;
esac
