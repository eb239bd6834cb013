package autoscaling

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"

	wt "berth/workloads/workloadstest"
)

// TestStabilization: the windows hold back changes until they have passed.
func TestStabilization(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		behavior  *autoscalingv2.HorizontalPodAutoscalerBehavior
		before    []Recommendation
		usage     int64 // of each of 4 pods, with 50 as target
		want      int32
		condition string
	}{
		"down, recent higher one": {
			before: []Recommendation{{4, now.Add(-4 * time.Minute)}}, usage: 10, want: 4,
			condition: "ScaleDownStabilized",
		},
		"down, old higher one": {
			before: []Recommendation{{4, now.Add(-6 * time.Minute)}}, usage: 10, want: 1, condition: "ReadyForNewScale",
		},
		"down, recent one in between": {
			before: []Recommendation{{3, now.Add(-time.Minute)}}, usage: 10, want: 3, condition: "ScaleDownStabilized",
		},
		"up without a window": {
			before: []Recommendation{{1, now.Add(-time.Second)}}, usage: 75, want: 6, condition: "ReadyForNewScale",
		},
		"up, recent lower one": {
			behavior: behavior(60, 0, 10),
			before:   []Recommendation{{5, now.Add(-50 * time.Second)}}, usage: 75, want: 5,
			condition: "ScaleUpStabilized",
		},
		"up, old lower one": {
			behavior: behavior(60, 0, 10),
			before:   []Recommendation{{5, now.Add(-70 * time.Second)}}, usage: 75, want: 6,
			condition: "ReadyForNewScale",
		},
		"down, a window of its own": {
			behavior: behavior(0, 10, 10),
			before:   []Recommendation{{4, now.Add(-11 * time.Second)}}, usage: 10, want: 1,
			condition: "ReadyForNewScale",
		},
	}
	for name, row := range rows {
		in := newInput(utilization(50), row.usage, row.usage, row.usage, row.usage)
		in.Autoscaler.Spec.Behavior, in.Memory.Recommendations = row.behavior, row.before
		d := Decide(in)
		if got := d.Status.Conditions[0].Reason; d.Replicas != row.want || got != row.condition {
			t.Errorf("%s: got %d replicas, %s, want %d, %s", name, d.Replicas, got, row.want, row.condition)
		}
	}
}

// TestPolicies: the target has 10 replicas and had a change 30 s ago. The policies limit what is added or removed.
func TestPolicies(t *testing.T) {
	t.Parallel()
	pods := func(n, period int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: period}
	}
	percent := func(n, period int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: period}
	}
	rows := map[string]struct {
		selected  autoscalingv2.ScalingPolicySelect
		policies  []autoscalingv2.HPAScalingPolicy
		ups       int32
		downs     int32
		high, low int32
	}{
		"pods":                       {policies: []autoscalingv2.HPAScalingPolicy{pods(3, 60)}, high: 13, low: 7},
		"percent rounds up and down": {policies: []autoscalingv2.HPAScalingPolicy{percent(15, 60)}, high: 12, low: 8},
		"the greater change": {
			policies: []autoscalingv2.HPAScalingPolicy{pods(1, 60), percent(50, 60)}, high: 15, low: 5,
		},
		"the smaller change": {
			selected: "Min", policies: []autoscalingv2.HPAScalingPolicy{pods(1, 60), percent(50, 60)}, high: 11, low: 9,
		},
		"disabled": {
			selected: "Disabled", policies: []autoscalingv2.HPAScalingPolicy{pods(3, 60)}, high: 10, low: 10,
		},
		"after an addition":  {policies: []autoscalingv2.HPAScalingPolicy{pods(3, 60)}, ups: 2, high: 11, low: 5},
		"after a removal":    {policies: []autoscalingv2.HPAScalingPolicy{pods(3, 60)}, downs: 2, high: 15, low: 9},
		"after more":         {policies: []autoscalingv2.HPAScalingPolicy{pods(3, 60)}, ups: 5, high: 10, low: 2},
		"in a former period": {policies: []autoscalingv2.HPAScalingPolicy{pods(3, 15)}, ups: 2, high: 13, low: 7},
	}
	for name, row := range rows {
		in := newInput(utilization(50), make([]int64, 10)...)
		b := behavior(0, 0, 1)
		for _, rules := range []*autoscalingv2.HPAScalingRules{b.ScaleUp, b.ScaleDown} {
			rules.Policies = row.policies
			if row.selected != "" {
				rules.SelectPolicy = &row.selected
			}
		}
		in.Autoscaler.Spec.Behavior, in.Autoscaler.Spec.MaxReplicas = b, 100
		at := now.Add(-30 * time.Second)
		in.Memory.ScaleUps = []ScaleEvent{{row.ups, at}}
		in.Memory.ScaleDowns = []ScaleEvent{{row.downs, at}}
		high, low := (&Decision{in: in, Memory: in.Memory}).policyLimits()
		if high != row.high || low != row.low {
			t.Errorf("%s: got %d and %d, want %d and %d", name, high, low, row.high, row.low)
		}
	}
}

// world is a target whose load is shared by its pods. The load is the CPU usage of the pods or an External metric.
type world struct {
	external bool
	t        *testing.T
	rng      *rand.Rand
	now      time.Time
	in       Input // of the last decision
	replicas int32
	load     int64 // milli-cores of all pods together
	memory   Memory
	changes  []change
	proposed []Recommendation
}

// change is a change of the scale by the autoscaler.
type change struct {
	at    time.Time
	delta int32
	limit bool // minReplicas or maxReplicas demanded it
}

// sync lets the autoscaler decide once and checks A1 to A4.
func (w *world) sync() {
	usages := make([]int64, w.replicas)
	for i := range usages {
		usages[i] = w.load / int64(w.replicas)
	}
	spec := w.in.Autoscaler
	w.in = newInput(utilization(50), usages...)
	w.in.Autoscaler, w.in.Now, w.in.Memory = spec, w.now, w.memory
	for i := range w.in.Usage {
		w.in.Usage[i].At = w.now
	}
	failing := w.rng.IntN(6) == 0 && w.replicas > 0
	if w.external {
		w.in.Autoscaler = w.in.Autoscaler.DeepCopy()
		w.in.Autoscaler.Spec.Metrics = []autoscalingv2.MetricSpec{externalMetricOf(averageTarget("50"))}
		w.in.Usage, w.in.Values = nil, []Values{{Total: w.load * 1000}}
	}
	if failing && w.external {
		w.in.Values = []Values{{Err: errors.New("injected failure")}}
	} else if failing && w.rng.IntN(2) == 0 {
		w.in.Usage = w.in.Usage[:w.rng.IntN(int(w.replicas))]
	} else if failing {
		w.in.UsageError = errors.New("injected failure")
	}
	d := Decide(w.in)
	w.memory = d.Memory
	if n := len(w.memory.Recommendations); n > 0 {
		w.proposed = append(w.proposed, w.memory.Recommendations[n-1])
	}
	if !d.Rescale {
		return
	}
	if w.rng.IntN(8) == 0 {
		w.memory = d.Rescaled(errors.New("injected failure")).Memory
		return
	}
	w.memory = d.Rescaled(nil).Memory
	w.check(d)
	w.replicas = d.Replicas
}

func (w *world) check(d Decision) {
	least, most := *w.in.Autoscaler.Spec.MinReplicas, w.in.Autoscaler.Spec.MaxReplicas
	limit := w.replicas < least || w.replicas > most
	if d.Replicas < least || d.Replicas > most {
		w.t.Errorf("A1: %d replicas, want %d to %d", d.Replicas, least, most)
	}
	w.changes = append(w.changes, change{w.now, d.Replicas - w.replicas, limit})
	failed := w.in.UsageError != nil || w.external && w.in.Values[0].Err != nil
	if failed && !limit && d.Replicas < w.replicas {
		w.t.Errorf("A3: scaled down to %d although a metric failed", d.Replicas)
	}
	b := w.in.Autoscaler.Spec.Behavior
	for _, up := range []bool{true, false} {
		allowed, sum := b.ScaleUp.Policies[0].Value, int32(0)
		for _, c := range w.changes {
			if c.at.After(w.now.Add(-time.Minute)) && (c.delta > 0) == up {
				sum += max(c.delta, -c.delta)
			}
			if c.limit && c.at.After(w.now.Add(-time.Minute)) {
				allowed = 1000 // a limit may demand any change, and changes the start of the period
			}
			if (c.delta > 0) != up && c.at.After(w.now.Add(-time.Minute)) {
				allowed += max(c.delta, -c.delta) // back to the start of the period
			}
		}
		if sum > allowed {
			w.t.Errorf("A2: %d replicas changed within a minute, allowed %d: %+v", sum, allowed, w.changes)
		}
	}
	window := time.Duration(*b.ScaleDown.StabilizationWindowSeconds) * time.Second
	for _, r := range w.proposed {
		if r.At.After(w.now.Add(-window)) && d.Replicas < w.replicas && d.Replicas < min(r.Replicas, most, w.replicas) {
			w.t.Errorf("A4: scaled down from %d to %d, but %d were proposed at %s", w.replicas, d.Replicas,
				r.Replicas, r.At)
		}
	}
}

// settle keeps the load, and checks where the target comes to rest (A5).
func (w *world) settle() {
	w.rng = rand.New(rand.NewPCG(1, 2)) // from here on, only injected failures are random
	if w.replicas == 0 {
		w.replicas = 1
	}
	last := int32(0)
	for range 300 {
		w.now = w.now.Add(15 * time.Second)
		last = w.replicas
		w.sync()
	}
	least, most := *w.in.Autoscaler.Spec.MinReplicas, w.in.Autoscaler.Spec.MaxReplicas
	if w.replicas != last {
		w.t.Errorf("A5: %d replicas become %d", last, w.replicas)
	}
	per := func(n int32) float64 { return float64(w.load/int64(n)) / 50 }
	if w.replicas < most && per(w.replicas) > 1.12 {
		w.t.Errorf("A5: usage is %.2f of the target with %d replicas", per(w.replicas), w.replicas)
	}
	if w.replicas > least && per(w.replicas-1) < 0.88 {
		w.t.Errorf("A5: with a replica less than %d, usage would be %.2f of the target", w.replicas, per(w.replicas-1))
	}
}

func TestModelWorld(t *testing.T) {
	t.Parallel()
	wt.RunSeeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		t.Helper()
		w := &world{t: t, rng: rng, now: now, replicas: 1 + rng.Int32N(5), load: rng.Int64N(1000)}
		w.external = rng.IntN(2) == 0
		w.in = newInput(utilization(50))
		w.in.Autoscaler.Spec.Behavior = behavior(rng.Int32N(2)*60, rng.Int32N(3)*60, 1+rng.Int32N(4))
		for range 100 {
			w.now = w.now.Add(time.Duration(1+rng.IntN(30)) * time.Second)
			switch n := rng.IntN(20); {
			case n < 2:
				w.load = rng.Int64N(1000)
			case n == 2:
				least := 1 + rng.Int32N(4)
				w.in.Autoscaler = w.in.Autoscaler.DeepCopy()
				w.in.Autoscaler.Spec.MinReplicas, w.in.Autoscaler.Spec.MaxReplicas = &least, least+rng.Int32N(15)
			}
			if w.sync(); t.Failed() {
				t.Logf("replicas %d, load %d", w.replicas, w.load)
				return
			}
		}
		w.settle()
	})
}
