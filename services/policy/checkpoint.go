package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// CheckpointPrefix starts the keys of all values in the local store.
const CheckpointPrefix = "network-policy/"

// Kinds of values, which follow the prefix. The value of keySynced says that all policies are stored, and
// whether with pods and namespaces or with groups.
const (
	keySynced = CheckpointPrefix + "synced"
	ofPolicy  = "policy/"
	ofPod     = "pod/"
	ofSpace   = "namespace/"
	ofMember  = "member/"
)

// Values of keySynced.
const (
	storedPods   = "{}"
	storedGroups = `{"groups":true}`
)

// checkpointDelay is how long changes are collected before they are written.
const checkpointDelay = 5 * time.Second

// Checkpoint keeps the input of a Store in the agent's local store, so that a node that boots without a
// reachable API server enforces the last known policies. While there are no policies, it keeps only
// that. It does not keep pods of the node, which the agent sets again.
//
// Restore comes first. Run then writes what changes: one value for each object.
type Checkpoint struct {
	Store *Store
	// Put stores values by key; a nil value deletes the key. It does not wait.
	Put func(values map[string][]byte)

	written map[string]uint64 // hash of the stored value by key
}

// storedMember is a member of a group that a server has computed.
type storedMember struct {
	Group  selection.GroupKey   `json:"group"`
	Name   types.NamespacedName `json:"name"`
	Member *selection.Member    `json:"member"`
}

// storedNamespace is a namespace.
type storedNamespace struct {
	Name   string           `json:"name"`
	Labels selection.Labels `json:"labels"`
}

// Restore fills the Store with the values of an earlier process. The Store stays as it is, not synced,
// if there are none, or if a value cannot be decoded: without it, too much could be allowed.
func (c *Checkpoint) Restore(values map[string][]byte) error {
	c.written = make(map[string]uint64, len(values))
	var policies []*selection.Policy
	var pods []*selection.Pod
	spaces := map[string]selection.Labels{}
	groups := map[selection.GroupKey]map[types.NamespacedName]*selection.Member{}
	var errs []error
	for key, value := range values {
		c.written[key] = sum(value)
		var err error
		switch kind := strings.TrimPrefix(key, CheckpointPrefix); {
		case strings.HasPrefix(kind, ofPolicy):
			p := &selection.Policy{}
			err = json.Unmarshal(value, p)
			policies = append(policies, p)
		case strings.HasPrefix(kind, ofPod):
			p := &selection.Pod{}
			err = json.Unmarshal(value, p)
			pods = append(pods, p)
		case strings.HasPrefix(kind, ofSpace):
			var n storedNamespace
			err = json.Unmarshal(value, &n)
			spaces[n.Name] = n.Labels
		case strings.HasPrefix(kind, ofMember):
			var m storedMember
			if err = json.Unmarshal(value, &m); groups[m.Group] == nil {
				groups[m.Group] = map[types.NamespacedName]*selection.Member{}
			}
			groups[m.Group][m.Name] = m.Member
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	synced, ok := values[keySynced]
	if !ok || len(errs) > 0 {
		return errors.Join(errs...)
	}
	if string(synced) != c.Store.storedInput() { // the source of the input has changed
		gone := make(map[string][]byte, len(values))
		for key := range values {
			gone[key] = nil
		}
		c.Put(gone)
		c.written = nil
		return nil
	}
	c.Store.restore(policies, pods, spaces, groups)
	return nil
}

// restore replaces all objects of the cluster.
func (s *Store) restore(
	policies []*selection.Policy, pods []*selection.Pod, spaces map[string]selection.Labels,
	groups map[selection.GroupKey]map[types.NamespacedName]*selection.Member,
) {
	s.ReplacePolicies(policies)
	if s.published != nil {
		s.ReplaceGroups(groups)
		return
	}
	s.ReplaceNamespaces(spaces)
	s.ReplacePods(pods)
}

// Run writes changes until ctx ends, then writes the last ones.
func (c *Checkpoint) Run(ctx context.Context) {
	changed := c.Store.follow()
	for {
		select {
		case <-ctx.Done():
			c.write()
			return
		case <-changed:
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkpointDelay):
		}
		c.write()
	}
}

// write stores the objects that have changed since the last call.
func (c *Checkpoint) write() {
	if c.written == nil {
		c.written = map[string]uint64{}
	}
	values := map[string][]byte{}
	for key, value := range c.Store.changedValues(len(c.written) <= 1) {
		_, stored := c.written[key]
		switch {
		case value == nil && stored:
			values[key] = nil
			delete(c.written, key)
		case value != nil && (!stored || c.written[key] != sum(value)):
			values[key], c.written[key] = value, sum(value)
		}
	}
	if c.Store.PolicyNumber() == 0 {
		for key := range c.written {
			if key != keySynced {
				values[key] = nil
				delete(c.written, key)
			}
		}
	}
	if len(values) > 0 {
		c.Put(values)
	}
}

// PolicyNumber returns the number of policies.
func (s *Store) PolicyNumber() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.policies)
}

// follow makes the Store record changes for changedValues and signals them.
func (s *Store) follow() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unwritten, s.written = map[string]struct{}{}, make(chan struct{}, 1)
	s.recordAll()
	return s.written
}

// record records that an object has changed. The caller holds the lock.
func (s *Store) record(kind, name string) {
	if s.unwritten == nil {
		return
	}
	s.unwritten[CheckpointPrefix+kind+name] = struct{}{}
	select {
	case s.written <- struct{}{}:
	default:
	}
}

func (s *Store) recordAll() {
	for name := range s.policies {
		s.record(ofPolicy, name.String())
	}
	for name := range s.pods {
		s.record(ofPod, name.String())
	}
	for name := range s.spaces {
		s.record(ofSpace, name)
	}
	s.recordMembers()
	s.record("", "") // also without any object
}

func (s *Store) recordMembers() {
	if s.published == nil || s.unwritten == nil {
		return
	}
	for m := range s.published.All() {
		s.record(ofMember, memberName(m.Group, m.Name))
	}
}

func memberName(key selection.GroupKey, name types.NamespacedName) string {
	return fmt.Sprintf("%s/%s", name, key)
}

// changedValues returns the changed objects by key; nil for one that is gone. It returns none before
// the Store is synced, and no objects without policies. all asks for all objects.
func (s *Store) changedValues(all bool) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSynced() {
		return nil
	}
	out := map[string][]byte{keySynced: []byte(s.input())}
	if len(s.policies) == 0 {
		clear(s.unwritten)
		return out
	}
	if all {
		s.recordAll()
	}
	var members map[string][]byte
	for key := range s.unwritten {
		kind, name, _ := strings.Cut(strings.TrimPrefix(key, CheckpointPrefix), "/")
		namespace, rest, _ := strings.Cut(name, "/")
		named := types.NamespacedName{Namespace: namespace, Name: rest}
		switch kind + "/" {
		case ofPolicy:
			out[key] = encode(s.policies[named], s.policies[named] != nil)
		case ofPod:
			out[key] = encode(s.pods[named], s.pods[named] != nil)
		case ofSpace:
			labels, known := s.spaces[name]
			out[key] = encode(storedNamespace{name, labels}, known)
		case ofMember:
			if members == nil {
				members = s.members()
			}
			out[key] = members[key]
		}
	}
	clear(s.unwritten)
	return out
}

// storedInput returns the value of keySynced.
func (s *Store) storedInput() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.input()
}

func (s *Store) input() string {
	if s.published != nil {
		return storedGroups
	}
	return storedPods
}

// members returns the values of all members of groups by key.
func (s *Store) members() map[string][]byte {
	out := map[string][]byte{}
	for m := range s.published.All() {
		out[CheckpointPrefix+ofMember+memberName(m.Group, m.Name)] = encode(storedMember(m), true)
	}
	return out
}

func encode(v any, exists bool) []byte {
	if !exists {
		return nil
	}
	value, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // plain data: a bug
	}
	return value
}

func sum(value []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(value) // a hash never fails
	return h.Sum64()
}
