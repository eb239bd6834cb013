package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// ReleaseStore is the part of the local store that Release uses. Release runs its writer.
type ReleaseStore interface {
	Run(ctx context.Context) error
	NodeValue(key string) ([]byte, error)
	PutNodeValue(key string, value []byte)
	Delete(uid types.UID)
	Flush(ctx context.Context) error
}

// ReleaseDirs are the directories of pods that Release changes.
type ReleaseDirs interface {
	// Pods lists the pods whose directories have the mark.
	Pods(ctx context.Context) ([]types.UID, error)
	// UnmarkDir removes the mark from the pod's directory, if it has one.
	UnmarkDir(uid types.UID) error
}

// Release hands all pods of berth over to the kubelet: those that berth adopted and those that it
// created. It removes their marks and records, and records that they are released. The agent must not
// run, and the store must be open. Nothing else of the pods changes. After an error, or if it is
// interrupted, it can be repeated. records are the pods that have a record in the store. Release
// returns the pods that had a mark.
func Release(ctx context.Context, store ReleaseStore, dirs ReleaseDirs, records ...types.UID) ([]types.UID, error) {
	var state State
	stored, err := store.NodeValue(StoreKey)
	if err != nil {
		return nil, fmt.Errorf("read adopted pods: %w", err)
	}
	if stored != nil {
		if err := json.Unmarshal(stored, &state); err != nil {
			return nil, fmt.Errorf("decode adopted pods: %w", err)
		}
	}
	marked, err := dirs.Pods(ctx)
	if err != nil {
		return nil, err
	}
	// The store comes first: a pod with a mark and without a record is found again, and a pod
	// without a mark is not, while the store still says that berth owns it.
	if err := recordRelease(ctx, store, state.WithReleased(append(records, marked...)...), records); err != nil {
		return nil, fmt.Errorf("record the released pods: %w", err)
	}
	var errs []error
	for _, uid := range marked {
		errs = append(errs, dirs.UnmarkDir(uid))
	}
	return marked, errors.Join(errs...)
}

// recordRelease writes the state and deletes the records. When it returns nil, both are on disk.
func recordRelease(ctx context.Context, store ReleaseStore, state State, records []types.UID) error {
	running, stop := context.WithCancel(ctx)
	written := make(chan error, 1)
	go func() { written <- store.Run(running) }()
	store.PutNodeValue(StoreKey, state.encode())
	for _, uid := range records {
		store.Delete(uid)
	}
	err := store.Flush(ctx)
	stop()
	return errors.Join(err, <-written)
}
