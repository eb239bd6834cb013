//go:build !race

package crash

// raceEnabled says that the agent is built as this test is: without the race detector.
const raceEnabled = false
