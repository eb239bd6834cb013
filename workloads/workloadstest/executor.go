package workloadstest

import (
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"berth/workloads"
)

// ErrKilled is returned by Sync if the executor was killed. It has restarted.
var ErrKilled = errors.New("the executor was killed")

// Executor executes the decisions of one controller.
type Executor struct {
	Server *Server
	View   *View
	Rand   *rand.Rand
	// Kill, if set, is asked before each write and after the last one whether the executor is killed now.
	Kill func() bool
}

// NewExecutor returns an executor with a view of its own.
func NewExecutor(s *Server, rng *rand.Rand) *Executor {
	return &Executor{Server: s, View: s.NewView(), Rand: rng}
}

// Sync calls decide for an object of the view and executes the decision. It does nothing if the view does not have the
// object. wake is the wake time of the decision, zero if it was not executed in full; err is the first error of a
// write, or ErrKilled.
//
// Writes that may run concurrently are applied in random order, and after an error a random number of those that were
// started with the failed one is still applied. A status of its own that was written before does not have to be
// observed: a status write with an old version fails with a conflict. Sync panics if the API would reject the status.
func Sync[T workloads.Object, S any](e *Executor, namespace, name string,
	decide func(T, *workloads.WriteError) workloads.Decision[S]) (wake time.Time, err error) {
	e.View.fulfill()
	object, found := Observed[T](e.View, namespace, name)
	if !found {
		return time.Time{}, nil
	}
	decision := checked(e, object, decide, nil)
	writer := &writer{e: e, owner: object, version: object.GetResourceVersion()}
	failed := writer.writeAll(decision.Writes)
	if writer.killed {
		return time.Time{}, ErrKilled
	}
	if failed != nil {
		e.View.fulfill()
		if object, found = Observed[T](e.View, namespace, name); !found {
			return time.Time{}, failed
		}
		writer.version = object.GetResourceVersion()
		decision = checked(e, object, decide, failed)
	}
	if e.killed() {
		return time.Time{}, ErrKilled
	}
	if decision.Status != nil {
		next := clone(object)
		field(next, "Status").Set(reflect.ValueOf(decision.Status).Elem())
		next.SetAnnotations(withAnnotations(next.GetAnnotations(), decision.Annotations))
		next.SetResourceVersion(writer.version)
		e.Server.checkStatus(next)
		err = e.Server.UpdateStatus(next)
	}
	for _, event := range decision.Events {
		e.record(KeyOf(object), event, "")
	}
	if failed != nil {
		return time.Time{}, failed
	}
	if e.killed() {
		return time.Time{}, ErrKilled
	}
	return decision.Wake, err
}

func withAnnotations(annotations, more map[string]string) map[string]string {
	if len(more) == 0 {
		return annotations
	}
	out := maps.Clone(more)
	for k, v := range annotations {
		if _, set := more[k]; !set {
			out[k] = v
		}
	}
	return out
}

// checked calls decide and, in one of four calls, panics if an observed object was modified.
func checked[T workloads.Object, S any](e *Executor, object T,
	decide func(T, *workloads.WriteError) workloads.Decision[S],
	failed *workloads.WriteError) workloads.Decision[S] {
	decision := decide(object, failed)
	if e.Rand.IntN(4) > 0 {
		return decision
	}
	if keys := e.View.modified(); len(keys) > 0 {
		panic("Decide modified its input: " + strings.Join(keys, ", "))
	}
	return decision
}

func (e *Executor) killed() bool {
	if e.Kill == nil || !e.Kill() {
		return false
	}
	e.View.Restart()
	return true
}

func (e *Executor) record(object Key, event workloads.Event, name string) {
	if event.Reason == "" {
		return
	}
	if strings.Contains(event.Message, "%s") {
		event.Message = strings.ReplaceAll(event.Message, "%s", name)
	}
	e.Server.Events = append(e.Server.Events, RecordedEvent{object, event})
}

// writer applies the writes of one decision.
type writer struct {
	e       *Executor
	owner   workloads.Object
	version string // the resource version of owner after its last write
	killed  bool
}

func (w *writer) writeAll(writes []workloads.Write) *workloads.WriteError {
	for len(writes) > 0 {
		n := 1
		for n < len(writes) && concurrent(writes[0], writes[n]) {
			n++
		}
		if failed := w.writeGroup(writes[:n]); failed != nil || w.killed {
			return failed
		}
		writes = writes[n:]
	}
	return nil
}

func concurrent(a, b workloads.Write) bool {
	return a.Verb == b.Verb && reflect.TypeOf(a.Object) == reflect.TypeOf(b.Object)
}

func (w *writer) writeGroup(writes []workloads.Write) (first *workloads.WriteError) {
	for _, i := range w.e.Rand.Perm(len(writes)) {
		if first != nil && w.e.Rand.IntN(2) == 0 {
			break
		}
		if w.e.killed() {
			w.killed = true
			return nil
		}
		if err := w.write(writes[i]); err != nil && first == nil {
			first = &workloads.WriteError{Write: writes[i], Err: err}
		}
	}
	return first
}

func (w *writer) write(write workloads.Write) error {
	key := KeyOf(w.owner)
	written, err := w.e.Server.Apply(key, string(w.owner.GetUID()), write)
	if err != nil {
		w.e.record(key, write.Failure, err.Error())
		return err
	}
	w.e.View.expect(KeyOf(written).Kind)
	if written.GetUID() == w.owner.GetUID() {
		w.version = written.GetResourceVersion()
	}
	w.e.record(key, write.Success, written.GetName())
	return nil
}
