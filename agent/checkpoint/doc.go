// Package checkpoint is the agent's local store: what must survive a restart of
// the agent, or a reboot of the node with no server in reach.
//
// It owns one bbolt file and its lock file. One goroutine, Run, writes; Put and
// Tell never wait for it, so no start of a pod ever waits for a disk. The store
// is the small rest of the truth: most of it can be read again from the runtime,
// and losing it must only cost time.
//
// It never interprets what it keeps, never deletes a file that it did not
// write (an alien or damaged one is renamed), and never logs content.
//
// # Format, version 1
//
//	berth/            app = "berth", version = "1"
//	                  left = when the agent has left by itself, RFC 3339; a write
//	                  takes it away
//	pods/<uid>/       one nested bucket per pod, one key per part:
//	                  pod, verdict, memory, objects, boot
//	                  timeline, events, told: the pod's story
//	node/             notes of the node itself, one key each: devices,
//	                  shim-sockets. Absent before the first
//
// A part is a CRC-32C (4 bytes, big endian) of the rest and then JSON (of the
// story: the bytes as given, each with a version of its own). testdata holds
// stores as the first release writes them; every later release must read them.
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
//	C8 The stories of all pods together cost one commit in a while; who waits for
//	   a record waits for no story.
package checkpoint
