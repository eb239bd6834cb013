package workloadstest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// SeedVariable is the environment variable that makes RunSeeds run one seed only.
const SeedVariable = "WORKLOADS_SEED"

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
