// Package exits obtains exit codes of containers from the kernel that the runtime has lost:
// containerd 2.x that was not running when a container exited reports exit code 255 and reason
// Unknown, see docs/adr/0011-exit-codes-that-the-runtime-has-lost.md.
//
// It owns one pidfd for each running container: a handle of its init process, opened while the
// process is running, that reports the exit code even after the process was reaped (since Linux
// 6.15). On an older kernel it holds no handles and knows no exit codes.
//
// It never guesses an exit code and queries the runtime only for process IDs.
//
//	running ──Watch──► requested ──pidfd──► open ──exits──► time known ──reaped──► exit code known
//	                      └─ no process: dropped      └── Retain without it: dropped
//
// # Goroutines
//
//	Watcher.Run  opens handles; closes all of them when its context ends
//	listener     waits for exits of open handles; Run waits for it
package exits
