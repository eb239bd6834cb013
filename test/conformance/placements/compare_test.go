package placements

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestCompareNodes(t *testing.T) {
	t.Parallel()
	scores := func(a, b int64) map[string]map[string]int64 {
		return map[string]map[string]int64{"a": {"P": a, "Q": 7}, "b": {"P": b, "Q": 7}}
	}
	withoutQ := map[string]map[string]int64{"a": {"P": 1}, "b": {"P": 2}}
	for name, c := range map[string]struct {
		d    decision
		own  map[string]map[string]int64
		want string // in the report; empty: no difference
	}{
		"equal":                       {decision{node: "b", scores: scores(1, 2)}, scores(1, 2), ""},
		"a tie":                       {decision{node: "a", scores: scores(2, 2)}, scores(2, 2), ""},
		"one feasible node":           {decision{node: "a"}, map[string]map[string]int64{"a": {"P": 1}}, ""},
		"a skipped plugin":            {decision{node: "b", scores: withoutQ}, scores(1, 2), ""},
		"another score":               {decision{node: "b", scores: scores(1, 3)}, scores(1, 2), "P scores b 3"},
		"another winner":              {decision{node: "a", scores: scores(1, 2)}, scores(1, 2), "binds to a"},
		"another feasible node":       {decision{node: "a"}, scores(1, 2), "feasible: [a b]"},
		"a plugin that is not scored": {decision{node: "a", scores: scores(2, 1)}, withoutQ, "binds to"},
	} {
		got := compareNodes(c.d, c.own)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestCompareRejection gives wrong decisions of kube-scheduler for a pod that fits no node.
func TestCompareRejection(t *testing.T) {
	t.Parallel()
	c := newCluster(1, rand.New(rand.NewPCG(1, 0)))
	for _, n := range c.nodes {
		n.Spec.Unschedulable = true
	}
	s := &state{cluster: c, pods: map[types.UID]*corev1.Pod{}}
	pod := newPod(c, 0, rand.New(rand.NewPCG(1, 0)))
	result := s.placement().Schedule(pod, s.related(pod))
	right := result.Message() + " preemption: " +
		s.placement().Preempt(pod, result, nil, s.related(pod)).Message
	for name, row := range map[string]struct {
		d     decision
		equal bool
	}{
		"the same message":   {decision{message: right}, true},
		"another message":    {decision{message: "0/1 nodes are available"}, false},
		"an unexpected node": {decision{node: c.nodes[0].Name}, false},
		"an unexpected preemption": {decision{message: right, nominated: c.nodes[0].Name, victims: []string{"a/b"}},
			false},
		"an unexpected nomination": {decision{message: right, nominated: c.nodes[0].Name}, false},
	} {
		if diff := s.compare(pod, row.d); (diff == "") != row.equal {
			t.Errorf("%s: got %q", name, diff)
		}
	}
}

func TestSchedulerLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	line := func(pod, node, score string) string {
		return `I1125 15:38:36.000000       1 schedule_one.go:985] "Plugin scored node for pod" pod="` + pod +
			`" plugin="ImageLocality" node="` + node + `" score=` + score + "\n"
	}
	l := &schedulerLog{path: path}
	check := func(want map[string]map[string]int64) {
		t.Helper()
		got, err := l.scores("ns/pod")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v %v, want %v", got, err, want)
		}
	}
	write(line("ns/pod", "a", "1") + line("ns/other", "a", "5") + "another line\n" + line("ns/pod", "b", "-2"))
	check(map[string]map[string]int64{"a": {"ImageLocality": 1}, "b": {"ImageLocality": -2}})
	check(map[string]map[string]int64{})
	next := line("ns/pod", "a", "30")
	write(next[:20])
	check(map[string]map[string]int64{})
	write(next[20:])
	check(map[string]map[string]int64{"a": {"ImageLocality": 30}})
}
