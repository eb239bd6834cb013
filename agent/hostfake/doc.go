// Package hostfake is an in-memory fake of a host with a container runtime. It provides
// the adapters of all stages for the tests of packages agent and agent/pod. It uses
// package time, so it also runs in a synctest bubble.
package hostfake
