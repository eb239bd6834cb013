package leaks

import (
	"errors"
	"slices"
	"testing"

	"berth/agent"
)

func TestUnmarkedLeaksAreKeptBesideOtherPrograms(t *testing.T) {
	t.Parallel()
	marked := agent.Leak{Name: "marked", Ownership: agent.Marked}
	address := agent.Leak{Name: "address", Ownership: agent.Unreferenced}
	pin := agent.Leak{Name: "pin", Ownership: agent.UnreferencedShared}
	for name, c := range map[string]struct {
		found  []agent.Leak
		shared bool
		err    error
		want   []string
		asked  bool
	}{
		"alone on the host": {
			[]agent.Leak{marked, address, pin}, false, nil, []string{"marked", "address", "pin"}, true,
		},
		"other programs":     {[]agent.Leak{address, marked, pin}, true, nil, []string{"marked"}, true},
		"only marked leaks":  {[]agent.Leak{marked}, true, nil, []string{"marked"}, false},
		"nothing":            {nil, true, nil, nil, false},
		"owners are unknown": {[]agent.Leak{marked, pin}, false, errors.New("runtime is unavailable"), nil, true},
	} {
		asked := false
		got, err := own(c.found, func() (bool, error) { asked = true; return c.shared, c.err })
		var names []string
		for _, l := range got {
			names = append(names, l.Name)
		}
		if !slices.Equal(names, c.want) || !errors.Is(err, c.err) || asked != c.asked {
			t.Errorf("%s: got %v %v, asked %v", name, names, err, asked)
		}
	}
}
