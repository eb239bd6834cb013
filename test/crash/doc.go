// Package crash tests that no container restarts, is duplicated or leaks if the agent or the runtime is
// killed, or a CRI call fails, at any moment. It contains tests only. They run the berth binary on a
// private containerd, see package berth/test/hosts.
//
// Every container of these tests first adds a line to its own file on the host, the witness file.
// Tests compare it with what the runtime and the agent report, to detect containers that started twice.
//
// Every action of package plan has a point at which the agent is killed: see killpoints_coverage_test.go. A
// statusWatch checks the pod statuses over all restarts of the agent. It knows which edits may
// restart a container.
//
// TestLongChurn, which needs BERTH_TORTURE, keeps the agent running while it injects faults, and checks at
// rest points that nothing grows: memory, goroutines, descriptors, and the resources of pods on the host.
// TestPowerCuts simulates power failures.
//
// BERTH_TORTURE=1 selects the long versions of the tests. BERTH_KILLS sets the number of kills, BERTH_HOUR the
// duration of TestLongChurn, BERTH_CUTS and BERTH_PODS the number of power cuts and pods.
// BERTH_SEED repeats the random choices of a run. BERTH_REPORT is a directory, relative to the root of the
// checkout, for reports. BERTH_CRASH_LOGS is a directory for logs and profiles.
package crash
