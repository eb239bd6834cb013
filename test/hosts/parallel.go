package hosts

import (
	"flag"
	"strconv"
)

// SetDefaultParallelism has n tests of this program run at once, unless -parallel says how many:
// tests on real hosts wait far more than they compute, and by default no more run
// than there are CPUs. It parses the program's flags; for TestMain.
func SetDefaultParallelism(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // a number is what it takes
	}
}
