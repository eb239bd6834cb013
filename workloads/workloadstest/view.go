package workloadstest

import (
	"math/rand/v2"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"berth/workloads"
)

// View is what the informers of one controller have observed. Each kind lags behind the server by a number of changes
// of its own.
type View struct {
	server   *Server
	state    map[Key]observed
	position map[string]int // by kind: the number of changes seen
	least    map[string]int // by kind: the number of changes that must be seen before the next decision
}

// observed is an object as given to Decide, and a copy that Decide cannot reach.
type observed struct{ given, copy workloads.Object }

// NewView returns a view that has seen everything.
func (s *Server) NewView() *View {
	v := &View{server: s}
	v.Restart()
	return v
}

// Restart forgets what was seen and expected and lists all objects, as a controller does that starts.
func (v *View) Restart() {
	v.state, v.position, v.least = map[Key]observed{}, map[string]int{}, map[string]int{}
	for k, o := range v.server.objects {
		v.state[k] = observed{clone(o), o}
	}
	for kind, changes := range v.server.changes {
		v.position[kind] = len(changes)
	}
}

// CatchUp makes the view see everything.
func (v *View) CatchUp() {
	for _, kind := range v.kinds() {
		v.seeUntil(kind, len(v.server.changes[kind]))
	}
}

// Advance makes the view see a random number of the outstanding changes of each kind.
func (v *View) Advance(rng *rand.Rand) {
	for _, kind := range v.kinds() {
		if n := len(v.server.changes[kind]) - v.position[kind]; n > 0 && rng.IntN(3) > 0 {
			v.seeUntil(kind, v.position[kind]+rng.IntN(n+1))
		}
	}
}

// fulfill makes the view see the writes of its own controller.
func (v *View) fulfill() {
	for kind, n := range v.least {
		v.seeUntil(kind, n)
	}
}

// expect records that everything of a kind until now must be seen before the next decision.
func (v *View) expect(kind string) { v.least[kind] = len(v.server.changes[kind]) }

func (v *View) seeUntil(kind string, n int) {
	for v.position[kind] < n {
		c := v.server.changes[kind][v.position[kind]]
		v.position[kind]++
		if c.object == nil {
			delete(v.state, c.key)
		} else {
			v.state[c.key] = observed{clone(c.object), c.object}
		}
	}
}

func (v *View) kinds() (out []string) {
	for kind := range v.server.changes {
		out = append(out, kind)
	}
	slices.Sort(out)
	return out
}

// modified returns the observed objects that have been modified since they were observed.
func (v *View) modified() (out []string) {
	for k, o := range v.state {
		if !equality.Semantic.DeepEqual(o.given, o.copy) {
			out = append(out, k.String())
		}
	}
	slices.Sort(out)
	return out
}

// Observed returns an object as observed. The caller must not modify it.
func Observed[T workloads.Object](v *View, namespace, name string) (object T, found bool) {
	o, ok := v.state[Key{kindFor[T](), namespace, name}]
	if !ok {
		return object, false
	}
	return as[T](o.given), true
}

// ObservedList returns the objects of a kind as observed, ordered by namespace and name. The caller must not modify
// them.
func ObservedList[T workloads.Object](v *View) (out []T) {
	for k, o := range v.state {
		if k.Kind == kindFor[T]() {
			out = append(out, as[T](o.given))
		}
	}
	slices.SortFunc(out, func(a, b T) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out
}
