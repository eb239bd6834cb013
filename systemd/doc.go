// Package systemd integrates berth with systemd: the unit files, the notifications that Type=notify
// requires, the watchdog, which restarts a hung agent, the descriptors that outlive the agent, and the
// delay of a shutdown by logind.
//
// Notifications are sent with github.com/coreos/go-systemd/v22/daemon. Three cases are not covered by
// that package:
//
//   - Notifier. SdNotify reads the socket from the environment for each message. berth-control
//     removes NOTIFY_SOCKET from its environment, because k8s.io/apiserver would otherwise send
//     READY=1 before the API is served. The Notifier keeps the address of the socket and sends its
//     messages itself.
//
//   - WatchdogFromEnvironment. SdWatchdogEnabled does not detect an interval that overflows a
//     duration, and returns an error if WATCHDOG_PID is invalid.
//
//   - Notifier.StoreFiles. SdNotify sends no descriptors.
//
// The library also has no constants for EXTEND_TIMEOUT_USEC, STATUS and MONOTONIC_USEC, which this
// package formats.
//
// The package only keeps the socket of one notification open at a time. The caller decides whether
// the agent is healthy. The package never starts, stops or changes a unit, and imports no other
// package of berth.
//
// It starts no goroutine. Watchdog.Run and WatchShutdown run on the caller's.
//
// Invariants, each checked by a test of the same name:
//
//	S1 Without a service manager every call succeeds without effect.
//	S2 The watchdog is notified only while every loop makes progress. A hung loop
//	   is logged before the service manager acts.
//	S3 The text of a status cannot set another variable of the protocol.
package systemd
