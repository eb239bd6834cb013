// Package control gives tests a real control server and the stock kubectl: the
// whole server in the test's own process (Start), or the real program as a
// process that can be killed (Launch).
//
// What it starts has a data directory and a free port on loopback of its own and
// is ended, with all its files, by the test's Cleanup.
package control
