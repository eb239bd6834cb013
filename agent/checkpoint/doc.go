// Package checkpoint is the agent's local store. It keeps what must survive a restart of the agent,
// or a reboot of the node while no API server is reachable.
//
// The package owns one bbolt file and its lock. One goroutine, Run, writes the file. Put and
// PutHistory never wait for Run, and no pod start waits for a disk. Most of the state can be
// rebuilt from the container runtime. Losing the store only costs time.
//
// The store does not interpret its content, does not log it, and never deletes a file that it did
// not write. A foreign or damaged file is renamed (see Quarantined).
//
// # Consistency check
//
// bbolt maps the file into memory and trusts its content. A damaged file can cause a memory fault,
// an endless loop, or a panic in a goroutine that the agent cannot recover from. Open therefore
// checks an existing file with bbolt's own Check in a child process, which is the same program
// executed again (see RunCheckProcess). A reported inconsistency or a crash of the child counts as
// damage.
//
// # Format, version 1
//
//	berth/            app = "berth", version = "1"
//	                  left = time of a clean exit of the agent, RFC 3339. The next
//	                  write deletes it
//	pods/<uid>/       one nested bucket per pod, one key per part:
//	                  pod, verdict, memory, objects, boot, owner
//	                  timeline, events, and the key of partReported: the pod's history
//	deleted/          pods whose records were deleted last: time and UID. Created with
//	                  the first one
//	node/             values of the node itself, one key each: devices,
//	                  shim-sockets. Created with the first value
//
// A part is a CRC-32C (4 bytes, big endian) of the rest, followed by JSON. The parts of the history
// are stored as given, each with its own version. testdata contains stores written by the first
// release. Every later release must read them.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	C1 Put, Delete and Degraded never wait for the disk.
//	C2 After Sync has returned nil, the record survives a power failure.
//	C3 A store that cannot be read is renamed. It is neither written nor deleted.
//	C4 A damaged record does not affect other records.
//	C5 A full disk does not lose what is in memory. The store is written when
//	   space is available again.
//	C6 Two agents never write to the same store.
//	C7 The file has mode 0600, because it contains Secrets.
//	C8 The histories of all pods share one delayed commit. Sync does not wait
//	   for it.
package checkpoint
