//go:build !race

package pod

// usualSeeds is how many TestSim runs.
const usualSeeds = 2000
