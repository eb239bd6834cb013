// Package agent walks pods through their lives on this node.
//
// A pod has one owner, its worker: one goroutine that takes mail, makes a pass
// and sleeps. A pass is five stages in order with one pure question in the
// middle:
//
//	1 prepare    look: what the runtime, the host and the named objects are now
//	2 admit      judge: may it run here? check and reserve, in the room
//	             plan.Decide: what to do next
//	3 configure  give: directories, cgroup, volumes
//	4 cleanup    take away what must not be there
//	5 build-run  make: images, sandbox with its network, containers
//
// Stages 3 to 5 do what the answer says and choose nothing. Every action runs
// on a goroutine of its own, and its end is an input of the next pass: a worker
// never waits for a pull, a mount or a stop.
//
// The package declares the few methods it needs of each adapter in the file of
// the stage that needs them, and imports none; cmd/berth joins them.
//
// # Goroutines
//
//	Agent.Run      owns store and workers; takes snapshots of sources, hints of
//	               the runtime, ends of workers, as calls; ends with its ctx when
//	               all below have ended
//	room.Run       owns admissions, allocations, start slots; takes asks,
//	               releases, starts; ends last, when nobody can ask any more
//	worker.Run     one per pod; owns book; takes mail; ends with ctx (the pod
//	               stays) or when nothing of the pod is left
//	an action      one per action of a plan; owned by its worker, which waits for
//	               it; its end is mail
//	a look         one at a time per worker; likewise
//	a look once    at one container, a moment after its start, where the runtime
//	               is polled; likewise
//	a seeking      one at a time per worker; asks the node for images that are
//	               never pulled; likewise
//	Runtime.Watch  one; tells hints; ends with ctx
//	Source.Run     one per source, from the start; tells snapshots; ends with ctx
//	an audit       one at a time; lists the runtime and tells every worker
//	a sweep        one at a time, with an audit and after a reason; looks for what the
//	               runtime has forgotten and removes it; tells the agent
//	Prober         of the agent's owner: tells workers by mail what probes add up to
//	Limits         of the agent's owner: measures what pods have on the disk and asks
//	               the agent to end those that are over
//	Pressure       of the agent's owner: looks what the node is short of, frees what
//	               nobody needs, and asks the agent to end one pod at a time
//	Disk.Measure   up to four; count what pods have on the disk for an order of going;
//	               who asks waits for them, a minute at most
//	memory alarm   of the agent's owner: waits for the kernel to find memory short
//	network check  of the agent's owner, and a few of its own: has plugins look at
//	               what they have made, after the start and from time to time
//	Devices        of the agent's owner: hears what device plugins have, and has
//	               every worker nudged when that changes
//	a drain        of the agent's owner: asks the agent to end all pods, by groups,
//	               when the host goes down
//	offline images of the agent's owner: imports archives of images, and tells every
//	               worker that images came
//	a server's     of the agent's owner, on a node that has joined one: the followers
//	parts          of package assigned (a Source), posts and events, the Node, its
//	               lease, the certificates; they tell and are told by the calls above
//	leftovers      once, when all sources are ready; lists what pods left on the
//	               host and tells the agent
//
// # Invariants, beside those of package plan
//
//	A1 Nothing is started before the runtime has told what it has. What is
//	   wanted is heard and shown before.
//	A2 A decision is made only on what is known: a call that may or may not have
//	   been carried out is looked into first.
//	A3 A look that an action's end has overtaken is not believed.
//	A4 Two pods of one name never run at once: the successor waits.
//	A5 Context cancelled means that the agent leaves. Pods end by a wish only.
//	A6 An end is on disk before its first destructive action, and that a hook is
//	   to run before its container is started or told to end. What probes and
//	   hooks have made of a pod is there before users see it.
//	A7 What ran before a restart has its place in the room before anybody new
//	   may ask for one.
//	A8 Hints hold no decision up: they are looked into beside, and one look
//	   serves all that came before it.
//	A9 An edit of a file brings a pod back that is over, also one that keeps the
//	   UID: it ends for good and begins anew, with nothing remembered. So does,
//	   by itself, one that had to go for what a node without a server lacks.
package agent
