package workloadhistory

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// marker is a key that Read writes to find the end of the history.
const marker = "/workloadhistory/marker"

// folders are the keys of the objects that a History follows.
var folders = []string{
	"pods", "replicasets", "controllerrevisions", "deployments", "statefulsets", "daemonsets", "jobs",
}

// Read applies all changes in an etcd since the last call. The server must not compact its store more often than Read
// is called. Objects must not be encrypted.
func (h *History) Read(ctx context.Context, etcd *clientv3.Client) error {
	put, err := etcd.Put(ctx, marker, "")
	if err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := range etcd.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(h.revision+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("read history: %w", err)
		}
		for _, e := range events.Events {
			if err := h.applyEvent(e); err != nil {
				return err
			}
			if e.Kv.ModRevision >= put.Header.Revision {
				h.revision = put.Header.Revision
				return nil
			}
		}
	}
	return errors.Join(errors.New("read history: watch ended"), ctx.Err())
}

func (h *History) applyEvent(e *clientv3.Event) error {
	c := Change{Revision: e.Kv.ModRevision, Key: string(e.Kv.Key)}
	if !followed(c.Key) {
		return nil
	}
	if e.Type != clientv3.EventTypeDelete {
		obj, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(e.Kv.Value, nil, nil)
		if err != nil {
			return fmt.Errorf("decode %s: %w", c.Key, err)
		}
		var is bool
		if c.Object, is = obj.(Object); !is {
			return fmt.Errorf("decode %s: got a %T", c.Key, obj)
		}
	}
	h.Apply(c)
	return nil
}

// followed reports whether a key is that of an object that a History follows.
func followed(key string) bool {
	for _, folder := range folders {
		prefix := "/registry/" + folder + "/"
		if len(key) > len(prefix) && key[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}
