package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/status"
)

func TestStatusCacheFollowersReceiveChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := status.New()
		pods := map[string]*corev1.Pod{
			"one": hostfake.PodOf("one", "a"), "two": hostfake.PodOf("two", "a"), "x": hostfake.PodOf("x", "a"),
		}
		snap := func(name string, syncs int64, ip string) *status.Snapshot {
			s := &status.Snapshot{Pod: pods[name], Syncs: syncs}
			s.Status.PodIP = ip
			return s
		}
		b.Put(snap("one", 1, ""))
		var received []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- b.Watch(ctx, func(n status.Event) error {
				switch {
				case n.Added != nil:
					received = append(received, "+"+n.Added.Pod.Name)
				case n.Modified != nil:
					received = append(received, "~"+n.Modified.Pod.Name+n.Modified.Status.PodIP)
				case n.Deleted != nil:
					received = append(received, "-"+n.Deleted.Pod.Name)
				case n.Synced:
					received = append(received, "synced")
				}
				return nil
			})
		}()
		for _, step := range []struct {
			what string
			do   func()
			want string
		}{
			{"existing pods come first", func() {}, "+one synced"},
			{"a new pod", func() { b.Put(snap("two", 1, "")) }, "+two"},
			{"simultaneous changes may be combined", func() {
				b.Put(snap("two", 2, "1"))
				b.Put(snap("two", 3, "2"))
			}, "~two2|~two1 ~two2"},
			{"a sync without a change causes no event", func() { b.Put(snap("two", 4, "2")) }, ""},
			{"neither does a change outside of the object", func() {
				s := snap("two", 5, "2")
				s.Reasons = []status.ReportedReason{{Reason: plan.Reason{Code: "C"}}}
				b.Put(s)
			}, ""},
			{"a removed pod", func() { b.Remove("uid-one") }, "-one"},
			{"a pod that exists only briefly may be omitted", func() {
				b.Put(snap("x", 1, ""))
				b.Remove("uid-x")
			}, "|+x -x"},
		} {
			step.do()
			synctest.Wait()
			if !slices.Contains(strings.Split(step.want, "|"), strings.Join(received, " ")) {
				t.Errorf("%s: got %v, want %s", step.what, received, step.want)
			}
			received = nil
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		full := errors.New("full")
		if err := b.Watch(t.Context(), func(status.Event) error { return full }); !errors.Is(err, full) {
			t.Errorf("got %v, want the error of the handler", err)
		}
	})
}

// TestStatusCacheNotifiesOnEveryField checks every field of a snapshot. Fields about the sync itself
// do not notify.
func TestStatusCacheNotifiesOnEveryField(t *testing.T) {
	t.Parallel()
	silent := map[string]bool{"At": true, "Syncs": true, "Wake": true}
	for field := range reflect.TypeFor[status.Snapshot]().Fields() {
		b := status.New()
		pod := hostfake.PodOf("one", "a")
		b.Put(&status.Snapshot{Pod: pod})
		changed, stop := b.Subscribe()
		s := &status.Snapshot{Pod: pod}
		if v := reflect.ValueOf(s).Elem().FieldByIndex(field.Index); field.Name == "Pod" {
			s.Pod = hostfake.PodOf("one", "b")
		} else if !setNonZero(v) {
			t.Fatalf("no non-zero value for %s", field.Name)
		}
		b.Put(s)
		select {
		case <-changed:
			if silent[field.Name] {
				t.Errorf("a change of %s notifies subscribers", field.Name)
			}
		default:
			if !silent[field.Name] {
				t.Errorf("a change of %s does not notify subscribers", field.Name)
			}
		}
		stop()
	}
}

// setNonZero sets a zero value to a non-zero one and reports whether it could.
func setNonZero(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return true
		}
		for _, f := range v.Fields() {
			if f.CanSet() && setNonZero(f) {
				return true
			}
		}
		return false
	default:
		return false
	}
	return true
}

func TestContainerInstance(t *testing.T) {
	k := func(id string, state plan.ContainerState, attempt uint32) plan.Container {
		return plan.Container{ID: id, Name: "a", State: state, Attempt: attempt}
	}
	for _, c := range []struct {
		what       string
		containers []plan.Container // newest first
		previous   bool
		want       string // ID, or part of the error
	}{
		{"the newest instance", []plan.Container{k("2", plan.Running, 1), k("1", plan.Exited, 0)}, false, "2"},
		{"the instance before a running one", []plan.Container{k("2", plan.Running, 1), k("1", plan.Exited, 0)}, true,
			"1"},
		{"the instance before an exited one", []plan.Container{k("2", plan.Exited, 1), k("1", plan.Exited, 0)}, true,
			"1"},
		{"an exited instance whose predecessor was removed", []plan.Container{k("2", plan.Exited, 1)}, true, "2"},
		{"the first instance has no predecessor", []plan.Container{k("1", plan.Exited, 0)}, true,
			"previous terminated container"},
		{"a running instance is not its own predecessor", []plan.Container{k("2", plan.Running, 1)}, true,
			"previous terminated container"},
		{
			"an instance of another container does not count", []plan.Container{{ID: "b", Name: "b"}}, false,
			`container "a" in pod "p" is waiting to start - no logs yet`,
		},
		{"a container without instances has no predecessor", nil, true,
			`previous terminated container "a" in pod "p" not found`},
	} {
		s := &status.Snapshot{Pod: hostfake.PodOf("p", "a"), Observed: plan.Observed{Containers: c.containers}}
		got, err := s.Instance("a", c.previous)
		if text := fmt.Sprint(got.ID, err); !strings.Contains(strings.TrimSuffix(text, "<nil>"), c.want) ||
			(err == nil) != (got.ID == c.want) {
			t.Errorf("%s: %s", c.what, text)
		}
	}
	for reason, want := range map[string]string{
		"ContainerCreating": "ContainerCreating", "PodInitializing": "PodInitializing",
		"CreateContainerConfigError": "CreateContainerConfigError",
		"ErrImagePull":               "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image",
	} {
		s := &status.Snapshot{Pod: hostfake.PodOf("p", "a")}
		s.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "a", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}
		if _, err := s.Instance("a", false); err == nil ||
			err.Error() != `container "a" in pod "p" is waiting to start: `+want {
			t.Errorf("%s: %v", reason, err)
		}
	}
}
