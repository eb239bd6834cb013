package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"berth/agent/board"
	"berth/agent/plan"
)

func TestFollowersOfTheBoardHearWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := board.New()
		at := func(name string, passes int64, ip string) *Snapshot {
			s := &Snapshot{Pod: podOf(name, "a"), Passes: passes}
			s.Status.PodIP = ip
			return s
		}
		b.Put(at("one", 1, ""))
		var heard []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- b.Follow(ctx, func(n News) error {
				switch {
				case n.Added != nil:
					heard = append(heard, "+"+n.Added.Pod.Name)
				case n.Modified != nil:
					heard = append(heard, "~"+n.Modified.Pod.Name+n.Modified.Status.PodIP)
				case n.Gone != nil:
					heard = append(heard, "-"+n.Gone.Pod.Name)
				case n.Synced:
					heard = append(heard, "synced")
				}
				return nil
			})
		}()
		for _, step := range []struct {
			what string
			do   func()
			want string
		}{
			{"what is there comes first", func() {}, "+one synced"},
			{"a new pod", func() { b.Put(at("two", 1, "")) }, "+two"},
			{"changes that come at once may be one", func() { b.Put(at("two", 2, "1")); b.Put(at("two", 3, "2")) }, "~two2|~two1 ~two2"},
			{"a pass without news is none", func() { b.Put(at("two", 4, "2")) }, ""},
			{"the end of a pod", func() { b.Remove("uid-one") }, "-one"},
			{"one that came and went may not be told", func() { b.Put(at("x", 1, "")); b.Remove("uid-x") }, "|+x -x"},
		} {
			step.do()
			synctest.Wait()
			// what a pass without news left is told with the next change
			got := slices.DeleteFunc(heard, func(s string) bool { return s == "~two2" && !strings.Contains(step.want, s) })
			if !slices.Contains(strings.Split(step.want, "|"), strings.Join(got, " ")) {
				t.Errorf("%s: %v, want %s", step.what, got, step.want)
			}
			heard = nil
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		full := errors.New("full")
		if err := b.Follow(t.Context(), func(News) error { return full }); !errors.Is(err, full) {
			t.Errorf("the listener's error is lost: %v", err)
		}
	})
}

func TestInstanceOfAContainer(t *testing.T) {
	k := func(id string, state plan.State, attempt uint32) plan.Container {
		return plan.Container{ID: id, Name: "a", State: state, Attempt: attempt}
	}
	for _, c := range []struct {
		what     string
		seen     []plan.Container // newest first
		previous bool
		want     string // ID, or part of the error
	}{
		{"the newest", []plan.Container{k("2", plan.Running, 1), k("1", plan.Exited, 0)}, false, "2"},
		{"the one before a running one", []plan.Container{k("2", plan.Running, 1), k("1", plan.Exited, 0)}, true, "1"},
		{"the one before an ended one", []plan.Container{k("2", plan.Exited, 1), k("1", plan.Exited, 0)}, true, "1"},
		{"an ended one whose forerunner is gone", []plan.Container{k("2", plan.Exited, 1)}, true, "2"},
		{"no one was before the first", []plan.Container{k("1", plan.Exited, 0)}, true, "previous terminated container"},
		{"nor is a running one its own", []plan.Container{k("2", plan.Running, 1)}, true, "previous terminated container"},
		{"another container's does not count", []plan.Container{{ID: "b", Name: "b"}}, false, "has not been started yet"},
	} {
		s := &Snapshot{Pod: podOf("p", "a"), Seen: plan.Observed{Containers: c.seen}}
		got, err := s.Instance("a", c.previous)
		if said := fmt.Sprint(got.ID, err); !strings.Contains(strings.TrimSuffix(said, "<nil>"), c.want) || (err == nil) != (got.ID == c.want) {
			t.Errorf("%s: %s", c.what, said)
		}
	}
}
