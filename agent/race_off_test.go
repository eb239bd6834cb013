//go:build !race

package agent

// usualSeeds is how many TestSim runs.
const usualSeeds = 2000
