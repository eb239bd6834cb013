// Package plan decides what to do next for one pod.
//
// Decide is a pure function: the same Input always gives the same Plan, and it
// reads no clock, file, lock, log or global. Everything it may know is in
// Input; everything it wants is in Plan. The worker in package agent does the
// looking before and the acting after.
//
// The package also owns the words that agent and the adapters (cri, cni,
// images, volumes, cgroups, probes) share: what was observed, what an action
// needs, how an error is classified. Adapters import it for those words only.
//
// Invariants. Each of I1 to I8 has a test of its name here; FuzzDecide holds I1 to I4
// and I6 against any input; the model world of package agent (TestSim) holds all twelve
// against what really happened on a host that fails and forgets:
//
//	I1 Decide never changes its Input.
//	I2 The actions of one Plan are safe in any order and all at once. What must
//	   happen first is expressed by waiting for the next pass, never by order.
//	   (Containers therefore start one at a time, in spec order.)
//	I3 A pod that must end gets no new sandbox and no new container.
//	I4 One container name never has two live instances.
//	I5 With a world that does as it is told, Plans become empty (quiescence).
//	I6 Before Wake, time alone changes nothing.
//	I7 No app container starts before every init container has succeeded, and
//	   every sidecar among them has started.
//	I8 A pod whose phase is terminal gets no new sandbox and gives back its
//	   volumes and cgroup. Terminal is for ever, also when only the control
//	   server remembers it.
//	I9 A container with a postStart hook has started when the hook has ended
//	   well, not before; one whose hook has failed is ended.
//	I10 A running container that is to end has its preStop hook run first,
//	   within its grace; once the hook was begun the container ends.
//	I11 An exit that asks for a new round of all containers gets one, and only
//	   one: no container of the new round is killed for it.
//	I12 A resize never gives a container more than its pod's cgroup holds for
//	   it, nor takes from the cgroup what a container still has.
package plan
