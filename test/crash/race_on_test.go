//go:build race

package crash

// raceEnabled says that the agent is built as this test is: with the race detector.
const raceEnabled = true
