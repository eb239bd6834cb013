//go:build race

package crash

// raceEnabled reports whether the test and the agent are built with the race detector.
const raceEnabled = true
