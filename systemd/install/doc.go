// Package install installs a program of berth as a systemd service and uninstalls it.
//
// Plan and PlanRemoval are pure functions from the spec and the state of the host to a list of
// steps. Inspect reads the state of the host, and Executor runs the steps.
//
// The package knows nothing about pods and never terminates one. The caller of PlanRemoval adds
// that as a custom step.
//
// Invariants, each checked by a test of the same name:
//
//	I1 A correct installation is left unchanged: installing it again has no steps.
//	   This includes the running service: a program or unit that was replaced
//	   without a restart is not correct.
//	I2 An existing configuration is never changed.
//	I3 Programs and units are replaced atomically. A running program continues
//	   with its old file.
//	I4 Nothing is removed through a mount.
package install
