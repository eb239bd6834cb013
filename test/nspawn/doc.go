// Package nspawn gives tests a whole host with systemd on this machine: a systemd-nspawn container
// in which systemd is process 1, with containerd, its own network namespace and its own cgroup.
// Tests use it for what an operator does with berth: install, start, upgrade, reboot and recover
// from a power loss.
//
// The package owns the base, which is a root file system built by debootstrap in the cache of the
// checkout, once per recipe. Each Host owns an overlay on the base, containerd's directory, a network
// namespace and a cgroup in the v2 hierarchy. Each host holds a numbered slot in /run/berth-nspawn.
// The number determines its names.
//
// The hosts have no cgroup controllers: test/vm tests resource limits. The package changes nothing
// outside of its hosts: no sysctl, bridge or iptables rule.
//
// Invariants:
//
// N1: A host writes only into its overlay and its containerd directory. Neither the base nor another
// host sees what it leaves.
//
// N2: Stop leaves nothing behind: no process, mount, namespace, cgroup or file.
//
// N3: A slot is locked by the process of its owner. When that process dies, its hosts die with it,
// and the next start removes the leaks.
//
// N4: A power loss is a SIGKILL of the host's process 1 at any point. Data that was written before
// is present at the next boot.
package nspawn
