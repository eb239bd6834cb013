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

// controlWatch measures the time from the start of a create request to the watch event, under light load.
// It alternates with two baselines on the same disk: a put of the same size in the server's etcd until
// its watch event, and a write of the same size with fdatasync.
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
	etcd, err := openEtcd(ctx, s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.close()) }()
	const n = 500
	var created, put, synced []time.Duration
	steps := []struct {
		took *[]time.Duration
		do   func(context.Context, int) (time.Time, error) // returns the time of the observation
	}{{&created, s.createAndObserve(w)}, {&put, etcd.putAndObserve}, {&synced, etcd.sync}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range n {
		for _, step := range steps {
			<-tick.C
			start := time.Now()
			observed, err := step.do(ctx, i)
			if err != nil {
				return err
			}
			*step.took = append(*step.took, observed.Sub(start))
		}
	}
	p50p99 := func(all []time.Duration) string { return ms(median(all)) + " / " + ms(quantile(all, 0.99)) }
	b.add("berth-control: create to watch event, p50 / p99", p50p99(created), "-", "", "p99 <= 15 ms")
	b.add("berth-control: baseline, put to watch event in its etcd", p50p99(put), "-", "", "")
	b.add("berth-control: baseline, write and fdatasync", p50p99(synced), "-", "", "")
	return nil
}

// createAndObserve creates a ConfigMap and waits for its watch event.
func (s *controlServer) createAndObserve(w watch.Interface) func(context.Context, int) (time.Time, error) {
	return func(ctx context.Context, i int) (time.Time, error) {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t-%d", i),
			Labels: map[string]string{"timed": "yes"}}}
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

// etcdBaseline accesses a server's etcd and its disk directly.
type etcdBaseline struct {
	client *clientv3.Client
	events clientv3.WatchChan
	file   *os.File
}

// valueSize is the approximate size of a small ConfigMap in the store, in bytes.
const valueSize = 300

const keyPrefix = "/bench/"

func openEtcd(ctx context.Context, dir string) (_ *etcdBaseline, err error) {
	o := &etcdBaseline{}
	if o.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" +
		filepath.Join(dir, "etcd", "client.sock")}, DialTimeout: time.Minute}); err != nil {
		return nil, err
	}
	o.events = o.client.Watch(ctx, keyPrefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if first := <-o.events; !first.Created {
		return nil, errors.Join(fmt.Errorf("watch of etcd: %w", first.Err()), o.client.Close())
	}
	if o.file, err = os.Create(filepath.Join(dir, "baseline")); err != nil {
		return nil, errors.Join(err, o.client.Close())
	}
	return o, nil
}

func (o *etcdBaseline) putAndObserve(ctx context.Context, i int) (time.Time, error) {
	key := fmt.Sprintf("%s%d", keyPrefix, i)
	if _, err := o.client.Put(ctx, key, string(bytes.Repeat([]byte{'x'}, valueSize))); err != nil {
		return time.Time{}, err
	}
	if e := <-o.events; len(e.Events) != 1 || string(e.Events[0].Kv.Key) != key {
		return time.Time{}, fmt.Errorf("watch of etcd: %v %w", e.Events, e.Err())
	}
	return time.Now(), nil
}

func (o *etcdBaseline) sync(context.Context, int) (time.Time, error) {
	if _, err := o.file.Write(make([]byte, valueSize)); err != nil {
		return time.Time{}, err
	}
	err := unix.Fdatasync(int(o.file.Fd()))
	return time.Now(), err
}

func (o *etcdBaseline) close() error { return errors.Join(o.client.Close(), o.file.Close()) }
