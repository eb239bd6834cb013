// Package agent runs all pods of this node.
//
// The Agent merges the desired pods of all sources, adopts the pods that the runtime
// has after a restart, and starts one pod.Worker for each pod. It terminates orphans,
// audits the runtime, and collects leaked objects. A pod itself, with its state, its
// sync pass and the five stages, is in package agent/pod.
//
// The two packages have two interfaces: the agent calls pod.New and the methods of
// pod.Worker, and a worker calls the methods of pod.Agent. The package imports no
// adapter: cmd/berth joins them.
//
//	agent.go      configuration and the agent's loop
//	startup.go    publication of desired pods before adoption
//	adopt.go      adoption of pods in the runtime and in the records
//	desired.go    desired pods of all sources; objects.go: ConfigMaps and Secrets
//	workers.go    one worker for each pod; implements pod.Agent
//	samename.go   pods that wait until the pod with their name is deleted
//	terminate.go  deletion, eviction, node shutdown, recreation
//	requests.go   container restarts and ephemeral containers on user request
//	orphans.go    pods that no source has
//	audit.go      the periodic comparison with the runtime
//	leaks.go      leaked objects of interrupted runtime calls
//
// # Goroutines
//
//	Agent.Run       owns the desired pods and the workers; receives snapshots, events
//	                and the ends of workers as calls; ends after ctx, when everything
//	                below has ended
//	allocator.Run   owns admissions, allocations and start slots; ends last, when no
//	                worker needs it
//	Worker.Run      one per pod; owns the pod's state; receives messages; ends with ctx
//	                (the pod keeps running) or when nothing of the pod is left
//	action          one per action of a plan; its worker waits for it at the end; its
//	                outcome is a message
//	observation     at most one per worker; likewise
//	observation     of one container shortly after its start, if the runtime is polled;
//	after start     likewise
//	image check     at most one per worker; checks for images that are never pulled;
//	                likewise
//	Runtime.Watch   one; sends events; ends with ctx
//	Source.Run      one per source, from the start; sends snapshots; ends with ctx
//	audit           at most one; lists the runtime and messages every worker
//	leak scan       at most one, with an audit and after a suspicion; removes leaked
//	                objects
//	host list       after all sources are ready, and with an audit; lists the pods on
//	                the host
//
// The owner of the agent runs these, which call the agent's methods:
//
//	Prober                sends the combined results of probes to workers
//	local storage limits  measures the pods' disk usage and evicts pods
//	pressure monitor      observes the node's resources, reclaims, evicts one pod at a
//	                      time
//	memory notifier       waits for the kernel's memory notification
//	network check         has CNI plugins check existing attachments
//	devices               follows device plugins and requests sync passes
//	graceful shutdown     terminates all pods, in groups, when the host shuts down
//	offline images        imports image archives and reports them to the agent
//	API server parts      of a node that has joined one: the pod source, the status
//	                      manager, events, the Node, its lease, certificates
//	node services         the service proxy and the DNS server, the enforcer of network
//	                      policies, the Services of manifest files, and the checkpoint of
//	                      Services
//
// # Invariants, in addition to those of package plan
//
//	A1 Nothing is started before the runtime has listed its pods. The desired pods are
//	   received and published before.
//	A2 A decision is made only on a current observation: after a call with an
//	   uncertain outcome the pod is observed first.
//	A3 An observation that an action's outcome has overtaken is ignored.
//	A4 Two pods with one name never run at the same time: the successor waits.
//	A5 A canceled context stops the agent and no pod. A pod is stopped only by changing
//	   its desired state.
//	A6 No action starts before the record that it requires is on disk, and no changed
//	   readiness is published before, see the durability contract of plan.Plan. A disk
//	   that fails or hangs delays this by a bounded time.
//	A7 After a restart, pods that ran before have their resources reserved before any
//	   new pod can request them.
//	A8 Events do not delay decisions: the observation that an event requires runs
//	   concurrently, and one observation covers all events before it.
//	A9 An edit of a manifest file recreates a finished pod, also if it keeps its UID:
//	   the pod is deleted and starts with an empty memory. On a node without an API
//	   server, a pod that was evicted because of node pressure is recreated without an
//	   edit.
package agent
