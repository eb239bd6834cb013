package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"
)

// CheckpointPrefix starts the keys of all Services in the local store: service/NAMESPACE/NAME.
const CheckpointPrefix = "service/"

// checkpointDelay is how long changes are collected before they are written.
const checkpointDelay = time.Second

// Checkpoint keeps the Services and EndpointSlices of a Store in the agent's local store, so that a
// node that boots without a reachable API server routes Services and answers DNS queries.
//
// Restore comes first. Run then writes what changes: one value for each Service with its
// EndpointSlices.
type Checkpoint struct {
	Store *Store
	// Put stores values by key; a nil value deletes the key. It does not wait.
	Put func(values map[string][]byte)

	written map[Name]uint64 // hash of the stored value
}

// storedService is the value of a Service in the local store.
type storedService struct {
	Service *Service `json:"service,omitempty"` // nil: only EndpointSlices are known
	Slices  []*Slice `json:"slices,omitempty"`
}

// Restore fills the Store with the values of an earlier process. Values that cannot be decoded are left
// out and returned as errors. Without any value the Store stays as it is, not synced.
func (c *Checkpoint) Restore(values map[string][]byte) error {
	c.written = make(map[Name]uint64, len(values))
	if len(values) == 0 {
		return nil
	}
	var all []*Service
	var slices []*Slice
	var errs []error
	for key, value := range values {
		var v storedService
		if err := json.Unmarshal(value, &v); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		if v.Service != nil {
			all = append(all, v.Service)
			c.written[v.Service.Name] = hash(value)
		}
		for _, s := range v.Slices {
			slices = append(slices, s)
			c.written[s.Service] = hash(value)
		}
	}
	c.Store.ReplaceServices(all)
	c.Store.ReplaceSlices(slices)
	return errors.Join(errs...)
}

// Run writes changes until ctx ends, then writes the last ones.
func (c *Checkpoint) Run(ctx context.Context) {
	if c.written == nil {
		c.written = map[Name]uint64{}
	}
	sub := c.Store.Subscribe()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			c.write(sub.Take())
			return
		case <-sub.Changed():
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkpointDelay):
		}
		c.write(sub.Take())
	}
}

// write stores the current state of the named Services where it differs from the stored one.
func (c *Checkpoint) write(names map[Name]struct{}) {
	values := map[string][]byte{}
	for name := range names {
		key := CheckpointPrefix + name.String()
		var v storedService
		v.Service, v.Slices = c.Store.Service(name)
		if v.Service == nil && len(v.Slices) == 0 {
			if _, stored := c.written[name]; stored {
				values[key] = nil
				delete(c.written, name)
			}
			continue
		}
		value, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("encode Service %s: %v", name, err)) // plain data: a bug
		}
		if h := hash(value); c.written[name] != h {
			values[key], c.written[name] = value, h
		}
	}
	if len(values) > 0 {
		c.Put(values)
	}
}

func hash(value []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(value) // a hash never fails
	return h.Sum64()
}
