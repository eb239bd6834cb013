// Package offline imports images from archives in a directory, for nodes that cannot reach a
// registry.
//
// It owns the watch of the directory, the state of each archive, and the persisted record of what
// was imported from which archive. It reads OCI archives and the output of docker save, optionally
// gzip-compressed, in one pass, directly into the runtime's content store. It never pulls and never
// removes images. Pinned returns the images that must be kept because an archive contains them.
//
// Goroutines: Run, on the caller's goroutine, and at most Parallel goroutines below it that each
// read one archive. All of them end with ctx.
//
// Invariants:
//
//  1. It never blocks others: neither the start of the agent nor a pod whose image is present.
//  2. Imported content is not imported again while its images exist, regardless of the name of the
//     archive and of restarts of the agent.
//  3. An archive is read after its writer has closed it, or after it has been unchanged for a while.
//     An archive that cannot be read is reported with its name, once per content, and leaves nothing
//     in the runtime. It is read again when it changes. If the archive is not at fault, it is retried
//     with exponential back-off.
//  4. An image gets its name only after all of its content is stored and unpacked.
package offline
