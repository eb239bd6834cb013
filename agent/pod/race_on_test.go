//go:build race

package pod

// defaultSeeds is the default number of seeds of TestSim. It is smaller with the race detector, which
// slows them down fourfold. Each world belongs to one goroutine, so the detector only checks what
// worlds share. make test runs all seeds without the detector.
const defaultSeeds = 200
