// Package offline brings images from archives in a folder onto the node, for nodes
// that reach no registry.
//
// It owns the folder's watch, what it knows of each file, and the record on disk of
// what was imported from which. It reads OCI archives and what docker save writes,
// gzip'd too, in one pass, straight into the runtime's store. It never pulls, and it
// removes nothing: which images must stay because a file has them is told by Pinned.
//
// Goroutines: Run, owned by whoever calls it, and at most Parallel below it that
// each read one file. Both end with ctx.
//
// Invariants:
//
//  1. Nobody waits for it: neither the agent's start nor a pod whose image is here.
//  2. Content that was imported is not imported again while its images are there,
//     however its file is called and whether or not the agent has begun anew.
//  3. A file is read when who writes it has closed it, or it has not changed for a
//     while. What cannot be read is told with the file's name, once for each content
//     of it, and leaves nothing in the runtime. It is read again when it changes; one
//     that is not to blame, after a while that doubles.
//  4. An image gets its name only when all of it is there and unpacked.
package offline
