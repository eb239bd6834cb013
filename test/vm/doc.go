// Package vm boots a whole host in an emulated machine: a Linux kernel with only cgroup v2, systemd as
// process 1, containerd, and berth as a service with its own unit. It tests what the machine that runs
// the tests may lack: all controllers of cgroup v2, the systemd cgroup driver, huge pages, OOM kills, a
// real boot and a reboot.
//
// The package owns the disk image, the boot and the report. The image is built from Debian packages that
// are unpacked in the cache of the checkout. Nothing is installed on the machine that runs the tests.
// The checks are the program in guest/, which runs inside the machine and writes its results to the
// second serial port. The test here creates a subtest for each check.
//
// The machine is qemu with an emulated processor: it needs no KVM. It has no network device. A pod
// sandbox takes seconds in it. What can be tested without a boot is tested elsewhere.
//
// Invariants:
//
// V1: The disk image is cached under a hash of everything that it is built from. A change builds a new
// image.
//
// V2: A run uses its own copy of the disk image. What it leaves affects no other run.
//
// V3: A boot in which the checks did not start, or did not all finish, is repeated. A check that failed
// or never reported a result is a failure.
package vm
