// Package hosts gives tests and the demo a private host on this machine: a containerd with a pod
// network, and a berth agent that runs on it.
//
// Each Host owns a containerd (Debian's 1.6 or a 2.x built from the module in containerd2/), its
// directories, sockets, a bridge, a pod CIDR and a cgroup below the root of every hierarchy. Each
// host holds one numbered slot in /run/berth-hosts. The number determines all its names and its pod
// CIDR, which allows hosts of several processes to run in parallel.
//
// The package never touches another runtime, cgroup or network of the machine. The only sysctl that
// it sets is net.ipv4.ip_forward=1. Tests of the network that berth itself configures are
// serialized: see ClaimDefaultNetwork.
//
// Invariants:
//
// H1: Stop leaves nothing behind: no process, mount, network namespace, link, iptables rule,
// cgroup, address or file. Leaks lists what remains.
//
// H2: A slot is locked by the process of its owner. When that process dies, the next process that
// starts a host or calls Sweep removes what it left. A detached host is kept until a process opens
// and stops it.
//
// H3: Stopping a host never needs its containerd. It works after kill -9 too.
//
// H4: A process is killed because it is in a cgroup of the host or serves its socket, never because
// of its name.
package hosts
