// Package nspawn gives tests a whole host with systemd on this machine: a
// container of systemd-nspawn in which systemd is process 1, with containerd,
// its own network namespace and its own cgroup. It is where berth is tested as
// an operator has it: installed, started, upgraded, rebooted, without power.
//
// It owns the base (a root file system by debootstrap below the checkout's
// cache, made once per recipe), and per Host an overlay over it, containerd's
// directory, a network namespace and a cgroup in the v2 hierarchy. Each host
// holds a numbered slot in /run/berth-nspawn; the number makes its names.
//
// The containers in there have no cgroup controllers: limits are tested in
// test/vm. Nothing outside the host is changed: no sysctl, no bridge, no rule.
//
// Invariants:
//
//	N1 A host writes into its overlay and its containerd's directory only: what
//	   one leaves behind reaches neither the base nor another host.
//	N2 Stop leaves nothing: no process, mount, namespace, cgroup or file.
//	N3 A slot is locked by its owner's process. When that dies its hosts die
//	   with it, and the next start removes leftovers.
//	N4 A power loss is the SIGKILL of the host's process 1, in the middle of
//	   whatever it does; what was written before is there at the next boot.
package nspawn
