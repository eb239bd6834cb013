// Package pod runs one pod on this node.
//
// A Worker is the only owner of its pod: one goroutine that waits for messages,
// runs one sync pass, and waits again. A sync pass goes through five stages in
// order, with one pure decision in the middle:
//
//	1 prepare    observe the runtime, the host and the referenced objects
//	2 admit      check and reserve resources in the allocator
//	             plan.Decide: the next actions
//	3 configure  create directories, cgroup and volumes
//	4 cleanup    stop and remove what must not exist
//	5 build-run  pull images, create the sandbox, start containers
//
// Stages 3 to 5 carry out the plan and decide nothing. Each action runs on its
// own goroutine, and its outcome is an input of a later pass: no pass waits for
// a pull, a mount or a stop. A pass waits for at most one disk write, at most
// saveTimeout, before it publishes a changed readiness.
//
// Each stage is one file, which also declares the adapter interfaces that the
// stage needs. The package imports no adapter: cmd/berth joins them.
//
//	worker.go      the goroutine: messages, sync pass, timer
//	inbox.go       the messages and the methods that send them
//	state.go       everything known about the pod, free of clocks and goroutines
//	observation.go observation of the runtime and the host, and precedence of results
//	sync.go        one sync pass
//	persist.go     records that must be on disk before an action starts
//	actions.go     execution of an action and its outcome
//	requests.go    container restarts and ephemeral containers on user request
//	timeline.go    spans of actions and waits
//
// The package above, agent, calls New and the methods of Worker. A worker calls
// the agent through the interface Agent only.
package pod
