package pressure

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkEviction500 evaluates a reading, ranks 500 pods by memory and formats the message.
func BenchmarkEviction500(b *testing.B) {
	random := rand.New(rand.NewPCG(5, 0))
	pods := make([]Candidate, 0, 500)
	for i := range cap(pods) {
		pods = append(
			pods,
			candidate(
				fmt.Sprintf("pod-%03d", i),
				int32(random.IntN(3)),
				int64(random.IntN(200)),
				int64(random.IntN(400)),
				int64(random.IntN(100)),
			),
		)
	}
	config := Config{
		Thresholds:       []Threshold{{Signal: MemoryAvailable, Hard: true, Quantity: 100 * mi}},
		TransitionPeriod: 5 * time.Minute,
	}
	reading := readingAt(0, memory(50*mi, 60*mi))
	b.ReportAllocs()
	for b.Loop() {
		_, v := config.Evaluate(State{}, reading)
		if len(v.Reclaim) == 0 {
			b.Fatal("no threshold requires reclaiming")
		}
		ranked := Rank(v.Reclaim[0].Signal, FileSystemLayout{}, pods)
		if Message(v.Reclaim[0], ranked[0]) == "" || Explain(v.Reclaim[0].Signal, ranked, 10) == "" {
			b.Fatal("nothing is said")
		}
	}
}
