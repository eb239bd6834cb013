// Package vm boots a whole host in an emulated machine: a Linux kernel with
// cgroup v2 alone, systemd as process 1, containerd, and berth as the service
// that its own unit makes of it. It is where berth is tested with what the
// machine that runs the tests may not have: all controllers of cgroup v2, the
// systemd cgroup driver, huge pages, OOM kills, a real boot and a reboot.
//
// It owns the disk (debs unpacked below the checkout's cache, nothing
// installed), the boot, and the report. The checks are the program in guest/,
// which runs inside and writes what it finds to the machine's second serial
// port; the test here makes a subtest of each.
//
// The machine is qemu with the processor emulated, so that no KVM is needed. It
// has no network device. A pod sandbox takes seconds in it: whatever can be
// tested without a boot is tested elsewhere.
//
// Invariants:
//
//	V1 The same recipe makes one disk, kept under a key of all that it is made
//	   of: a change of it makes another.
//	V2 A run has a copy of the disk of its own: what one leaves behind reaches
//	   no other.
//	V3 A boot that the checks never began is repeated once. A check that failed,
//	   or that nothing was heard of, is a failure.
package vm
