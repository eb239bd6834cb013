// Package hosts gives tests and the demo a host of their own on this machine: a
// private containerd with a pod network, and a berth that runs on it.
//
// It owns, per Host: a containerd (Debian's 1.6 or a 2.x built from the module
// in containerd2/), its directories, its sockets, a bridge, a pod range and a
// cgroup under the root of every hierarchy. Each host holds one numbered slot
// in /run/berth-hosts; the number makes all its names and its pod range, so
// hosts of several processes run side by side.
//
// It never touches another runtime, another cgroup or another network of the
// machine. The only sysctl that it sets is net.ipv4.ip_forward=1. Tests of the
// network that berth itself makes take turns: see ClaimDefaultNetwork.
//
// Invariants:
//
//	H1 Stop leaves nothing behind: no process, mount, network namespace, link,
//	   iptables rule, cgroup, address or file. Leftovers says what remains.
//	H2 A slot is locked by its owner's process. When that dies, whoever starts a
//	   host or calls Sweep takes away what it left; a Detached host is left
//	   alone until somebody opens and stops it.
//	H3 Stopping a host never needs its containerd: it works after kill -9 too.
//	H4 A process is ended because it is in a cgroup of the host or serves its
//	   socket, never because of its name.
package hosts
