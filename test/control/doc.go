// Package control tests the control server with stock kubectl and client-go. The server runs in the
// test process (Start), or as a separate process that can be killed (Launch).
//
// Every server has its own data directory and its own free port on the loopback interface. The
// test's Cleanup stops it and removes its files.
package control
