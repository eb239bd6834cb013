//go:build !race

package pod

// defaultSeeds is the default number of seeds of TestSim.
const defaultSeeds = 2000
