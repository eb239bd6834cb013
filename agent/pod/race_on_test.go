//go:build race

package pod

// usualSeeds of TestSim are fewer with the race detector, with which they take
// four times as long: each world is one goroutine's, so that what it has to see is
// only what worlds share. make test runs all without it.
const usualSeeds = 200
