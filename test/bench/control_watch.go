package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// controlWatch is the time from the start of a create to the event that a watcher
// sees, under light load. Beside it, in turn with the creates on the same disk, is
// what no server does better with this store: a put of the same size to event in
// the server's own etcd, and a write of it that waits for the disk.
func (b *bench) controlWatch(ctx context.Context) (err error) {
	s, err := startControl(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	w, err := s.client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{LabelSelector: "timed"})
	if err != nil {
		return err
	}
	defer w.Stop()
	bare, err := openBare(ctx, s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.close()) }()
	const n = 500
	var created, put, synced []time.Duration
	steps := []struct {
		took *[]time.Duration
		do   func(context.Context, int) (time.Time, error) // answers when it was seen
	}{{&created, s.createSeen(w)}, {&put, bare.putSeen}, {&synced, bare.sync}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range n {
		for _, step := range steps {
			<-tick.C
			begun := time.Now()
			seen, err := step.do(ctx, i)
			if err != nil {
				return err
			}
			*step.took = append(*step.took, seen.Sub(begun))
		}
	}
	both := func(all []time.Duration) string { return ms(median(all)) + " / " + ms(quantile(all, 0.99)) }
	b.add("berth-control: create to watch event, p50 / p99", both(created), "-", "", "p99 <= 15 ms")
	b.add("berth-control: the same of a bare put in its etcd", both(put), "-", "", "")
	b.add("berth-control: the same of a bare write and fdatasync", both(synced), "-", "", "")
	return nil
}

// createSeen makes a ConfigMap and waits for its event.
func (s *controlServer) createSeen(w watch.Interface) func(context.Context, int) (time.Time, error) {
	return func(ctx context.Context, i int) (time.Time, error) {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t-%d", i), Labels: map[string]string{"timed": "yes"}}}
		failed := make(chan error, 1)
		go func() {
			_, err := s.client.CoreV1().ConfigMaps("default").Create(ctx, c, metav1.CreateOptions{})
			failed <- err
		}()
		if e, ok := <-w.ResultChan(); !ok || e.Type != watch.Added {
			return time.Time{}, errors.Join(fmt.Errorf("watch: %v", e), <-failed)
		}
		return time.Now(), <-failed
	}
}

// bareStore is a server's etcd, and the disk that it is on, without the server.
type bareStore struct {
	client *clientv3.Client
	events clientv3.WatchChan
	file   *os.File
}

// bareSize is about that of a small ConfigMap in the store.
const bareSize = 300

const barePrefix = "/bench/"

func openBare(ctx context.Context, dir string) (_ *bareStore, err error) {
	o := &bareStore{}
	if o.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "etcd", "client.sock")}, DialTimeout: time.Minute}); err != nil {
		return nil, err
	}
	o.events = o.client.Watch(ctx, barePrefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if first := <-o.events; !first.Created {
		return nil, errors.Join(fmt.Errorf("watch of etcd: %w", first.Err()), o.client.Close())
	}
	if o.file, err = os.Create(filepath.Join(dir, "bare")); err != nil {
		return nil, errors.Join(err, o.client.Close())
	}
	return o, nil
}

func (o *bareStore) putSeen(ctx context.Context, i int) (time.Time, error) {
	key := fmt.Sprintf("%s%d", barePrefix, i)
	if _, err := o.client.Put(ctx, key, string(bytes.Repeat([]byte{'x'}, bareSize))); err != nil {
		return time.Time{}, err
	}
	if e := <-o.events; len(e.Events) != 1 || string(e.Events[0].Kv.Key) != key {
		return time.Time{}, fmt.Errorf("watch of etcd: %v %w", e.Events, e.Err())
	}
	return time.Now(), nil
}

func (o *bareStore) sync(context.Context, int) (time.Time, error) {
	if _, err := o.file.Write(make([]byte, bareSize)); err != nil {
		return time.Time{}, err
	}
	err := unix.Fdatasync(int(o.file.Fd()))
	return time.Now(), err
}

func (o *bareStore) close() error { return errors.Join(o.client.Close(), o.file.Close()) }
