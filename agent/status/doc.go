// Package status holds the newest snapshot of every pod: what ps, why, logs,
// metrics and eviction read while the workers go on.
//
// It owns snapshots, who follows them, and the answers that can be read off one:
// which instance of a container is meant, where a pod's network is, whether
// another run will come. Only package agent writes to it. It decides nothing and
// asks nobody.
//
// Goroutines: none. Follow and NextRun wait on their caller's.
package status
