// Package crash proves that nothing is lost: the agent, the runtime or a call
// between them dies at any moment, and no container restarts, none doubles,
// nothing leaks. It holds tests only. They run the real program on a real
// private containerd; see package berth/test/hosts.
//
// How it is seen that a container never ran twice: every container of these
// tests adds a line to a file of its own on the host as its first act, the
// witness. What the runtime and the agent say is compared with that.
//
// Every kind of action of package plan has a point at which the agent is killed:
// see kinds_test.go. What the agent says of pods is watched over all its lives by
// a vigil, which knows which edits may restart a container.
//
// TestLongChurn lets the agent live while all else goes wrong around it, and
// looks at rest points whether anything grows: memory, goroutines, descriptors, and
// what pods have on the host. TestPowerCuts takes the light away in the middle.
//
// BERTH_TORTURE=1 makes the loops long; BERTH_KILLS sets the number of kills,
// BERTH_HOUR how long the hour is, BERTH_CUTS and BERTH_PODS how often the power
// goes and below how many pods, and BERTH_SEED replays a random run. BERTH_REPORT is
// a folder, from the top of the checkout, into which the hour and the power cuts
// write their report; BERTH_CRASH_LOGS one for logs and profiles.
package crash
