// Package checkpoint is the agent's local store: what must survive a restart of
// the agent, or a reboot of the node with no server in reach.
//
// It owns one bbolt file and its lock file. One goroutine, Run, writes; Put
// never waits for it, so no start of a pod ever waits for a disk. The store is
// the small rest of the truth: most of it can be read again from the runtime,
// and losing it must only cost time.
//
// It never interprets what it keeps, never deletes a file that it did not
// write (an alien or damaged one is renamed), and never logs content.
//
// # Format, version 1
//
//	berth/            app = "berth", version = "1"
//	pods/<uid>/       one nested bucket per pod, one key per part:
//	                  pod, verdict, memory, objects, timeline, boot
//
// A part is a CRC-32C (4 bytes, big endian) of the rest and then JSON (the
// timeline: the bytes as given). testdata/v1.db is a store as the first release
// writes it; every later release must read it.
//
// # Invariants, each held by a test
//
//	C1 Put, Delete and Degraded never wait for the disk.
//	C2 After Sync has returned nil the record survives a power cut.
//	C3 A store that cannot be read is set aside, never written to or deleted.
//	C4 One damaged record costs that record, not the others.
//	C5 A full disk loses nothing of what is in memory, and the store catches up
//	   by itself when there is space.
//	C6 Two agents never write to one store.
//	C7 The file has mode 0600: Secrets are in it.
package checkpoint
