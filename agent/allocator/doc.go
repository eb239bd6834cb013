// Package allocator owns what concerns the whole node: who is admitted, what is
// allocated, whose turn it is to start.
//
// A pod is checked (package admission) and its resources are reserved in one
// step, so that many pods asking at once never overcommit. Who is in is never
// judged again; but one that is not critical may be told to go for one that is, and
// then nobody lesser gets its room. It knows nothing of the runtime and of how a pod is doing: who
// asks says when a pod has started and when it is over.
//
// Goroutines: Room.Run, which owns all state, of the agent's.
package allocator
