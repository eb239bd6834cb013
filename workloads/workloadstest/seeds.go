package workloadstest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// The environment variables of RunSeeds.
const (
	// SeedVariable is the only seed to run.
	SeedVariable = "WORKLOADS_SEED"
	// CountVariable replaces the number of seeds, for a longer run.
	CountVariable = "WORKLOADS_SEEDS"
)

// RunSeeds runs test n times, each with a random source of another seed. It stops at the first seed that fails and
// prints it. A panic is a failure too.
func RunSeeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	t.Helper()
	if text := os.Getenv(SeedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
		runSeed(t, seed, test)
		return
	}
	if more, err := strconv.Atoi(os.Getenv(CountVariable)); err == nil {
		n = more
	}
	for seed := range uint64(n) {
		if runSeed(t, seed, test); t.Failed() {
			return
		}
	}
}

func runSeed(t *testing.T, seed uint64, test func(t *testing.T, rng *rand.Rand)) {
	t.Helper()
	defer func() {
		problem := recover()
		if problem != nil || t.Failed() {
			t.Logf("failed with %s=%d", SeedVariable, seed)
		}
		if problem != nil {
			panic(problem)
		}
	}()
	test(t, rand.New(rand.NewPCG(seed, 0)))
}
