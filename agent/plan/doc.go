// Package plan decides what to do next for one pod.
//
// Decide is a pure function: the same Input always gives the same Plan. It reads no clock, file,
// lock, log or package variable. Input holds everything that may influence a decision, and Plan
// holds the complete result. The worker in package agent/pod observes the pod before the call and runs
// the actions after it.
//
// The package also owns the types that agent and the adapters (cri, cni, images, volumes, cgroups,
// probes) share: the observed state, the input of an action and the classification of errors.
// Adapters import it only for these types.
//
// Invariants. The tests of I1 to I8 in this package are marked with the number. FuzzDecide checks
// I1 to I4 and I6 against arbitrary input. The model world of package agent/pod (TestSim) checks all
// twelve against the state of a host that fails and loses state:
//
//	I1 Decide never changes its Input.
//	I2 The actions of one Plan are safe in any order and all at once. An action
//	   that must run later is left to a later plan. The order within a plan has
//	   no meaning. (Containers therefore start one at a time, in spec order.)
//	I3 A terminating pod gets no new sandbox and no new container.
//	I4 A container name never has two live instances.
//	I5 When all actions succeed, plans become empty (quiescence).
//	I6 Before Wake, the passing of time alone changes nothing.
//	I7 No app container starts before every init container has succeeded and
//	   every sidecar among them has started.
//	I8 A pod in a terminal phase gets no new sandbox and releases its volumes and
//	   cgroup. A terminal phase is final, even if only the control server has it.
//	I9 A container with a postStart hook has started when the hook has succeeded,
//	   not before. A container whose hook has failed is stopped.
//	I10 The preStop hook of a running container runs before the container is
//	   stopped, within its grace period. Once the hook has started, the
//	   container is stopped.
//	I11 An exit that triggers RestartAllContainers starts exactly one new round
//	   of all containers. No container of the new round is killed for that exit.
//	I12 A resize never gives a container more than the pod's cgroup allows, and
//	   never takes from the cgroup what a container still has.
package plan
