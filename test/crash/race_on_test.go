//go:build race

package crash

// raced says that the agent is built as this test is: with the race detector.
const raced = true
