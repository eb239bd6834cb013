package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestATornOrAlienStoreIsSetAside: the pods go on, and the log says what became
// of the store.
func TestATornOrAlienStoreIsSetAside(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.put("rich", n.rich("rich")...)
	n.putPod(n.simple("plain"))
	n.awaitRunning(30*time.Second, "rich", "plain")
	before := n.living("")
	file := filepath.Join(n.agent.StateDir, "berth.db")
	for what, spoil := range map[string]func() error{
		"garbage": func() error { return os.WriteFile(file, []byte(strings.Repeat("garbage ", 9000)), 0o600) },
		"empty":   func() error { return os.Truncate(file, 0) },
		"torn":    func() error { return os.Truncate(file, 9000) },
		"alien":   func() error { return os.WriteFile(file, []byte("SQLite format 3\x00"), 0o600) },
		"newer": func() error {
			db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Second})
			if err != nil {
				return err
			}
			err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("berth")).Put([]byte("version"), []byte("999")) })
			if err != nil {
				return err
			}
			return db.Close()
		},
		"missing": func() error { return os.RemoveAll(file) },
	} {
		n.must("stop the agent", n.agent.Stop(t.Context()))
		said := len(n.agent.Log())
		n.must(what, spoil())
		n.launch()
		n.awaitRunning(10*time.Second, "rich", "plain")
		n.once("rich")
		n.once("plain")
		n.stillLiving(before)
		log := n.agent.Log()[said:]
		aside := strings.Contains(log, "could not be used") || strings.Contains(log, "in memory only")
		if wanted := what != "missing" && what != "empty"; wanted && !aside {
			t.Errorf("a store that is %s: the log does not say what became of it:\n%s", what, log)
		}
		n.kill()
		n.launch()
		n.awaitRunning(10*time.Second, "rich", "plain")
		n.stillLiving(before)
		if t.Failed() {
			t.Fatalf("with a store that is %s", what)
		}
	}
	n.drop("rich")
	n.drop("plain")
	n.gone(20 * time.Second)
}
