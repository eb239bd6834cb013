package crash

import (
	"os"
	"testing"

	"berth/test/hosts"
)

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(2)
	os.Exit(m.Run())
}
