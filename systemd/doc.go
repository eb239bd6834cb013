// Package systemd is berth's side of the service manager: the unit file that
// runs the agent, the notifications that the unit's Type=notify waits for, and
// the watchdog that has a hung agent restarted.
//
// It owns nothing at run time but the socket of one notification at a time. It
// never decides whether the agent is healthy: that is asked. It never restarts,
// stops or changes a unit, and imports nothing else of berth.
//
// Goroutines: none of its own. Watchdog.Run runs on its caller's.
//
// Invariants, each checked by a test of the same name:
//
//	S1 Without a service manager every call does nothing and succeeds.
//	S2 The watchdog is fed only while every loop makes progress, and who made
//	   none is logged before the service manager acts.
//	S3 What a status text contains can set no other variable of the protocol.
package systemd
