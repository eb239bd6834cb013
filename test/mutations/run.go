package mutations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// parallel is the number of mutations in progress.
const parallel = 8

// Options select the mutations.
type Options struct {
	Seed  uint64
	Count int
	// Kind limits the mutations to a kind, as Deployment.
	Kind string
	// Examples adds an example to each group of differences.
	Examples bool
	// Record is a file for the answers of the oracle; empty: none.
	Record string
	Report io.Writer
}

// Summary counts mutations.
type Summary struct {
	Sent, Accepted, Different, Groups int
	// Written counts the mutations that were also sent without dry run, and DifferentWritten those whose stored objects
	// differ.
	Written, DifferentWritten int
}

// Run sends mutations to the oracle and to the tested server, and writes the differences. Both servers must be new.
func Run(ctx context.Context, oracle, tested *rest.Config, o Options) (s Summary, err error) {
	all, err := bases()
	if err != nil {
		return s, err
	}
	if o.Kind != "" {
		all = slices.DeleteFunc(all, func(b *base) bool { return !strings.EqualFold(b.kind.Kind, o.Kind) })
	}
	a, err := open(ctx, oracle, all)
	if err != nil {
		return s, fmt.Errorf("kube-apiserver: %w", err)
	}
	b, err := open(ctx, tested, all)
	if err != nil {
		return s, fmt.Errorf("berth-control: %w", err)
	}
	values, err := a.enums(ctx)
	if err != nil {
		return s, err
	}
	r := &run{oracle: a, tested: b}
	for _, base := range all {
		r.compareBase(base)
	}
	all = slices.DeleteFunc(all, func(b *base) bool { return a.current[b.id] == nil })
	list := generate(all, a, values, o)
	if err := r.sendAll(ctx, list); err != nil {
		return s, err
	}
	r.write(o.Report, o.Examples)
	s = r.Summary
	s.Groups = len(r.groups)
	if o.Record != "" {
		err = r.record(o.Record)
	}
	return s, err
}

// pair is a mutation and its base.
type pair struct {
	base *base
	*mutation
}

// generate returns the mutations: as many of each base, in a random order.
func generate(all []*base, s *server, values enums, o Options) (out []pair) {
	if len(all) == 0 {
		return nil
	}
	for _, b := range all {
		h := fnv.New64()
		_, _ = h.Write([]byte(b.id)) // never fails
		g := &generator{rand.New(rand.NewPCG(o.Seed, h.Sum64())), values}
		for range (o.Count + len(all) - 1) / len(all) {
			verb, object := create, b.forCreate()
			switch n := g.IntN(100); {
			case n < 12 && b.kind.HasStatus:
				verb = status
			case n < 50:
				verb = update
			}
			if verb != create {
				object = s.current[b.id]
			}
			if m := g.mutate(b, verb, object); m != nil {
				out = append(out, pair{b, m})
			}
		}
	}
	order := rand.New(rand.NewPCG(o.Seed, 0))
	order.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// run is a comparison in progress.
type run struct {
	oracle, tested *server
	differences
	Summary
	answers []recorded
	writes  writer
}

// compareBase compares how the servers have stored a base.
func (r *run) compareBase(b *base) {
	if r.oracle.errs[b.id] != r.tested.errs[b.id] {
		r.add(groupKey{b.kind.name(), "base", "", "rejected"},
			fmt.Sprintf("%s\n      kube-apiserver: %s\n      berth-control: %s", b.id, r.oracle.errs[b.id],
				r.tested.errs[b.id]))
	}
	was, now := r.oracle.current[b.id], r.tested.current[b.id]
	if was == nil || now == nil {
		return
	}
	both := [2]*judgement{}
	for i, object := range []map[string]any{was, now} {
		both[i] = &judgement{Code: http.StatusOK, object: copyJSON(object).(map[string]any)}
		normalize(b.kind, both[i].object, b.object, nil)
	}
	for _, key := range compare(both[0], both[1]) {
		key.kind, key.verb = b.kind.name(), "base"
		r.add(key, describe(&mutation{Base: b.id, Verb: "base"}, both[0], both[1]))
	}
}

func (r *run) sendAll(ctx context.Context, list []pair) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, errs := make(chan pair), make(chan error, parallel)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for p := range work {
				if err := r.sendBoth(ctx, p); err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	for _, p := range list {
		select {
		case work <- p:
		case <-ctx.Done():
		}
	}
	close(work)
	workers.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// sendBoth sends a mutation to both servers.
func (r *run) sendBoth(ctx context.Context, p pair) error {
	a, ok, err := r.oracle.judge(ctx, p.base, p.mutation)
	if err != nil || !ok {
		return err
	}
	b, ok, err := r.tested.judge(ctx, p.base, p.mutation)
	if err != nil || !ok {
		return err
	}
	keys := compare(a, b)
	for _, key := range keys {
		key.kind, key.verb = p.base.kind.name(), p.Verb
		r.add(key, describe(p.mutation, a, b))
	}
	written, writtenKeys := false, []groupKey(nil)
	if len(keys) == 0 && p.Verb == create && a.Code < http.StatusBadRequest {
		if written, writtenKeys, err = r.writeBoth(ctx, p); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if written {
		r.Written++
		if len(writtenKeys) > 0 {
			r.DifferentWritten++
		}
	}
	r.Sent++
	if a.Code < http.StatusBadRequest {
		r.Accepted++
	}
	if len(keys) > 0 {
		r.Different++
	}
	r.answers = append(r.answers, recorded{mutation: *p.mutation, judgement: *a, same: len(keys) == 0,
		Stored: storedEdits(a.sent, a.object)})
	return nil
}

// enums returns the values of fields from the OpenAPI document of a server.
func (s *server) enums(ctx context.Context) (enums, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/openapi/v2", nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var document struct {
		Definitions map[string]struct {
			Properties map[string]struct {
				Enum []string `json:"enum"`
			} `json:"properties"`
		} `json:"definitions"`
	}
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil {
		return nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	out := enums{}
	for name, d := range document.Definitions {
		for property, p := range d.Properties {
			if len(p.Enum) > 0 {
				out[name+"."+property] = p.Enum
			}
		}
	}
	return out, nil
}

// compareMutations orders mutations for a file.
func compareMutations(a, b recorded) int {
	return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.String(), b.String()))
}
