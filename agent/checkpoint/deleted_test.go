package checkpoint

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
)

func flushed(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDeletedPodsSurviveRestart(t *testing.T) {
	t.Parallel()
	o := options(t)
	s := open(t, o)
	stop := run(t, s)
	for _, uid := range []types.UID{"a", "b", "c"} {
		s.Put(uid, record(string(uid)))
	}
	flushed(t, s)
	for _, uid := range []types.UID{"b", "a", "unknown"} {
		s.Delete(uid)
		flushed(t, s)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, o).DeletedPods()
	if want := []types.UID{"b", "a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
}

func TestOldestDeletedPodsAreForgotten(t *testing.T) {
	t.Parallel()
	s := open(t, options(t))
	err := s.file.db.Update(func(tx *bbolt.Tx) error {
		for i := range maxDeleted + 2 {
			if err := addDeleted(tx, types.UID(fmt.Sprint(i)), time.Unix(int64(i), 0)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.DeletedPods()
	last := types.UID(fmt.Sprint(maxDeleted + 1))
	if err != nil || len(got) != maxDeleted || got[0] != "2" || got[maxDeleted-1] != last {
		t.Errorf("got %d pods from %v on, %v", len(got), got[:1], err)
	}
}

func TestRecordWithoutMarkIsThatOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	o := options(t)
	s := open(t, o)
	stop := run(t, s)
	marked := record("new")
	marked.OwnerMarked = true
	s.Put("new", marked)
	s.Put("old", record("old"))
	flushed(t, s)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	records, err := open(t, o).Load()
	if got := UnmarkedPods(records); err != nil || len(records) != 2 || !slices.Equal(got, []types.UID{"old"}) {
		t.Errorf("got %v of %d, %v", got, len(records), err)
	}
}
