//go:build !race

package crash

// raced says that the agent is built as this test is: without the race detector.
const raced = false
